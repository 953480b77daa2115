"""Shell completion: names of methods, models, tasks, engines, formats and runs."""

from collections.abc import Callable, Iterable

from specbench import registry
from specbench.log.options import Option
from specbench.measure.server import NAMES
from specbench.report.export import FORMATS
from specbench.types import RUNS

Complete = Callable[[str], list[str]]


def _completing(names: Callable[[], Iterable[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        """The names that complete the last part of a comma-separated list."""
        head, comma, last = incomplete.rpartition(",")
        return [f"{head}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def choice(*values: str) -> Complete:
    """One of a few values."""
    return _completing(lambda: values)


def _datasets() -> Iterable[str]:
    from specbench.data.tasks import load_cards

    return load_cards()


def _models() -> Iterable[str]:
    from specbench.models.cards import known_models

    return known_models()


def _run_names() -> Iterable[str]:
    from specbench.log.store import list_runs

    return map(str, list_runs(RUNS))


def everything() -> list[str]:
    """All names that `specbench show` takes."""
    return [*registry.names(), *_datasets(), *_models(), *_run_names()]


methods = _completing(registry.names)
models = _completing(_models)
formats = choice(*FORMATS)
runs = _completing(_run_names)
anything = _completing(everything)
_METAVARS = {
    "METHOD,...": methods,
    "METHOD": methods,
    "MODEL": models,
    "TASK,...": _completing(_datasets),
    "SOURCE": choice("bundled", "paper", "hub"),
    "[local|ADDRESS]": choice("local", "auto"),
}
"""Completers of options without choices, by metavar."""


def choices(option: Option) -> list[str]:
    """The words that an option takes; empty if it takes any text."""
    named = NAMES if option.metavar == "ENGINE" else option.choices
    return [name or option.word for name in named if name or option.word]


def completer(option: Option) -> Complete | None:
    """The completer of an option's value, if it has one."""
    found = choices(option)
    return choice(*found) if found else _METAVARS.get(option.metavar)
