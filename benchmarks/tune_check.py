"""Predict settings' speedups, measure them on other prompts, and show the differences.

    python -m benchmarks.tune_check OUT [--model M] [--method A,B] [--settings N] [--limit N]
                                    [--minutes N] [--processes 2]

One half of the prompts is profiled. At least N settings of all methods are predicted from it and
measured on the other half, by ordinary runs. The settings of `PAIRS` are entered twice under two
names: the A/A pairs. The table is made in several processes, each with its own cost curve and run.
Then each method's pick, the best of the sweep and the paper's setting are measured again,
interleaved. The error of a speedup has two parts: the measured prompts differ from the profiled
ones, and the cost is wrong. A prediction for the measured prompts has the second part alone.
Parts that OUT has already are not made again.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
from specbench.measure.spec import RunSpec, make_spec
from specbench.settings.cost_curve import CURVE_FILE, Curve, read_curve
from specbench.settings.cost_model import CostModel
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
GOAL = 0.05
"""Largest error of a prediction that is good enough."""
TIMES_AA = 1.5
"""A larger error is good enough too, if it is at most this multiple of the error of an A/A pair."""
NUM_SPLITS = 200
"""Random halves of the prompts for the coverage of intervals."""
LEAST_AGAIN_S = 60.0
"""Seconds for the second measurement, if the first one took all the time."""
ERROR_NAMES = (
    "of the speedup",
    "by other prompts",
    "by the cost",
    "of the MAT on the same prompts",
)
"""Names in the table of the four numbers in `Row.errors`."""

Times = Mapping[str, Mapping[str, tuple[float, float]]]
"""Seconds of vanilla and of a setting by task and sample: the sums over turns and passes."""


class Row(NamedTuple):
    """A setting: predicted from one half of the prompts, measured on the other."""

    label: str
    """The method as the curve spells it."""
    setting: str
    """The method with its options."""
    predicted: float
    """Speedup predicted from the first half."""
    predicted_there: float
    """Speedup predicted from the second half, whose prompts are measured."""
    measured: float
    """Speedup measured on the second half."""
    replayed_mat: float
    """MAT on the second half, from the profile."""
    measured_mat: float
    """MAT on the second half, from the run."""

    @property
    def errors(self) -> tuple[float, ...]:
        """Logarithmic errors: of the speedup, its parts by prompts and by cost, and of the MAT."""
        return (
            math.log(self.measured / self.predicted),
            math.log(self.predicted_there / self.predicted),
            math.log(self.measured / self.predicted_there),
            math.log(self.measured_mat / self.replayed_mat),
        )


class Picks(NamedTuple):
    """Settings of a method that are measured again, interleaved."""

    by_prediction: str
    """The setting with the best predicted speedup."""
    of_sweep: str
    """The setting with the best measured speedup."""
    paper: str
    """The paper's setting."""


class Speedup(NamedTuple):
    """A measured speedup over tasks."""

    mean: float
    """Mean over tasks."""
    variance: float
    """Variance of its logarithm."""


def main() -> int:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--method", default=METHODS)
    parser.add_argument("--settings", type=int, default=44)
    parser.add_argument("--limit", type=int, default=8, help="prompts per task, both halves")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=20.0, help="of each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process is not None:
        check_predictions(arguments)
        return 0
    command = [sys.executable, "-m", "benchmarks.tune_check", *sys.argv[1:]]
    for number in range(1, arguments.processes + 1):
        subprocess.run([*command, "--process", str(number)], check=True)
    return 0


