"""Methods by their labels, as profiles and cost curves name them."""

from specbench.measure.spec import RunSpec
from specbench.registry import MethodChoice


def read_label(label: str) -> MethodChoice:
    """The method of a label, and the options that it names; a file goes by its last name."""
    (choice,) = RunSpec(methods=(label,)).choices
    return choice
