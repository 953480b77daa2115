"""Read the labels of methods in profiles and cost curves."""

from specbench.measure.spec import RunSpec
from specbench.registry import MethodChoice


def read_label(label: str) -> MethodChoice:
    """Read the method and the options in a label. Paths in a label have only their last part."""
    (choice,) = RunSpec(methods=(label,)).choices
    return choice
