"""Runs in the forms of other tools are read back to the same numbers."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.errors import UserError
from specbench.log.exchange.convert import Told, convert, parse_file
from specbench.log.exchange.write import write_files, written_formats
from specbench.log.run import Run
from specbench.log.store import read_run
from tests.log.exchange.files import imported, needs_published, published

ROOT = Path(__file__).parents[3]
WITHOUT_STEPS = "vllm"
"""The form with the steps of all requests together."""


def reread(run: Run, form: str, folder: Path) -> Run:
    paths = write_files(run, form, folder)
    labels = [re.sub(r"-pass-\d+", "", path.stem) for path in paths]
    files = [parse_file(f"{label}={path}") for label, path in zip(labels, paths, strict=True)]
    return convert(files, Told(temperature=0.0))


def number(value: Value) -> float | None:
    return value.value if isinstance(value, Estimate) else None


def test_the_forms_are_those_of_the_command() -> None:
    assert sorted(written_formats()) == ["aiperf", "eagle", "spec-bench", "vllm"]


@pytest.mark.parametrize("form", ["aiperf", "eagle", "spec-bench", "vllm"])
def test_a_run_is_read_back_to_the_same_numbers(form: str, tmp_path: Path) -> None:
    recorded = read_run(ROOT / "results/recorded/amd-epyc-2-cores")
    methods = ("vanilla", "eagle2", "pld")
    run = Run(recorded.header, tuple(r for r in recorded.records if r.key.method in methods))
    again = reread(run, form, tmp_path)
    assert len(again.records) == len(run.records)
    before, after = measure(run), measure(again)
    for method in methods:
        original, converted = before.pooled(method, 0.0), after.pooled(method, 0.0)
        assert converted.num_tokens == original.num_tokens
        assert number(converted.our_speedup) == pytest.approx(
            number(original.our_speedup), rel=1e-9
        )
        assert number(converted.tokens_per_s) == pytest.approx(
            number(original.tokens_per_s), rel=1e-9
        )
        if method != "vanilla" or form != WITHOUT_STEPS:
            assert number(converted.mat) == pytest.approx(number(original.mat), rel=1e-9)
        if form not in ("eagle", "spec-bench"):
            decode = number(converted.decode_speedup)
            assert decode == pytest.approx(number(original.decode_speedup), rel=1e-9)
    if form != WITHOUT_STEPS:
        lengths = sorted(record.accept_lengths for record in again.records)
        assert lengths == sorted(record.accept_lengths for record in run.records)


@needs_published
def test_eagles_files_give_its_speedup_after_being_written(tmp_path: Path) -> None:
    files = [f"{name}={published(f'eagle/*-{name}-in-*')}" for name in ("base", "ea")]
    run = imported(tmp_path, *files, baseline="base")
    again = measure(reread(run, "spec-bench", tmp_path / "out"))
    speedup = number(again.pooled("ea", 0.0).our_speedup)
    assert speedup is not None and round(speedup, 3) == 2.907
    with pytest.raises(UserError, match="lacks times to the first token"):
        write_files(run, "aiperf", tmp_path / "none")


def test_unknown_steps_and_names_are_one_message(tmp_path: Path) -> None:
    run = read_run(ROOT / "results/recorded/vllm-cpu")
    unlisted = [replace(record, accept_lengths=()) for record in run.records[:4]]
    with pytest.raises(UserError, match=r"The steps of vanilla on .+ are unknown"):
        write_files(Run(run.header, tuple(unlisted)), "eagle", tmp_path)
    with pytest.raises(UserError, match="No format 'csv'"):
        write_files(run, "csv", tmp_path)
