"""Explanations of answers in other tools' files: published files, and runs in their formats."""

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import mean

import pytest

from specbench.analysis.factors import (
    AVERAGING,
    COST,
    COUNTING,
    MAT,
    PER_TOKEN,
    PREFILL,
    PROMPTS,
)
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.judge.explanation import Explanation, explain_runs
from specbench.judge.explanation_formats import (
    explained_document,
    print_explanation,
    render_explanation,
)
from specbench.judge.explanation_sentences import sentence
from specbench.judge.explanation_table import not_separable
from specbench.log.exchange.convert import UserFacts, convert, parse_file
from specbench.log.exchange.write import write_files
from specbench.log.run import Run
from tests.analysis.run_factory import full_run
from tests.judge.changing import slower, with_header
from tests.judge.explained import effects, only
from tests.log.exchange.files import answer, imported, needs_published, published, write_lines
from tests.log.exchange.test_serving_clients import request
from tests.support.printing import printed
from tests.support.texts import assert_in

FEW = Bootstrap(num_resamples=20)
TASK = "gsm8k"
EAGLE = "eagle/llama-2-chat-70b-fp16-{}-in-temperature-0.0.jsonl"


def text_of(explanation: Explanation) -> str:
    """The text that a terminal shows, as one line."""
    return " ".join(printed(partial(print_explanation, explained_document([explanation]))).split())


def eagle_70b(tmp_path: Path) -> Run:
    files = [f"{label}={published(EAGLE.format(label))}" for label in ("base", "ea")]
    return imported(tmp_path, *files, baseline="base", task="mt_bench")


@needs_published
def test_eagles_70b_answers_are_explained_from_mat_down(tmp_path: Path) -> None:
    explanation = only(explain_runs(eagle_70b(tmp_path)))
    product = explanation.product
    assert product.subject == pytest.approx(3.00947, abs=5e-6)
    assert {factor.name: factor.subject for factor in product.factors} == pytest.approx(
        {
            AVERAGING: 1.03183,
            COUNTING: 1.00333,
            PROMPTS: 1,
            MAT: 3.62021,
            COST: 1.24537,
            PREFILL: 1,
        },
        abs=5e-6,
    )
    assert product.remainder == pytest.approx(1, abs=1e-9)
    assert [line.subject for line in explanation.step_lines] == pytest.approx(
        [0.166142, 0.133408], abs=5e-7
    )
    assert_in(
        text_of(explanation),
        "3.009x by EAGLE's formula, with idx as the baseline's tokens",
        "2.995x by EAGLE's formula, with idx + 1 as the baseline's tokens",
        "2.917x by the ratio of totals, with idx as the baseline's tokens",
        "2.907x by the ratio of totals, with idx + 1 as the baseline's tokens",
        "59 of 160 answers of ea have base's text",
        "the same number of tokens in 24, 1 more in 35",
        "40 answers of base are cut at 512 tokens",
        "prefill: one side has only total times, so cost includes it",
        "MAT 3.62, yet speedup 3.01: a step takes 1.25 times as long as vanilla's.",
    )


@needs_published
def test_medusas_repeats_differ_only_by_time(tmp_path: Path) -> None:
    files = [published(f"medusa/medusa-vicuna-7b-v1.3-{name}-temp*") for name in (1, 2)]
    runs = [imported(tmp_path / path.stem, f"medusa={path}") for path in files]
    explanation = only(explain_runs(runs[0], runs[1]))
    seconds = [sum(record.wall_s or 0 for record in run.records) for run in runs]
    assert [round(total, 1) for total in seconds] == [426.3, 462.2]
    assert effects(explanation)[COST] == pytest.approx(seconds[1] / seconds[0], rel=1e-9)
    assert {effects(explanation)[name] for name in (MAT, COUNTING, PROMPTS, PREFILL)} == {1}
    assert not explanation.settings and not any(map(explanation.is_claimed, effects(explanation)))
    assert_in(
        sentence(explanation),
        "All 160 turns have equal tokens and steps on both sides.",
        "The files show no setting that differs",
        "A's tokens/s is 1.075 times B's: 101 against 94.1",
    )


def written(folder: Path, *passes: Run) -> Run:
    """The runs, written as answers of EAGLE and read back as the passes of one run."""
    files = [
        parse_file(str(path))
        for number, run in enumerate(passes)
        for path in write_files(run, "eagle", folder / str(number))
    ]
    return convert(files, UserFacts(temperature=0.0, task=TASK))


def quotient_of_rates(run: Run) -> float:
    """EAGLE's formula: the mean tokens/s of the questions, divided by vanilla's mean."""
    rates = defaultdict(list)
    questions = defaultdict(list)
    for record in run.records:
        questions[record.key.method, record.key.sample_id].append(record)
    for (method, _), records in questions.items():
        seconds = sum(record.wall_s or 0 for record in records)
        rates[method].append(sum(record.num_tokens for record in records) / seconds)
    return mean(rates["eagle2"]) / mean(rates["vanilla"])