def check_predictions(arguments: argparse.Namespace) -> None:
    """Predict and measure in this process, then print and write the table."""
    began = time.perf_counter()
    folder = arguments.out / str(arguments.process)
    progress = Lines(lambda line: print(line, file=sys.stderr, flush=True))
    plan = make_check_plan(arguments, arguments.method.split(","), num_passes=1)
    assert isinstance(plan.setup, EngineSetup)
    engine_plan = EnginePlan(plan, plan.setup, is_offline=True)
    profile = profile_in(arguments.out / "profile", engine_plan, progress)
    curve = curve_in(folder, engine_plan, arguments.minutes / 4, progress)
    model = CostModel(curve, NUM_RESAMPLES)
    weighed = weighed_settings(profile, model, arguments.settings)
    twins = twins_of(weighed).values()
    vanilla_steps = sum(
        estimate(weights, model, label_in(curve, setting)).vanilla_steps
        for setting, weights in weighed.items()
    )
    pass_s = vanilla_steps * curve.vanilla_s
    num_passes = round(arguments.minutes * 60 / 2 / pass_s)
    plan = make_check_plan(arguments, [*weighed, *twins], max(1, min(5, num_passes)))
    run = run_in(folder / "run", plan, progress)
    rows = measured_rows(profile, model, weighed, run)
    picks = picks_of(rows)
    lines = table_lines(profile, model, weighed, run, rows)
    picked = [*dict.fromkeys(setting for of_method in picks.values() for setting in of_method)]
    left_s = max(LEAST_AGAIN_S, arguments.minutes * 60 - (time.perf_counter() - began))
    num_passes = round(left_s / (pass_s * len(picked) / len(weighed)))
    plan = make_check_plan(arguments, picked, max(2, min(9, num_passes)))
    lines += regret_lines(run_in(folder / "again", plan, progress), picks)
    print(f"\n{arguments.model}, process {arguments.process}, {curve.about['machine']}:\n")
    print("\n".join(lines), flush=True)
    (folder / "table.md").write_text("\n".join(lines) + "\n")


def make_check_plan(arguments: argparse.Namespace, methods: Sequence[str], num_passes: int) -> Plan:
    """The plan of a run of these methods on all prompts."""
    spec = make_spec(
        model=arguments.model,
        methods=list(methods),
        limit=arguments.limit,
        max_new_tokens=arguments.max_new_tokens,
        prompts="bundled",
        repeats=num_passes,
    )
    return make_plan(spec, is_offline=True)


def profile_in(folder: Path, engine_plan: EnginePlan, progress: Lines) -> Profile:
    """The profile stored in a folder, or a new one."""
    if (folder / PROFILE_FILE).is_file():
        return read_profile(folder)
    profile = recorded_plan(engine_plan, progress, is_named=False)
    profile.write(folder)
    return profile


def curve_in(folder: Path, engine_plan: EnginePlan, minutes: float, progress: Lines) -> Curve:
    """The cost curve stored in a folder, or a new one."""
    if (folder / CURVE_FILE).is_file():
        return read_curve(folder)
    curve = measured_curve(engine_plan, minutes, progress)
    curve.write(folder)
    return curve


def run_in(folder: Path, plan: Plan, progress: Lines) -> Run:
    """An ordinary run of all prompts; a stored one is continued, with its number of passes."""
    if (folder / HEADER).is_file():
        stored = read_run(folder)
        if stored.header.status == "complete":
            return stored
        num_passes = stored.header.spec.values.repeats
        plan = replace(plan, spec=replace_part(plan.spec, repeats=num_passes))
    return run_plan(plan, folder, progress, given=())


def weighed_settings(profile: Profile, model: CostModel, num_settings: int) -> dict[str, DataFrame]:
    """The weights of each method's settings: the paper's if the curve has it, and random ones."""
    draw = Random(0)
    num_per_method = math.ceil(num_settings / max(1, len(model.curve.methods)))
    weighed: dict[str, DataFrame] = {}
    for label in model.curve.methods:
        paper, *others = candidates(profile, label)
        of_method: dict[str, DataFrame] = {}
        for setting in [paper, *draw.sample(others, len(others))]:
            (method,) = profile.methods_of([setting])
            with suppress(UserError):  # the curve ends before it
                walks = replay(profile, setting)
                of_method[setting] = weigh(walks, model, label, method.options.as_dict())
            if len(of_method) == num_per_method:
                break
        weighed |= of_method
    return weighed


def twins_of(settings: Collection[str]) -> dict[str, str]:
    """The settings that are entered twice, and the second spelling of each."""
    return {
        setting: f"{setting}:{option}" for setting, option in PAIRS.items() if setting in settings
    }


def label_in(curve: Curve, setting: str) -> str:
    """The spelling of a setting's method in a curve."""
    (entered,) = RunSpec(methods=(setting,)).run_methods
    return curve_label(curve, entered.load())


def record_label(setting: str) -> str:
    """The name of a setting in records."""
    (method,) = RunSpec(methods=(setting,)).run_methods
    return method.label


def sample_of(record: Record) -> str:
    """The name of a record's sample, "task/sample_id"."""
    return f"{record.key.task}/{record.key.sample_id}"


