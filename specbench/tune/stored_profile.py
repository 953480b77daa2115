"""The files of an acceptance profile: what methods drafted at every position of answers.

A profile belongs to a model, methods' weights, prompts and a temperature, not to a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from specbench.errors import UserError, reading
from specbench.log.differences import PROFILE
from specbench.log.files import write_whole
from specbench.log.header import MethodHeader, ModelHeader, PromptsHeader
from specbench.measure.base import SetupInfo
from specbench.types import ProfileKind, Sampling, StopReason

SCHEMA = 1
HEADER, ARRAYS = "profile.json", "profile.npz"
MOST_BYTES = 50_000_000
"""Size of a profile's arrays."""
Arrays = Mapping[str, NDArray[Any]]
"""The recorded data of a method, with one row for each position."""


class AnswerHeader(Struct, frozen=True):
    """One of vanilla's answers. Its token ids, and its prompt's, are in the arrays."""

    prompt: str
    """Its name, "task/sample_id/turn"."""
    prompt_tokens: int
    """Tokens of the prompt."""
    num_tokens: int
    """Tokens of the answer; EOS is one of them."""
    limit: int
    """Tokens that the answer could have had."""
    stop_reason: StopReason | None
    """End token, token budget, or the model's context length."""
    sha256: str
    """Hash of the token ids of prompt and answer."""


class ProfiledMethod(Struct, frozen=True):
    """A method of a profile: the kind of data that is stored, and how it was drafted."""

    kind: ProfileKind
    has_fixed_size: bool
    """True if its drafts are as long at the end of an answer as elsewhere."""
    about: MethodHeader
    """Options of the recorded drafts, and weights."""


class ProfileHeader(Struct, frozen=True, kw_only=True):
    """The file `profile.json`."""

    schema: int
    model: ModelHeader
    methods: dict[str, ProfiledMethod]
    """By the spelling that was asked for."""
    sampling: Sampling
    max_new_tokens: int
    vocab_size: int
    prompts: tuple[PromptsHeader, ...]
    answers: tuple[AnswerHeader, ...]
    num_left_out: int
    """Answers that some method's forward of one row did not reproduce, by rounding."""
    versions: dict[str, str]
    arrays_sha256: str = ""
    """Hash of `profile.npz`."""


class Answer(NamedTuple):
    """An answer with its tokens. `first` is the row of its first position in the arrays."""

    about: AnswerHeader
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Profile:
    """An acceptance profile. `drafts` are each method's arrays, one row a position.

    A position is a token of an answer that a step begins from: all but the last.
    """

    header: ProfileHeader
    answers: tuple[Answer, ...]
    drafts: Mapping[str, Arrays]

    def check(self, model: ModelHeader, methods: Iterable[MethodHeader] = ()) -> None:
        """Refuse another model, and other weights of a method, with both values.

        Raises:
            UserError: the profile is not one of this model and these methods.
        """
        found = [*PROFILE.conflicts(SetupInfo(self.header.model, {}), SetupInfo(model, {}))]
        for theirs in methods:
            for one in self.header.methods.values():
                if one.about.name == theirs.name and one.about.weights:
                    pair = [SetupInfo(model, {theirs.name: at}) for at in (one.about, theirs)]
                    found += PROFILE.conflicts(*pair)
        if found:
            values = "  {0.field}: {0.first} in the profile, {0.second} here"
            listed = map(values.format, found)
            raise UserError(
                "\n".join(["The profile is not one of this model and its weights:", *listed]),
                "Make one of them: specbench tune profile --model M --method A,B --out DIR",
            )

    def write(self, folder: Path) -> None:
        """Write `profile.json` and `profile.npz`.

        Raises:
            UserError: the folder holds a profile, or the arrays are too large.
        """
        check_free(folder)
        arrays = {
            f"{label}/{name}": array
            for label, parts in self.drafts.items()
            for name, array in parts.items()
        }
        for name in ("prompt_ids", "token_ids"):
            rows = [np.array(getattr(one, name), dtype=np.int32) for one in self.answers]
            arrays[name] = np.concatenate(rows)
        content = packed(arrays)
        if len(content) > MOST_BYTES:
            raise too_large(len(content))
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ARRAYS, content)
        digest = sha256(content).hexdigest()
        header = msgspec.structs.replace(self.header, arrays_sha256=digest)
        write_whole(folder / HEADER, msgspec.json.format(msgspec.json.encode(header)))


def check_free(folder: Path) -> None:
    """Raise UserError if the folder holds a profile."""
    if (folder / HEADER).exists():
        raise UserError(f"{folder} holds a profile.", "Give --out another folder.")


def too_large(size: int) -> UserError:
    """The error for a profile of this size in bytes."""
    return UserError(
        f"The profile has about {size:,} bytes, more than {MOST_BYTES:,}.",
        "Give fewer prompts (--limit N), or profile the methods one by one.",
    )


def packed(arrays: Arrays) -> bytes:
    """A compressed file of arrays."""
    buffer, by_name = BytesIO(), dict[str, Any](arrays)
    np.savez_compressed(buffer, **by_name)
    return buffer.getvalue()


def read_profile(folder: str | Path) -> Profile:
    """Read the profile in a folder.

    Raises:
        UserError: the folder has no profile, or it is damaged or of a newer version.
    """
    path, hint = Path(folder), "Make it again: specbench tune profile"
    header = read_json(path / HEADER, ProfileHeader, "Profile", hint)
    with reading(path / ARRAYS, "Profile", hint):
        content = (path / ARRAYS).read_bytes()
    if (found := sha256(content).hexdigest()) != header.arrays_sha256:
        wanted = f"{HEADER} names {header.arrays_sha256[:12]}…"
        raise UserError(f"{path / ARRAYS} has sha256 {found[:12]}…, and {wanted}.", hint)
    drafts: dict[str, dict[str, Any]] = {label: {} for label in header.methods}
    with reading(path / ARRAYS, "Profile", hint):
        arrays = dict(np.load(BytesIO(content), allow_pickle=False))
        ids = [arrays.pop(name).tolist() for name in ("prompt_ids", "token_ids")]
        for name, array in arrays.items():
            label, _, part = name.rpartition("/")
            drafts[label][part] = array
    prompts, tokens = map(iter, ids)
    rows = [
        (one, tuple(islice(prompts, one.prompt_tokens)), tuple(islice(tokens, one.num_tokens)))
        for one in header.answers
    ]
    return Profile(header, placed(rows), drafts)


Header = TypeVar("Header", bound=Struct)


def read_json(path: Path, kind: type[Header], what: str, hint: str) -> Header:
    """The header in a file of a profile or curve."""
    if not path.is_file():
        raise UserError(f"{path.parent} holds no {what.lower()} ({path.name}).", hint)
    with reading(path, what, hint):
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    if (schema := getattr(found, "schema", 0)) > SCHEMA:
        reason = f"{path} has schema {schema}, newer than {SCHEMA}."
        raise UserError(reason, "Use a newer specbench.")
    return found


def placed(
    rows: Iterable[tuple[AnswerHeader, tuple[int, ...], tuple[int, ...]]],
) -> tuple[Answer, ...]:
    """Answers with the row of their first position."""
    found, first = [], 0
    for about, prompt_ids, token_ids in rows:
        found.append(Answer(about, prompt_ids, token_ids, first))
        first += len(token_ids) - 1
    return tuple(found)