def test_an_imported_run_differs_by_averaging_and_planted_times(tmp_path: Path) -> None:
    run = full_run(("vanilla", "eagle2"), (TASK,), num_samples=8)
    explanation = only(explain_runs(slower(run, {"eagle2": 1.25}), written(tmp_path, run)))
    tokens, seconds = (
        {
            method: sum(
                getattr(record, name) for record in run.records if record.key.method == method
            )
            for method in ("vanilla", "eagle2")
        }
        for name in ("num_tokens", "wall_s")
    )
    totals = tokens["eagle2"] / seconds["eagle2"] * seconds["vanilla"] / tokens["vanilla"]
    published_speedup = quotient_of_rates(run)
    assert explanation.product.reference == pytest.approx(published_speedup, rel=1e-12)
    others = dict.fromkeys((COUNTING, PROMPTS, MAT, PREFILL), 1.0)
    assert effects(explanation) == pytest.approx(
        {AVERAGING: totals / published_speedup, COST: 1 / 1.25, **others}, abs=1e-9
    )
    assert explanation.product.remainder == pytest.approx(1, abs=1e-9)
    assert explanation.causes(AVERAGING) == [
        "average: mean of the tasks against quotient of mean tokens/s"
    ]
    assert "counting rule" in explanation.causes(COUNTING)
    unknown = ("specbench", "machine", "dtype", "threads", "load", "history")
    assert not [cause for cause in explanation.causes(COST) if cause.startswith(unknown)]
    assert not explanation.step_lines  # the machine of one side is unknown


def test_settings_that_files_do_not_name_are_not_called_equal(tmp_path: Path) -> None:
    run = full_run(("vanilla", "eagle2"), (TASK,), num_samples=8)
    passes = [slower(run, {"vanilla": f, "eagle2": 1 / f}) for f in (0.999, 1.0, 1.001)]
    slow = [slower(of_pass, {"vanilla": 1.5}) for of_pass in passes]
    sides = written(tmp_path / "slow", *slow), written(tmp_path / "run", *passes)
    explanation = only(explain_runs(*sides))
    assert effects(explanation)[COST] == pytest.approx(1.5)
    assert explanation.is_claimed(COST) and not explanation.is_without_cause(COST)
    assert "The files show no setting that differs" in sentence(explanation)
    assert "Not in B token ids, prompt tokens" in text_of(explanation)


def test_an_unknown_load_or_temperature_is_not_a_cause(tmp_path: Path) -> None:
    line = {**answer(1), "model_id": "m"}
    of_vanilla = write_lines(tmp_path / "a.jsonl", line)
    of_eagle2 = write_lines(tmp_path / "b.jsonl", answer(1))  # has a temperature
    measured = full_run(("vanilla", "eagle2"), (TASK,), temperatures=(1.0,))
    imported_run = imported(tmp_path, f"vanilla={of_vanilla}", f"eagle2={of_eagle2}")
    without_temperature = with_header(imported_run, imported__told=[])
    explanation = only(explain_runs(measured, without_temperature))
    assert not [cause for cause in explanation.causes(MAT) if cause.startswith("temperature")]
    with_temperature = only(explain_runs(measured, imported_run))
    assert "temperature: 1 against 0" in with_temperature.causes(MAT)
    assert "Unknown temperature" in text_of(only(explain_runs(without_temperature)))


def test_without_steps_mat_and_cost_are_one_factor(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", *map(request, range(6)))
    with_steps = only(explain_runs(imported(tmp_path / "a", f"m={path}")))
    lines = [request(number, spec_decode_acceptance=None) for number in range(6)]
    path = write_lines(tmp_path / "q.jsonl", *lines)
    without = only(explain_runs(imported(tmp_path / "b", f"m={path}")))
    expected = effects(with_steps)[MAT] * effects(with_steps)[COST]
    assert effects(without)[PER_TOKEN] == pytest.approx(expected, rel=1e-12)
    assert not_separable(without) == ["MAT and cost: the steps of one side are unknown"]
    # 6 requests of 1.25 s that begin a second apart
    assert without.product.subject == pytest.approx(6 * 8 / 6.0)


def test_without_times_only_mat_is_explained(tmp_path: Path) -> None:
    lines = [
        {"id": str(number), "prompt_token_ids": [1, 2], "acc_ngram": {"acc_len": [2, 1, 1, number]}}
        for number in range(1, 7)
    ]
    path = write_lines(tmp_path / "p.jsonl", *lines)
    rendered = explained_document(explain_runs(imported(tmp_path, f"p={path}")))
    document = json.loads(render_explanation(rendered, "json"))["explanations"][0]
    assert document["ratio"] is None and document["remainder"] is None
    assert [row["factor"] for row in document["factors"]] == [MAT]
    assert document["sentence"] == "No speedup is explained: the files of imported have no times."
    assert "nan" not in printed(partial(print_explanation, rendered)).lower()


def test_an_imported_explanation_fits_a_terminal_and_every_format(tmp_path: Path) -> None:
    run = full_run(("vanilla", "eagle2"), (TASK,), num_samples=8)
    imported_run = written(tmp_path, run)
    for explanations in (
        explain_runs(imported_run),
        explain_runs(run, imported_run, bootstrap=FEW),
    ):
        document = explained_document(explanations)
        page = printed(partial(print_explanation, document))
        assert max(map(len, page.splitlines())) <= 80
        assert "'s publisher" in page and " counts " in page
        assert "EAGLE's formula" in render_explanation(document, "markdown")
        assert "EAGLE's formula" in render_explanation(document, "html")
