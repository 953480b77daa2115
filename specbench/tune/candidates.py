"""The settings of a profiled method that are tried."""

from collections.abc import Mapping
from typing import Any

from specbench.registry import MethodChoice
from specbench.settings.run_method import PATHS
from specbench.tune.kind import find_kind
from specbench.tune.labels import read_label
from specbench.tune.profile_file import Profile
from specbench.tune.replay import misfit


def candidates(profile: Profile, label: str) -> list[str]:
    """The settings of a profiled method that are tried, the paper's first.

    Settings outside of the profile are left out.
    """
    recorded = profile.header.methods[label]
    paper_values: dict[str, Any] = {}
    grid = [paper_values, *find_kind(recorded.kind).grid(recorded.about.options)]
    settings = dict.fromkeys(spelling(profile, label, values) for values in grid)
    methods = profile.methods_of([*settings])
    return [str(method.asked) for method in methods if not misfit(label, recorded, method)]


def spelling(profile: Profile, label: str, values: Mapping[str, Any]) -> str:
    """A setting of a profiled method on the command line, with paths, which labels lack.

    Args:
        profile: has the method.
        label: the method as it was profiled.
        values: options that are tried.
    """
    recorded = profile.header.methods[label]
    free_options = find_kind(recorded.kind).free_options
    profiled = read_label(label)
    options = {
        name: recorded.about.options[name] if name in PATHS else value
        for name, value in profiled.given.items()
        if name not in free_options
    }
    options |= values
    given = {name: str(value) for name, value in options.items()}
    return str(MethodChoice(profiled.name, given))
