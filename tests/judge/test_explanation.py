"""Explanations of runs. An independent walk over the records finds the same differences."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pytest

from specbench import api
from specbench.analysis.factors import (
    AVERAGING,
    BASE_STEP,
    COST,
    COUNTING,
    IN_FLIGHT,
    MAT,
    PREFILL,
    PROMPTS,
    STEP,
    explain,
)
from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.errors import UserError
from specbench.judge.explanation import Explanation, explain_runs
from specbench.judge.explanation_formats import (
    explained_document,
    explanation_frame,
    print_explanation,
    render_explanation,
    write_explanation,
)
from specbench.log.run import Load, Run
from specbench.log.store import read_run
from specbench.types import Phases, Record
from tests.analysis.run_factory import full_run, number
from tests.judge.changing import at_loads, several, slower, with_header, with_records
from tests.judge.explained import effects, only
from tests.support.paths import RECORDED, RECORDED_RUNS, ROOT
from tests.support.printing import printed

FEW = Bootstrap(num_resamples=20)
TASK = ("gsm8k",)


@cache
def recorded(name: str) -> Run:
    return read_run(RECORDED / name)


# An independent walk: plain loops over records, one step back at a time.


class Row(NamedTuple):
    """A method's answer and vanilla's."""

    turn: tuple[str, str, int]
    tokens: float
    steps: float
    decode_s: float
    wall_s: float
    base_tokens: float
    base_decode_s: float
    base_wall_s: float


def rows_of(run: Run, method: str) -> list[Row]:
    answers: dict[Any, dict[str, Record]] = defaultdict(dict)
    for record in run.records:
        answers[record.key.request][record.key.method] = record
    rows = []
    for key, by_method in answers.items():
        if {method, "vanilla"} <= by_method.keys():
            drafted, base = by_method[method], by_method["vanilla"]
            assert drafted.decode_s and drafted.wall_s and base.decode_s and base.wall_s
            rows.append(
                Row(
                    (key.task, key.sample_id, key.turn),
                    drafted.num_tokens,
                    len(drafted.accept_lengths),
                    drafted.decode_s,
                    drafted.wall_s,
                    base.num_tokens,
                    base.decode_s,
                    base.wall_s,
                )
            )
    return rows


def speed(rows: Iterable[Row], fewer: int = 0) -> float:
    """The speedup, with this number of tokens left out of each of the method's answers."""
    tokens, wall_s, base_tokens, base_wall_s = (
        sum(column)
        for column in zip(
            *((r.tokens - fewer, r.wall_s, r.base_tokens, r.base_wall_s) for r in rows), strict=True
        )
    )
    return tokens / wall_s * base_wall_s / base_tokens


def mean_of_tasks(rows: Iterable[Row], fewer: int = 0) -> float:
    rows_by_task = defaultdict(list)
    for row in rows:
        rows_by_task[row.turn[0]].append(row)
    return mean(speed(of_task, fewer) for of_task in rows_by_task.values())


def walk(
    rows: list[Row],
    shared: set[tuple[str, str, int]],
    printed_number: Callable[..., float] = mean_of_tasks,
    fewer: int = 0,
) -> dict[str, float]:
    """The factors of one of the two runs."""
    common = [row for row in rows if row.turn in shared]

    def total(name: str) -> float:
        return sum(getattr(row, name) for row in common)

    emitted = total("tokens") - len(common)
    base_emitted = total("base_tokens") - len(common)
    step_s = total("decode_s") / total("steps")
    base_step_s = total("base_decode_s") / base_emitted
    outside = total("tokens") / emitted * total("decode_s") / total("wall_s")
    base_outside = (
        total("base_tokens") / base_emitted * total("base_decode_s") / total("base_wall_s")
    )
    return {
        AVERAGING: printed_number(rows, fewer) / speed(rows, fewer),
        COUNTING: speed(rows, fewer) / speed(rows),
        PROMPTS: speed(rows) / speed(common),
        MAT: emitted / total("steps"),
        COST: base_step_s / step_s,
        PREFILL: outside / base_outside,
    }


