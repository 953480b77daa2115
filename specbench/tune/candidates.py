"""List the settings of a profiled method that a tune tries."""

from collections.abc import Mapping
from typing import Any

from specbench.registry import MethodChoice
from specbench.settings.run_method import PATHS
from specbench.tune.kind import find_kind
from specbench.tune.labels import read_label
from specbench.tune.profile_file import Profile
from specbench.tune.replay import misfit


def candidates(profile: Profile, label: str) -> list[str]:
    """List the settings of a profiled method that a tune tries, beginning with the paper's.

    They are spelled as on the command line. `label` is the method as it was profiled. Settings that
    the profile does not cover are left out.
    """
    profiled_method = profile.header.methods[label]
    paper_values: dict[str, Any] = {}  # options that are not given have the paper's values
    grid = [paper_values, *find_kind(profiled_method.kind).grid(profiled_method.about.options)]
    settings = dict.fromkeys(spelling(profile, label, values) for values in grid)  # each once
    methods = profile.methods_of([*settings])
    return [str(method.asked) for method in methods if not misfit(label, profiled_method, method)]


def spelling(profile: Profile, label: str, values: Mapping[str, Any]) -> str:
    """Spell a setting as on the command line: a profiled method with the options to try.

    A label has only the last part of a path, but the spelling has the whole path.

    Args:
        profile: has the method.
        label: the method as it was profiled.
        values: options to try, by name.
    """
    profiled_method = profile.header.methods[label]
    free_options = find_kind(profiled_method.kind).free_options  # those that a tune may change
    choice = read_label(label)  # the method's name, and the options of the label as texts
    options = {
        name: profiled_method.about.options[name] if name in PATHS else value
        for name, value in choice.given.items()
        if name not in free_options
    }
    options |= values
    given = {name: str(value) for name, value in options.items()}
    return str(MethodChoice(choice.name, given))
