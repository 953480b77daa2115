"""The role of a field of the header: what it is for when two runs are compared.

    environment: Annotated[Environment, role("machine")]
    version: Annotated[str, told("torch")]

A field without a role has the role of its part. Readers see a field under the name given; a
field without a name is compared only where everything must be equal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_origin

from msgspec import Meta, Struct
from msgspec.structs import fields

Role = Literal["work", "method", "draw", "machine", "note"]
"""The work asked of the model; a method's options and weights; the draw of samples and passes;
the machine with its versions, threads and kernels; or a note, which is never compared.
"""


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
    """The declarations of all fields, in order. An option is named by its flag."""
    found = []
    for field in fields(struct):
        metas = field.type.__metadata__ if get_origin(field.type) is Annotated else ()
        extra: dict[str, Any] = next((meta.extra for meta in metas if meta.extra), {})
        own, name = extra.get("role"), extra.get("told", "")
        if option := extra.get("option"):
            own = option.role
            name = replace(option, name=field.name).flag if option.is_told else ""
        found.append(FieldRole(field.name, own, name))
    return tuple(found)