def times_of(run: Run, setting: str) -> Times:
    """The times of a setting, and vanilla's for the same samples."""
    wall_s: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for record in run.records:
        if record.is_ok:
            key = record.key
            wall_s[key.method, key.task, sample_of(record)] += record.wall_s or 0
    label = record_label(setting)
    by_task: dict[str, dict[str, tuple[float, float]]] = {}
    for (method, task, sample), setting_s in wall_s.items():
        if method == label:
            pair = (wall_s[BASELINE, task, sample], setting_s)
            by_task.setdefault(task, {})[sample] = pair
    return by_task


def speedup_on(times: Times, samples: Collection[str]) -> Speedup:
    """The speedup on some samples, without the noise of the machine in its variance."""
    ratios = []
    variances = []
    for by_sample in times.values():
        pairs = np.array([pair for sample, pair in by_sample.items() if sample in samples])
        if len(pairs):
            # The logarithm of a ratio of sums, to first order: sum of (a_i / A - b_i / B)
            baseline_s, setting_s = pairs.sum(0)
            terms = pairs[:, 0] / baseline_s - pairs[:, 1] / setting_s
            unbiased = len(pairs) / max(1, len(pairs) - 1)
            ratios.append(baseline_s / setting_s)
            variances.append((terms**2).sum() * unbiased)
    weights = np.array(ratios) / sum(ratios)  # of each task's logarithm in that of the mean
    return Speedup(float(np.mean(ratios)), float((weights**2 * variances).sum()))


def replayed_mat(profile: Profile, setting: str, samples: Collection[str]) -> float:
    """The MAT of a setting on some samples, by the profile."""
    walks = replay(profile, setting)
    return mat([walk for walk in walks if walk.prompt.rpartition("/")[0] in samples])


def measured_mat(run: Run, setting: str, samples: Collection[str]) -> float:
    """The MAT of a setting on some samples, by a run."""
    label = record_label(setting)
    records = [record for record in run.records if record.is_ok and record.key.method == label]
    lengths = [
        length
        for record in records
        if sample_of(record) in samples
        for length in record.accept_lengths
    ]
    return sum(lengths) / len(lengths)


def sample_halves(profile: Profile) -> tuple[set[str], set[str]]:
    """The samples that predictions are made from, and the samples that are measured."""
    first, second = halves(profile)
    return {name.rpartition("/")[0] for name in first}, {name.rpartition("/")[0] for name in second}


def measured_rows(
    profile: Profile, model: CostModel, weighed: Mapping[str, DataFrame], run: Run
) -> list[Row]:
    """A row per setting."""
    first, second = sample_halves(profile)
    rows = []
    for setting, weights in weighed.items():
        label = label_in(model.curve, setting)
        of_first = weights[weights.index.isin(first)]
        of_second = weights[weights.index.isin(second)]
        row = Row(
            label=label,
            setting=setting,
            predicted=estimate(of_first, model, label).speedup,
            predicted_there=estimate(of_second, model, label).speedup,
            measured=speedup_on(times_of(run, setting), second).mean,
            replayed_mat=replayed_mat(profile, setting, second),
            measured_mat=measured_mat(run, setting, second),
        )
        rows.append(row)
    return rows


def picks_of(rows: Sequence[Row]) -> dict[str, Picks]:
    """The settings of each method that are measured again."""
    picks = {}
    for label in dict.fromkeys(row.label for row in rows):
        of_method = [row for row in rows if row.label == label]
        predicted_best = max(of_method, key=lambda row: row.predicted).setting
        measured_best = max(of_method, key=lambda row: row.measured).setting
        picks[label] = Picks(predicted_best, measured_best, paper_of(predicted_best))
    return picks


