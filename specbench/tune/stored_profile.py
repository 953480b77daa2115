"""The files of an acceptance profile: what methods drafted at every position of answers.

A profile belongs to a model, methods' weights, prompts and a temperature, not to a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
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

    schema: int = SCHEMA
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
    """One of vanilla's answers, and the drafts of each method: arrays with a row a position.

    A position is a token of the answer that a step begins from: all but the last.
    """

    about: AnswerHeader
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    drafts: Mapping[str, Arrays]


@dataclass(frozen=True)
class Profile:
    """An acceptance profile: its header, and vanilla's answers with what methods drafted."""

    header: ProfileHeader
    answers: tuple[Answer, ...]

    def check(self, model: ModelHeader, methods: Mapping[str, MethodHeader]) -> None:
        """Refuse another model, and other weights of a method, with both values.

        Raises:
            UserError: the profile is not one of this model and these methods.
        """
        both = {label: one.about for label, one in self.header.methods.items() if label in methods}
        own = SetupInfo(self.header.model, both)
        conflicts = PROFILE.conflicts(own, SetupInfo(model, {one: methods[one] for one in both}))
        check_same(
            "The profile is not one of this model and its weights:",
            ("in the profile", "here"),
            ((one.field, one.first, one.second) for one in conflicts),
            "Make one of them: specbench tune profile --model M --method A,B --out DIR",
        )

    def write(self, folder: Path) -> None:
        """Write `profile.json` and `profile.npz`.

        Raises:
            UserError: the folder holds a profile, or the arrays are too large.
        """
        check_free(folder / HEADER)
        parts: dict[str, list[NDArray[Any]]] = {}
        for answer in self.answers:
            for label, arrays in answer.drafts.items():
                for name, array in arrays.items():
                    parts.setdefault(f"{label}/{name}", []).append(array)
        for name in ("prompt_ids", "token_ids"):
            parts[name] = [np.array(getattr(one, name), np.int32) for one in self.answers]
        content = packed({name: _joined(arrays) for name, arrays in parts.items()})
        if len(content) > MOST_BYTES:
            raise too_large(len(content))
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ARRAYS, content)
        digest = sha256(content).hexdigest()
        header = msgspec.structs.replace(self.header, arrays_sha256=digest)
        write_whole(folder / HEADER, msgspec.json.format(msgspec.json.encode(header)))


def check_same(
    title: str, where: tuple[str, str], pairs: Iterable[tuple[str, Any, Any]], hint: str
) -> None:
    """Raise UserError, with both values, if those of any name differ."""
    found = [
        f"  {name}: {one or 'none'} {where[0]}, {other or 'none'} {where[1]}"
        for name, one, other in pairs
        if one != other
    ]
    if found:
        raise UserError("\n".join([title, *found]), hint)


def check_free(path: Path, what: str = "profile") -> None:
    """Raise UserError if there is a profile or curve at this path."""
    if path.exists():
        raise UserError(f"{path.parent} holds a {what}.", "Give --out another folder.")


def too_large(size: int) -> UserError:
    """The error for a profile of this size in bytes."""
    return UserError(
        f"The profile has about {size:,} bytes, more than {MOST_BYTES:,}.",
        "Give fewer prompts (--limit N), or profile the methods one by one.",
    )


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The rows of all answers. Drawn chains of a short answer may be shorter than others."""
    if arrays[0].ndim == 2:
        width = max(one.shape[1] for one in arrays)
        arrays = [np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in arrays]
    return np.concatenate(arrays)


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
        sizes = [(one.prompt_tokens, one.num_tokens, one.num_tokens - 1) for one in header.answers]
        of_prompts, of_answers, of_drafts = np.cumsum(sizes, 0)[:-1].T
        arrays = dict(np.load(BytesIO(content), allow_pickle=False))
        prompts = np.split(arrays.pop("prompt_ids"), of_prompts)
        tokens = np.split(arrays.pop("token_ids"), of_answers)
        drafts = {name: np.split(array, of_drafts) for name, array in arrays.items()}
    answers = []
    for i, about in enumerate(header.answers):
        own: dict[str, dict[str, NDArray[Any]]] = {label: {} for label in header.methods}
        for name, parts in drafts.items():
            label, _, part = name.rpartition("/")
            own[label][part] = parts[i]
        answers.append(Answer(about, tuple(prompts[i].tolist()), tuple(tokens[i].tolist()), own))
    return Profile(header, tuple(answers))


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
