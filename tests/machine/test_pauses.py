"""Pauses of the process, with fake clocks and a real one."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from specbench.machine.sampler import LEAST_S, Moment, PauseWatch


@pytest.mark.parametrize(
    ("clock_s", "work_s", "pause_s"),
    [
        (5.0, 0.0, 5.0),  # stopped, or asleep
        (5.0, 5.0, 0.0),  # at work, without letting others look
        (5.0, 2.0, 3.0),  # both
        (LEAST_S / 2, 0.0, 0.0),  # between two looks
    ],
)
def test_time_in_which_the_thread_did_not_work_is_a_pause(
    clock_s: float, work_s: float, pause_s: float
) -> None:
    moments = iter([Moment(100.0, 7.0), Moment(100.0 + clock_s, 7.0 + work_s)] * 2)
    watch = PauseWatch(lambda: next(moments))
    assert watch.take() == pytest.approx(pause_s)


def test_a_pause_is_taken_once() -> None:
    moments = iter([Moment(0.0, 0.0), Moment(9.0, 0.0), Moment(9.0, 0.0)])
    watch = PauseWatch(lambda: next(moments))
    assert (watch.take(), watch.take()) == (9.0, 0.0)


def test_waiting_and_working_are_no_pauses_and_a_stop_is_one() -> None:
    with PauseWatch() as watch:
        time.sleep(0.5)
        waited = watch.take()
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
        worked = watch.take()
        subprocess.Popen(
            ["sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.6; kill -CONT {os.getpid()}"]
        ).wait()
        assert watch.take() >= 0.4
    assert (waited, worked) == (0.0, 0.0)