def table_lines(
    profile: Profile,
    model: CostModel,
    weighed: Mapping[str, DataFrame],
    run: Run,
    rows: Sequence[Row],
) -> list[str]:
    """The lines of the table."""
    first, second = sample_halves(profile)
    curve = model.curve
    ratio = step_s(run) / curve.vanilla_s
    longer_model = CostModel(longer_curve(curve, ratio), NUM_RESAMPLES)
    longer_errors = []
    for row in rows:
        weights = weighed[row.setting]
        of_second = weights[weights.index.isin(second)]
        expected = estimate(of_second, longer_model, row.label).speedup
        longer_errors.append(abs(math.log(row.measured / expected)))
    aa_errors = []
    for setting, twin in twins_of(weighed).items():
        of_setting = speedup_on(times_of(run, setting), second).mean
        of_twin = speedup_on(times_of(run, twin), second).mean
        aa_errors.append(abs(math.log(of_setting / of_twin)))
    aa_error = median(aa_errors) if aa_errors else math.nan
    goal = max(GOAL, TIMES_AA * aa_error) if aa_errors else GOAL
    errors = np.abs([row.errors for row in rows])  # [settings, 4]
    is_within = errors[:, 0] <= 2 * goal
    times = {setting: times_of(run, setting) for setting in weighed}
    covered = [*coverage(model, weighed, times, sorted(first | second))]
    shares = f"{np.mean(covered):.0%}, {min(covered):.0%}, {max(covered):.0%}"
    longer_error = f"{median(longer_errors):.1%}"
    lines = ["| what | value |", "|---|---:|"]
    lines.append(f"| settings, methods | {len(rows)}, {len({row.label for row in rows})} |")
    for error_name, error in zip(ERROR_NAMES, np.median(errors, 0), strict=True):
        lines.append(f"| median error {error_name} | {error:.1%} |")
    lines += [
        f"| vanilla's step, run / curve | {ratio:.2f} |",
        f"| median error by the cost, with all steps longer like vanilla's | {longer_error} |",
        f"| error of an A/A pair | {aa_error:.1%} |",
        f"| goal | {goal:.1%} |",
        f"| within twice the goal | {is_within.mean():.0%} |",
        f"| coverage over {NUM_SPLITS} splits: mean, least, most of the settings | {shares} |",
        "",
        "| setting | predicted | measured | error | prompts | cost | MAT |",
        "|---" + "|---:" * 6 + "|",
    ]
    for row in sorted(rows, key=lambda row: row.errors):
        row_errors = " | ".join(f"{error:+.1%}" for error in row.errors)
        lines.append(f"| {row.setting} | {row.predicted:.2f} | {row.measured:.2f} | {row_errors} |")
    return lines


def longer_curve(curve: Curve, ratio: float) -> Curve:
    """The curve if vanilla's step took `ratio` times as long, and all steps as many seconds more.

    Each step reads the weights once, so a change of memory speed adds the same time to all.
    """
    steps = (np.array(curve.steps) + ratio - 1) / ratio
    return replace_part(curve, steps=steps.tolist())


def coverage(
    model: CostModel,
    weighed: Mapping[str, DataFrame],
    times: Mapping[str, Times],
    samples: Sequence[str],
) -> Iterator[float]:
    """Per setting, the share of splits in which the interval covers the other half's speedup."""
    draw = Random(1)
    splits = [{*draw.sample(samples, len(samples) // 2)} for _ in range(NUM_SPLITS)]
    for setting, weights in weighed.items():
        label = label_in(model.curve, setting)
        num_covered = 0
        for split in splits:
            predicted = estimate(weights[weights.index.isin(split)], model, label)
            measured = speedup_on(times[setting], {*samples} - split)
            half_width = math.hypot(predicted.half_width, 1.96 * math.sqrt(measured.variance))
            num_covered += abs(math.log(measured.mean / predicted.speedup)) <= half_width
        yield num_covered / len(splits)


def step_s(run: Run) -> float:
    """Seconds per step of vanilla in a run."""
    seconds = measure(run).cost(BASELINE, 0.0).step_s
    return seconds.value if isinstance(seconds, Estimate) else math.nan


def regret_lines(run: Run, picks: Mapping[str, Picks]) -> list[str]:
    """Lines of the second measurement: each pick against the sweep's best and the paper's."""
    overall = measure(run).overall

    def speedup(setting: str) -> float:
        estimated = overall[record_label(setting), 0.0].speedup
        return estimated.value if isinstance(estimated, Estimate) else math.nan

    lines = ["", "| method | pick | of the sweep's best | of the paper's |", "|---|---|---:|---:|"]
    for label, of_method in picks.items():
        picked = speedup(of_method.by_prediction)
        of_best = f"{picked / speedup(of_method.of_sweep):.1%}"
        of_paper = f"{picked / speedup(of_method.paper):.0%}"
        lines.append(f"| {label} | {of_method.by_prediction} | {of_best} | {of_paper} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
