"""Declarations on the fields of a header: options and roles.

An option is something that a user can set. It is declared once, with the field that has its value:

    limit: Annotated[int | None, option("Use N prompts.", "measure", "draw", least=1)] = None

Commands take their parameters, help, environment variables and checks from it. So does the printed
command that others can use to repeat the run.

A role says what a field is about when two runs are compared:

    environment: Annotated[Environment, role("machine")]
    version: Annotated[str, shown_as("torch")]

A field without a role has the role of the struct around it. Readers see a field under the given
name. A field without a name is compared only if all fields must be equal.
"""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from specbench.errors import UserError, unknown_name
from specbench.log.option_forms import READERS

Role = Literal["work", "method", "draw", "machine", "note"]
"""The subject of a field: the work asked of the model; a method's options and weights; the draw of
samples and passes; the machine with its versions, threads and kernels; or a note, which is never
compared.
"""
Group = Literal["measure", "model", "decoding", "server", "limits", "output"]
"""The heading under which the help shows an option."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, as its field declares it."""

    group: Group
    role: Role
    metavar: str = "N"
    name: str = ""
    """The name of its field."""
    kind: Any = str
    """The type of its field."""
    default: Any = None
    """The default of its field."""
    help: str = ""
    parameter: str = ""
    """Name in commands, variables and `given`, if it differs from the field's name."""
    choices: tuple[str, ...] = ()
    noun: str = ""
    """The word for a choice in the error about an unknown one."""
    least: float | None = None
    """The smallest value that is allowed."""
    above: float | None = None
    """The value must be larger than this number."""
    most: float | None = None
    """The largest value that is allowed."""
    hint: str = ""
    """Advice for a value that is not allowed."""
    backend: Literal["", "engine", "server"] = ""
    """The backend that takes the option: the engine in this process, or servers. Empty for both."""
    form: Literal["", "share", "words", "texts"] = ""
    """The form of the text: a share (2 % or 0.02), words as in a shell, or texts that may have
    commas. Empty for plain texts.
    """
    word: str = ""
    """The word for the default on a command line, such as "auto" in `--threads auto`."""
    unset: str = ""
    """A description of the default, if the default depends on other values."""
    is_compared: bool = False
    """True if comparisons name the option. If not, other fields of the header show the difference.
    """

    @property
    def default_text(self) -> str:
        """The default in brackets, if it depends on other values, else an empty text."""
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
        """The type of the option's value, or of each value: bool, int, float, str or Path."""
        if get_origin(self.kind) is Literal:
            return str
        # Types inside the field's type, such as int in `int | None` and `tuple[int, ...]`.
        kinds = [kind for kind in get_args(self.kind) if kind is not type(None)]
        first_kind = kinds[0] if kinds else self.kind
        return first_kind if isinstance(first_kind, type) else str

    def read(self, given: Any) -> Any:
        """The value of the option for `given`, which comes from a command line.

        If the option can be given several times, `given` is a list of texts, and the value is a
        tuple. For other options, `given` is a text or the value. The option's `word`, such as
        "auto", stands for the default. It is "" for an option without such a word. `form` is the
        form of a text that is not plain. `item` is the type of the value, or of a tuple's elements.

        Raises:
            UserError: a text is not a number, or does not have the option's form.
        """
        if given == self.word and self.word:
            return self.default
        if self.form == "texts":  # which may have commas
            return tuple(given_text.strip() for given_text in given if given_text.strip())
        if self.form:  # a share, or words as in a shell
            return READERS[self.form](self.flag, given)  # the flag is for messages
        if self.is_many:  # each text may have several values with commas between them
            stripped = [piece.strip() for given_text in given for piece in given_text.split(",")]
            texts = [piece for piece in stripped if piece]
            if self.item is str:
                return tuple(texts)
            return tuple(dict.fromkeys(map(self._number, texts)))  # without duplicates
        return self._number(given) if self.item in (int, float) else given

    def _number(self, number_text: str) -> Any:
        """The number in a text, in the type `item`. Raises UserError if it is not a number."""
        try:
            return self.item(number_text)
        except ValueError as error:
            wanted = "a whole number" if self.item is int else "a number"
            hint = "Give numbers: 1 or 1,4." if self.is_many else "Give a number, such as 8."
            hint = f"Give {self.word}, 1 or more." if self.word else hint
            raise UserError(f"{self.flag} {number_text} is not {wanted}.", hint) from error

    def write(self, option_value: Any) -> str:
        """The text of the option's value on a command line, which `read` can read back."""
        if self.form == "words":
            return shlex.join(option_value)
        if not isinstance(option_value, tuple):
            option_value = (option_value,)
        return ",".join(
            f"{element:g}" if isinstance(element, float) else str(element)
            for element in option_value
        )

    def check(self, option_value: Any) -> None:
        """Raise UserError if a number is outside the option's limits, or a value is not a choice.

        `option_value` is a number, a text or a tuple of these. Every number is checked. An option
        has at most one lower limit: `least` is allowed, `above` is too small. If the option has no
        `hint`, the message gives the limit.
        """
        for number in option_value if isinstance(option_value, tuple) else (option_value,):
            if isinstance(number, int | float):
                self._check_number(_as_float(number))
        if self.choices and option_value not in self.choices:
            noun = self.noun or self.name  # what the choices are, for the message
            raise unknown_name(noun, option_value, filter(None, self.choices), self.hint)

    def _check_number(self, number: float) -> None:
        fault = self._fault(number)
        if not fault:
            return
        limit = ""  # the limit that the number breaks, if there is one
        if fault == "too large":
            limit = "a smaller number" if self.most is None else f"at most {self.most:g}"
        elif self.least is not None:
            limit = f"at least {self.least:g}"
        elif self.above is not None:
            limit = f"above {self.above:g}"
        hint = self.hint or f"Give {self.flag} {limit or 'a number'}."
        raise UserError(f"{self.flag} {number:g} is {fault}.", hint)

    def _fault(self, number: float) -> str:
        """The reason why a number is not allowed, such as "too small". Empty if it is allowed.

        A number must be at least `least`, above `above`, and at most `most`. A limit that is None
        does not apply.
        """
        if math.isnan(number):
            return "not a number"
        is_below_least = self.least is not None and number < self.least
        if is_below_least or (self.above is not None and number <= self.above):
            return "too small"
        is_too_large = math.isinf(number) or (self.most is not None and number > self.most)
        return "too large" if is_too_large else ""


