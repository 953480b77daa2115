"""The fastest settings of methods here: profile, cost, predict, then measure.

Settings are chosen on one half of the prompts. Expected and measured speedups are of the other
half.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace as replace_part

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from specbench.log.files import write_whole
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Plan, Progress
from specbench.measure.local.engine_load import load_model
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.methods import BASELINE
from specbench.measure.plan import make_plan
from specbench.measure.progress import Lines
from specbench.measure.session import run_plan
from specbench.registry import MethodChoice
from specbench.settings import files
from specbench.settings.quick_rule import ROWS
from specbench.settings.run_method import parse_methods
from specbench.tune.cost import CURVE_FILE, Curve, about_of, measured, read_curve
from specbench.tune.predict import Prediction, agreement, candidates, predict, spelling
from specbench.tune.profile import PROFILE_FILE, Profile, engine_plan, read_profile, recorded_plan
from specbench.tune.replay import best_tree

FIRST_LIMIT, SCREENED, KEPT = 4, 6, 12
"""Prompts of a task without --limit; answers that all settings are tried on, and how many stay."""
BEST, RANDOM = 2, 2
"""Settings of a method that are measured: the best by prediction, and drawn ones."""
COLUMNS = ("method", "settings", "predicted_speedup", "low", "high", "measured_speedup")
OWN = ("weights", "datastore", "scope", "other")
"""Options that are not settings."""
CHANGED = 1.2
"""Ratio of vanilla's step times above which the speed of the machine has changed."""
UNSTEADY = "Vanilla's step took {:.0%} of its time in the cost curve: the machine's speed changed."


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting with what was expected and measured of it on the second half of the prompts."""

    settings: str
    predicted: Prediction | None
    measured: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A method's settings: the chosen one, the paper's, and all that were measured."""

    label: str
    best: Tried
    paper: Tried
    tried: tuple[Tried, ...]

    @property
    def lines(self) -> list[str]:
        """The result in words."""
        found = [f"{self.best.settings}: {_speeds(self.best)}"]
        if self.best.settings != self.paper.settings:
            found.append(f"  the paper's {self.paper.settings}: {_speeds(self.paper)}")
        options = parse_methods([self.best.settings])[0].options
        if hasattr(options, "total_tokens") and hasattr(options, "depth"):
            shape = f"depth={options.depth}, top_k={options.top_k}"
            found.append(f"  EAGLE's arguments: total_token={options.total_tokens}, {shape}")
        return found


def _speeds(one: Tried) -> str:
    about, texts = one.predicted, []
    if about:
        texts.append(f"{about.speedup:.2f}x expected ({about.low:.2f} to {about.high:.2f})")
    texts.append(f"{one.measured.value:.2f}x measured" if one.measured else "not measured")
    return ", ".join(texts)


def tune(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path,
    minutes: float | None = None,
    offline: bool = False,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    **values: Any,
) -> list[Choice]:
    """Find the fastest settings of methods on this machine, and measure them.

    `tune("tiny", "eagle2,medusa", output="tunes/mine", minutes=2)`

    What is in the folder already is not made again. The folder gets `profile/`, `cost/`,
    `run/`, `settings.toml`, `predictions.csv` and plots.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, which bound what is tried.
        output: the folder.
        minutes: a goal for the whole, kept by fewer blocks of the curve and fewer drawn settings.
        offline: use no network.
        say: receives a line per finished sample and message.
        progress: receives the events instead.
        values: further fields of `specbench.log.spec.SpecValues`, as `profile` takes them.

    Raises:
        UserError: what `profile` and `cost` refuse, or a folder of another model, machine or
            version.
    """
    folder = Path(output)
    progress = progress or Lines(say or (lambda text: None))
    if not {"limit", "sample"} & {*values}:
        values["limit"] = FIRST_LIMIT
    plan, setup = engine_plan(model, methods, values, offline=offline)
    found = _profile(folder / "profile", plan, setup, progress)
    curve = _curve(folder / "cost", plan, setup, minutes / 3 if minutes else None, progress)
    if {*curve.methods} != {*found.header.methods} - {BASELINE}:
        both = f"{', '.join(found.header.methods)} and a cost curve of {', '.join(curve.methods)}"
        raise UserError(f"{folder} has a profile of {both}.", "Give --out another folder.")
    first, second = halves(found)
    progress.message("Predicting …")
    draw, listed = Random(0), dict[str, list[str]]()
    num_drawn = RANDOM if minutes is None or minutes > 2 else 1
    for one in (each for each in setup.methods if each.label != BASELINE):
        is_known = one.label in curve.methods
        known = _chosen(found, curve, one.label, first, folder / "trees") if is_known else []
        listed[str(one.asked)] = _settings(known, paper_of(str(one.asked)), draw, num_drawn)
    every = tuple(one for settings in listed.values() for one in settings)
    plan = make_plan(replace_part(plan.spec, methods=every, repeats=2), is_offline=offline)
    run = _run(folder / "run", plan, second, progress)
    metrics, choices = measure(run), []
    _compare_steps(metrics, curve, progress)
    for label, settings in listed.items():
        predicted = predict(found, curve, settings, prompts=second, is_strict=False)
        choices.append(_choice(label, settings, predicted, metrics))
    _write(folder, choices, setup, run)
    return choices


