"""Runs that were written in the formats of other tools are read back with the same numbers."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.errors import UserError
from specbench.log.exchange.convert import UserFacts, convert, parse_file
from specbench.log.exchange.write import write_files, written_formats
from specbench.log.merge import write_run
from specbench.log.run import Load, Run
from specbench.log.store import RunFolder, read_run
from specbench.types import ImportedCounts, Record
from tests.log.exchange.files import about, imported, needs_published, published
from tests.support.paths import RECORDED

WITHOUT_STEPS = "vllm"
"""The format that has only the sum of all requests' steps."""
WITHOUT_PREFILL = ("eagle", "spec-bench")
"""The formats that have no times to the first token."""


@cache
def recorded() -> Run:
    return read_run(RECORDED / "amd-epyc-2-cores")


def first_of_pld() -> Record:
    return next(record for record in recorded().records if record.key.method == "pld")


def reread(run: Run, form: str, folder: Path) -> Run:
    """Write the run in a format, and read it back."""
    paths = write_files(run, form, folder)
    labels = [re.sub(r"-pass-\d+", "", path.stem) for path in paths]
    files = [parse_file(f"{label}={path}") for label, path in zip(labels, paths, strict=True)]
    return convert(files, UserFacts(temperature=0.0))


def number(figure: Value) -> float | None:
    return figure.value if isinstance(figure, Estimate) else None


def assert_same(converted: Value, original: Value) -> None:
    assert number(converted) == pytest.approx(number(original), rel=1e-9)


def test_four_formats_are_written() -> None:
    assert sorted(written_formats()) == ["aiperf", "eagle", "spec-bench", "vllm"]


@pytest.mark.parametrize("form", ["aiperf", "eagle", "spec-bench", "vllm"])
def test_a_run_is_read_back_to_the_same_numbers(form: str, tmp_path: Path) -> None:
    methods = ("vanilla", "eagle2", "pld")
    records = [record for record in recorded().records if record.key.method in methods]
    run = Run(recorded().header, tuple(records))
    again = reread(run, form, tmp_path)
    assert len(again.records) == len(run.records)

    metrics, metrics_again = measure(run), measure(again)
    for method in methods:
        original = metrics.pooled(method, 0.0)
        converted = metrics_again.pooled(method, 0.0)
        assert converted.num_tokens == original.num_tokens
        assert_same(converted.our_speedup, original.our_speedup)
        assert_same(converted.tokens_per_s, original.tokens_per_s)
        if method != "vanilla" or form != WITHOUT_STEPS:
            assert_same(converted.mat, original.mat)
        if form not in WITHOUT_PREFILL:
            assert_same(converted.decode_speedup, original.decode_speedup)

    if form != WITHOUT_STEPS:
        lengths = sorted(record.accept_lengths for record in run.records)
        assert sorted(record.accept_lengths for record in again.records) == lengths


@pytest.mark.parametrize(
    ("form", "num_emitted", "lengths"),
    [
        ("spec-bench", 0, ()),
        ("eagle", 1, (1,)),
    ],
)
def test_an_answer_of_one_token_has_a_step_only_in_eagles_format(
    form: str, num_emitted: int, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    whole = first_of_pld()
    one_token = replace(whole, token_ids=whole.token_ids[:1], accept_lengths=(), num_nodes=())
    second_turn = replace(whole, key=replace(whole.key, turn=1))
    run = Run(recorded().header, (one_token, second_turn))
    first, second = reread(run, form, tmp_path).records
    counts = first.imported
    assert counts and (counts.num_emitted, counts.num_steps) == (num_emitted, len(lengths))
    assert first.accept_lengths == lengths
    assert second.accept_lengths == whole.accept_lengths


@pytest.mark.parametrize("form", ["eagle", "spec-bench"])
def test_a_question_with_an_unlisted_step_has_no_list_of_lengths(form: str, tmp_path: Path) -> None:
    first_turn = first_of_pld()
    key = replace(first_turn.key, turn=1)
    counts = ImportedCounts(num_tokens=6, num_emitted=6, num_steps=3)
    second_turn = replace(first_turn, key=key, accept_lengths=(), imported=counts)
    run = Run(recorded().header, (first_turn, second_turn))
    (path,) = write_files(run, form, tmp_path)
    (choice,) = json.loads(path.read_text())["choices"]
    assert choice["accept_lengths"] == []


@needs_published
def test_eagles_files_give_its_speedup_after_being_written(tmp_path: Path) -> None:
    vanilla_file = published("eagle/*-base-in-*")
    eagle_file = published("eagle/*-ea-in-*")
    run = imported(tmp_path, f"base={vanilla_file}", f"ea={eagle_file}", baseline="base")
    speedup = measure(reread(run, "spec-bench", tmp_path / "out")).pooled("ea", 0.0).our_speedup
    assert number(speedup) == pytest.approx(2.907, abs=0.0005)
    with pytest.raises(UserError, match="lacks times to the first token"):
        write_files(run, "aiperf", tmp_path / "none")


def test_unknown_steps_or_names_give_one_message(tmp_path: Path) -> None:
    run = read_run(RECORDED / "vllm-cpu")
    records = [replace(record, accept_lengths=()) for record in run.records[:4]]
    without_steps = Run(run.header, tuple(records))
    with pytest.raises(UserError, match=r"The steps of vanilla on .+ are unknown"):
        write_files(without_steps, "eagle", tmp_path)
    with pytest.raises(UserError, match="No format 'csv'"):
        write_files(run, "csv", tmp_path)


@pytest.mark.parametrize("form", ["aiperf", "vllm"])
def test_a_servers_throughput_covers_the_blocks_of_all_tasks(form: str, tmp_path: Path) -> None:
    served = read_run(RECORDED / "vllm-cpu-loads").at(Load(1))
    records = [record for record in served.records if record.key.method in ("vanilla", "ngram")]
    run = Run(served.header, tuple(records))
    source = about(reread(run, form, tmp_path))
    tokens_per_s = next(
        figure.value
        for figure in source.figures
        if figure.method == "ngram" and figure.name.startswith("output_t")
    )

    blocks = [block for block in run.header.blocks if block.method == "ngram" and not block.repeat]
    assert len({block.task for block in blocks}) > 1
    num_tokens = sum(block.num_tokens for block in blocks)
    duration_s = sum(block.duration_s for block in blocks)
    assert tokens_per_s == pytest.approx(num_tokens / duration_s, rel=0.02)


def test_a_killed_conversion_can_be_repeated(tmp_path: Path) -> None:
    converted = reread(recorded(), "eagle", tmp_path / "answers")
    with RunFolder(tmp_path / "run") as opened:
        opened.write_header(structs.replace(converted.header, status="running"))
    write_run(converted, tmp_path / "run")
    assert read_run(tmp_path / "run").header.status == "complete"
