"""Faulty ends of answers, for the catalogue of bugs: functions in place of the loop's `emit`."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from specbench.engine.decode import emit
from specbench.engine.drafter import State


def patched_emit(emit_: Callable[..., Any]) -> AbstractContextManager[Any]:
    return mock.patch("specbench.engine.decode.emit", emit_)


def _end_of(ids: Sequence[int], state: State) -> int | None:
    """The index of the first end token, or None without one."""
    eos_ids = state.request.eos_ids
    return next((index for index, token in enumerate(ids) if token in eos_ids), None)


def after_eos(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Emits one more token after the end token, if the path has one."""
    ids = [*token_ids]
    end = _end_of(ids, state)
    if end is None:
        return emit(state, ids, vocab_size)
    kept = ids[: end + 2][: state.remaining]
    for token in kept:
        state.append(token)
    return len(kept), True


def lost_before_eos(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Loses the token before an end token within an accepted path."""
    ids = [*token_ids]
    end = _end_of(ids, state)
    if not end:  # none, or the first token of the step
        return emit(state, ids, vocab_size)
    del ids[end - 1]
    return emit(state, ids, vocab_size)


def overshoots_by_two(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Cuts a path by one token too few if it goes two or more beyond the budget."""
    ids = [*token_ids]
    if len(ids) < state.remaining + 2:
        return emit(state, ids, vocab_size)
    kept = ids[: state.remaining + 1]
    for token in kept:
        state.append(token)
    return len(kept), True


def ends_early(is_chosen: Callable[[], bool]) -> Callable[..., tuple[int, bool]]:
    """Ends chosen answers before their end token."""

    def emit_(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
        ids = [*token_ids]
        end = _end_of(ids, state)
        if end is None or not is_chosen():
            return emit(state, ids, vocab_size)
        num_emitted, _ = emit(state, ids[:end], vocab_size)
        return num_emitted, True

    return emit_


def beyond_budget(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Emits the whole path although the budget ends in it."""
    ids = [*token_ids]
    is_done = len(ids) >= state.remaining
    for token in ids:
        state.append(token)
    return len(ids), is_done


def without_bonus(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Counts the bonus token, but drops the accepted one before it in paths of three or more."""
    ids = [*token_ids]
    if len(ids) >= 3:
        del ids[-2]
    return emit(state, ids, vocab_size)
