r"""Tokens per second of our methods and of other programs on the same weights, in turns.

    python -m benchmarks.peers                          # tiny, with 1 and with all threads
    python -m benchmarks.peers --llama-server PATH --gguf tiny.gguf --vllm PATH
    python -m benchmarks.peers --stand-in tinyllama-1.1b --dtype bfloat16 --limit 2 \
        --num-tokens 24 --llama-server PATH --gguf stand-in.gguf
    OMP_WAIT_POLICY=ACTIVE python -m benchmarks.peers   # threads that spin while they wait

Our methods are vanilla, SpS and PLD. The other programs are transformers' `generate`, its assisted
generation and its prompt lookup, and, if they are named, the servers of llama.cpp and vLLM. With
`--stand-in`, only vanilla on that model's stand-in and llama.cpp on the same weights are measured.
Everything is greedy, in one dtype, one prompt at a time, on an idle machine and beside a process
with two busy threads. Each prompt is completed by all of them one after the other, and the first
round is not counted.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

from benchmarks.neighbour import TWO_THREADS, neighbour
from specbench.machine.threads import usable_threads, wait_briefly
from specbench.measure.server.engines.llamacpp import FLOAT32

T = TypeVar("T")
Complete: TypeAlias = Callable[[Sequence[int]], int]
"""Completes a prompt and returns the number of new tokens."""

OURS = ("vanilla", "sps", "pld")
"""Our methods, vanilla first."""
PROMPT_LOOKUP_TOKENS = 10
START_S = 600.0
"""Most seconds that a server may take to start."""


def main() -> None:
    """Measure and print the table."""
    given = parse(sys.argv[1:])
    wait_briefly()
    all_threads = usable_threads() or 1
    cells: dict[tuple[int, bool], Mapping[str, float]] = {}
    prompts = [prompt_ids(text) for text in texts()[: given.limit]]
    for num_threads in sorted({1, all_threads}):
        with peers(given, num_threads) as programs:
            for is_busy in (False, True):
                with neighbour(is_busy, TWO_THREADS):
                    cells[num_threads, is_busy] = rates(programs, prompts, given.rounds)
    print("\n".join(table(cells)))


def parse(words: Sequence[str]) -> Namespace:
    """The arguments of a command line."""
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--num-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5, help="rounds; the first is not counted")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server, with --gguf")
    parser.add_argument("--gguf", type=Path, help="tiny's target in float32")
    parser.add_argument("--vllm", type=Path, help="vLLM's command")
    parser.add_argument("--stand-in", default="", help="a known model, instead of tiny")
    parser.add_argument("--dtype", default="float32", help="number format of the stand-in")
    parser.add_argument("--limit", type=int, help="number of prompts")
    return parser.parse_args(words)


def texts() -> list[str]:
    """The first bundled prompt of each task."""
    from specbench.data.prompts import load_prompt_sets, plan_tasks

    sets = load_prompt_sets(plan_tasks([], "bundled"), "bundled", num_prompts=1)
    return [prompt.turns[0] for prompt_set in sets for prompt in prompt_set.prompts]


def prompt_ids(text: str) -> tuple[int, ...]:
    """The tokens of a prompt in tiny's chat template."""
    from specbench.models.cards import find_model
    from specbench.models.chat import load_codec
    from specbench.zoo import TINY

    codec = load_codec(TINY / "target", find_model("tiny"), "auto")
    return codec.render([{"role": "user", "content": text}])


def rates(
    programs: Mapping[str, Complete], prompts: Sequence[Sequence[int]], rounds: int
) -> dict[str, float]:
    """Tokens per second of each program. All of them complete a prompt before the next prompt."""
    seconds, tokens = dict.fromkeys(programs, 0.0), dict.fromkeys(programs, 0)
    for turn in range(rounds):
        for prompt in prompts:
            for name, complete in programs.items():
                began = time.perf_counter()
                count = complete(prompt)
                if turn:  # the first round is not counted
                    seconds[name] += time.perf_counter() - began
                    tokens[name] += count
    return {name: tokens[name] / seconds[name] for name in programs}


def table(cells: Mapping[tuple[int, bool], Mapping[str, float]]) -> Iterator[str]:
    """Tokens per second in Markdown. Busy machines also have their share of the idle speed.

    The key of a cell is its number of threads, and True if the machine was busy.
    """
    heads = [
        f"{count} thread{'s' * (count > 1)}, {'busy' if is_busy else 'idle'}"
        for count, is_busy in cells
    ]
    yield f"| tokens/s | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(heads)}"
    for name in next(iter(cells.values())):
        texts = []
        for (count, is_busy), speeds in cells.items():
            share = f" ({speeds[name] / cells[count, False][name]:.0%})" if is_busy else ""
            texts.append(f"{speeds[name]:.0f}{share}")
        yield f"| {name} | {' | '.join(texts)} |"


