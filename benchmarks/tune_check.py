"""Predict settings' speedups, measure them on other prompts, and show how far apart they are.

    python -m benchmarks.tune_check OUT [--model M] [--method A,B] [--settings N] [--limit N]
                                    [--minutes N] [--processes 2]

One half of the prompts is profiled; at least N settings of all methods are predicted from it
and measured on the other half, by ordinary runs. One setting of each method without weights is
entered twice under two names: the A/A pairs. The table is made in several processes, each with
a cost curve and a run of its own. Then each method's pick, the best of the sweep and the
paper's setting are measured again, interleaved. The error of a speedup is the sum of two: the
prompts are others, and the cost is wrong, which the prediction for the measured prompts shows.
What OUT has already is not made again.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as replace_part
from pandas import DataFrame

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Plan
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.methods import BASELINE
from specbench.measure.plan import make_plan
from specbench.measure.progress import Lines
from specbench.measure.session import run_plan
from specbench.measure.spec import make_spec
from specbench.settings.cost_curve import CURVE_FILE, Curve, read_curve
from specbench.settings.cost_model import CostModel
from specbench.settings.run_method import parse_methods
from specbench.settings.speedup import NUM_RESAMPLES, estimate, weigh
from specbench.settings.walk import mat
from specbench.tune.candidates import candidates
from specbench.tune.choice import paper_of
from specbench.tune.cost import measured_curve
from specbench.tune.engine_plan import EnginePlan
from specbench.tune.predict import curve_label
from specbench.tune.profile_file import PROFILE_FILE, Profile, read_profile
from specbench.tune.ranking import halves
from specbench.tune.recording import recorded_plan
from specbench.tune.replay import replay
from specbench.types import Record

METHODS = "eagle2,eagle3,medusa,hydra,eagle,sps,pld,suffix"
PAIRS = {"pld": "ngram=3", "suffix": "factor=1.0", "sps": "schedule=heuristic"}
"""An option of a method at its default: naming it enters the same setting again."""
GOAL, TIMES_AA, SPLITS = 0.05, 1.5, 200
PARTS = "of the speedup", "by other prompts", "by the cost", "of the MAT on the same prompts"


class Row(NamedTuple):
    """A setting: predicted from one half of the prompts, measured on the other."""

    label: str
    setting: str
    predicted: float
    same: float
    """Predicted from the prompts that are measured."""
    measured: float
    mats: tuple[float, float]
    """Replayed and measured on these."""

    @property
    def errors(self) -> tuple[float, ...]:
        """Logarithms: of the speedup, of what prompts and cost add to it, and of the MAT."""
        found = (self.predicted, self.measured), (self.predicted, self.same)
        return tuple(math.log(b / a) for a, b in (*found, (self.same, self.measured), self.mats))


def main() -> int:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--method", default=METHODS)
    parser.add_argument("--settings", type=int, default=44)
    parser.add_argument("--limit", type=int, default=8, help="prompts of a task, both halves")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=20.0, help="of each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process is None:
        for number in range(1, given.processes + 1):
            command = [sys.executable, "-m", "benchmarks.tune_check", *sys.argv[1:]]
            subprocess.run([*command, "--process", str(number)], check=True)
        return 0
    return _process(given)


def _process(given: argparse.Namespace) -> int:
    began, folder = time.perf_counter(), given.out / str(given.process)
    plan = _plan(given, given.method.split(","), 1)
    assert isinstance(plan.setup, EngineSetup)
    say = Lines(lambda text: print(text, file=sys.stderr, flush=True))
    if (given.out / "profile" / PROFILE_FILE).is_file():
        profile = read_profile(given.out / "profile")
    else:
        profile = recorded_plan(EnginePlan(plan, plan.setup), say, is_named=False)
        profile.write(given.out / "profile")
    if (folder / CURVE_FILE).is_file():
        curve = read_curve(folder)
    else:
        curve = measured_curve(EnginePlan(plan, plan.setup), given.minutes / 4, say)
        curve.write(folder)
    model = CostModel(curve, NUM_RESAMPLES)
    weighed = _settings(profile, model, given.settings)
    labels = [*weighed, *(f"{one}:{PAIRS[one]}" for one in PAIRS if one in weighed)]
    seconds = sum(estimate(v, model, _label(curve, k)).seconds for k, v in weighed.items())
    passes = given.minutes * 60 / 2 / (seconds * curve.vanilla_s)
    run = _run(_plan(given, labels, max(1, min(5, round(passes)))), folder / "run", say)
    lines, picks = _table(profile, model, weighed, run)
    again = [*dict.fromkeys(one for pick in picks.values() for one in pick)]
    left = max(60.0, given.minutes * 60 - (time.perf_counter() - began))
    passes = left / (seconds * curve.vanilla_s * len(again) / len(weighed))
    second = _run(_plan(given, again, max(2, min(9, round(passes)))), folder / "again", say)
    lines += _regret(second, picks)
    print(f"\n{given.model}, process {given.process}, {curve.about['machine']}:\n")
    print("\n".join(lines), flush=True)
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    return 0


def _plan(given: argparse.Namespace, methods: Sequence[str], repeats: int) -> Plan:
    spec = make_spec(
        model=given.model, methods=list(methods), limit=given.limit,
        max_new_tokens=given.max_new_tokens, prompts="bundled", repeats=repeats,
    )  # fmt: skip
    return make_plan(spec, is_offline=True)


def _run(plan: Plan, folder: Path, say: Lines) -> Run:
    """An ordinary run of all prompts; a stored one is continued, with its number of passes."""
    if (folder / HEADER).is_file():
        stored = read_run(folder)
        if stored.header.status == "complete":
            return stored
        repeats = stored.header.spec.values.repeats
        plan = replace(plan, spec=replace_part(plan.spec, repeats=repeats))
    return run_plan(plan, folder, say, given=())


def _settings(profile: Profile, model: CostModel, number: int) -> dict[str, DataFrame]:
    """Settings of all methods: the paper's where they are known, and drawn ones."""
    draw, per = Random(0), -(-number // max(1, len(model.curve.methods)))
    found: dict[str, DataFrame] = {}
    for label in model.curve.methods:
        paper, *others = candidates(profile, label)
        own: dict[str, DataFrame] = {}
        for one in [paper, *draw.sample(others, len(others))]:
            options = asdict(parse_methods([one])[0].options)
            with suppress(UserError):  # the curve ends before it
                own |= {one: weigh(replay(profile, one), model, label, options)}
            if len(own) == per:
                break
        found |= own
    return found


def _label(curve: Curve, setting: str) -> str:
    return curve_label(curve, *parse_methods([setting]))


Times = Mapping[str, Mapping[str, tuple[float, float]]]
"""Seconds of vanilla and of a setting by task and sample: the sums over turns and passes."""


def _speedup(times: Times, samples: Collection[str]) -> tuple[float, float]:
    """The mean over tasks on some samples, and the variance of its logarithm."""
    values, variances = [], []
    for of_task in times.values():
        pairs = np.array([pair for name, pair in of_task.items() if name in samples])
        if len(pairs):
            sums = pairs.sum(0)
            away = (pairs[:, 0] / sums[0] - pairs[:, 1] / sums[1]) ** 2
            values.append(sums[0] / sums[1])
            variances.append(away.sum() * len(pairs) / max(1, len(pairs) - 1))
    weights = np.array(values) / sum(values)
    return float(np.mean(values)), float((weights**2 * variances).sum())


def _times(run: Run, setting: str) -> Times:
    wall, tasks = Counter[tuple[str, str, str]](), dict[str, dict[str, tuple[float, float]]]()
    for one in run.records:
        if one.is_ok:
            place = one.key.method, one.key.task, _sample(one)
            wall[place] += (one.prefill_s or 0) + (one.decode_s or 0)  # type: ignore
    label = _key(setting)
    for method, task, sample in wall:
        if method == label:
            pair = wall[BASELINE, task, sample], wall[method, task, sample]
            tasks.setdefault(task, {})[sample] = pair
    return tasks


def _key(setting: str) -> str:
    """The name of a setting in records."""
    return parse_methods([setting])[0].label


def _sample(record: Record) -> str:
    return f"{record.key.task}/{record.key.sample_id}"


def _mats(
    profile: Profile, run: Run, setting: str, samples: Collection[str]
) -> tuple[float, float]:
    walks = [one for one in replay(profile, setting) if one.prompt.rpartition("/")[0] in samples]
    label = _key(setting)
    records = [one for one in run.records if one.is_ok and one.key.method == label]
    counts = [n for one in records if _sample(one) in samples for n in one.accept_lengths]
    return mat(walks), sum(counts) / len(counts)


def _table(
    profile: Profile, model: CostModel, weighed: Mapping[str, DataFrame], run: Run
) -> tuple[list[str], dict[str, list[str]]]:
    """The lines of the table; of each method the pick, the sweep's best, and the paper's."""
    first, second = ({one.rpartition("/")[0] for one in names} for names in halves(profile))
    times = {one: _times(run, one) for one in weighed}
    rows, left = [], []
    curve = model.curve
    state = _step_s(run) / curve.vanilla_s
    longer = CostModel(_longer(curve, state), NUM_RESAMPLES)
    for one, tasks in weighed.items():
        label, value = _label(curve, one), _speedup(times[one], second)[0]
        halves_of = [tasks[tasks.index.isin(half)] for half in (first, second)]
        predicted, same = (estimate(half, model, label).speedup for half in halves_of)
        rows.append(Row(label, one, predicted, same, value, _mats(profile, run, one, second)))
        left.append(abs(math.log(value / estimate(halves_of[1], longer, label).speedup)))
    pairs = {name: f"{name}:{option}" for name, option in PAIRS.items() if name in weighed}
    twice = [
        abs(math.log(_speedup(times[a], second)[0] / _speedup(_times(run, b), second)[0]))
        for a, b in pairs.items()
    ]
    aa = median(twice) if twice else math.nan
    away = np.abs([one.errors for one in rows])  # [settings, 4]
    goal = max(GOAL, TIMES_AA * aa) if twice else GOAL
    covered = [*_coverage(model, weighed, times, sorted(first | second))]
    lines = [
        "| what | value |", "|---|---:|",
        f"| settings, methods | {len(rows)}, {len({one.label for one in rows})} |",
        *(f"| median error {what} | {error:.1%} |"
          for what, error in zip(PARTS, np.median(away, 0), strict=True)),
        f"| vanilla's step, run / curve | {state:.2f} |",
        f"| median error by the cost, with all steps longer like vanilla's | {median(left):.1%} |",
        f"| error of an A/A pair | {aa:.1%} |",
        f"| goal | {goal:.1%} |",
        f"| within twice the goal | {(away[:, 0] <= 2 * goal).mean():.0%} |",
        f"| coverage over {SPLITS} splits: mean, least, most of the settings | "
        f"{np.mean(covered):.0%}, {min(covered):.0%}, {max(covered):.0%} |",
        "", "| setting | predicted | measured | error | prompts | cost | MAT |",
        "|---" + "|---:" * 6 + "|",
        *(f"| {one.setting} | {one.predicted:.2f} | {one.measured:.2f} | "
          + " | ".join(f"{error:+.1%}" for error in one.errors) + " |"
          for one in sorted(rows, key=lambda one: one.errors)),
    ]  # fmt: skip
    picks = {}
    for label in dict.fromkeys(one.label for one in rows):
        own = [one for one in rows if one.label == label]
        pick = max(own, key=lambda one: one.predicted).setting
        best = max(own, key=lambda one: one.measured).setting
        picks[label] = [pick, best, paper_of(pick)]
    return lines, picks


def _longer(curve: Curve, state: float) -> Curve:
    """The curve where each step takes as many seconds more as vanilla's, which takes `state` times
    as long: memory became slower or faster, and each step reads the weights once.
    """
    steps = (np.array(curve.steps) + state - 1) / state
    return replace_part(curve, steps=steps.tolist())


def _coverage(
    model: CostModel,
    weighed: Mapping[str, DataFrame],
    times: Mapping[str, Times],
    samples: Sequence[str],
) -> Iterator[float]:
    """Of each setting, the share of splits whose interval has what the other half measured."""
    draw = Random(1)
    splits = [{*draw.sample(samples, len(samples) // 2)} for _ in range(SPLITS)]
    for setting, tasks in weighed.items():
        hits, label = 0, _label(model.curve, setting)
        for split in splits:
            one = estimate(tasks[tasks.index.isin(split)], model, label)
            value, variance = _speedup(times[setting], {*samples} - split)
            half = math.hypot(one.half_width, 1.96 * math.sqrt(variance))
            hits += abs(math.log(value / one.speedup)) <= half
        yield hits / len(splits)


def _step_s(run: Run) -> float:
    """Seconds of a step of vanilla."""
    step_s = measure(run).cost(BASELINE, 0.0).step_s
    return step_s.value if isinstance(step_s, Estimate) else math.nan


def _regret(run: Run, picks: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of the second measurement: the pick against the sweep's best and the paper's."""
    found = measure(run).overall
    lines = ["", "| method | pick | of the sweep's best | of the paper's |", "|---|---|---:|---:|"]
    for label, settings in picks.items():
        speedups = [found[_key(one), 0.0].speedup for one in settings]
        values = [one.value if isinstance(one, Estimate) else math.nan for one in speedups]
        ratios = f"{values[0] / values[1]:.1%} | {values[0] / values[2]:.0%}"
        lines.append(f"| {label} | {settings[0]} | {ratios} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
