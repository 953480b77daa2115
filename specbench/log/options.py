"""Declarations on the fields of a header: options and roles.

An option is what a user can set, declared once, with the field that keeps its value:

    limit: Annotated[int | None, option("Use N prompts.", "measure", "draw", least=1)] = None

Parameters of commands, their help, variables, checks, and the command that is printed for
others to repeat are made from it.

A role is what a field is for when two runs are compared:

    environment: Annotated[Environment, role("machine")]
    version: Annotated[str, told("torch")]

A field without a role has the role of its part. Readers see a field under the name given; a
field without a name is compared only where everything must be equal.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from specbench.errors import UserError, unknown_name

Role = Literal["work", "method", "draw", "machine", "note"]
"""The work asked of the model; a method's options and weights; the draw of samples and passes;
the machine with its versions, threads and kernels; or a note, which is never compared.
"""
Group = Literal["measure", "model", "decoding", "server", "limits", "output"]
"""Heading of an option in the help."""


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option. `name`, `kind`, `default` and `help` come from its field.

    A value out of the limits is refused with `hint`. `word` stands for the default on a
    command line, as in `--threads auto`; `unset` describes a default that depends on other
    values.
    """

    group: Group
    role: Role
    metavar: str = "N"
    name: str = ""
    kind: Any = str
    default: Any = None
    help: str = ""
    parameter: str = ""
    """Name in commands, variables and `given`, if it is not the field's."""
    choices: tuple[str, ...] = ()
    noun: str = ""
    """The noun for a choice, in the error for an unknown one."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    hint: str = ""
    backend: Literal["", "engine", "server"] = ""
    """Backend that takes the option: the engine in this process, servers, or both."""
    form: Literal["", "share", "words", "texts"] = ""
    """Text of the value: 2 % or 0.02; words as in a shell; texts that may have commas."""
    word: str = ""
    unset: str = ""
    is_told: bool = False
    """Comparisons name the option; else another field of the header shows the difference."""

    @property
    def default_text(self) -> str:
        """The default in words, if it depends on other values."""
        return f" [default: {self.unset}]" if self.unset else ""

    @property
    def flag(self) -> str:
        return f"--{(self.parameter or self.name).replace('_', '-')}"

    @property
    def is_many(self) -> bool:
        """True if the option can be given several times, or with commas."""
        return get_origin(self.kind) is tuple and self.form != "words"

    @property
    def item(self) -> type:
        """The type of a value, or of each of several: bool, int, float, str or Path."""
        if get_origin(self.kind) is Literal:
            return str
        found = next((kind for kind in get_args(self.kind) if kind is not type(None)), self.kind)
        return found if isinstance(found, type) else str

    def read(self, given: Any) -> Any:
        """The value that a text, a number or a list of texts on a command line means.

        Raises:
            UserError: a text is not a value of this option.
        """
        if given == self.word and self.word:
            return self.default
        if self.form == "texts":
            return tuple(text.strip() for text in given if text.strip())
        if self.form:
            return _READERS[self.form](self.flag, given)
        if self.is_many:
            parts = [part.strip() for text in given for part in text.split(",") if part.strip()]
            if self.item is str:
                return tuple(parts)
            return tuple(dict.fromkeys(self._number(part) for part in parts))
        return self._number(given) if self.item in (int, float) else given

    def _number(self, text: str) -> Any:
        try:
            return self.item(text)
        except ValueError as error:
            wanted = "a whole number" if self.item is int else "a number"
            hint = "Give numbers: 1 or 1,4." if self.is_many else "Give a number, such as 8."
            hint = f"Give {self.word}, 1 or more." if self.word else hint
            raise UserError(f"{self.flag} {text} is not {wanted}.", hint) from error

    def write(self, value: Any) -> str:
        """The text of a value, which `read` reads."""
        if self.form == "words":
            return shlex.join(value)
        items = value if isinstance(value, tuple) else (value,)
        return ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in items)

    def check(self, value: Any) -> None:
        """Refuse a value out of the limits, or not among the choices.

        Raises:
            UserError: the value is refused.
        """
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and (fault := self._fault(number)):
                bound = (
                    f"above {self.above:g}" if self.least is None else f"at least {self.least:g}"
                )
                hint = self.hint or f"Give {self.flag} {bound}."
                raise UserError(f"{self.flag} {number:g} is {fault}.", hint)
        if self.choices and value not in self.choices:
            noun = self.noun or self.name
            raise unknown_name(noun, value, filter(None, self.choices), self.hint)

    def _fault(self, number: float) -> str:
        if math.isnan(number):
            return "not a number"
        if self.least is not None and number < self.least:
            return "too small"
        if self.above is not None and number <= self.above:
            return "too small"
        is_too_large = math.isinf(number) or (self.most is not None and number > self.most)
        return "too large" if is_too_large else ""


def option(text: str, group: Group, role: Role, metavar: str = "N", **more: Any) -> Meta:
    """The declaration of an option, for the `Annotated` type of its field.

    A text that ends with a colon goes on with the choices in the help. Options in the group
    "server" are for servers only.
    """
    if group == "server":
        more["backend"] = "server"
    made = Option(group, role, metavar, help=text, **more)
    return Meta(description=f"{text.rstrip('.:')}{made.default_text}", extra={"option": made})


@cache
def options(struct: type[Struct], *names: str) -> tuple[Option, ...]:
    """The options that a struct declares, in its order; with `names`, only of these fields."""
    found = {}
    for field, declared in _declared(struct):
        if one := declared.get("option"):
            named = {"name": field.name, "parameter": one.parameter or field.name}
            kind = get_args(field.type)[0]
            found[field.name] = replace(one, **named, kind=kind, default=field.default)
    assert {*names} <= {*found}, names
    return tuple(one for name, one in found.items() if name in (names or found))


class FieldRole(NamedTuple):
    """The role of a field, if it has one of its own, and its name for readers."""

    field: str
    role: Role | None
    told: str


def role(role: Role, told: str = "") -> Meta:
    """A field's role and name for readers, for its `Annotated` type.

    In a field that maps keys to entries, "{}" in the name stands for the key of an entry.
    """
    return Meta(extra={"role": role, "told": told})


def told(name: str) -> Meta:
    """The name for readers of a field that has the role of its part."""
    return Meta(extra={"told": name})


@cache
def field_roles(struct: type[Struct]) -> tuple[FieldRole, ...]:
    """The roles of all fields, in order. An option is named by its flag."""
    of_options = {one.name: one for one in options(struct)}
    found = []
    for field, declared in _declared(struct):
        own, name = declared.get("role"), declared.get("told", "")
        if one := of_options.get(field.name):
            own, name = one.role, one.flag * one.is_told
        found.append(FieldRole(field.name, own, name))
    return tuple(found)


def _declared(struct: type[Struct]) -> Iterator[tuple[FieldInfo, dict[str, Any]]]:
    """Each field with what `option`, `role` or `told` declare of it."""
    for field in fields(struct):
        metas = field.type.__metadata__ if get_origin(field.type) is Annotated else ()
        yield field, next((meta.extra for meta in metas if meta.extra), {})


def share(flag: str, text: str) -> float:
    """The share of the text "5%" or "0.05".

    Raises:
        UserError: the text is not a share.
    """
    digits = text.strip().removesuffix("%")
    try:
        found = float(digits) / (100 if digits != text.strip() else 1)
    except ValueError:
        found = math.nan
    if not 0 <= found < 1:
        why = "is below 0" if found < 0 else "is 100 % or more"
        why = "is not a number" if math.isnan(found) else why
        raise UserError(f"{flag} {text} {why}.", f"Give a share such as {flag} 5% or {flag} 0.05.")
    return found


def _words(flag: str, text: str) -> Sequence[str]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{flag} {text}: {error}.", "Close the quotes.") from error


_READERS: dict[str, Callable[[str, str], Any]] = {"share": share, "words": _words}
