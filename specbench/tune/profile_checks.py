"""Checks of a profile's arrays against its header."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from specbench.tune.profile_file import Arrays, ProfileHeader


def ids_hash(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """The hash of the token ids of a prompt and its answer, one after the other."""
    return sha256(np.array([*prompt_ids, *token_ids], np.int32).tobytes()).hexdigest()


def profile_problems(header: ProfileHeader, arrays: Arrays) -> Iterator[str]:
    """A sentence per array that is missing or of a wrong length, wrong kind, and wrong answer."""
    from specbench.tune.kind import find_kind
    from specbench.tune.kinds import NAMES

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
    for label, method in header.methods.items():
        paths = {name for name in arrays if name.rpartition("/")[0] == label}
        names_of_kind = find_kind(method.kind).array_names if method.kind in NAMES else None
        if names_of_kind is None or (
            num_positions and paths != {f"{label}/{name}" for name in names_of_kind}
        ):
            yield f"{label} is not of the kind {method.kind!r}."
            return
    prompt_end = answer_end = 0
    for about in header.answers:
        prompt_ids = arrays["prompt_ids"][prompt_end : prompt_end + about.prompt_tokens]
        token_ids = arrays["token_ids"][answer_end : answer_end + about.num_tokens]
        prompt_end += about.prompt_tokens
        answer_end += about.num_tokens
        if ids_hash(prompt_ids.tolist(), token_ids.tolist()) != about.sha256:
            yield f"the answer to {about.prompt} has other tokens than its hash."
