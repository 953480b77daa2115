"""Read the labels by which profiles and cost curves name methods."""

from specbench.measure.spec import RunSpec
from specbench.registry import MethodChoice


def read_label(label: str) -> MethodChoice:
    """Read the method and the options in a label, where a path has only its last part."""
    (choice,) = RunSpec(methods=(label,)).choices
    return choice
