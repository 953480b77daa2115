"""Parts of a run: what was measured at one load, and categories as tasks."""

from dataclasses import replace

import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.loads import NO_LOAD, ONE_AT_A_TIME, Load
from specbench.log.run import Run
from specbench.report.notes import notes
from tests.analysis.run_factory import full_run
from tests.judge.changing import at_loads
from tests.support.audits import stored_audit

RUN = full_run(("vanilla", "pld"), ("gsm8k",), num_samples=2)


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (Load(1), "1 request at a time"),
        (Load(8), "8 requests at once"),
        (Load(request_rate=2.5), "2.5 requests/s"),
        (NO_LOAD, ""),
    ],
)
def test_a_load_in_words(load: Load, text: str) -> None:
    assert load.text == text


def served() -> Run:
    run = at_loads(RUN, {1: {}, 4: {}})
    header = structs.replace(run.header, warnings=("busy",), num_records=len(run.records) + 3)
    return replace(run, header=header, left_out=("line 3",), audit=stored_audit())


def test_a_part_has_the_records_of_its_load_and_the_first_what_concerns_the_whole_run() -> None:
    run = served()
    parts = [run.at(load) for load in run.loads]
    assert [len(part.records) for part in parts] == [len(RUN.records)] * 2
    assert [part.loads for part in parts] == [(Load(1),), (Load(4),)]
    assert [part.header.warnings for part in parts] == [("busy",), ()]
    assert [part.left_out for part in parts] == [("line 3",), ()]
    own = len(RUN.records)
    missing = [f"3 of {own + 3} records are missing", ""]
    assert [part.missing_text for part in parts] == missing
    told = [note.text for part in parts for note in notes([measure(part, Bootstrap(50))], ["run"])]
    assert [text for text in told if "missing" in text] == [
        f"The run says that it is complete, but {missing[0]}."
    ]
    assert [part.audit for part in parts] == [run.audit] * 2


def test_a_load_that_was_not_measured_has_no_records() -> None:
    part = served().at(Load(9))
    assert (part.records, part.loads, part.header.warnings) == ((), (Load(9),), ())


def test_the_engine_has_one_request_at_a_time_and_no_parts() -> None:
    assert RUN.loads == (ONE_AT_A_TIME,)
    assert RUN.at(ONE_AT_A_TIME) is RUN
