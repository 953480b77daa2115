"""The share of the processor that other programs take during a run.

Pauses of the process, with fake clocks and a real one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable

import pytest

from specbench.log.machine import CpuUse, Span
from specbench.machine.sampler import (
    LEAST_S,
    CpuMoment,
    CpuSampler,
    Moment,
    PauseWatch,
    read_moment,
)


def sampled(*moments: CpuMoment) -> CpuUse | None:
    read: Iterable[CpuMoment] = iter(moments)
    sampler = CpuSampler(lambda: next(iter(read)))
    for _ in moments[1:]:
        sampler.sample()
    return sampler.describe()


def test_the_share_of_others_is_the_work_that_is_not_the_runs() -> None:
    """Two cores, a second a sample: the run works 1 s, others nothing, then half a second."""
    use = sampled(
        CpuMoment(0, 0, 0), CpuMoment(2, 1, 1, clock_mhz=3000), CpuMoment(4, 2.5, 2, clock_mhz=2500)
    )
    assert use is not None
    assert (use.num_samples, use.share_of_others) == (2, Span(0.0, 0.125, 0.25))
    assert use.clock_mhz == Span(2500, 2750, 3000)


def test_counters_that_stand_still_or_round_give_no_impossible_share() -> None:
    assert sampled(CpuMoment(1, 1, 1), CpuMoment(1, 1, 1)) is None
    use = sampled(CpuMoment(0, 0, 0), CpuMoment(2, 1, 1.01))
    assert use is not None and use.share_of_others == Span(0, 0, 0)


def test_a_busy_machine_is_a_warning_with_its_size() -> None:
    use = sampled(CpuMoment(0, 0, 0), CpuMoment(2, 1.5, 1))
    assert use and "25 % of the processor" in (use.others_warning or "")
    idle = sampled(CpuMoment(0, 0, 0), CpuMoment(2, 1, 1))
    assert idle and idle.others_warning is None


def test_the_counters_of_this_machine_advance() -> None:
    first = read_moment()
    sum(range(2_000_000))
    second = read_moment()
    assert second.own_s >= first.own_s
    assert second.work_s == pytest.approx(first.work_s, abs=600)


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
