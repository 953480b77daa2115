"""`specbench report` on hand-written runs: expected numbers, or the reason for a missing one."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from specbench.log.store import header_json
from tests.cli.conftest import Specbench
from tests.support.headers import make_header
from tests.support.products import each_once

FORMATS = ("table", "markdown", "latex", "csv", "html", "json")
Line = dict[str, Any]


def line(method: str = "vanilla", sample: str = "a", seconds: float = 2.0, **changes: Any) -> Line:
    """A sample line with five tokens in four steps, with changes."""
    made: Line = {
        "schema": 1, "method": method, "temperature": 0.0, "task": "gsm8k", "sample_id": sample,
        "turn": 0, "repeat": 0, "status": "ok", "prompt_tokens": 9, "token_ids": [5, 6, 7, 8, 9],
        "num_tokens": 5, "text": "five", "stop_reason": "budget", "prefill_s": 0.0,
        "decode_s": seconds, "accept_lengths": [1, 1, 1, 1], "num_nodes": [1, 1, 1, 1], "seed": 1,
        "error": None,
    }  # fmt: skip
    return {**made, **changes}


def failed(method: str, sample: str = "a") -> Line:
    return line(
        method, sample, status="error", token_ids=[], num_tokens=0, text="", stop_reason=None,
        prefill_s=None, decode_s=None, accept_lengths=[], num_nodes=[], error="boom",
    )  # fmt: skip


def fast(method: str = "pld", sample: str = "a", seconds: float = 1.0, **changes: Any) -> Line:
    """The sample line with two steps in place of four."""
    return line(
        method, sample, seconds, **{"accept_lengths": [3, 1], "num_nodes": [4, 4], **changes}
    )


PHASES = {"draft_s": 0.2, "verify_s": 0.7, "commit_s": 0.1, "host_s": 0.0}
ODD: dict[str, Sequence[Line]] = {
    "one sample": [line(), fast()],
    "no baseline": [fast(), fast(sample="b")],
    "only the baseline": [line(), line(sample="b")],
    "all failed": [failed("vanilla"), failed("pld")],
    "the baseline failed": [failed("vanilla"), fast()],
    "nothing at all": [],
    "unicode": [line(sample="数学/🙂"), fast("größe:名=値", "数学/🙂", task="gsm8k")],
    "a cell missing": [line(), fast(), line(task="alpaca"), line(sample="b", task="alpaca")],
    "two temperatures": [
        line(), fast(), line(temperature=1.0), fast(temperature=1.0, seconds=0.5)
    ],
    "phases": [line(phases=PHASES), fast(phases=PHASES)],
    "one token each": [
        line(token_ids=[5], num_tokens=1, accept_lengths=[], num_nodes=[], prefill_s=0.1),
        fast(token_ids=[5], num_tokens=1, accept_lengths=[], num_nodes=[], prefill_s=0.1),
    ],
    "no time passed": [line(seconds=0.0), fast(seconds=0.0)],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "written"


def write(folder: Path, lines: Sequence[Line]) -> Path:
    folder.mkdir()
    temperatures = sorted({one["temperature"] for one in lines} | {0.0})
    spec = {"values": {"temperatures": temperatures}}
    header = make_header({"id": "written", "spec": spec})
    (folder / "run.json").write_bytes(header_json(header))
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
    (folder / "samples.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.usefixtures("with_plots")
@pytest.mark.parametrize(("name", "arithmetic"), each_once([*ODD], ["ours", "paper"]))
def test_every_format_is_rendered_without_nan_or_traceback(
    specbench: Specbench, folder: Path, name: str, arithmetic: str
) -> None:
    write(folder, ODD[name])
    for form in FORMATS:
        said = specbench("report", folder, "--format", form, "--arithmetic", arithmetic)
        assert said.code == 0, said.err
        assert "Traceback" not in said.out + said.err
        shown = re.sub(r"<(style|script|svg).*?</\1>|base64,[^\"')]*", "", said.out, flags=re.S)
        assert not re.search(r"\b([Nn]a[Nn]|[Ii]nf|Infinity|None)\b", shown), form


def cells(specbench: Specbench, folder: Path, *more: str) -> dict[tuple[str, str, str], Line]:
    said = specbench("report", folder, "--format", "csv", *more)
    rows = list(csv.DictReader(StringIO(said.out)))
    return {(row["method"], row["temperature"], row["task"]): row for row in rows}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no baseline", "no baseline"),
        ("all failed", "all failed"),
        ("the baseline failed", "baseline failed"),
        ("phases", "the phases of steps were timed, which slows them down"),
        ("no time passed", "all failed"),
    ],
)
def test_a_missing_speedup_has_a_reason(
    specbench: Specbench, folder: Path, name: str, reason: str
) -> None:
    row = cells(specbench, write(folder, ODD[name]))["pld", "0.0", "gsm8k"]
    assert (row["speedup"], row["speedup_missing"]) == ("", reason)
    assert reason in " ".join(specbench("report", folder).out.lower().split())


def test_the_published_formula_counts_samples_alike_and_ours_counts_time(
    specbench: Specbench, folder: Path
) -> None:
    """A short answer is four times as fast, a long one equally fast."""
    tokens = list(range(100))
    ones = {"accept_lengths": [1] * 99, "num_nodes": [1] * 99}
    long: Line = {"token_ids": tokens, "num_tokens": 100, **ones}
    lines = [
        line(seconds=2.0), fast(seconds=0.5),
        line(sample="b", seconds=40.0, **long), fast(sample="b", seconds=40.0, **long),
    ]  # fmt: skip
    write(folder, lines)
    ours = (2.0 + 40.0) / (0.5 + 40.0)
    paper = (5 / 0.5 + 100 / 40) / (5 / 2.0 + 100 / 40)
    place = "pld", "0.0", "gsm8k"
    row = cells(specbench, folder)[place]
    assert float(row["speedup"]) == float(row["speedup_ours"]) == pytest.approx(ours)
    assert float(row["speedup_paper"]) == pytest.approx(paper)
    row = cells(specbench, folder, "--arithmetic", "paper")[place]
    assert row["arithmetic"] == "paper"
    assert float(row["speedup"]) == pytest.approx(paper)
    more = f"{(paper / ours - 1) * 100:.1f} % more (pld on gsm8k)"
    assert more in " ".join(specbench("report", folder, "--full").out.split())


def test_a_lenient_report_leaves_out_what_no_run_can_have_written_and_says_so(
    specbench: Specbench, folder: Path
) -> None:
    write(folder, [line(), fast(), fast(sample="b", prefill_s=-1.0), line(sample="b")])
    refused = specbench("report", folder)
    assert (refused.code, "line 3: $.prefill_s: expected float >= 0.0 (-1.0)" in refused.err) == (
        2, True,
    )  # fmt: skip
    row = cells(specbench, folder, "--lenient")["pld", "0.0", "gsm8k"]
    assert row["num_done"] == "1"
    shown = " ".join(specbench("report", folder, "--lenient", "--full").out.split())
    assert "Left out by --lenient: 1 line. The first:" in shown
