"""Look up methods by name with their options, and parse the methods that a user names."""

from specbench.registry.choices import MethodChoice, parse_choices
from specbench.registry.lookup import (
    GROUP,
    GROUPS,
    Entry,
    check_choice,
    check_group,
    default_entries,
    entries,
    expand_groups,
    get,
    names,
    option_names,
    paper_methods,
    with_known_names,
)
from specbench.registry.options import OptionInfo, describe_options, make_options

__all__ = [
    "GROUP",
    "GROUPS",
    "Entry",
    "MethodChoice",
    "OptionInfo",
    "check_choice",
    "check_group",
    "default_entries",
    "describe_options",
    "entries",
    "expand_groups",
    "get",
    "make_options",
    "names",
    "option_names",
    "paper_methods",
    "parse_choices",
    "with_known_names",
]
