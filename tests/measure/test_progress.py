"""The progress display of a run."""

import re
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.console import Console

from specbench.cli.progress import progress_view
from specbench.measure import progress
from specbench.measure.base import Progress
from specbench.types import Record
from tests.analysis.run_factory import failed, record

SAMPLE = record("pld", "3", prefill_s=0.01, decode_s=0.24, accept_lengths=[2, 1, 2, 1, 3])


def console(is_terminal: bool) -> Console:
    return Console(file=StringIO(), width=80, force_terminal=is_terminal, highlight=False)


def shown(view_console: Console) -> str:
    file = view_console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def lines_of(text: str) -> list[str]:
    """The lines of a terminal, without control sequences."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line.rstrip() for line in text.replace("\r", "").splitlines()]


def run(view: Progress, *records: Record) -> None:
    view.started(len(records))
    for sample in records:
        view.sample_started(sample.key.method, sample.key.task, sample.key.sample_id)
        view.sample_finished(sample)
    view.finished()


LONG = "[bold]" + "x" * 120


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        (SAMPLE, "gsm8k/3 pld 10 tokens 40 tok/s MAT 1.80"),
        (
            record("pld", "3", turn=1, repeat=2, temperature=0.7),
            "gsm8k/3 turn 2 pass 3 T=0.7 pld",
        ),
        (
            failed("pld", "3", error="CUDA out of memory\nTried 2 GiB"),
            "failed: CUDA out of memory\n",
        ),
        (failed("pld", error=LONG), f" pld failed: {LONG}"[:60]),
    ],
)
def test_a_sample_is_one_plain_line(sample: Record, line: str) -> None:
    stream = console(is_terminal=False)
    run(progress_view(console=stream), sample)
    assert shown(stream).startswith("[1/1] gsm8k/") and shown(stream).count("\n") == 1
    assert line in shown(stream)


def test_the_time_left_is_shown_even_during_a_long_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rich's own estimate forgets a sample after half a minute."""
    now = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    plain, live = console(is_terminal=False), console(is_terminal=True)
    for stream in (plain, live):
        view = progress_view(console=stream)
        view.started(3)
        now[0] += 3600
        view.sample_finished(SAMPLE)
        view.finished()
    assert shown(plain).endswith("MAT 1.80, 2:00:00 left\n")
    assert "2:00:00 left" in shown(live)


def test_a_live_view_shows_failures_and_totals() -> None:
    stream = console(is_terminal=True)
    with progress_view(console=stream) as view:
        view.started(4)
        view.sample_finished(SAMPLE)
        view.sample_finished(failed("pld", "4"))
        view.sample_finished(record("pld", "5", decode_s=0.25, accept_lengths=[1]))
        view.sample_started("lookahead", "alpaca", "alpaca/7")
    text = shown(stream)
    assert "[2/4] gsm8k/4 pld failed" in text and "[1/4]" not in text
    assert "lookahead on alpaca, alpaca/7" in text
    rows = [line.split() for line in lines_of(text)]
    assert ["pld", "2", "24", "1.67", "1"] in rows, "12 tokens in 0.5 s and 6 steps, one failed"


def test_a_live_view_is_drawn_at_most_ten_times_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("specbench.cli.progress.perf_counter", lambda: now[0])
    stream = console(is_terminal=True)
    with progress_view(console=stream) as view:
        view.started(100)
        for number in range(100):
            view.sample_started("pld", "alpaca", str(number))
            now[0] += 1 / 64
            view.sample_finished(SAMPLE)
    drawn = [int(number) for number in re.findall(r"now  pld on alpaca, (\d+)", shown(stream))]
    assert drawn == [*range(0, 100, 7), 99]


def test_a_view_ends_when_the_run_raises() -> None:
    stream = console(is_terminal=True)
    with pytest.raises(KeyboardInterrupt), progress_view(console=stream) as view:
        view.started(3)
        raise KeyboardInterrupt
    view.finished()
    assert shown(stream).rstrip().endswith("\x1b[2K") or "\x1b[?25h" in shown(stream)


def test_a_stream_that_only_takes_ascii_gets_ascii() -> None:
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="ascii", errors="replace")  # as in the program
    run(progress_view(console=Console(file=stream)), record("pld", "ß"))
    stream.flush()
    assert b"gsm8k/? pld" in raw.getvalue()


def test_a_sweep_of_thirty_fits_24_lines() -> None:
    stream = Console(file=StringIO(), width=80, height=24, force_terminal=True)
    view = progress_view(console=stream)
    view.started(62)
    for number in range(31):
        label = f"pld:ngram={number},min_ngram=1"
        view.sample_started(label, "gsm8k", "gsm8k/1")
        view.sample_finished(record(label, decode_s=1.0 + number))
    before = shown(stream)
    view._drawn_at = -1.0  # type: ignore[attr-defined]
    view.sample_started("pld:ngram=7,min_ngram=1", "gsm8k", "gsm8k/2")
    lines = lines_of(shown(stream)[len(before) :])
    view.finished()
    assert len(lines) < 24
    assert "31/62" in lines[0] and "left" in lines[0]
    assert lines[1] == "now  pld (ngram=7) on gsm8k, gsm8k/2"
    shown_methods = [line.split("  ")[0] for line in lines if line.startswith("pld (")]
    assert shown_methods == [f"pld (ngram={number})" for number in range(18)]
    assert lines[-1] == "and 13 slower"
