"""Errors with the words of their message and of their hint."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specbench.errors import SpecbenchError
from tests.support.texts import assert_in


@contextmanager
def error_with(
    error: type[SpecbenchError], *words: str, match: str = "", hint: str = ""
) -> Iterator[None]:
    """Fail unless the block raises this error.

    Its message contains the words and matches the pattern `match`. Its hint contains `hint`.
    """
    with pytest.raises(error, match=match or None) as caught:
        yield
    assert_in(caught.value.message, *words)
    assert hint in caught.value.hint
