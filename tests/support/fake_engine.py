"""An engine for tests: the stub server as a program, which can refuse to start or die.

`python fake_engine.py serve MODEL --port P [--fail METHOD] [--die-at N]` also takes flags of vLLM;
the speculative configuration decides what it accepts. It starts a child, as engines do. With
--counts it counts drafts and accepted tokens by position. With flags of SGLang or llama.cpp it
answers as that engine does. A request to llama.cpp may name the size of its drafts.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aiohttp import web

from tests.support.sized_llama import SizedLlama
from tests.support.stub_server import Stub


class CountingStub(Stub):
    """A server that counts drafts, and the tokens accepted at each position."""

    async def _metrics(self, request: web.Request) -> web.Response:
        accepted = self.accepted_per_step or ()
        counts = [f"{name} {count}" for name, count in self.counters.items()]
        for position in range(max(accepted, default=0)):
            count = len(self.requests) * sum(number > position for number in accepted)
            name = f'spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}'
            counts.append(f"{name} {count}")
        return web.Response(text="".join(f"vllm:{line}\n" for line in counts))


def accepted_tokens(given: argparse.Namespace) -> tuple[int, ...] | None:
    """The accepted tokens of each step of an answer of six tokens, or None without speculation."""
    num_tokens = 0
    if given.speculative_config:
        num_tokens = given.speculative_config.get("num_speculative_tokens", 2)
    elif given.speculative_num_draft_tokens:  # of SGLang, with the root
        num_tokens = given.speculative_num_draft_tokens - 1
    return {0: None, 1: (1, 1, 0)}.get(num_tokens, (2, 1))


def main() -> None:
    """Serve until the end, or die as the arguments say."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name", "--alias", default="tiny")
    parser.add_argument("--spec-type")
    parser.add_argument("--speculative-config", type=json.loads, default={})
    parser.add_argument("--eos", type=int, default=2)
    parser.add_argument("--fail", default="")
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--children", type=Path)
    parser.add_argument("--counts", action="store_true")
    parser.add_argument("--model-path")
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=0)
    given, _ = parser.parse_known_args()
    method = given.speculative_config.get("method", "vanilla")
    print(f"starting {method}", flush=True)
    if given.fail == method:
        print("RuntimeError: no memory left", flush=True)
        sys.exit(3)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if given.children:
        given.children.write_text(f"{os.getpid()} {child.pid}")
    stub = (CountingStub if given.counts else Stub)(
        engine="sglang" if given.model_path else "vllm",
        eos=given.eos,
        model=given.served_model_name,
        accepted_per_step=accepted_tokens(given),
    )
    if "--alias" in sys.argv:
        drafted = "follows" if given.spec_type else "absent"
        stub = SizedLlama(model=given.served_model_name, drafted=drafted)
    if given.counts:
        names = ("generation_tokens", "spec_decode_num_accepted_tokens", "spec_decode_num_drafts")
        stub.counters = {f"{name}_total": 0.0 for name in names}

    def answer(prompt: object) -> tuple[int, ...]:
        if given.die_at and len(stub.requests) >= given.die_at:
            print("EngineCore died", flush=True)
            os._exit(7)
        return (40, 41, 42, 43, 44, given.eos)

    async def end(app: web.Application) -> None:
        child.terminate()
        child.wait()  # or else the keeper waits until init reaps it

    stub.answer, loop, app = answer, asyncio.new_event_loop(), stub.app()
    app.on_cleanup.append(end)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None, loop=loop)


if __name__ == "__main__":
    main()
