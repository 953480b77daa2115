"""Measure a step over several rows on a CPU against vanilla's step and the machine's speed.

    python -m benchmarks.step_cost [--model M] [--dtype bfloat16] [--rows N ...] [--threads N ...]
                                   [--neighbour] [--gguf FILE]

M is `tiny`, a folder, or a model of `specbench list models`, which gets random weights.
A drafter proposes chains of wrong tokens, so that each step verifies its rows and emits one token.
Every round times steps over each number of rows, with our kernels and with torch's operations. A
ratio is the median over rounds. The limit of a step is the longer of two times: the time to read
the weights once, and the time to multiply them with the rows. The latter assumes the speed of a
large product in torch, in this number format or in float32, whichever is faster. Both speeds are
measured in every round, and the highest are used. The table also has the share of a step's time
that each phase takes (see `run --phases`).

A draft level is ten nodes of an EAGLE-3 head with a vocabulary of 4,096. Its time is a fourth of
the difference between a draft of depth 5 and a draft of depth 1. With `--neighbour`, another
process keeps one core busy all the time. With `--gguf`, the wheel xllamacpp serves that file, and
llama.cpp's time per token is printed below the table.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import specbench
from benchmarks.neighbour import neighbour
from benchmarks.peers import served
from specbench.engine.clock import PHASES, HostStopwatch, Phase
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.execution import Execution
from specbench.engine.kernels.native_build import user_folder
from specbench.engine.kernels.pick_ops import pick_native_ops
from specbench.engine.layers.emulated import emulates_bfloat16
from specbench.engine.layers.ops import Ops
from specbench.engine.load import load_target
from specbench.engine.model_parts import pass_bytes
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.machine.bandwidth import bandwidth, block_bytes
from specbench.models.cards import find_model
from specbench.registry import get
from specbench.training.eagle3 import Eagle3Head
from specbench.training.head_files import write_head
from specbench.types import Request, Shape
from specbench.zoo import TINY

CPU = torch.device("cpu")
EMULATED = {torch.bfloat16} if emulates_bfloat16() else set()
LLAMA_SERVER = Path(specbench.__file__).with_name("measure") / "server" / "llama_server.py"
PRODUCT = 2048
"""Rows and columns of the product that measures the speed of multiplications."""
DRAFT_VOCAB, DEPTHS, TOP_K = 4096, (1, 5), 10
LlamaCpp: TypeAlias = Callable[[Sequence[int]], float]


class WrongTokens(Drafter):
    """Proposes a chain of one token that the target is unlikely to choose."""

    def __init__(self, rows: int, token: int) -> None:
        self._draft = [token] * (rows - 1)

    def propose(self, state: State) -> DraftTree:
        return state.chain(self._draft)


@dataclass(frozen=True)
class Timed:
    """Means per step of one completion."""

    step_s: float
    mat: float
    phases: Mapping[Phase, float]
    """Seconds of each phase."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table for each number of threads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 5, 8, 9, 17, 31, 44])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=300, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--neighbour", action="store_true", help="keep one core busy")
    parser.add_argument("--gguf", help="the same weights, for llama.cpp's wheel")
    given = parser.parse_args(argv)
    dtype = getattr(torch, given.dtype)
    ways = {"ours": pick_native_ops(dtype, user_folder()), "torch": Ops()}
    targets = {name: load(given.model, dtype, Execution(ops)) for name, ops in ways.items()}
    drafts = heads_of(targets["ours"])
    with neighbour(given.neighbour, "while True: pass"):
        for threads in given.threads:
            torch.set_num_threads(threads)
            with ExitStack() as stack:
                token_s = llama_cpp(stack, given, threads)
                print("\n".join(table(given, targets, drafts, dtype, token_s)), flush=True)
    return 0


def llama_cpp(stack: ExitStack, given: argparse.Namespace, threads: int) -> LlamaCpp | None:
    """A function that measures llama.cpp's seconds per token. None without a GGUF file."""
    if given.gguf is None:
        return None
    flags = ("--threads", threads, "--threads-batch", threads)
    command = (sys.executable, LLAMA_SERVER, "--model", given.gguf, *flags)
    fields = {"n_predict": given.steps}

    def token_s(answer: Any) -> float:
        return float(answer["timings"]["predicted_per_token_ms"]) / 1e3

    return served(stack, command, "/completion", fields, token_s)


def heads_of(target: Target) -> dict[int, Drafter]:
    """EAGLE-3's drafters with an untrained head. The keys are the depths of their drafts."""
    method = get("eagle3")
    with TemporaryDirectory() as folder:
        ids = torch.arange(min(DRAFT_VOCAB, target.vocab_size))
        write_head(Eagle3Head(target.model, ids), Path(folder))
        context = BuildContext(target, Path(folder))
        settings = [method.options(total_tokens=TOP_K, depth=d, top_k=TOP_K) for d in DEPTHS]
        return {options.depth: method.build(options, context) for options in settings}


def load(model: str, dtype: torch.dtype, execution: Execution) -> Target:
    """Load `tiny` or the model of a folder, or make random weights in a known model's shape."""
    path = TINY / "target" if model == "tiny" else Path(model)
    if path.is_dir():
        return load_target(path, dtype=dtype, device=CPU, execution=execution)
    shape = find_model(model).shape
    if shape is None:
        sys.exit(f"The shape of {model} is not known; give a folder.")
    torch.manual_seed(0)
    return Target(AutoModelForCausalLM.from_config(config_of(shape), dtype=dtype).eval(), execution)


