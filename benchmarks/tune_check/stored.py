"""The profile, the cost curve and the runs of a check. They are made once, and then read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as replace_part

from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Plan
from specbench.measure.progress import Lines
from specbench.measure.session import run_plan
from specbench.settings.cost_curve import CURVE_FILE, Curve, read_curve
from specbench.tune import Profile, read_profile
from specbench.tune.cost import measured_curve
from specbench.tune.engine_plan import EnginePlan
from specbench.tune.profile_file import PROFILE_FILE
from specbench.tune.recording import recorded_plan


def profile_in(folder: Path, engine_plan: EnginePlan, progress: Lines) -> Profile:
    """The profile that is stored in a folder. A missing profile is recorded."""
    if (folder / PROFILE_FILE).is_file():
        return read_profile(folder)
    profile = recorded_plan(engine_plan, progress, is_named=False)
    profile.write(folder)
    return profile


def curve_in(folder: Path, engine_plan: EnginePlan, minutes: float, progress: Lines) -> Curve:
    """The cost curve that is stored in a folder. A missing curve is measured."""
    if (folder / CURVE_FILE).is_file():
        return read_curve(folder)
    curve = measured_curve(engine_plan, minutes, progress)
    curve.write(folder)
    return curve


def run_in(folder: Path, plan: Plan, progress: Lines) -> Run:
    """The stored run of all prompts. A missing run is made, and an unfinished run is continued."""
    if (folder / HEADER).is_file():
        stored = read_run(folder)
        if stored.header.status == "complete":
            return stored
        num_passes = stored.header.spec.values.repeats
        plan = replace(plan, spec=replace_part(plan.spec, repeats=num_passes))
    return run_plan(plan, folder, progress, given=())
