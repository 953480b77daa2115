"""A field in which two runs differ, and texts that describe such differences."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specbench.log.header import RunHeader
from specbench.log.options import Role

RoleOrPattern = str
"""A role, such as "work", or a pattern for paths of fields, such as "methods.*.options", in which
"*" stands for any text.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two runs differ, with both values as text."""

    what: str
    """Name under which readers see the field."""
    first: str
    """Value in the first run."""
    second: str
    """Value in the second run."""
    field: str
    """Path of the field in the header, such as "model.dtype"."""
    role: Role
    """Role of the field."""
    method: str = ""
    """The method named at the end of `what`, or an empty text."""
    options: tuple[str, ...] = ()
    """The changed options of the method, such as "num_tokens 5 -> 3". Empty for other fields."""

    def describe(self, first: str = "the first", second: str = "the second") -> str:
        """The difference in words. `first` and `second` are names for the two runs."""
        return f"{self.what}: {self.first} in {first}, {self.second} in {second}"

    def is_any_of(self, selected: Iterable[RoleOrPattern]) -> bool:
        """True if the field has one of these roles, or matches one of these patterns."""
        return any(
            self.role == role_or_pattern or fnmatchcase(self.field, role_or_pattern)
            for role_or_pattern in selected
        )


def in_words(conflicts: Iterable[Difference], first: RunHeader, second: RunHeader) -> list[str]:
    """The differences in words. They name the two runs if the runs have different ids."""
    names = [first.id, second.id] if first.id != second.id else []
    return [difference.describe(*names) for difference in conflicts]


def change_lines(differences: Iterable[Difference]) -> list[str]:
    """The changes from the first run to the second as lines, such as "dtype: float32 -> bfloat16".

    The line for a method's options does not name the field, as in "sps: num_tokens 5 -> 3". If a
    field changes in the same way for several methods, they share a line, such as "execution of 11
    methods: eager -> graph".
    """
    # (name of the field without the method, change of its content) -> the methods with this
    # change, or a single "" for a field that belongs to no method
    methods_by_change: dict[tuple[str, str], list[str]] = {}
    for difference in differences:
        if difference.options:  # texts such as "num_tokens 5 -> 3"
            field_name, change = "", ", ".join(difference.options)
        else:  # "execution of sps" without "sps"
            field_name = difference.what.removesuffix(difference.method)
            change = f"{difference.first} -> {difference.second}"
        methods_by_change.setdefault((field_name, change), []).append(difference.method)
    lines = []
    for (field_name, change), methods in methods_by_change.items():
        method_text = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
        lines.append(f"{field_name}{method_text}: {change}")
    return lines