def _profile(folder: Path, plan: Plan, setup: EngineSetup, progress: Progress) -> Profile:
    """The stored profile, or a new one of all methods that can have one."""
    if (folder / PROFILE_FILE).is_file():
        found = read_profile(folder)
        found.check(plan.about.model, plan.about.methods)
        then = [one.sha256 for one in found.header.prompts], found.header.max_new_tokens
        now = [one.describe().sha256 for one in plan.prompt_sets], plan.max_new_tokens
        if then != now or {*found.header.methods} - {*setup.labels}:
            reason = f"{folder} has a profile of other prompts, lengths or methods."
            raise UserError(reason, "Give --out another folder.")
        progress.message(f"Profile: that in {folder}")
        return found
    progress.message("Profile …")
    found = recorded_plan(plan, setup, progress, is_named=False)
    found.write(folder)
    return found


def _curve(
    folder: Path, plan: Plan, setup: EngineSetup, minutes: float | None, progress: Progress
) -> Curve:
    """The stored cost curve, or a new one."""
    if (folder / CURVE_FILE).is_file():
        curve = read_curve(folder)
        curve.check(about_of(setup, load_model(setup)))
        progress.message(f"Cost curve: that in {folder}")
        return curve
    progress.message("Cost curve …")
    curve = measured(plan, setup, minutes, progress)
    curve.write(folder)
    return curve


def halves(profile: Profile) -> tuple[set[str], set[str]]:
    """The names of the answers to every other sample of each task, and of the rest."""
    found: tuple[set[str], set[str]] = (set(), set())
    numbers: dict[str, dict[str, int]] = {}
    for name in (one.about.prompt for one in profile.answers):
        of_task = numbers.setdefault(name.partition("/")[0], {})
        number = of_task.setdefault(name.rpartition("/")[0], len(of_task))
        found[number % 2].add(name)
    return found if found[1] else (found[0], found[0])