def quotients(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first[name] / second[name] for name in first}


RUN_NAME, METHOD = "amd-epyc-2-cores", "eagle2"


def without_a_task(run: Run) -> Run:
    return with_records(run, lambda record: None if record.key.task == "cnn_dm" else record)


def slow_baseline(run: Run) -> Run:
    return slower(run, {"vanilla": 1.5})


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        (slow_baseline, {COST}),
        (without_a_task, {PROMPTS, AVERAGING}),
        (lambda run: without_a_task(slow_baseline(run)), {COST, PROMPTS, AVERAGING}),
    ],
    ids=["baseline's times x 1.5", "a task left out", "both"],
)
def test_a_planted_difference_is_the_factor_of_an_independent_walk(
    change: Callable[[Run], Run], moved: set[str]
) -> None:
    run = recorded(RUN_NAME)
    planted = change(run)
    explanation = only(explain_runs(planted, run, (METHOD, METHOD), bootstrap=FEW))
    rows, others = rows_of(planted, METHOD), rows_of(run, METHOD)
    shared = {row.turn for row in rows} & {row.turn for row in others}
    expected = quotients(walk(rows, shared), walk(others, shared))
    assert effects(explanation) == pytest.approx(expected, abs=1e-9)
    untouched = {name: 1 for name in expected if name not in moved}
    assert {name: effects(explanation)[name] for name in untouched} == pytest.approx(
        untouched, abs=1e-9
    )
    assert all(abs(expected[name] - 1) > 1e-3 for name in moved)
    assert explanation.product.remainder == pytest.approx(1, abs=1e-9)
    assert explanation.product.subject == pytest.approx(mean_of_tasks(rows), rel=1e-12)
    if COST in moved:
        assert effects(explanation)[COST] == pytest.approx(1.5, rel=1e-9)


def ratios_per_question(rows: Iterable[Row], fewer: int = 0) -> float:
    """The macro average: the mean of the speedups of the questions, over one pass."""
    by_question = defaultdict(list)
    for row in rows:
        by_question[row.turn[:2]].append(row)
    return mean(speed(question, fewer) for question in by_question.values())


@pytest.mark.parametrize(
    ("fewer", "is_macro"),
    [(1, False), (0, True), (1, True)],
    ids=["first tokens not counted", "macro", "both"],
)
def test_a_planted_rule_is_the_factor_of_an_independent_walk(fewer: int, is_macro: bool) -> None:
    run = recorded(RUN_NAME)
    first_pass = with_records(run, lambda record: record if record.key.repeat == 0 else None)
    pairs = only(
        explain_runs(first_pass, first_pass, (METHOD, METHOD), bootstrap=FEW)
    ).subject.pairs
    method = pairs.method
    planted = replace(
        pairs,
        method=method._replace(source_tokens=method.tokens - fewer),
        arithmetic="ratios" if is_macro else "tasks",
    )
    product = explain(planted, pairs, bootstrap=FEW)
    rows = rows_of(first_pass, METHOD)
    turns = {row.turn for row in rows}
    average = ratios_per_question if is_macro else mean_of_tasks
    expected = quotients(walk(rows, turns, average, fewer), walk(rows, turns))
    factors = {factor.name: factor.effect.value for factor in product.factors}
    assert factors == pytest.approx(expected, abs=1e-9)
    assert factors[PROMPTS] == factors[MAT] == factors[COST] == factors[PREFILL] == 1
    assert product.remainder == pytest.approx(1, abs=1e-9)
    assert (factors[COUNTING] == 1) is (fewer == 0)


@pytest.mark.slow
def test_every_pair_of_recorded_runs_is_an_exact_product() -> None:
    num_pairs = 0
    for first, second in combinations(RECORDED_RUNS, 2):
        for explanation in explain_runs(recorded(first.name), recorded(second.name), bootstrap=FEW):
            assert explanation.product.remainder == pytest.approx(1, abs=1e-9)
            num_pairs += 1
    assert num_pairs > 80


