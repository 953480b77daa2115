"""A report names impossible records, which would make its numbers wrong."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_part

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.imported import ImportedHeader
from specbench.log.run import Run
from specbench.log.store import read_run
from tests.analysis.run_factory import warnings_of
from tests.support.paths import BASELINE_RUN


def named(run: Run) -> list[str]:
    warnings = warnings_of(measure(run, Bootstrap(10)), "impossible")
    return [warning.numbers["text"] for warning in warnings]


@pytest.fixture(scope="module")
def run() -> Run:
    """An honest run of two methods."""
    whole = read_run(BASELINE_RUN)
    records = [record for record in whole.records if record.key.method in ("vanilla", "pld")]
    return replace(whole, records=tuple(records))


def changed(run: Run, **changes: Any) -> Run:
    """The run, with these fields changed in all of PLD's answers."""
    records = [
        replace(record, **changes) if record.key.method == "pld" else record
        for record in run.records
    ]
    return replace(run, records=tuple(records))


def test_an_honest_run_is_not_named(run: Run) -> None:
    assert named(run) == []


def test_impossible_sizes_are_named_once(run: Run) -> None:
    (text,) = named(changed(run, prompt_tokens=0))
    assert text.endswith("prompt_tokens is 0, but the target reads at least one token.")


def test_missing_prompts_are_named(run: Run) -> None:
    first, *others = run.header.prompts
    prompts = (replace_part(first, num_available=first.num_prompts + 3), *others)
    values = replace_part(run.header.spec.values, limit=None, sample=None)
    header = replace_part(
        run.header, prompts=prompts, spec=replace_part(run.header.spec, values=values)
    )
    (text,) = named(replace(run, header=header))
    assert f"{first.task} has {first.num_prompts} of {first.num_prompts + 3} prompts" in text


def test_an_outer_clock_that_measured_less_is_named(
    run: Run,
) -> None:
    behind = changed(run, outer_s=1e-6)
    (text,) = named(behind)
    assert text.startswith("outer_s is less than prefill_s + decode_s")
    imported = replace_part(behind.header, imported=ImportedHeader((), {}, "theirs"))
    assert named(replace(behind, header=imported)) == []


def test_a_pool_is_judged_only_by_its_times(run: Run) -> None:
    pool = Run(run.header, run.records, run_of_repeat=(0,))
    assert named(changed(pool, prompt_tokens=0)) == []
    assert len(named(changed(pool, outer_s=1e-6))) == 1
