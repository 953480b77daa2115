"""Methods, parsed from the texts that name them on the command line."""

from collections.abc import Sequence

from specbench.measure.spec import RunSpec
from specbench.settings.run_method import RunMethod


def parse_methods(texts: Sequence[str]) -> list[RunMethod]:
    return [method.load() for method in RunSpec(methods=tuple(texts)).run_methods]
