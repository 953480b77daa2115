"""Acceptance profiles and their files: what methods draft at every position of vanilla's answers.

A profile is valid for one model, its methods' weights, prompts and temperature, on any machine. The
kind of a profile (`specbench.tune.kinds`) defines what an array of drafts means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from specbench.errors import UserError
from specbench.log.files import REPEAT, folder_errors, write_whole
from specbench.log.header import PromptsHeader
from specbench.log.methods import MethodHeader
from specbench.log.model import ModelHeader
from specbench.log.policies import PROFILE
from specbench.measure.base import SetupInfo
from specbench.measure.spec import RunSpec
from specbench.settings.json_files import SCHEMA, Compared, check_free, check_same
from specbench.settings.run_method import RunMethod
from specbench.types import ProfileKind, Sampling, StopReason

PROFILE_FILE = "profile.json"
ARRAYS_FILE = "profile.npz"
MOST_BYTES = 50_000_000
"""The largest size of a profile's arrays, so that a repository can hold them."""

Arrays = Mapping[str, NDArray[Any]]
"""The recorded arrays of a method, by name. Each has a row per position."""


class AnswerHeader(msgspec.Struct, frozen=True):
    """One of vanilla's answers. The token ids of the answer and of its prompt are in the arrays."""

    prompt: str
    """The name of the prompt, "task/sample_id/turn"."""
    prompt_tokens: int
    """The number of tokens of the prompt."""
    num_tokens: int
    """The number of tokens of the answer, EOS included."""
    limit: int
    """The most tokens that the answer could have had."""
    stop_reason: StopReason | None
    """The reason that the answer ended: an end token, the budget, or the model's context length."""
    sha256: str
    """The hash of the token ids of prompt and answer."""


class ProfiledMethod(msgspec.Struct, frozen=True):
    """A method of a profile: the kind of the stored arrays, and how the method drafted."""

    kind: ProfileKind
    """The name of the kind."""
    has_fixed_size: bool
    """True if its drafts are not shorter at the end of an answer."""
    about: MethodHeader
    """The method with its weights, and with the options of the recorded drafts."""


class ProfileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file `profile.json`."""

    schema: int = SCHEMA
    model: ModelHeader
    """The target."""
    methods: dict[str, ProfiledMethod]
    """The profiled methods, by the spelling that was requested."""
    sampling: Sampling
    """Temperature, top-p and top-k of the answers."""
    max_new_tokens: int
    """The most tokens of an answer."""
    vocab_size: int
    """The size of the target's vocabulary."""
    prompts: tuple[PromptsHeader, ...]
    """The sets of prompts."""
    answers: tuple[AnswerHeader, ...]
    """The answers, in the order of the arrays."""
    num_left_out: int
    """The number of answers that some method did not reproduce because of rounding."""
    versions: dict[str, str]
    """The versions of specbench, torch and transformers."""
    arrays_sha256: str = ""
    """The hash of `profile.npz`."""


class Answer(NamedTuple):
    """One of vanilla's answers, with the drafts of each method.

    A position is a token of the answer from which a step begins: every token except the last.
    """

    about: AnswerHeader
    """Name, lengths and hash of the answer."""
    prompt_ids: tuple[int, ...]
    """Tokens of the prompt."""
    token_ids: tuple[int, ...]
    """Tokens of the answer."""
    drafts: Mapping[str, Arrays]
    """The recorded arrays of each method, with a row per position."""


