"""Latency percentiles, and the cases with too few completions for one."""

import numpy as np
import pytest

from specbench.analysis.cells import WITH_PHASES
from specbench.analysis.latency import percentiles
from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Estimate, Missing
from specbench.types import Phases, Record
from tests.analysis.run_factory import header, make_run, measured_cell, record


def test_a_completion_of_one_token_has_a_first_token_only() -> None:
    latency = measured_cell(record("pld", prefill_s=0.5, decode_s=0.0, accept_lengths=[])).latency
    assert latency.first_token.num == 1
    assert latency.per_token.p50 == Missing("no completion")


@pytest.mark.parametrize(
    ("number", "is_given"), [(9, (1, 0, 0)), (10, (1, 1, 0)), (100, (1, 1, 1))]
)
def test_a_percentile_needs_a_completion_beyond_it(
    number: int, is_given: tuple[int, int, int]
) -> None:
    times = percentiles(np.arange(1.0, number + 1))
    given = [isinstance(value, Estimate) for value in (times.p50, times.p90, times.p99)]
    assert given == [bool(one) for one in is_given]


def test_a_run_with_phases_has_acceptance_but_no_time_and_no_speed() -> None:
    records = [record(decode_s=4.0), record("pld", decode_s=2.0, accept_lengths=[2, 1])]
    described = header(["vanilla", "pld"], ("gsm8k",))
    described["spec"]["values"]["phases"] = True
    timed = Record(**{f: getattr(records[1], f) for f in Record.__slots__} | {
        "phases": Phases(1.0, 1.0, 0.0, 0.0)})  # fmt: skip
    for run in (make_run(records, described), make_run([records[0], timed], header(["pld"]))):
        metrics = measure(run).cell("pld", 0.0, "gsm8k")
        assert metrics.speedup == metrics.decode_speedup == metrics.tokens_per_s == WITH_PHASES
        assert metrics.latency.first_token.p50 == metrics.latency.per_token.p50 == WITH_PHASES
        assert metrics.mat == Estimate(1.5)