def _chosen(
    profile: Profile, curve: Curve, label: str, prompts: set[str], trees: Path
) -> list[str]:
    """The candidates of a method in profile and curve, the fastest on these prompts first.

    All are tried on a few answers, and the fastest of those on all.
    """
    found = [*candidates(profile, label), *_trees(profile, label, prompts, trees)]
    few = {*sorted(prompts)[:: max(1, len(prompts) // SCREENED)]}
    for number, tried in ((len(found), few), (KEPT, prompts)):
        predicted = predict(profile, curve, found[:number], prompts=tried, is_strict=False)
        ordered = sorted(predicted, key=lambda one: -one.speedup)
        found = [*(one.settings for one in ordered), *found[number:]]
    return found


def _settings(known: Sequence[str], paper: str, draw: Random, num_drawn: int) -> list[str]:
    """The settings of a method that are measured: the best, the paper's, and drawn ones."""
    chosen = [*known[:BEST], paper]
    rest = [one for one in known if one not in chosen]
    return [*dict.fromkeys([*chosen, *draw.sample(rest, min(num_drawn, len(rest)))])]


def _trees(profile: Profile, label: str, prompts: set[str], folder: Path) -> list[str]:
    """The best static trees of several sizes, as settings; their files are written."""
    if profile.header.methods[label].kind != "ranks":
        return []
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for size in [n for n in ROWS if n > 1]:
        if tree := best_tree(profile, label, size, prompts):
            path = (folder / f"{label.partition(':')[0]}-{size}.json").resolve()
            write_whole(path, json.dumps(tree).encode())
            found.append(spelling(profile, label, {"tree": path}))
    return found


def paper_of(label: str) -> str:
    """The spelling of a method with its paper's settings, and its own weights."""
    (method,) = parse_methods([label])
    given = {name: value for name, value in method.asked.given.items() if name in OWN}
    return str(MethodChoice(method.method.name, given))


def _run(folder: Path, plan: Plan, prompts: set[str], progress: Progress) -> Run:
    """An ordinary run of a plan on some of its prompts; a stored one is continued."""
    if (folder / HEADER).is_file() and (stored := read_run(folder)).header.status == "complete":
        then = tuple(one for one in stored.header.methods if one != BASELINE)
        if {*then} != {one.label for one in parse_methods(plan.spec.methods)}:
            raise UserError(f"{folder} has a run of {', '.join(then)}.", "Give another --out.")
        return stored
    progress.message("Measuring …")
    samples = {name.rpartition("/")[0] for name in prompts}
    sets = []
    for one in plan.prompt_sets:
        kept = [each for each in one.prompts if f"{one.task.name}/{each.sample_id}" in samples]
        if kept:
            sets.append(replace(one, prompts=tuple(kept)))
    return run_plan(replace(plan, prompt_sets=tuple(sets)), folder, progress, given=())


def _compare_steps(metrics: RunMetrics, curve: Curve, progress: Progress) -> None:
    """Say if vanilla's steps took another time in the run than in the curve."""
    step_s = metrics.cost(BASELINE, metrics.temperatures[0]).step_s
    share = step_s.value / curve.vanilla_s if isinstance(step_s, Estimate) else 1.0
    if not 1 / CHANGED < share < CHANGED:
        progress.message(UNSTEADY.format(share))


def _choice(
    label: str, settings: Sequence[str], predicted: Sequence[Prediction], metrics: RunMetrics
) -> Choice:
    tried, (temperature,) = [], metrics.temperatures
    known = {one.settings: one for one in predicted}
    for one, method in zip(settings, parse_methods(settings), strict=True):
        speedup = metrics.overall[method.label, temperature].speedup
        speed = speedup if isinstance(speedup, Estimate) else None
        tried.append(Tried(one, known.get(one), speed))
    best, paper = tried[0], next(one for one in tried if one.settings == paper_of(label))
    if paper.measured and not (best.measured and best.measured.value >= paper.measured.value):
        best = paper
    return Choice(label, best, paper, tuple(tried))


def _write(folder: Path, choices: Sequence[Choice], setup: EngineSetup, run: Run) -> None:
    import pandas as pd

    from specbench.report.build import plot_files, write_files

    tried = [one for choice in choices for one in choice.tried]
    rows = []
    for one in tried:
        about, name = one.predicted, parse_methods([one.settings])[0].method.name
        expected = (about.speedup, about.low, about.high) if about else (None,) * 3
        rows.append((name, one.settings, *expected, one.measured and one.measured.value))
    table = pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False, float_format="%.4f")
    write_whole(folder / "predictions.csv", table.encode())
    options, weights = {}, {}
    for best in (choice.best for choice in choices):
        (method,) = parse_methods([best.settings])
        name, stored = method.method.name, run.header.methods[method.label].weights
        given = [option for option in method.asked.given if option not in OWN]
        options[name] = {option: getattr(method.options, option) for option in given}
        weights[name] = files.hash_of(stored.files) if stored else ""
    title = f"tuned {run.header.created[:10]}"
    settings = files.SettingsFile(options, title, setup.card.name, setup.fits(), weights)
    write_whole(folder / "settings.toml", files.toml_text(settings).encode())
    if not setup.stand_in:
        files.keep_settings(settings)
    found = [(one.predicted, one.measured.value) for one in tried if one.predicted and one.measured]
    if plot := agreement(found):
        write_files(folder, plot_files([plot]))