@dataclass(frozen=True)
class Profile:
    """An acceptance profile: its header, and vanilla's answers with what methods drafted."""

    header: ProfileHeader
    answers: tuple[Answer, ...]

    def methods_of(self, settings: Sequence[str]) -> list[RunMethod]:
        """Parse methods with their options. Other options have the paper's values for the model.

        Raises:
            UserError: an unknown method or option, or a wrong value.
        """
        num_parameters = self.header.model.num_parameters
        methods = [method.load() for method in RunSpec(methods=tuple(settings)).run_methods]
        if num_parameters is None:  # a profile of an older version
            return methods
        return [method.for_target(num_parameters) for method in methods]

    def method_of(self, setting: str) -> RunMethod:
        """Parse a setting: one method with its options. Other options have the paper's values.

        Raises:
            UserError: the text names no method or several, or an option or value is wrong.
        """
        methods = self.methods_of([setting])
        if len(methods) != 1:
            labels = ", ".join(method.label for method in methods) or "none"
            raise UserError(
                f"{setting!r} is not a single method: it names {labels}.",
                "Give one method with its options, such as 'pld:num_tokens=4'.",
            )
        return methods[0]

    def check(self, model: ModelHeader, methods: Mapping[str, MethodHeader]) -> None:
        """Refuse another model, or other weights of a method. The error names both values.

        Raises:
            UserError: the profile does not fit this model and these methods.
        """
        # the methods that the profile and `methods` share, as each of the two describes them
        profiled_methods = {
            label: method.about for label, method in self.header.methods.items() if label in methods
        }
        given_methods = {label: methods[label] for label in profiled_methods}
        conflicts = PROFILE.conflicts(
            SetupInfo(self.header.model, profiled_methods), SetupInfo(model, given_methods)
        )
        check_same(
            "The profile does not fit this model and its weights:",
            ("in the profile", "here"),
            [Compared(conflict.field, conflict.first, conflict.second) for conflict in conflicts],
            "Make one of them: specbench tune profile --model M --method A,B --out DIR",
        )

    def write(self, folder: Path) -> None:
        """Write the header to `profile.json`, and the arrays of all answers to `profile.npz`.

        Raises:
            UserError: the folder has a profile, the arrays are too large, or a file cannot be
                written.
        """
        check_free(folder, PROFILE_FILE, "profile")  # raises if the folder has a profile
        npz_bytes = packed(self._arrays())  # content of `profile.npz`
        if len(npz_bytes) > MOST_BYTES:
            raise too_large(len(npz_bytes))
        # With the hash, a reader sees that both files belong together.
        header = msgspec.structs.replace(self.header, arrays_sha256=sha256(npz_bytes).hexdigest())
        with folder_errors(folder, "--out", REPEAT):  # errors of writing become UserErrors
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / ARRAYS_FILE, npz_bytes)
            write_whole(folder / PROFILE_FILE, msgspec.json.format(msgspec.json.encode(header)))

    def _arrays(self) -> Arrays:
        """Join the arrays of all answers, by their names in `profile.npz`.

        The rows of the answers follow each other. "prompt_ids" and "token_ids" have the token ids
        of prompts and of answers. "label/name" has an array of a method's drafts, with a row per
        position of the answers. The label is the method with its options.
        """
        per_answer: dict[str, list[NDArray[Any]]] = {}  # by name in the file: an array per answer
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
    """Make the error about a profile of this size in bytes."""
    return UserError(
        f"The profile has about {size:,} bytes, more than {MOST_BYTES:,}.",
        "Give fewer prompts (--limit N), or profile the methods one by one.",
    )


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join the rows of all answers in one array, padded with zeros to the same width.

    The rows of a short answer are narrower if all of its drawn chains are shorter.
    """
    if arrays[0].ndim == 2:
        width = max(array.shape[1] for array in arrays)
        arrays = [np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays]
    return np.concatenate(arrays)


def packed(arrays: Arrays) -> bytes:
    """Compress arrays into the content of a file."""
    buffer = BytesIO()
    by_name: dict[str, Any] = dict(arrays)
    np.savez_compressed(buffer, **by_name)
    return buffer.getvalue()


def ids_hash(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """Hash the token ids of a prompt, followed by those of its answer."""
    return sha256(np.array([*prompt_ids, *token_ids], np.int32).tobytes()).hexdigest()
