"""Methods by their labels, as profiles and cost curves name them."""

from specbench.measure.spec import RunSpec
from specbench.registry import MethodChoice


def read_label(label: str) -> MethodChoice:
    """The method and the options that a label names. It has only the last part of a file's path."""
    (choice,) = RunSpec(methods=(label,)).choices
    return choice
