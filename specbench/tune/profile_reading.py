"""Read a profile's files, and check their content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.errors import UserError, reading
from specbench.settings.json_files import read_json
from specbench.tune.kind import find_kind
from specbench.tune.kinds import NAMES
from specbench.tune.profile_file import (
    ARRAYS_FILE,
    PROFILE_FILE,
    Answer,
    Arrays,
    Profile,
    ProfileHeader,
    ids_hash,
)


def read_profile(folder: str | Path) -> Profile:
    """Read the profile in a folder: its header, and the answers with their drafts.

    Raises:
        UserError: the folder has no profile, or the profile is damaged or of a newer version.
    """
    hint = "Make it again: specbench tune profile"  # the advice of all errors
    header_path = Path(folder) / PROFILE_FILE
    arrays_path = Path(folder) / ARRAYS_FILE
    header = read_json(header_path, ProfileHeader, "Profile", hint)
    with reading(arrays_path, "Profile", hint):  # errors of a damaged file become UserErrors
        npz_bytes = arrays_path.read_bytes()
        digest = sha256(npz_bytes).hexdigest()
        if digest != header.arrays_sha256:  # the file has changed since the header was written
            # 12 digits are enough to see that hashes differ
            named_hash = f"{PROFILE_FILE} names {header.arrays_sha256[:12]}…"
            raise UserError(f"{arrays_path} has sha256 {digest[:12]}…, and {named_hash}.", hint)
        # by name: "prompt_ids", "token_ids", and "label/name" for drafts of a method
        arrays = dict(np.load(BytesIO(npz_bytes), allow_pickle=False))
        # a sentence about the first problem; None if all is well
        problem = next(chain(_problems(header, arrays), _wrong_kinds(header, arrays)), None)
        if problem:
            raise UserError(f"{header_path} does not fit its arrays: {problem}", hint)
        answers = _split_by_answer(header, arrays)
    return Profile(header, answers)


def _problems(header: ProfileHeader, arrays: Arrays) -> Iterator[str]:
    """Yield sentences about arrays of a profile that do not fit the answers in its header.

    If token ids are missing, there is one sentence. Otherwise there is a sentence per array of a
    method that the header lacks, per array of a wrong length, and per answer whose tokens do not
    have the hash in the header.

    Args:
        header: describes each answer, in the order of the arrays: its lengths in tokens, its hash.
        arrays: by name, each with the rows of all answers, one answer after the other: token ids
            "prompt_ids" and "token_ids", and drafts "label/name" with a row per position.
    """
    prompt_tokens = sum(answer_header.prompt_tokens for answer_header in header.answers)
    num_tokens = sum(answer_header.num_tokens for answer_header in header.answers)
    num_positions = num_tokens - len(header.answers)  # all tokens of an answer but the last
    lengths_of_ids = {"prompt_ids": prompt_tokens, "token_ids": num_tokens}
    if missing_names := lengths_of_ids.keys() - arrays.keys():
        yield f"{min(missing_names)} is missing."
        return
    for name, array in arrays.items():
        label = name.rpartition("/")[0]  # of a method; "" for token ids
        if name not in lengths_of_ids and label not in header.methods:
            yield f"{name} belongs to no method of the profile."
        length = lengths_of_ids.get(name, num_positions)
        if len(array) != length:
            yield f"{name} has {len(array)} rows, but the answers need {length}."
    prompts = _split(arrays["prompt_ids"], [about.prompt_tokens for about in header.answers])
    answers = _split(arrays["token_ids"], [about.num_tokens for about in header.answers])
    ids_by_answer = zip(header.answers, prompts, answers, strict=False)
    for answer_header, prompt_ids, token_ids in ids_by_answer:
        if ids_hash(prompt_ids.tolist(), token_ids.tolist()) != answer_header.sha256:
            yield f"the tokens of the answer to {answer_header.prompt} do not match their hash."


def _wrong_kinds(header: ProfileHeader, arrays: Arrays) -> Iterator[str]:
    """Yield a sentence per method whose kind is unknown, or whose arrays do not fit its kind."""
    has_positions = any(answer_header.num_tokens > 1 for answer_header in header.answers)
    for label, method in header.methods.items():
        stored = {name.rpartition("/")[2] for name in arrays if name.rpartition("/")[0] == label}
        is_known = method.kind in NAMES
        if is_known and (stored == {*find_kind(method.kind).array_names} or not has_positions):
            continue
        yield f"{label} is not of the kind {method.kind!r}."


def _split_by_answer(header: ProfileHeader, arrays: Arrays) -> tuple[Answer, ...]:
    """Split the arrays of a profile into the answers with their drafts.

    Args:
        header: has the length of each prompt and answer in tokens, and the methods by label.
        arrays: by name, each with the rows of all answers in turn: token ids "prompt_ids" and
            "token_ids", and drafts "label/name" with a row per position of an answer.
    """
    # an array per answer
    prompt_ids = _split(arrays["prompt_ids"], [about.prompt_tokens for about in header.answers])
    token_ids = _split(arrays["token_ids"], [about.num_tokens for about in header.answers])
    # Every token of an answer but the last is a position: a step may begin there.
    num_positions = [about.num_tokens - 1 for about in header.answers]
    draft_arrays = {  # by "label/name": an array per answer
        name: _split(array, num_positions)
        for name, array in arrays.items()
        if name not in ("prompt_ids", "token_ids")
    }
    answers = []
    for answer_index, answer_header in enumerate(header.answers):
        # the arrays of this answer, by label and then by name
        drafts: dict[str, dict[str, NDArray[Any]]] = {label: {} for label in header.methods}
        for name, arrays_by_answer in draft_arrays.items():
            label, _, array_name = name.rpartition("/")
            drafts[label][array_name] = arrays_by_answer[answer_index]
        answers.append(
            Answer(
                about=answer_header,
                prompt_ids=tuple(prompt_ids[answer_index].tolist()),
                token_ids=tuple(token_ids[answer_index].tolist()),
                drafts=drafts,
            )
        )
    return tuple(answers)


def _split(array: NDArray[Any], lengths: Sequence[int]) -> list[NDArray[Any]]:
    """Split the rows of an array into successive parts of these lengths."""
    ends = np.cumsum(lengths)  # the row after each part
    return np.split(array, ends[:-1])  # the last part ends with the array