@pytest.mark.parametrize("name", ["vllm-cpu", "vllm-cpu-loads", "llamacpp-cpu"])
def test_loads_differ_by_an_exact_product_with_requests_in_flight(name: str) -> None:
    run = recorded(name)
    loads = (Load(concurrency=8), Load(concurrency=1))
    explanations = explain_runs(run, run, loads=loads, bootstrap=FEW)
    serving = measure(run.at(loads[0]), FEW).serving
    for explanation in explanations:
        product = explanation.product
        assert product.remainder == pytest.approx(1, abs=1e-9)
        assert IN_FLIGHT in effects(explanation)
        method = serving[explanation.subject.key.method, 0.0]
        assert product.subject == pytest.approx(number(method.throughput_ratio), rel=1e-9)
        assert "load: 8 requests at once against 1 request at a time" in explanation.causes(COST)


@pytest.mark.parametrize("name", ["amd-epyc-2-cores", "smollm2-135m-unseen", "vllm-cpu-loads"])
def test_one_run_is_explained_from_mat_to_the_speedup_of_its_report(name: str) -> None:
    run = recorded(name).at(recorded(name).loads[0])
    overall = measure(run, FEW).overall
    for explanation in explain_runs(run, bootstrap=FEW):
        key = explanation.subject.key
        speedup = number(overall[key.method, key.temperature].speedup)
        assert explanation.product.subject == pytest.approx(speedup, rel=1e-9)
        assert explanation.product.remainder == pytest.approx(1, abs=1e-9)


def test_steps_are_in_seconds_on_one_machine_and_in_readings_elsewhere() -> None:
    run = recorded("smollm2-135m-cpu")
    slow = slower(run, {"vanilla": 1.5, "eagle3": 1.2})
    in_seconds = only(explain_runs(slow, run, ("eagle3", "eagle3"), bootstrap=FEW))
    assert in_seconds.step_unit == "s"
    step, base_step = (line.effect.value for line in in_seconds.step_lines)
    assert (step, base_step) == pytest.approx((1 / 1.2, 1.5))
    assert step * base_step == pytest.approx(effects(in_seconds)[COST], abs=1e-9)
    bandwidth = run.header.roofline
    assert bandwidth
    elsewhere = with_header(
        slow,
        environment__cpu__model="another",
        roofline__bandwidth_bytes_per_s=bandwidth.bandwidth_bytes_per_s * 2,
    )
    in_readings = only(explain_runs(elsewhere, run, ("eagle3", "eagle3"), bootstrap=FEW))
    assert in_readings.step_unit == "readings of the weights"
    step, base_step = (line.effect.value for line in in_readings.step_lines)
    assert (step, base_step) == pytest.approx((0.5 / 1.2, 1.5 / 0.5))
    assert {line.name for line in in_readings.step_lines} == {STEP, BASE_STEP}
    in_cache = recorded("amd-epyc-2-cores")
    assert not only(explain_runs(in_cache, run, ("pld", "pld"), bootstrap=FEW)).step_lines


RUN = several(full_run(("vanilla", "eagle2"), num_samples=8, id="old"), 4)


def cheaper(**changes: Any) -> Run:
    """The runs, with vanilla 1.5 times as slow and with these changes to the header."""
    slow = slower(RUN, {"vanilla": 1.5})
    return replace(RUN, header=with_header(slow, **changes).header, records=slow.records)


def explained(subject: Run, reference: Run = RUN) -> Explanation:
    return only(explain_runs(subject, reference))


def sentence_of(explanation: Explanation) -> str:
    document = json.loads(render_explanation(explained_document([explanation]), "json"))
    return str(document["explanations"][0]["sentence"])


