"""Reading a profile's files, with checks of their content."""

from __future__ import annotations

from collections.abc import Iterator
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
        problem = next(chain(_problems(header, arrays), _wrong_kinds(header, arrays)), None)
        if problem:
            raise UserError(f"{header_path} does not fit its arrays: {problem}", hint)
        answers = _split_by_answer(header, arrays)
    return Profile(header, answers)


def _problems(header: ProfileHeader, arrays: Arrays) -> Iterator[str]:
    """A sentence per array that is missing or of a wrong length, and per wrong answer.

    `header.answers` describes each answer: its lengths and a hash of its tokens. The arrays hold
    the rows of all answers, one after the other.
    """
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
            yield f"{name} belongs to no method of the profile."
        length = expected.get(name, num_positions)
        if len(array) != length:
            yield f"{name} has {len(array)} rows, but the answers need {length}."
    prompt_end = answer_end = 0
    for about in header.answers:
        prompt_ids = arrays["prompt_ids"][prompt_end : prompt_end + about.prompt_tokens]
        token_ids = arrays["token_ids"][answer_end : answer_end + about.num_tokens]
        prompt_end += about.prompt_tokens
        answer_end += about.num_tokens
        if ids_hash(prompt_ids.tolist(), token_ids.tolist()) != about.sha256:
            yield f"the tokens of the answer to {about.prompt} do not match their hash."


def _wrong_kinds(header: ProfileHeader, arrays: Arrays) -> Iterator[str]:
    """A sentence per method whose kind is unknown, or whose arrays are not those of its kind."""
    has_positions = any(about.num_tokens > 1 for about in header.answers)
    for label, method in header.methods.items():
        stored = {name.rpartition("/")[2] for name in arrays if name.rpartition("/")[0] == label}
        is_known = method.kind in NAMES
        if is_known and (stored == {*find_kind(method.kind).array_names} or not has_positions):
            continue
        yield f"{label} is not of the kind {method.kind!r}."


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
