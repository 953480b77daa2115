"""Show the options of a run in the signatures of functions that take them as `**values`."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from specbench.log.options import Option, options
from specbench.log.spec import SpecValues


def options_of(group: str = "") -> list[Option]:
    """Return the options of a run, or those of one group."""
    return [option for option in options(SpecValues) if group in ("", option.group)]


def show_options(function: Callable[..., Any], group: str = "", **defaults: Any) -> None:
    """Add the options that a function takes as `**values` to its signature, for `help()`.

    `defaults` replace the options' own defaults.
    """
    declared = signature(function)
    parameters = [
        parameter
        for parameter in declared.parameters.values()
        if parameter.kind is not Parameter.VAR_KEYWORD
    ]
    names = {parameter.name for parameter in parameters}
    for option in options_of(group):
        if option.name not in names:
            parameters.append(
                Parameter(
                    option.name,
                    Parameter.KEYWORD_ONLY,
                    default=defaults.get(option.name, option.default),
                    annotation=option.kind,
                )
            )
    function.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