def _as_float(number: float) -> float:
    """The number as a float. A whole number that is too large for a float becomes infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def option(text: str, group: Group, role: Role, metavar: str = "N", **more: Any) -> Meta:
    """Declare an option in the `Annotated` type of its field.

    `text` is the help. If it ends with a colon, the help lists the choices after it. `more` has
    other fields of `Option`. Options in the group "server" are only for servers.
    """
    if group == "server":
        more["backend"] = "server"
    declared = Option(group, role, metavar, help=text, **more)
    description = f"{text.rstrip('.:')}{declared.default_text}"
    return Meta(description=description, extra={"option": declared})


@cache
def options(struct: type[Struct], *names: str) -> tuple[Option, ...]:
    """The options that a struct declares, in the order of its fields.

    If `names` are given, only the options of fields with these names are returned.
    """
    by_name: dict[str, Option] = {}
    for field, extra in _declarations(struct):
        if declared := extra.get("option"):
            by_name[field.name] = replace(
                declared,
                name=field.name,
                parameter=declared.parameter or field.name,
                kind=get_args(field.type)[0],
                default=field.default,
            )
    assert {*names} <= {*by_name}, names
    return tuple(option for name, option in by_name.items() if name in (names or by_name))


class FieldRole(NamedTuple):
    """The role of a field, and its name for readers."""

    field: str
    role: Role | None
    """The field's role, or None if it has the role of the struct around it."""
    shown_name: str
    """The field's name for readers, or an empty text if they do not see it."""


def role(role: Role, shown_name: str = "") -> Meta:
    """Declare a field's role, and its name for readers, in its `Annotated` type.

    In a field that maps keys to entries, "{}" in the name stands for the key of an entry.
    """
    return Meta(extra={"role": role, "shown_name": shown_name})


def shown_as(name: str) -> Meta:
    """Declare the name for readers of a field that has the role of the struct around it."""
    return Meta(extra={"shown_name": name})


@cache
def field_roles(struct: type[Struct]) -> tuple[FieldRole, ...]:
    """The role and the name for readers of each field of a struct, in the order of the fields.

    A role is None if the field declares none. Then it has the role of the field that holds the
    struct. A name is "" if readers do not see the field. A field that is an option of the command
    line has the option's role. If comparisons name the option, the field's name is the option's
    flag ("--top-p").
    """
    options_by_name = {option.name: option for option in options(struct)}
    roles = []
    # `extra` is what the field's annotation declares: a dict with "role" or "shown_name", or empty.
    for field, extra in _declarations(struct):
        if option := options_by_name.get(field.name):
            shown_name = option.flag if option.is_compared else ""
            roles.append(FieldRole(field.name, option.role, shown_name))
        else:
            roles.append(FieldRole(field.name, extra.get("role"), extra.get("shown_name", "")))
    return tuple(roles)


def _declarations(struct: type[Struct]) -> Iterator[tuple[FieldInfo, dict[str, Any]]]:
    """Yield each field of a struct with the `extra` that `option`, `role` or `shown_as` declare."""
    for field in fields(struct):
        metas = field.type.__metadata__ if get_origin(field.type) is Annotated else ()
        yield field, next((meta.extra for meta in metas if meta.extra), {})
