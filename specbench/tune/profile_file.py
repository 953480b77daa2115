"""Acceptance profiles: what methods draft at every position of vanilla's answers; their files.

A profile belongs to a model, methods' weights, prompts and a temperature, not to a machine. The
kind (`specbench.tune.kinds`) defines the meaning of an array of drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from specbench.errors import UserError, reading
from specbench.log.files import REPEAT, folder_errors, write_whole
from specbench.log.header import PromptsHeader
from specbench.log.methods import MethodHeader
from specbench.log.model import ModelHeader
from specbench.log.policies import PROFILE
from specbench.measure.base import SetupInfo
from specbench.measure.spec import RunSpec
from specbench.settings.json_files import SCHEMA, Compared, check_free, check_same, read_json
from specbench.settings.run_method import RunMethod
from specbench.types import ProfileKind, Sampling, StopReason

PROFILE_FILE = "profile.json"
ARRAYS_FILE = "profile.npz"
MOST_BYTES = 50_000_000
"""Largest size of a profile's arrays: a repository may hold this much."""

Arrays = Mapping[str, NDArray[Any]]
"""The recorded data of a method by name, with a row per position."""


class AnswerHeader(msgspec.Struct, frozen=True):
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


class ProfiledMethod(msgspec.Struct, frozen=True):
    """A method of a profile: the kind of data that is stored, and how it was drafted."""

    kind: ProfileKind
    """The name of its kind."""
    has_fixed_size: bool
    """True if its drafts are as long at the end of an answer as elsewhere."""
    about: MethodHeader
    """Options of the recorded drafts, and weights."""


class ProfileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The file `profile.json`."""

    schema: int = SCHEMA
    model: ModelHeader
    """The target."""
    methods: dict[str, ProfiledMethod]
    """By the requested spelling."""
    sampling: Sampling
    """Temperature, top-p and top-k of the answers."""
    max_new_tokens: int
    """Most tokens of an answer."""
    vocab_size: int
    """Of the target."""
    prompts: tuple[PromptsHeader, ...]
    """The sets of prompts."""
    answers: tuple[AnswerHeader, ...]
    """In the order of the arrays."""
    num_left_out: int
    """Number of answers that some method did not reproduce, because of rounding."""
    versions: dict[str, str]
    """Of specbench, torch and transformers."""
    arrays_sha256: str = ""
    """Hash of `profile.npz`."""


class Answer(NamedTuple):
    """One of vanilla's answers, with the drafts of each method.

    A position is a token of the answer from which a step begins: every token except the last.
    """

    about: AnswerHeader
    """Its name, lengths and hash."""
    prompt_ids: tuple[int, ...]
    """Tokens of the prompt."""
    token_ids: tuple[int, ...]
    """Tokens of the answer."""
    drafts: Mapping[str, Arrays]
    """By method: arrays with a row per position."""


@dataclass(frozen=True)
class Profile:
    """An acceptance profile: its header, and vanilla's answers with what methods drafted."""

    header: ProfileHeader
    answers: tuple[Answer, ...]

    def methods_of(self, settings: Sequence[str]) -> list[RunMethod]:
        """The methods that texts name, with the paper's options for the profile's model.

        Raises:
            UserError: an unknown method or option, or a wrong value.
        """
        num_parameters = self.header.model.num_parameters
        methods = [method.load() for method in RunSpec(methods=tuple(settings)).run_methods]
        if num_parameters is None:  # a profile of an older version
            return methods
        return [method.for_target(num_parameters) for method in methods]

    def check(self, model: ModelHeader, methods: Mapping[str, MethodHeader]) -> None:
        """Refuse another model, and other weights of a method, with both values.

        Raises:
            UserError: the profile is not one of this model and these methods.
        """
        own_methods = {
            label: method.about for label, method in self.header.methods.items() if label in methods
        }
        same_methods = {label: methods[label] for label in own_methods}
        conflicts = PROFILE.conflicts(
            SetupInfo(self.header.model, own_methods), SetupInfo(model, same_methods)
        )
        check_same(
            "The profile is not one of this model and its weights:",
            ("in the profile", "here"),
            [Compared(conflict.field, conflict.first, conflict.second) for conflict in conflicts],
            "Make one of them: specbench tune profile --model M --method A,B --out DIR",
        )

    def write(self, folder: Path) -> None:
        """Write `profile.json`, the header, and `profile.npz`, the arrays of all answers.

        Raises:
            UserError: the folder holds a profile, or the arrays are too large.
        """
        check_free(folder, PROFILE_FILE, "profile")  # raises if the folder has one
        npz_bytes = packed(self._arrays())  # the file's content, compressed
        if len(npz_bytes) > MOST_BYTES:
            raise too_large(len(npz_bytes))
        # The header names the arrays that it belongs to.
        header = msgspec.structs.replace(self.header, arrays_sha256=sha256(npz_bytes).hexdigest())
        with folder_errors(folder, "--out", REPEAT):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / ARRAYS_FILE, npz_bytes)
            write_whole(folder / PROFILE_FILE, msgspec.json.format(msgspec.json.encode(header)))

    def _arrays(self) -> Arrays:
        """The arrays of `profile.npz` by name, each with the rows of all answers in turn.

        They are "label/name" for the arrays of each method's drafts (a row per position), and the
        token ids of prompts ("prompt_ids") and answers ("token_ids"). A label is a method with its
        options.
        """
        per_answer: dict[str, list[NDArray[Any]]] = {}  # by name, an array per answer
        for answer in self.answers:
            for label, arrays in answer.drafts.items():
                for array_name, array in arrays.items():
                    per_answer.setdefault(f"{label}/{array_name}", []).append(array)
        per_answer["prompt_ids"] = [
            np.array(answer.prompt_ids, np.int32) for answer in self.answers
        ]
        per_answer["token_ids"] = [np.array(answer.token_ids, np.int32) for answer in self.answers]
        return {name: _joined(arrays) for name, arrays in per_answer.items()}


