"""Completions with a pause of the machine are found, repeated once and marked."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import pytest

from specbench.analysis.records import make_table
from specbench.analysis.survivors import find_survivors
from specbench.analysis.warnings import Pauses, find_warnings
from specbench.data.prompts import Prompt
from specbench.log.store import RunFolder, read_run
from specbench.measure.pauses import PauseCheck
from specbench.measure.runner import Runner
from specbench.types import Completion, RecordKey, Request, Step
from tests.support.backend import backend_of, fake_plan
from tests.support.headers import make_header
from tests.support.watching import Watcher


def done(prefill_s: float = 0.1, step_s: float = 0.01, num_steps: int = 20) -> Completion:
    tokens = tuple(range(1, num_steps + 2))
    return Completion(tokens, "budget", (Step(1, 1),) * num_steps, prefill_s, step_s * num_steps)


def judged(*completions: tuple[str, Completion]) -> list[bool]:
    check = PauseCheck()
    return [
        check.was_paused(RecordKey(method, 0.0, "maths", "maths/1", 0, 0), one)
        for method, one in completions
    ]


def test_a_slow_prefill_is_found_among_those_of_the_other_methods() -> None:
    like = [(method, done()) for method in ("vanilla", "pld", "sps")]
    assert judged(*like, ("eagle", done(prefill_s=0.61)))[-1]
    assert not judged(*like, ("eagle", done(prefill_s=0.49)))[-1]
    assert not judged(*like[1:], ("eagle", done(prefill_s=9.0)))[-1]  # too few


def test_a_slow_decode_is_found_among_those_of_its_method() -> None:
    like = [("pld", done()), ("vanilla", done(step_s=1.0)), ("pld", done()), ("pld", done())]
    assert judged(*like, ("pld", done(step_s=0.051)))[-1]
    assert not judged(*like, ("pld", done(step_s=0.049)))[-1]


def test_a_few_extra_milliseconds_are_no_pause() -> None:
    short = [("pld", done(prefill_s=0.001, step_s=0.001, num_steps=2))] * 3
    assert not judged(*short, ("pld", done(prefill_s=0.05, step_s=0.03, num_steps=2)))[-1]


def test_a_paused_completion_is_not_used_for_comparison() -> None:
    like = [("pld", done())] * 3
    assert judged(*like, *[("pld", done(step_s=9.0))] * 4)[3:] == [True] * 4


def run(path: Path, paused: Set[int]) -> list[int]:
    """Marks of four records; `paused` has the numbers of the attempts with a pause."""
    attempts: list[Request] = []
    pauses: list[float] = []

    def answer(request: Request) -> Completion:
        attempts.append(request)
        pauses.extend([1.5] * (len(attempts) in paused))
        return done(prefill_s=float(len(attempts)))

    def take() -> float:
        seconds = sum(pauses)
        pauses.clear()
        return seconds

    prompts = {"maths": [Prompt(f"maths/{number}", "", ("1+1",)) for number in range(4)]}
    plan = fake_plan({"vanilla": answer}, prompts, None)
    with RunFolder(path) as folder, backend_of(plan) as backend:
        folder.write_header(make_header())
        list(Runner(plan, backend, folder, Watcher(), pauses=PauseCheck(take)).run())
    return [record.num_paused for record in read_run(path).records]


@pytest.mark.parametrize(
    ("paused", "marks", "prefills"),
    [
        (set(), [0, 0, 0, 0], [1, 2, 3, 4]),
        ({2}, [0, 1, 0, 0], [1, 3, 4, 5]),
        ({2, 3}, [0, 2, 0, 0], [1, 3, 4, 5]),
    ],
)
def test_a_paused_sample_is_repeated_once_and_marked(
    tmp_path: Path, paused: set[int], marks: list[int], prefills: list[float]
) -> None:
    assert run(tmp_path, paused) == marks
    records = read_run(tmp_path).records
    assert [record.prefill_s for record in records] == prefills
    table = make_table(records)
    warnings = find_warnings(table, {}, {}, find_survivors(table.frame))
    found = [one for one in warnings if isinstance(one, Pauses)]
    repeated = [mark for mark in marks if mark]
    assert found == [Pauses(len(repeated), repeated.count(2))] * bool(repeated)