def test_a_factor_that_no_changed_setting_affects_has_no_cause() -> None:
    explanation = explained(cheaper(spec__values__history="own"))  # changes only MAT
    assert explanation.is_without_cause(COST)
    assert "without a cause" in sentence_of(explanation)
    text = printed(partial(print_explanation, explained_document([explanation])))
    assert re.search(r"Without a cause +cost: 50\.0 %", text)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"environment__torch__version": "9.9"}, "torch: 9.9 against "),
        (
            {"methods__eagle2__options": {"depth": 5, "total_tokens": 9}},
            "EAGLE-2: 6 levels against 8",
        ),
        ({"environment__cpu__model": "another"}, "machine: another"),
    ],
)
def test_a_setting_is_listed_under_the_factor_that_it_affects(
    changes: dict[str, Any], setting: str
) -> None:
    options = {"depth": 7, "total_tokens": 9}
    reference = replace(RUN, header=with_header(RUN, methods__eagle2__options=options).header)
    base = {"methods__eagle2__options": options}
    explanation = explained(cheaper(**{**base, **changes}), reference)
    assert any(cause.startswith(setting) for cause in explanation.causes(COST))
    assert explanation.is_claimed(COST) and not explanation.is_without_cause(COST)
    assert setting in sentence_of(explanation)


def test_one_pass_per_side_claims_nothing_about_times() -> None:
    run = full_run(("vanilla", "eagle2"), num_samples=8)
    explanation = explained(slower(run, {"vanilla": 1.5}), run)
    assert explanation.p_values[COST] is None and not explanation.is_claimed(COST)
    reason = "Nothing is claimed about this factor, because its interval covers prompts only"
    assert reason in sentence_of(explanation)


def test_equal_runs_name_no_cause() -> None:
    explanation = explained(several(full_run(("vanilla", "eagle2"), num_samples=8), 4, seed=1))
    assert not any(explanation.is_claimed(name) for name in effects(explanation))
    assert not any(explanation.is_without_cause(name) for name in effects(explanation))


def test_other_work_is_listed_and_not_refused() -> None:
    explanation = explained(cheaper(spec__values__max_new_tokens=9))
    (work,) = explanation.work
    assert work.startswith("--max-new-tokens: 9 against") and work in explanation.causes(MAT)


def test_runs_of_one_temperature_each_are_paired_at_both() -> None:
    cold, warm = (full_run(("vanilla", "pld"), temperatures=(t,)) for t in (0.0, 1.0))
    assert "temperature: 0 against 1" in explained(cold, warm).causes(MAT)


def test_methods_of_other_options_or_names_are_paired() -> None:
    first = full_run(("vanilla", "eagle2:depth=5"))
    second = full_run(("vanilla", "eagle2:depth=7"))
    assert explained(first, second).subject.key.method == "eagle2:depth=5"
    crossed = only(explain_runs(RUN, RUN, ("eagle2", "vanilla")))
    assert effects(crossed)[MAT] == pytest.approx(crossed.product.factors[3].subject)
    assert "method: EAGLE-2 against Vanilla" in crossed.causes(MAT)


@pytest.mark.parametrize("added", ["pld", "pld:num_tokens=5"])
def test_equal_options_are_paired_even_if_one_run_has_further_options(added: str) -> None:
    methods = ("vanilla", "pld:num_tokens=3")
    explanation = only(explain_runs(full_run((*methods, added)), full_run(methods)))
    assert {side.key.method for side in explanation.sides} == {methods[1]}


def test_phases_are_shares_and_leave_no_speedup() -> None:
    def with_phases(record: Record) -> Record:
        seconds = [share * (record.decode_s or 0) for share in (0.2, 0.5, 0.1, 0.1)]
        return replace(record, phases=Phases(*seconds))

    run = full_run(("vanilla", "pld"), TASK)
    timed = with_records(run, with_phases)
    explanation = explained(timed, run)
    assert explanation.subject.phases == pytest.approx(
        {"draft": 0.2, "verify": 0.5, "commit": 0.1, "host": 0.1, "rest": 0.1}
    )
    assert [factor.name for factor in explanation.factors] == [MAT]
    assert "No speedup is explained" in sentence_of(explanation)
    document = explained_document([explanation])
    (entry,) = json.loads(render_explanation(document, "json"))["explanations"]
    assert entry["ratio"] is None and [row["factor"] for row in entry["factors"]] == [MAT]
    assert "· verify" in printed(partial(print_explanation, document))


