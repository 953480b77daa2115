"""An engine for tests: the stub server as a program, which can refuse to start or die.

`python fake_engine.py serve MODEL --port P [--fail METHOD] [--die-at N]` also takes flags of vLLM;
the speculative configuration decides what it accepts. It starts a child, as engines do.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.stub_server import Stub


def main() -> None:
    """Serve until the end, or die as the arguments say."""
    from aiohttp import web

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name", default="tiny")
    parser.add_argument("--speculative-config", type=json.loads, default={})
    parser.add_argument("--eos", type=int, default=2)
    parser.add_argument("--fail", default="")
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--children", type=Path)
    given, _ = parser.parse_known_args()
    method = given.speculative_config.get("method", "vanilla")
    print(f"starting {method}", flush=True)
    if given.fail == method:
        print("RuntimeError: no memory left", flush=True)
        sys.exit(3)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if given.children:
        given.children.write_text(f"{os.getpid()} {child.pid}")
    accepted = (2, 1) if given.speculative_config else None
    stub = Stub(eos=given.eos, model=given.served_model_name, accepted_per_step=accepted)

    def answer(prompt: object) -> tuple[int, ...]:
        if given.die_at and len(stub.requests) >= given.die_at:
            print("EngineCore died", flush=True)
            os._exit(7)
        return (40, 41, 42, 43, 44, given.eos)

    async def end(app: web.Application) -> None:
        child.terminate()
        child.wait()  # else it waits for init, and the keeper with it

    stub.answer, loop, app = answer, asyncio.new_event_loop(), stub.app()
    app.on_cleanup.append(end)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None, loop=loop)


if __name__ == "__main__":
    main()
