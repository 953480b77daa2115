"""Counting rules are recognised from a thousand answers with ends, budgets and cut paths."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.log.exchange.files import about, answer, imported, write_lines
from tests.log.exchange.test_spec_bench import line

NUM_ANSWERS = 1000
BUDGET = 64


class Truth(NamedTuple):
    """An answer as it was decoded.

    It has `n` tokens in steps of these lengths after the prefill, `e` end tokens, and `c` tokens
    that were cut off.
    """

    n: int
    lengths: list[int]
    e: int
    c: int


def truths() -> list[Truth]:
    rng = random.Random(7)
    answers = []
    for _ in range(NUM_ANSWERS):
        wanted = rng.randrange(6, 100)
        most = min(wanted, BUDGET)
        emitted, lengths, c = 1, [], 0
        while emitted < most:
            step = rng.randrange(1, 6)
            c = max(0, emitted + step - most)
            lengths.append(step - c)
            emitted += step - c
        answers.append(Truth(emitted, lengths, int(wanted <= BUDGET), c))
    return answers


@pytest.mark.parametrize(
    ("tokens", "rule"),
    [
        (lambda t: t.n, "the same rule"),
        (lambda t: t.n - 1, "n - 1, without the prefill's token, or an index"),
        (lambda t: t.n - t.e, "n - e, without end tokens"),
        (lambda t: t.n + t.c, "n + c, with tokens cut off at the end"),
    ],
)
def test_equal_texts_show_how_tokens_are_counted(
    tokens: Callable[[Truth], int], rule: str, tmp_path: Path
) -> None:
    all_truths = truths()
    baseline_lines = [
        answer(i, turns=[f"text {i}"], idxs=[t.n - 1], new_tokens=[0], wall_time=[1.0 + i])
        for i, t in enumerate(all_truths)
    ]
    lines = [
        answer(i, turns=[f"text {i}"], idxs=[len(t.lengths)], new_tokens=[tokens(t)])
        for i, t in enumerate(all_truths)
    ]
    paths = (
        write_lines(tmp_path / "b.jsonl", *baseline_lines),
        write_lines(tmp_path / "m.jsonl", *lines),
    )
    run = imported(tmp_path, f"vanilla={paths[0]}", f"m={paths[1]}")
    (sentence,) = [text for text in about(run).findings if "text; in these" in text]
    assert sentence.endswith(f"relative to vanilla: {rule}")


@pytest.mark.parametrize(
    ("tokens", "lengths", "rule"),
    [
        (lambda t: t.n, lambda t: t.lengths, "(n tokens, k steps)"),
        (lambda t: t.n - 1, lambda t: t.lengths, "none is a prefill (n - 1 tokens)"),
        (
            lambda t: t.n,
            lambda t: [1, *t.lengths],
            "as a prefill does: k + 1 steps, or n - 1 tokens if",
        ),
        (lambda t: t.n, lambda t: [1] * t.n, "n - 1 tokens, or k + 1 steps; the file cannot tell"),
        (lambda t: t.n - t.e, lambda t: t.lengths, "without end tokens (n - e)"),
        (lambda t: t.n + t.c, lambda t: t.lengths, "no step emits them (n + c tokens)"),
        (lambda t: t.n, lambda t: t.lengths[:-1] or [1], "n + c tokens, or k - 1 steps"),
    ],
)
def test_listed_steps_show_how_they_are_counted(
    tokens: Callable[[Truth], int],
    lengths: Callable[[Truth], list[int]],
    rule: str,
    tmp_path: Path,
) -> None:
    lines = []
    for number, truth in enumerate(truths()):
        steps = lengths(truth)
        lists: dict[str, Any] = {"decoding_steps": [len(steps)], "accept_lengths": steps}
        lists |= {"new_tokens": [tokens(truth)], "wall_time": [1.0 + number], "turns": ["a"]}
        lines.append(line(number, **lists))
    run = imported(tmp_path, f"m={write_lines(tmp_path / 'm.jsonl', *lines)}")
    (sentence,) = about(run).findings
    assert rule in sentence