def too_large(size: int) -> UserError:
    """The error for a profile of this size in bytes."""
    return UserError(
        f"The profile has about {size:,} bytes, more than {MOST_BYTES:,}.",
        "Give fewer prompts (--limit N), or profile the methods one by one.",
    )


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The rows of all answers. Drawn chains of a short answer may be shorter than others."""
    if arrays[0].ndim == 2:
        width = max(array.shape[1] for array in arrays)
        arrays = [np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays]
    return np.concatenate(arrays)


def packed(arrays: Arrays) -> bytes:
    """A compressed file of arrays."""
    buffer = BytesIO()
    by_name: dict[str, Any] = dict(arrays)
    np.savez_compressed(buffer, **by_name)
    return buffer.getvalue()


def read_profile(folder: str | Path) -> Profile:
    """Read the profile in a folder: its JSON header, and the answers from its arrays.

    Raises:
        UserError: the folder has no profile, or it is damaged or of a newer version.
    """
    hint = "Make it again: specbench tune profile"  # the advice of all errors
    header_path = Path(folder) / PROFILE_FILE
    arrays_path = Path(folder) / ARRAYS_FILE
    header = read_json(header_path, ProfileHeader, "Profile", hint)
    with reading(arrays_path, "Profile", hint):  # errors of a damaged file become UserErrors
        npz_bytes = arrays_path.read_bytes()
        digest = sha256(npz_bytes).hexdigest()
        if digest != header.arrays_sha256:  # the hash of the arrays that the header belongs to
            expected = f"{PROFILE_FILE} names {header.arrays_sha256[:12]}…"
            raise UserError(f"{arrays_path} has sha256 {digest[:12]}…, and {expected}.", hint)
        arrays = dict(np.load(BytesIO(npz_bytes), allow_pickle=False))  # by name
        problem = next(_problems(header, arrays), None)
        if problem:
            raise UserError(f"{header_path} does not fit its arrays: {problem}", hint)
        answers = _split_by_answer(header, arrays)
    return Profile(header, answers)


def ids_hash(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """The hash of the token ids of a prompt and its answer, one after the other."""
    return sha256(np.array([*prompt_ids, *token_ids], np.int32).tobytes()).hexdigest()


def _problems(header: ProfileHeader, arrays: Arrays) -> Iterator[str]:
    """A sentence per array that is missing or of a wrong length, and per wrong answer."""
    prompt_tokens = sum(about.prompt_tokens for about in header.answers)
    num_tokens = sum(about.num_tokens for about in header.answers)
    num_positions = num_tokens - len(header.answers)  # all tokens of an answer but the last
    expected = {"prompt_ids": prompt_tokens, "token_ids": num_tokens}
    if missing := expected.keys() - arrays.keys():
        yield f"{min(missing)} is missing."
        return
    for name, array in arrays.items():
        label = name.rpartition("/")[0]
        if name not in expected and label not in header.methods:
            yield f"{name} is of no method of the profile."
        length = expected.get(name, num_positions)
        if len(array) != length:
            yield f"{name} has {len(array)} rows, and the answers have {length}."
    prompt_end = answer_end = 0
    for about in header.answers:
        prompt_ids = arrays["prompt_ids"][prompt_end : prompt_end + about.prompt_tokens]
        token_ids = arrays["token_ids"][answer_end : answer_end + about.num_tokens]
        prompt_end += about.prompt_tokens
        answer_end += about.num_tokens
        if ids_hash(prompt_ids.tolist(), token_ids.tolist()) != about.sha256:
            yield f"the answer to {about.prompt} has other tokens than its hash."


def _split_by_answer(header: ProfileHeader, arrays: Arrays) -> tuple[Answer, ...]:
    """The answers of a profile, from the arrays of its file.

    Args:
        header: has the length of each prompt and answer in tokens, and the methods by label.
        arrays: by name, each with the rows of all answers in turn: token ids "prompt_ids" and
            "token_ids", and drafts "label/name" with a row per position of an answer.
    """
    # `np.split` takes the ends of all parts but the last: [:-1]. A step begins at all tokens of an
    # answer but the last: these are its positions.
    ends_of_prompts = np.cumsum([about.prompt_tokens for about in header.answers])
    ends_of_answers = np.cumsum([about.num_tokens for about in header.answers])
    ends_of_drafts = np.cumsum([about.num_tokens - 1 for about in header.answers])
    prompt_ids = np.split(arrays["prompt_ids"], ends_of_prompts[:-1])
    token_ids = np.split(arrays["token_ids"], ends_of_answers[:-1])
    draft_arrays = {  # by "label/name", an array per answer
        name: np.split(array, ends_of_drafts[:-1])
        for name, array in arrays.items()
        if name not in ("prompt_ids", "token_ids")
    }
    answers = []
    for number, about in enumerate(header.answers):
        # by label, then by the array's name
        drafts: dict[str, dict[str, NDArray[Any]]] = {label: {} for label in header.methods}
        for name, arrays_by_answer in draft_arrays.items():
            label, _, array_name = name.rpartition("/")
            drafts[label][array_name] = arrays_by_answer[number]
        answers.append(
            Answer(
                about=about,
                prompt_ids=tuple(prompt_ids[number].tolist()),
                token_ids=tuple(token_ids[number].tolist()),
                drafts=drafts,
            )
        )
    return tuple(answers)
