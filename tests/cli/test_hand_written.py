"""`specbench report` on hand-written runs: expected numbers, and lines that are left out."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest

from tests.analysis.run_factory import record
from tests.cli.conftest import Specbench
from tests.judge.making import rewrite, setting
from tests.support.headers import make_header
from tests.support.records import store

FOLDER = Path("written")


def row_of_pld(specbench: Specbench, *more: str) -> dict[str, str]:
    said = specbench("report", FOLDER, "--format", "csv", *more)
    rows = csv.DictReader(StringIO(said.out))
    return next(row for row in rows if (row["method"], row["task"]) == ("pld", "gsm8k"))


def test_the_published_formula_weights_samples_equally(
    specbench: Specbench,
) -> None:
    """PLD gives a short answer four times as fast, and a long one in the same time."""
    records = [
        record(decode_s=2.0, accept_lengths=[1] * 4),
        record("pld", decode_s=0.5, accept_lengths=[3, 1]),
        *(record(method, "b", decode_s=40.0, accept_lengths=[1] * 99)
          for method in ("vanilla", "pld")),
    ]  # fmt: skip
    store(FOLDER, make_header(), records)
    expected_speedup = (2.0 + 40.0) / (0.5 + 40.0)
    paper = (5 / 0.5 + 100 / 40) / (5 / 2.0 + 100 / 40)
    row = row_of_pld(specbench)
    assert float(row["speedup"]) == float(row["speedup_ours"]) == pytest.approx(expected_speedup)
    assert float(row["speedup_paper"]) == pytest.approx(paper)
    row = row_of_pld(specbench, "--arithmetic", "paper")
    assert row["arithmetic"] == "paper"
    assert float(row["speedup"]) == pytest.approx(paper)
    more = f"{(paper / expected_speedup - 1) * 100:.1f} % higher (pld on gsm8k)"
    assert more in " ".join(specbench("report", FOLDER, "--full").out.split())


def test_a_lenient_report_leaves_out_impossible_lines(
    specbench: Specbench,
) -> None:
    records = [record(method, sample) for sample in "ab" for method in ("vanilla", "pld")]
    rewrite(store(FOLDER, make_header(), records), setting(3, prefill_s=-1.0))
    refused = specbench("report", FOLDER)
    assert (refused.code, "line 4: $.prefill_s: expected float >= 0.0 (-1.0)" in refused.err) == (
        2, True,
    )  # fmt: skip
    assert row_of_pld(specbench, "--lenient")["num_done"] == "1"
    shown = " ".join(specbench("report", FOLDER, "--lenient", "--full").out.split())
    assert "Left out by --lenient: 1 line. The first:" in shown
