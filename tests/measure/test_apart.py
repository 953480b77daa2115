"""Runs in processes of their own: a timeout ends them, and a second try continues them."""

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from specbench.errors import SpecbenchError
from specbench.log.store import read_run
from specbench.measure.spec import RunSpec
from specbench.measure.suite import process
from specbench.measure.suite.apart import Order, complete_apart
from specbench.measure.suite.process import Ended, run_command, run_tried
from tests.support.ends import are_gone, wait_until
from tests.support.watching import Watcher

FAMILY = "sleep 600 & echo $!; {}"


@pytest.mark.parametrize(
    ("then", "timeout_s", "code"),
    [("sleep 600", 0.3, None), ("echo no; exit 3", None, 3)],
)
def test_a_process_and_its_children_end_at_the_timeout(
    then: str, timeout_s: float | None, code: int | None
) -> None:
    said: list[str] = []
    ended = run_command(("sh", "-c", FAMILY.format(then)), said.append, timeout_s=timeout_s)
    assert ended.code == code and ended.last == said[-1]
    assert wait_until(lambda: are_gone(int(said[0])), 10)


@pytest.mark.parametrize(
    ("timeout_s", "tries", "reason"),
    [
        (9.0, [Ended(None, ""), Ended(0, "")], None),
        (9.0, [Ended(1, "out of memory"), Ended(None, "")], "stopped at its timeout of 9 s"),
        (9.0, [Ended(2, "No model 'x'.")], "No model 'x'."),
        (None, [Ended(-9, "")], "It ended with -9"),
    ],
)
def test_a_run_with_a_timeout_has_a_second_try(
    timeout_s: float | None, tries: list[Ended], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "run_command", lambda *given, **more: tries.pop(0))
    with pytest.raises(SpecbenchError, match=reason) if reason else nullcontext():
        complete_apart(Order(RunSpec(), (), "nowhere"), Watcher(), timeout_s)
    assert not tries


@pytest.mark.parametrize(
    ("code", "total_s", "num_tries"),
    [(None, 99.0, 2), (-9, 99.0, 2), (1, 99.0, 1), (2, 99.0, 1), (None, 0.0, 1)],
)
def test_a_killed_command_has_a_second_try_if_there_is_time(
    code: int | None,
    total_s: float,
    num_tries: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = Mock(return_value=Ended(code, ""))
    monkeypatch.setattr(process, "run_command", killed)
    with pytest.raises(SpecbenchError, match=r"It ended with|timeout of (9|-)"):
        run_tried(("a",), print, timeout_s=9.0, total_s=total_s, only_killed=True)
    timeouts_s = [call.kwargs["timeout_s"] for call in killed.call_args_list]
    assert len(timeouts_s) == num_tries and max(timeouts_s) <= min(9.0, total_s)


@pytest.mark.slow
def test_a_run_is_completed_once_and_a_mistake_is_reported(tmp_path: Path) -> None:
    spec = RunSpec(methods=("pld",), tasks=("gsm8k",), limit=1, max_new_tokens=4, repeats=1)
    order = Order(spec, ("limit",), str(tmp_path / "one"), is_offline=True)
    watcher = Watcher()
    complete_apart(order, watcher, 300.0)
    assert len(read_run(tmp_path / "one").records) == 2
    assert any("Warming up" in text for text in watcher.messages)
    complete_apart(order, again := Watcher(), 300.0)
    assert not again.messages  # nothing is loaded
    wrong = Order(RunSpec(model="no-such"), ("model",), str(tmp_path / "two"))
    with pytest.raises(SpecbenchError, match="No model 'no-such'"):
        complete_apart(wrong, watcher, 300.0)
