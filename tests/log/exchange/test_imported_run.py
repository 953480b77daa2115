"""Imported runs have their own class of lines. Commands that need a measured run refuse them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specbench.errors import RunFolderError, UserError
from specbench.judge.files import check_files
from specbench.judge.gate import check
from specbench.judge.page import write_site
from specbench.log.differences import differences
from specbench.log.exchange.convert import LabelledFile, parse_file
from specbench.log.merge import merged
from specbench.log.record import RecordLine
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.report.build import make_report
from specbench.report.export.json import render as json_report
from tests.judge.comparing import compare
from tests.log.exchange.files import about, answer, imported, write_lines
from tests.support.paths import RECORDED
from tests.support.refusals import error_with


@pytest.fixture
def run(tmp_path: Path) -> Run:
    base = [answer(n, idxs=[9], new_tokens=[0], wall_time=[2.0]) for n in range(6)]
    fast = [answer(n, idxs=[2], new_tokens=[12]) for n in range(6)]
    paths = write_lines(tmp_path / "b.jsonl", *base), write_lines(tmp_path / "f.jsonl", *fast)
    return imported(tmp_path, f"base={paths[0]}", f"eagle={paths[1]}", baseline="base")


def test_older_readers_refuse_the_lines_and_the_header_of_an_imported_run(run: Run) -> None:
    line = (run.folder / "samples.jsonl").read_bytes().splitlines()[0]
    with pytest.raises(msgspec.ValidationError, match="Invalid value 2"):
        msgspec.json.decode(line, type=RecordLine)
    header = json.loads((run.folder / "run.json").read_bytes())
    assert header["schema"] == 2
    path = run.folder / "run.json"
    path.write_text(json.dumps({**header, "schema": 1}))
    with pytest.raises(RunFolderError, match="schema 1 contradicts the field imported"):
        read_run(run.folder)
    del header["imported"]
    path.write_text(json.dumps({**header, "schema": 1}))
    with pytest.raises(RunFolderError, match="schema"):
        read_run(run.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 0}, "num_tokens: 0 in a line that is ok"),
        ({"num_steps": None}, "num_steps and num_emitted: only one"),
        ({"token_ids": [1]}, "but token_ids has 1"),
        ({"accept_lengths": [5, 5]}, "but accept_lengths has 2"),
        ({"accept_lengths": [5] * 10}, "but accept_lengths emit 50"),
        ({"status": "error"}, "'error', but the line has tokens or steps"),
        ({"method": "other"}, "'other' is not one of the run's"),
        ({"total_s": -1}, "total_s: expected"),
    ],
)
def test_a_line_that_no_file_can_give_is_refused(
    changes: dict[str, Any], message: str, run: Run
) -> None:
    samples = run.folder / "samples.jsonl"
    first, *others = samples.read_text().splitlines()
    samples.write_text("\n".join([json.dumps({**json.loads(first), **changes}), *others, ""]))
    with pytest.raises(RunFolderError, match=message):
        read_run(run.folder)


@pytest.mark.parametrize(
    ("refuse", "word"),
    [(lambda run: merged([run, run]), "merged"), (lambda run: Run.pooled([run]), "pooled")],
)
def test_merging_or_pooling_an_imported_run_is_refused(
    refuse: Callable[[Run], object], word: str, run: Run
) -> None:
    message = f"is an imported run .* cannot be {word}"
    with error_with(UserError, match=message, hint="check and site also take imported runs."):
        refuse(run)


def test_an_imported_run_is_reported_compared_and_checked_as_far_as_possible(run: Run) -> None:
    report = make_report(run)
    assert "(imported)" in report.title and "unknown hardware" in report.title
    keys = {note.key for note in report.notes}
    assert {"imported", "imported_counting", "imported_figures", "imported_lacks"} <= keys
    (document,) = json.loads(json_report(report))["runs"]
    assert document["imported"]["arithmetic"] == about(run).arithmetic
    comparison = compare(run, run, crossed=("eagle", "vanilla"))
    assert comparison.cell("eagle", 0.0, "mean").tokens_per_s
    checked = check(run, run)
    assert not [verdict for verdict in checked.checks if verdict.status == "failed"]
    assert any("the machine of the imported run" in note.text for note in checked.notes)
    alone = check_files(run.folder)
    assert not alone.about["faults"]
    assert [text for text in alone.about["exclusions"] if "The run is imported" in text]


def test_a_page_shows_answers_that_have_a_text_and_a_time(run: Run, tmp_path: Path) -> None:
    (source,) = make_report(run).sources
    replays = [answers.replay() for answers in source.answers]
    assert len(replays) == 2
    steps = [answer["steps"] for answer in replays[0]["answers"]]
    assert [len(ends) for ends in steps] == [10, 12]
    assert [answer["decode_s"] for answer in replays[0]["answers"]] == [2.0, 0.5]
    line = {"id": "1", "prompt_token_ids": [1, 2], "acc_ngram": {"acc_len": [2, 1, 1]}}
    path = write_lines(tmp_path / "p.jsonl", line)
    without_texts = imported(tmp_path / "p", f"p={path}", task="spec_bench")
    (source,) = make_report(without_texts).sources
    assert not source.answers
    write_site([run.folder, without_texts.folder], tmp_path / "site", say=print)
    assert "(imported)" in (tmp_path / "site" / "index.html").read_text()


def test_differences_name_the_counting_rule_and_nothing_unknown(run: Run) -> None:
    recorded = read_run(RECORDED / "amd-epyc-2-cores")
    assert [d.field for d in differences(recorded.header, run.header)] == ["counting"]
    assert not differences(run.header, run.header)


def test_a_label_ends_at_the_first_equals_sign(tmp_path: Path) -> None:
    assert parse_file("eagle:2=a/b.json") == LabelledFile("eagle-2", Path("a/b.json"))
    assert parse_file("a/k=v.json") == LabelledFile("k=v", Path("a/k=v.json"))
    assert parse_file("x.tar.json").label == "x.tar"


def test_questions_of_known_tasks_have_the_ids_of_our_runs(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl", answer(81), {**answer(82), "question_id": "mt_bench/82"}
    )
    run = imported(tmp_path, f"a={path}", task="mt_bench")
    assert [record.key.sample_id for record in run.records] == ["mt_bench/81", "mt_bench/82"]
    assert run.header.columns == {"mt_bench": "mt_bench"}


def test_the_baseline_is_a_label(run: Run, tmp_path: Path) -> None:
    assert run.header.method("vanilla").label == "base"
    path = write_lines(tmp_path / "a.jsonl", answer(1))
    with pytest.raises(UserError, match="No label 'none'"):
        imported(tmp_path / "x", f"a={path}", baseline="none")
    with pytest.raises(UserError, match="is reserved for the baseline"):
        other = write_lines(tmp_path / "b.jsonl", answer(2))
        imported(tmp_path / "y", f"vanilla={path}", f"a={other}", baseline="a")


def test_temperatures_of_files_and_of_the_user_must_agree(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(1))
    with pytest.raises(UserError, match="have several temperatures"):
        imported(tmp_path, f"a={path}", temperature=1.0)
    unknown = write_lines(tmp_path / "u.jsonl", {**answer(1), "model_id": "m"})
    run = imported(tmp_path, f"a={unknown}")
    assert "the temperature" in about(run).lacks
    assert make_report(run).blocks[0].heading == "Unknown temperature"
