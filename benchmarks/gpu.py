"""The suite for a GPU: is the machine sound, are graphs lossless, how close are all to the limit?

    python -m benchmarks.gpu [--device cuda] [--model M ...] [--limit N] [--output DIR]

Run from the repository's root; needs no installation and no network: the models are stand-ins, tiny
in the shapes of real ones. One after the other, as processes of their own:

1. `specbench doctor`;
2. tiny in float32, every method eager and as graphs: the tokens and steps have to be the same;
3. for each model every method on every task; on one task, vanilla eager and every method's phases;
4. `specbench report` of all of it.

`suite.json` has the figures, written anew after every part, `log.txt` what the commands said and
how long they took. What would begin behind the time that is granted is left out, and said to be.

On a CPU there are no graphs: step 2 and the eager runs of step 3 are left out, and said to be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench.analysis.cells import BASELINE
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.bench.store import HEADER, StoredRun, read_run

MODELS = ("vicuna-13b", "llama3-8b", "vicuna-7b")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite; the exit status tells whether everything ran and was lossless."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", action="append", help=f"shapes (default: {', '.join(MODELS)})")
    parser.add_argument("--limit", type=int, default=2, help="prompts a task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--output", type=Path, default=Path("results/runs/gpu"))
    parser.add_argument("--seconds", type=float, default=540, help="time that is granted")
    given = parser.parse_args(argv)
    suite = Suite(given)
    suite.keep(doctor=suite.specbench("doctor", "--device", given.device))
    suite.keep(graphs=suite.compare_graphs())
    models: dict[str, Any] = {}
    for model in given.model or MODELS:
        models[model] = suite.measure(model)
        suite.keep(models=models)
    runs = [given.output / Path(model).name for model in models]
    done = [str(run) for run in runs if (run / HEADER).exists()]
    if done:
        suite.specbench("report", *done, "--out", str(given.output / "report"))
    suite.keep()
    print(json.dumps(models, indent=2))
    print(f"{suite.seconds:.0f} s; {given.output / 'suite.json'}")
    for command in suite.failed:
        print(f"FAILED: {command}", file=sys.stderr)
    return 1 if suite.failed else 0


class Suite:
    """The commands of the suite on one device, and which of them failed."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.failed: list[str] = []
        self._found: dict[str, Any] = {}
        self._began, self._granted_s = time.perf_counter(), given.seconds
        self._output, self._device, self._dtype = given.output, given.device, given.dtype
        self._size = ["--limit", str(given.limit), "--max-new-tokens", str(given.max_new_tokens)]
        self._has_graphs = given.device != "cpu"
        given.output.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        """Seconds since the suite began."""
        return time.perf_counter() - self._began

    def keep(self, **found: Any) -> None:
        """Write what was found so far."""
        self._found |= {**found, "failed": self.failed, "seconds": round(self.seconds, 1)}
        text = json.dumps(self._found, indent=2) + "\n"
        (self._output / "suite.json").write_text(text, "utf-8")

    def specbench(self, *arguments: str) -> list[str]:
        """Run a command of specbench; returns the lines that it printed."""
        words = " ".join(arguments)
        left = self._granted_s - self.seconds
        print(f"{self.seconds:.0f} s: specbench {words}", flush=True)
        if left <= 0:
            self.failed.append(f"{words}: left out, {self._granted_s:.0f} s are over")
            return []
        command = [sys.executable, "-m", "specbench", *arguments]
        with (self._output / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{self.seconds:.1f} s: specbench {words}\n")
            log.flush()
            try:
                done = subprocess.run(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=left
                )
            except subprocess.TimeoutExpired:
                self.failed.append(f"{words}: cut off, {self._granted_s:.0f} s are over")
                return []
            log.write(done.stdout)
        if done.returncode:
            self.failed.append(f"{words}: exit status {done.returncode}, see log.txt")
        return done.stdout.splitlines()

    def compare_graphs(self) -> dict[str, Any]:
        """Whether every method emits the same tokens in the same steps eager and as graphs."""
        if not self._has_graphs:
            return {"skipped": "CUDA graphs need a CUDA device"}
        runs = {
            mode: self._run(f"tiny-{mode}", "--execution", mode, "--dtype", "float32")
            for mode in ("eager", "graph")
        }
        eager, graph = runs["eager"], runs["graph"]
        if eager is None or graph is None:
            return {"skipped": "a run failed"}
        steps = {record.key: (record.token_ids, record.accept_lengths) for record in eager.records}
        same: dict[str, list[bool]] = {}
        for record in graph.records:
            key, own = record.key, (record.token_ids, record.accept_lengths)
            other = steps.get(key, ((), ()))
            same.setdefault(key.method, []).append(other == own)
            if other != own:
                tokens = zip(other[0], own[0], strict=False)
                first = next((i for i, (a, b) in enumerate(tokens) if a != b), "steps only")
                self.failed.append(f"graphs: {key.method} differs in {key.sample_id} at {first}")
        counts = {method: f"{sum(flags)} of {len(flags)}" for method, flags in same.items()}
        return {
            "same": counts,
            "modes": graph.header.get("execution"),
            "kernels": graph.header.get("kernels"),
        }

    def measure(self, model: str) -> dict[str, Any]:
        """All methods on a stand-in, vanilla eager beside it, and where the time of a step goes."""
        shape = ["--weights", "stand-in", "--model", model, "--dtype", self._dtype]
        run = self._run(Path(model).name, *shape)
        if run is None:
            return {"skipped": "the run failed"}
        metrics = measure(run)
        found: dict[str, Any] = {
            "vanilla_bandwidth_share": _vanilla_share(metrics),
            "methods": dict(_methods(metrics)),
            "execution": run.header.get("execution"),
            "kernels": run.header.get("kernels"),
            "preparation": run.header.get("preparation"),
        }
        shape += ["--dataset", "gsm8k"]
        if self._has_graphs:
            alone = ["--method", BASELINE, "--execution", "eager"]
            if eager := self._run(f"{Path(model).name}-eager", *shape, *alone):
                found["vanilla_bandwidth_share_eager"] = _vanilla_share(measure(eager))
        phases = self._run(f"{Path(model).name}-phases", *shape, "--phases")
        if phases:
            found["host_share"] = dict(_host_shares(measure(phases)))
        return found

    def _run(self, name: str, *arguments: str) -> StoredRun | None:
        """A run below the output folder; None where it failed."""
        folder = self._output / name
        known = len(self.failed)
        self.specbench(
            "run", "--device", self._device, *self._size, *arguments,
            "--output", str(folder), "--quiet", "--offline",
        )  # fmt: skip
        return read_run(folder) if len(self.failed) == known else None


def _vanilla_share(metrics: RunMetrics) -> float | str:
    roofline = metrics.roofline
    if isinstance(roofline, Missing):
        return roofline.reason
    return _shown(roofline.bandwidth_share(metrics.cost(BASELINE, metrics.temperatures[0]).step_s))


def _methods(metrics: RunMetrics) -> Iterator[tuple[str, dict[str, Any]]]:
    temperature = metrics.temperatures[0]
    for method in metrics.methods:
        cost, pooled = metrics.cost(method, temperature), metrics.pooled(method, temperature)
        yield (
            method,
            {
                "speedup": _shown(pooled.speedup),
                "mat": _shown(pooled.mat),
                "step_cost": _shown(cost.relative),
                "limit": _shown(cost.limit),
                "share_of_limit": _shown(cost.reached),
            },
        )


def _host_shares(metrics: RunMetrics) -> Iterator[tuple[str, float]]:
    for method in metrics.methods:
        phases = metrics.cost(method, metrics.temperatures[0]).phases
        if phases:
            total = phases.draft_s + phases.verify_s + phases.commit_s + phases.host_s
            yield method, round(phases.host_s / total, 4)


def _shown(value: Value) -> float | str:
    return round(value.value, 4) if isinstance(value, Estimate) else value.reason


if __name__ == "__main__":
    sys.exit(main())
