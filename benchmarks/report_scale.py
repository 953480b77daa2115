"""Costs of a report: of a large run from file to files, and of the bootstrap of a full table.

    python benchmarks/report_scale.py [NUM_RECORDS]

Writes a simulated run of 100,000 records to a temporary folder: nine methods, six tasks, 128 tokens
per answer. Runs `specbench report` on it without and with all files, each in its own process, and
prints the seconds (including imports) and peak memory of each. Then measures nine methods on six
tasks with 80 samples each, with 2,000 resamples and with one.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.store import read_run

METHODS = {
    "vanilla": 1.0, "sps": 2.6, "pld": 1.4, "lookahead": 1.5, "medusa": 2.4, "hydra": 3.2,
    "eagle": 3.6, "eagle2": 4.4, "eagle3": 5.6,
}  # fmt: skip
RECORDED = Path(__file__).parent.parent / "results/recorded/amd-epyc-2-cores"
TASKS = ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm", "natural_questions")
NUM_TOKENS, NUM_NODES, ROUNDS = 128, 60, 5

REPORT = """
import resource, sys, time
began = time.perf_counter()
from specbench.cli.app import app
try:
    app(["report", *sys.argv[1:]])
except SystemExit as end:
    assert not end.code, end.code
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
print(f"{time.perf_counter() - began:.1f} s ({time.process_time():.1f} s of CPU), {peak:.0f} MB")
"""


def lines(num_samples: int) -> Iterator[str]:
    """Lines of the samples file of a run with `num_samples` per task, in a run's order."""
    draw = random.Random(1)
    for task in TASKS:
        for sample in range(num_samples):
            token_ids = [draw.randrange(32_000) for _ in range(NUM_TOKENS)]
            for method, mat in METHODS.items():
                lengths: list[int] = []
                while (left := NUM_TOKENS - 1 - sum(lengths)) > 0:
                    wanted = 1 if mat == 1.0 else max(1, round(draw.gauss(mat, mat / 3)))
                    lengths.append(min(left, wanted))
                step_s = 0.02 * (1 + 0.1 * (mat > 1)) * draw.lognormvariate(0, 0.05)
                record = {
                    "schema": 1, "method": method, "temperature": 0.0, "task": task,
                    "sample_id": f"{task}/{sample}", "turn": 0, "repeat": 0, "status": "ok",
                    "prompt_tokens": 80, "token_ids": token_ids, "num_tokens": NUM_TOKENS,
                    "text": "word " * 90, "stop_reason": "budget",
                    "prefill_s": 0.03 * draw.lognormvariate(0, 0.1),
                    "decode_s": step_s * len(lengths), "accept_lengths": lengths,
                    "num_nodes": [1 if method == "vanilla" else NUM_NODES] * len(lengths),
                    "seed": sample, "error": None,
                }  # fmt: skip
                yield json.dumps(record) + "\n"


def write_run(folder: Path, num_samples: int) -> Path:
    """Write a run folder with `num_samples` per task."""
    folder.mkdir()
    values = {"methods": list(METHODS), "tasks": list(TASKS), "temperatures": [0.0]}
    recorded = json.loads((RECORDED / "run.json").read_text())
    number = {"num_available": num_samples, "num_prompts": num_samples}
    prompts = [prompt | number for prompt in recorded["prompts"]]
    header = recorded | {"id": folder.name, "spec": {"values": values}, "prompts": prompts}
    (folder / "run.json").write_text(json.dumps(header))
    with (folder / "samples.jsonl").open("w") as file:
        file.writelines(lines(num_samples))
    return folder


def main() -> None:
    """Measure and print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        large = write_run(root / "large", -(-wanted // (len(METHODS) * len(TASKS))))
        size = (large / "samples.jsonl").stat().st_size / 2**20
        print(f"report of {wanted} records or more ({size:.0f} MB of samples):")
        for name, more in {"printed": [], "with files": ["--out", str(root / "out")]}.items():
            line = [sys.executable, "-c", REPORT, str(large), *more]
            done = subprocess.run(line, check=True, capture_output=True, text=True)
            print(f"  {name}: {done.stdout.splitlines()[-1]}")
        table = read_run(write_run(root / "table", 80))
        seconds = {0: float("inf"), 2000: float("inf")}
        for _ in range(ROUNDS):
            for number in seconds:
                began = time.perf_counter()
                measure(table, Bootstrap(number) if number else Bootstrap(1))
                seconds[number] = min(seconds[number], time.perf_counter() - began)
        print(f"nine methods, six tasks, 80 samples: {seconds[2000]:.2f} s with 2,000 resamples, "
              f"{seconds[0]:.2f} s with one")  # fmt: skip


if __name__ == "__main__":
    main()
