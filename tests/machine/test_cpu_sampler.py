"""The share of the processor that other programs take during a run."""

from collections.abc import Iterable

import pytest

from specbench.log.machine import CpuUse, Span
from specbench.machine.sampler import CpuMoment, CpuSampler, read_moment


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