def test_every_line_fits_a_terminal_of_80_columns() -> None:
    for explanations in (
        explain_runs(recorded("h100-vicuna-13b"), recorded("smollm2-135m-cpu"), bootstrap=FEW),
        explain_runs(recorded("smollm2-135m-cpu"), bootstrap=FEW),
    ):
        text = printed(partial(print_explanation, explained_document(explanations)))
        assert max(map(len, text.splitlines())) <= 80
        assert "Factor" in text and "product" in text


def test_all_formats_have_the_factors(tmp_path: Path) -> None:
    explanations = [explained(cheaper())]
    for path in write_explanation(explained_document(explanations), tmp_path):
        assert "cost" in path.read_text(encoding="utf-8")
    document = json.loads((tmp_path / "explanation.json").read_text(encoding="utf-8"))
    (entry,) = document["explanations"]
    product = 1.0
    for factor in entry["factors"]:
        product *= factor["effect"]
    assert product == pytest.approx(entry["ratio"], rel=1e-9)
    assert entry["remainder"] == pytest.approx(1, abs=1e-9)
    page = (tmp_path / "explanation.html").read_text(encoding="utf-8")
    assert '<rect class="up"' in page and "http" not in re.sub(r"http-equiv", "", page)
    assert list(explanation_frame(explanations)["factor"])[:2] == [AVERAGING, COUNTING]


def test_the_example_of_the_docs_is_up_to_date() -> None:
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    example = re.search(r"<!-- explained: (\S+) (\S+) (\S+) -->\n```text\n(.*?)\n```", page, re.S)
    assert example
    first, second, method = example.groups()[:3]
    explanations = explain_runs(recorded(first), recorded(second), (method, method))
    text = printed(partial(print_explanation, explained_document(explanations)))
    assert [line.rstrip() for line in text.splitlines()] == example[4].splitlines()


def test_the_example_of_the_readme_is_up_to_date() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(
        r"<!-- explained: (\S+) (\S+) -->\n```text\n(.*?)\n```\n<!-- /explained -->", page, re.S
    )
    assert example
    run, method, shown = example.groups()
    command, *lines = shown.splitlines()
    options = f"--explain --cross {method} {method}"
    assert command == f"$ specbench compare results/recorded/{run} {options}"
    explanations = explain_runs(recorded(run), None, (method, method))
    text = printed(partial(print_explanation, explained_document(explanations)))
    assert [line.rstrip() for line in text.splitlines()][: len(lines)] == lines


def test_python_explains_runs_as_data_frames() -> None:
    run = api.read_run(RECORDED / "h100-vicuna-13b")
    frame = run.explain(run, ("eagle3", "eagle2"))
    factors = frame[frame["part_of"] == ""]
    ratio = number(measure(run._run).overall["eagle3", 0.0].speedup) / number(
        measure(run._run).overall["eagle2", 0.0].speedup
    )
    assert factors["effect"].prod() == pytest.approx(ratio, rel=1e-9)


def test_without_a_baseline_the_number_is_tokens_per_second() -> None:
    run = with_records(full_run(("pld", "sps")), lambda r: replace(r, prefill_s=0.0))
    for explanation in explain_runs(slower(run, {"pld": 0.8, "sps": 0.8}), run):
        expected = {name: 1.25 if name == COST else 1 for name in effects(explanation)}
        assert effects(explanation) == pytest.approx(expected, abs=1e-9)
        assert not explanation.step_lines
        assert "A's tokens/s is 1.250 times B's" in sentence_of(explanation)


def test_runs_that_cannot_be_explained_give_one_message() -> None:
    run = full_run(("vanilla", "pld"), TASK)
    with pytest.raises(UserError, match="method in run"):
        explain_runs(run, run, ("pld", "medusa"))
    with pytest.raises(UserError, match="load in run"):
        explain_runs(run, run, loads=(Load(8), Load(1)))
    with pytest.raises(UserError, match="no load in common"):
        explain_runs(at_loads(run, {2: {}, 4: {}}), at_loads(run, {8: {}}))
    with pytest.raises(UserError, match="no method has finished answers at the same"):
        explain_runs(full_run(("pld",), TASK), full_run(("sps",), TASK))
