"""Output formats. Each has a module with the name of the format.

Such a module has two functions. `render(report) -> str` makes the text that `--format` prints.
`files(report) -> dict[str, str]` makes the files that `--out` writes. The format for a terminal is
called "table". Modules are found by name, and loaded when they are used.
"""

import pkgutil
from importlib import import_module
from types import ModuleType

from specbench.errors import unknown_name

_TERMINAL = "terminal"

FORMATS = (
    "table",
    *(name for _, name, _ in pkgutil.iter_modules(__path__) if name != _TERMINAL),
)
"""The names for `--format`, of which the first is the default."""


def load_format(name: str) -> ModuleType:
    """Return the module of a format.

    Raises:
        UserError: there is no format with this name.
    """
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    module = _TERMINAL if name == FORMATS[0] else name
    return import_module(f"{__name__}.{module}")