@contextmanager
def peers(given: Namespace, num_threads: int) -> Iterator[dict[str, Complete]]:
    """Start every available program, to complete prompts with this number of threads."""
    import torch

    torch.set_num_threads(num_threads)
    with ExitStack() as stack:
        programs = ours(stack, given, num_threads)
        if not given.stand_in:
            programs |= transformers(given.num_tokens)
        if given.llama_server and given.gguf:
            programs["llama.cpp"] = llama_cpp(stack, given, num_threads)
        if given.vllm:
            programs["vLLM"] = vllm(stack, given, num_threads)
        yield programs


def ours(stack: ExitStack, given: Namespace, num_threads: int) -> dict[str, Complete]:
    """Our methods on our engine. A stand-in runs only vanilla."""
    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import make_engine_setup
    from specbench.measure.spec import RunSpec
    from specbench.types import Request

    methods = OURS[:1] if given.stand_in else OURS
    model = {"model": given.stand_in, "weights": "stand-in"} if given.stand_in else {}
    spec = RunSpec(methods=methods, device="cpu", dtype=given.dtype, threads=num_threads, **model)
    backend = stack.enter_context(EngineBackend(make_engine_setup(spec, is_offline=True)))

    def complete(method: str, ids: Sequence[int]) -> int:
        return backend.complete(method, Request(tuple(ids), given.num_tokens)).num_tokens

    return {f"specbench {method}": partial(complete, method) for method in methods}


def transformers(num_tokens: int) -> dict[str, Complete]:
    """transformers' `generate` on tiny: plain, with an assistant model, and with prompt lookup."""
    import torch
    from transformers import AutoModelForCausalLM

    from specbench.zoo import TINY

    target, draft = (
        AutoModelForCausalLM.from_pretrained(TINY / name, dtype=torch.float32).eval()
        for name in ("target", "sps")
    )

    def complete(options: Mapping[str, Any], ids: Sequence[int]) -> int:
        with torch.inference_mode():
            out = target.generate(
                torch.tensor([ids]), max_new_tokens=num_tokens, do_sample=False,
                eos_token_id=None, pad_token_id=0, **options,
            )  # fmt: skip
        return int(out.shape[1]) - len(ids)

    return {
        "transformers generate": partial(complete, {}),
        "transformers assisted": partial(complete, {"assistant_model": draft}),
        "transformers prompt lookup": partial(
            complete, {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}
        ),
    }


def llama_cpp(stack: ExitStack, given: Namespace, num_threads: int) -> Complete:
    """llama.cpp's server."""
    flags = ["-t", num_threads, "-tb", num_threads, "-np", 1]
    if given.dtype == "float32":
        flags += FLOAT32
    command = (given.llama_server, "-m", given.gguf, *flags)
    fields = {"n_predict": given.num_tokens, "cache_prompt": False}
    return served(stack, command, "/completion", fields, lambda answer: answer["tokens_predicted"])


def vllm(stack: ExitStack, given: Namespace, num_threads: int) -> Complete:
    """vLLM's server, which takes its number of threads from the environment."""
    from specbench.zoo import TINY

    settings = {
        "OMP_NUM_THREADS": num_threads, "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": 1, "VLLM_NO_USAGE_STATS": 1, "HF_HUB_OFFLINE": 1,
    }  # fmt: skip
    command = (
        "env", *(f"{name}={value}" for name, value in settings.items()),
        given.vllm, "serve", TINY / "target", "--served-model-name", "tiny", "--dtype", "float32",
        "--max-model-len", 2048, "--max-num-seqs", 1, "--no-enable-prefix-caching",
    )  # fmt: skip
    fields = {"model": "tiny", "max_tokens": given.num_tokens}
    path = "/v1/completions"
    return served(stack, command, path, fields, lambda answer: answer["usage"]["completion_tokens"])


def served(
    stack: ExitStack,
    command: Sequence[object],
    path: str,
    fields: Mapping[str, Any],
    read: Callable[[Any], T],
) -> Callable[[Sequence[int]], T]:
    """Start a server, and return a function that sends it a prompt and returns a number.

    The function posts the prompt to `path`, with `fields` added to the request. `read` takes the
    number from the answer.
    """
    import requests

    from specbench.measure.server.process import ServerProcess, free_port

    port = free_port()
    log = Path(stack.enter_context(TemporaryDirectory()), "log")
    process = ServerProcess([*map(str, command), "--port", str(port)], {}, log)
    stack.callback(process.stop)
    session, root = requests.Session(), f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_S
    while True:
        try:
            if session.get(f"{root}/health", timeout=5).ok:
                break
        except requests.ConnectionError:
            pass
        if process.death() or time.monotonic() > deadline:
            raise SystemExit(f"A server does not answer. Its last lines: {process.last_lines()}")
        time.sleep(0.1)

    def complete(ids: Sequence[int]) -> T:
        body = {"prompt": list(ids), "temperature": 0, "ignore_eos": True, **fields}
        answer = session.post(f"{root}{path}", json=body, timeout=600)
        answer.raise_for_status()
        return read(answer.json())

    return complete


if __name__ == "__main__":
    main()
