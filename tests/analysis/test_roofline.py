"""The speedup limit set by memory bandwidth."""

from typing import Any

import pytest

from specbench.analysis.roofline import Roofline, read_roofline
from specbench.analysis.stats.bootstrap import Estimate, Missing
from specbench.log.backend import RooflineHeader
from specbench.log.machine import Threads
from tests.analysis.run_factory import record

MEASURED: dict[str, Any] = {
    "bandwidth_bytes_per_s": 1000.0,
    "target_bytes": 300,
    "cache_bytes": 100,
    "kv_bytes_per_token": 6,
    "is_mixture_of_experts": False,
    "draft_bytes": {"vanilla": 0, "eagle": 100.0},
}


def roofline(**changes: Any) -> Roofline:
    found = read_roofline(RooflineHeader(**{**MEASURED, **changes}), [])
    assert isinstance(found, Roofline)
    return found


def test_a_draft_that_reads_a_third_of_the_target_costs_a_quarter_of_the_limit() -> None:
    assert roofline().limit("eagle", Estimate(4.0)) == Estimate(3.0)


def test_vanilla_at_the_bandwidth_uses_all_of_it() -> None:
    assert roofline().bandwidth_share(Estimate(0.3)) == Estimate(1.0)
    assert roofline().bandwidth_share(Estimate(0.6)) == Estimate(0.5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cache_bytes": 150}, "weights fit the cache"),
        ({"is_mixture_of_experts": True}, "mixture of experts"),
        ({"draft_bytes": {}}, "draft bytes unknown"),
    ],
)
def test_without_a_memory_limit_there_is_a_reason(changes: dict[str, Any], reason: str) -> None:
    assert roofline(**changes).limit("eagle", Estimate(4.0)) == Missing(reason)


def test_a_step_reads_the_experts_that_a_row_chooses() -> None:
    sparse = roofline(is_mixture_of_experts=True, target_bytes=1300, unread_bytes=1000)
    assert sparse.limit("eagle", Estimate(4.0)) == Estimate(3.0)
    assert sparse.bandwidth_share(Estimate(0.3)) == Estimate(1.0)


def test_weights_in_the_cache_have_no_share_of_the_bandwidth() -> None:
    assert roofline(cache_bytes=300).bandwidth_share(Estimate(0.3)) == Missing(
        "weights fit the cache"
    )


def test_a_mat_that_is_missing_leaves_its_reason() -> None:
    assert roofline().limit("eagle", Missing("all failed")) == Missing("all failed")


def test_a_method_with_threads_of_its_own_has_the_limit_of_their_bandwidth() -> None:
    about = RooflineHeader(**MEASURED, bandwidth_by_threads={"1": 1000.0, "2": 1500.0})
    threads = Threads(1, "measured", "brief", methods={"eagle": 2, "vanilla": 1})
    found = read_roofline(about, [], threads)
    assert isinstance(found, Roofline)
    assert found.limit("eagle", Estimate(4.0)) == Estimate(3.0 * 1.5)
    assert found.limit("vanilla", Estimate(1.0)) == Estimate(1.0)


@pytest.mark.parametrize("changes", [{"bandwidth_bytes_per_s": 0.0}, {"target_bytes": 0}])
def test_without_a_bandwidth_there_is_no_roofline(changes: dict[str, Any]) -> None:
    for about in (None, RooflineHeader(**{**MEASURED, **changes})):
        assert read_roofline(about, []) == Missing("bandwidth not measured")


def test_keys_and_values_are_those_of_vanillas_mean_step() -> None:
    # Steps see 11, 12 and 13 tokens, and the other method's count for nothing.
    records = [record("vanilla", accept_lengths=(1, 1, 1)), record("eagle", accept_lengths=(3,))]
    found = read_roofline(RooflineHeader(**MEASURED), records)
    assert isinstance(found, Roofline)
    assert found.kv_share == 12 * 6 / 300