def config_of(shape: Shape) -> LlamaConfig:
    """A Llama config of this shape. In small models, the output head is the embedding."""
    return LlamaConfig(
        hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads, vocab_size=shape.vocab_size,
        head_dim=shape.head_dim, max_position_embeddings=shape.context,
        tie_word_embeddings=shape.hidden_size < 1024,
    )  # fmt: skip


def table(
    given: argparse.Namespace,
    targets: Mapping[str, Target],
    drafts: Mapping[int, Drafter],
    dtype: torch.dtype,
    llama_token_s: LlamaCpp | None,
) -> list[str]:
    """Measure with torch's present number of threads, and return the lines of the table."""
    native_target = targets["ours"]
    request = Request(
        tuple(i % (native_target.vocab_size - 9) + 5 for i in range(given.prompt)), given.steps + 1,
        eos_ids=frozenset(),
    )  # fmt: skip
    times: dict[tuple[str, int], list[Timed]] = {}
    drafted: list[list[float]] = []
    llama: list[float] = []
    weight_bytes = pass_bytes(native_target.model)
    block = block_bytes(CPU, weight_bytes)
    bytes_per_s = operations_per_s = 0.0
    for turn in range(given.rounds + 1):
        bytes_per_s = max(bytes_per_s, bandwidth(CPU, block))
        product_speeds = map(product_speed, {dtype, torch.float32} - EMULATED)
        operations_per_s = max(operations_per_s, *product_speeds)
        for rows in sorted({1, *given.rows}):
            for name, target in targets.items():
                timed = steps(target, WrongTokens(rows, native_target.vocab_size - 2), request)
                if turn:  # the first round warms up
                    times.setdefault((name, rows), []).append(timed)
        short_s, deep_s = (
            steps(native_target, drafts[depth], request).phases["draft"] for depth in DEPTHS
        )
        if turn:
            level_s = (deep_s - short_s) / (DEPTHS[1] - DEPTHS[0])
            drafted.append([level_s, level_s / times["ours", 1][-1].step_s, deep_s])
        if llama_token_s:
            llama.append(llama_token_s([i % 9000 + 5 for i in range(given.prompt)]))
    names = " | ".join(PHASES)
    lines = [
        "",
        f"{given.model}, {given.dtype}, {torch.get_num_threads()} threads: "
        f"{weight_bytes / 1e6:.0f} MB of weights, {bytes_per_s / 1e9:.1f} GB/s read, "
        f"{operations_per_s / 1e9:.0f} GFLOP/s",
        f"| rows | ms | of vanilla's | of the limit | {names} | torch ms | tokens |",
        "|---:" * (7 + len(PHASES)) + "|",
    ]
    for rows in given.rows:
        # Bytes / bandwidth, or operations / speed, whichever takes longer.
        num_operations = 2 * weight_bytes / dtype.itemsize * rows
        limit_s = max(weight_bytes / bytes_per_s, num_operations / operations_per_s)
        lines.append(line_of_rows(rows, times, limit_s))
    level_s, share, draft_s = map(median, zip(*drafted, strict=True))
    level_bytes = int(drafts[DEPTHS[1]].bytes_read(1) / (DEPTHS[1] + 1))
    if llama:
        lines.append(f"llama.cpp: {median(llama[1:]) * 1e3:.2f} ms per token")
    return [
        *lines,
        f"A draft level of {TOP_K} nodes ({level_bytes / 1e6:.0f} MB): {level_s * 1e3:.2f} ms, "
        f"{share:.3f} of vanilla's step; a draft of depth {DEPTHS[1]}: {draft_s * 1e3:.2f} ms",
    ]


def line_of_rows(
    num_rows: int, times: Mapping[tuple[str, int], Sequence[Timed]], limit_s: float
) -> str:
    """The line for steps of `num_rows` rows. Keys of `times` are ("ours" or "torch", rows)."""
    native_times, vanilla_times = times["ours", num_rows], times["ours", 1]
    ratios = [
        timed.step_s / base.step_s for timed, base in zip(native_times, vanilla_times, strict=True)
    ]
    shares = [
        median(timed.phases[phase] / timed.step_s for timed in native_times) for phase in PHASES
    ]
    step_s = median(timed.step_s for timed in native_times)
    torch_s = median(timed.step_s for timed in times["torch", num_rows])
    cells = [
        f"{num_rows}",
        f"{step_s * 1e3:.2f}",
        f"{median(ratios):.2f}",
        f"{step_s / limit_s:.2f}",
        *(f"{share:.0%}" for share in shares),
        f"{torch_s * 1e3:.2f}",
        f"{native_times[0].mat:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def steps(target: Target, drafter: Drafter, request: Request) -> Timed:
    """Complete the request once, and return the means per step."""
    done = decode(target, drafter, request, stopwatch=HostStopwatch())
    count = len(done.steps)
    phases = {name: getattr(done.phases, f"{name}_s") / count for name in PHASES}
    emitted = sum(step.accept_length for step in done.steps)
    return Timed(done.decode_s / count, emitted / count, phases)


def product_speed(dtype: torch.dtype) -> float:
    """Operations/s of a large product in torch, from the fastest of three."""
    a = torch.ones(PRODUCT, PRODUCT, dtype=dtype)
    seconds = timeit.repeat(lambda: a @ a, number=1, repeat=3)
    return 2 * PRODUCT**3 / min(seconds)


if __name__ == "__main__":
    sys.exit(main())
