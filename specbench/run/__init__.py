"""Runs, from what the user asks for to records on disk, one way:

spec -> plan -> header -> backend -> requests -> records

`spec` checks values, `plan` resolves names and files, `header` is what `run.json` says of the plan,
a backend completes requests, and `runner` makes requests of prompts and records of completions.
`session` runs these in order. No stage knows a later one.
"""

import sys
from types import ModuleType
from typing import Any

import specbench


class _CallableModule(ModuleType):
    """This package, which is `specbench.run(...)` too: Python has one attribute for both."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Measure methods on tasks; see `specbench.api.run`."""
        return specbench.__getattr__("run")(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
