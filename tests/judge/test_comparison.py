"""Comparisons of two runs, and their renderings.

Ratios equal values computed by hand. Renderings have all numbers, and only sentences that the
intervals support.
"""

import csv
import json
import random
import re
from dataclasses import replace
from functools import partial
from io import StringIO

import pytest

from specbench.analysis.cells import WITH_PHASES
from specbench.analysis.metrics import POOLED, measure
from specbench.analysis.stats.estimates import Missing, Value
from specbench.analysis.stats.scope import Scope
from specbench.errors.kinds import UserError
from specbench.judge.comparison import MEAN, Comparison, compare_runs
from specbench.judge.comparison_formats import print_comparison, render_comparison
from specbench.judge.comparison_table import NOT_COMPARABLE, build_comparison
from specbench.judge.pairs import NO_SHARED, CellPair
from specbench.log.run import Run
from specbench.types import Phases, Record, Serving
from tests.analysis.run_factory import TASKS, full_run, header, interval, make_run, number, record
from tests.judge.changing import at_loads, broken, several, slower, with_header, with_records
from tests.judge.comparing import compare
from tests.support.printing import printed
from tests.support.texts import assert_in


def width(metric: Value) -> float:
    return interval(metric).high - interval(metric).low


def small(**seconds: float) -> Run:
    """One sample of 4 tokens: vanilla takes 4 s, the other methods the given time."""
    plain = record("vanilla", decode_s=4.0)
    drafted = [
        record(method, decode_s=decode_s, accept_lengths=(3,))
        for method, decode_s in seconds.items()
    ]
    return make_run([plain, *drafted], header(["vanilla", *seconds], ("gsm8k",)))


def of_pld(*records: Record) -> Run:
    """A run of only PLD, on GSM8K."""
    return make_run(records, header(["pld"], ("gsm8k",)))


def pld_cell(reference: Run, subject: Run) -> CellPair:
    """PLD's cell of GSM8K in a comparison of two runs."""
    return compare(reference, subject).cell("pld", 0.0, "gsm8k")


def test_each_cell_has_both_numbers_and_their_ratio() -> None:
    cell = pld_cell(small(pld=2.0), small(pld=1.0))
    for pair in (cell.tokens_per_s, cell.speedup):
        assert number(pair.reference) == 2.0
        assert number(pair.subject) == 4.0
        assert number(pair.ratio) == 2.0
    assert number(cell.mat.subject) == 3.0
    assert number(cell.mat.ratio) == 1.0


def test_only_completions_that_both_runs_finished_count() -> None:
    fails = broken(record("pld", "2"))
    reference = of_pld(
        record("pld", "0", decode_s=1.0),
        record("pld", "1", decode_s=2.0),
        fails,
        record("pld", "3", decode_s=9.0),
    )
    subject = of_pld(
        record("pld", "0", decode_s=2.0),
        record("pld", "1", decode_s=4.0),
        record("pld", "2", decode_s=7.0),
    )
    cell = pld_cell(reference, subject)
    assert cell.num_completions == 2
    assert cell.num_samples == 2
    assert number(cell.tokens_per_s.reference) == pytest.approx(8 / 3)
    assert number(cell.tokens_per_s.ratio) == pytest.approx(0.5)


def test_variation_shared_by_both_runs_widens_no_interval() -> None:
    generator = random.Random(1)
    times = [generator.lognormvariate(0, 1) for _ in range(40)]

    def noisy(seconds: float) -> float:
        return seconds * generator.lognormvariate(0, 0.01)

    exact = [record("pld", str(i), decode_s=seconds) for i, seconds in enumerate(times)]
    changed = [replace(answer, decode_s=noisy(answer.decode_s or 0)) for answer in exact]
    pair = pld_cell(of_pld(*exact), of_pld(*changed)).tokens_per_s
    assert width(pair.subject) > 0.5 * number(pair.subject)
    assert width(pair.ratio) < 0.02
    assert abs(number(pair.ratio) - 1) < 0.01


def test_the_mean_is_over_tasks_and_pooled_joins_them() -> None:
    run = full_run(tasks=("gsm8k", "alpaca"))

    def change(answer: Record) -> Record:
        return answer if answer.key.task == "gsm8k" else replace(answer, decode_s=1.0)

    other = with_records(slower(run, {"pld": 1.5}), change)
    compared = compare(run, other)
    mean = compared.cell("pld", 0.0, MEAN)
    pairs = [compared.cell("pld", 0.0, task).tokens_per_s for task in ("gsm8k", "alpaca")]
    for side in ("subject", "reference"):
        speeds = [number(getattr(pair, side)) for pair in pairs]
        mean_speed = number(getattr(mean.tokens_per_s, side))
        assert mean_speed == pytest.approx(sum(speeds) / 2)
    assert mean.num_samples == 16
    speedup = compared.cell("pld", 0.0, POOLED).speedup
    assert number(speedup.subject) == number(measure(other).pooled("pld", 0.0).speedup)


def test_the_ratio_of_a_mean_is_the_ratio_of_the_two_means() -> None:
    """The mean of the ratios 4 and 0.2 would be above 2, although the means are 0.6 and 0.75."""

    def run(gsm8k_s: float, alpaca_s: float) -> Run:
        records = [
            record("pld", task="gsm8k", decode_s=gsm8k_s),
            record("pld", task="alpaca", decode_s=alpaca_s),
        ]
        return make_run(records, header(["pld"], ("gsm8k", "alpaca")))

    mean = compare(run(4.0, 1.0), run(1.0, 5.0)).cell("pld", 0.0, MEAN).tokens_per_s
    ratio = number(mean.subject) / number(mean.reference)
    assert number(mean.ratio) == pytest.approx(ratio)
    assert ratio < 1


def test_a_task_that_is_missing_leaves_no_mean() -> None:
    run = full_run(tasks=("gsm8k", "alpaca"))

    def remove(answer: Record) -> Record | None:
        is_removed = answer.key.method == "pld" and answer.key.task == "alpaca"
        return None if is_removed else answer

    compared = compare(run, with_records(run, remove))
    assert compared.cell("pld", 0.0, "alpaca").speedup.ratio == NO_SHARED
    assert compared.cell("pld", 0.0, MEAN).mat.ratio == Missing("1 of 2 tasks")


def test_times_with_phases_are_not_compared() -> None:
    run = full_run()
    phases = Phases(0.1, 0.1, 0.1, 0.1)
    phased = with_records(run, lambda answer: replace(answer, phases=phases))
    cell = compare(run, phased, is_forced=True).cell("pld", 0.0, "gsm8k")
    assert cell.tokens_per_s.ratio == cell.speedup.ratio == WITH_PHASES
    assert number(cell.mat.ratio) == 1.0


def test_parts_that_only_one_run_has_are_named() -> None:
    run = full_run(tasks=("gsm8k", "alpaca"))
    other = full_run(methods=("vanilla", "pld", "medusa"), tasks=("gsm8k",), id="other")
    compared = compare(run, other)
    assert compared.methods == ("vanilla", "pld")
    assert compared.unshared == (
        f"only in {run.header.id}: SpS, Lookahead, Alpaca",
        "only in other: Medusa",
    )


def test_crossing_a_run_with_itself_gives_the_speedup_of_its_report() -> None:
    run = full_run()
    crossed = compare(run, run, crossed=("sps", "vanilla"))
    assert crossed.methods == ("sps",)
    report = measure(run)
    for task in TASKS:
        ratio = crossed.cell("sps", 0.0, task).tokens_per_s.ratio
        speedup = report.cell("sps", 0.0, task).speedup
        assert number(ratio) == pytest.approx(number(speedup))
        assert interval(ratio).low == pytest.approx(interval(speedup).low, rel=5e-3)
    mean = crossed.cell("sps", 0.0, MEAN).tokens_per_s
    assert number(mean.ratio) == number(mean.subject) / number(mean.reference)


@pytest.mark.parametrize(
    ("first", "second", "ratio"), [("pld", "vanilla", 0.5), ("vanilla", "pld", 0.25)]
)
def test_the_first_method_is_the_first_runs(first: str, second: str, ratio: float) -> None:
    slow, fast = small(pld=8.0), small(pld=1.0)
    crossed = compare(fast, slow, crossed=(first, second))
    assert number(crossed.cell(first, 0.0, "gsm8k").tokens_per_s.ratio) == ratio


def test_runs_on_servers_are_compared_load_by_load() -> None:
    run = full_run(tasks=("gsm8k",))
    first = at_loads(run, {1: {}, 8: {}, 16: {}})
    second = at_loads(run, {1: {"pld": 0.5}, 8: {"pld": 2.0}})
    comparisons = compare_runs([first, second])
    assert [comparison.load.concurrency for comparison in comparisons] == [1, 8]
    assert {comparison.unshared for comparison in comparisons} == {
        (f"only in {run.header.id}: 16 requests at once",)
    }
    cells = [comparison.cell("pld", 0.0, "gsm8k") for comparison in comparisons]
    ratios = [number(cell.tokens_per_s.ratio) for cell in cells]
    assert ratios == pytest.approx([2.0, 0.5])


def test_the_engine_is_compared_with_a_server_that_has_one_request_at_a_time() -> None:
    run = full_run(tasks=("gsm8k",))
    served = at_loads(run, {1: {"pld": 0.5}, 8: {"pld": 9.0}})
    (comparison,) = compare_runs([served, run], ("pld", "pld"))
    assert number(comparison.cell("pld", 0.0, "gsm8k").tokens_per_s.ratio) == pytest.approx(2.0)


def test_mat_of_a_server_without_steps_follows_from_its_accepted_tokens() -> None:
    def accepting(num_accepted: int) -> Run:
        served = Serving(0.0, (), num_accepted=num_accepted)
        counted = replace(record("pld"), accept_lengths=(), num_nodes=(), serving=served)
        return of_pld(counted)

    mat = pld_cell(accepting(0), accepting(1)).mat
    assert number(mat.reference) == 1.0
    assert number(mat.subject) == 1.5


@pytest.mark.parametrize("crossed", [None, ("pld", "vanilla")])
def test_runs_that_share_nothing_are_refused(crossed: tuple[str, str] | None) -> None:
    first = full_run(tasks=("gsm8k",))
    other = full_run(tasks=("alpaca",))
    with pytest.raises(UserError, match="no finished sample of the same"):
        compare(first, other, crossed=crossed)


def test_runs_without_a_common_load_are_refused() -> None:
    run = full_run(tasks=("gsm8k",))
    runs = [at_loads(run, {2: {}}), at_loads(run, {8: {}})]
    with pytest.raises(UserError, match="no load in common: 2 requests at once against 8 requests"):
        compare_runs(runs)


RUN = full_run(id="old")


def new(factors: dict[str, float], **changes: object) -> Run:
    return with_header(slower(RUN, factors), id="new", **changes)


def shown(comparisons: list[Comparison], width: int = 120) -> str:
    return printed(partial(print_comparison, comparisons), width)


def sentences(comparison: Comparison) -> str:
    return build_comparison([comparison]).blocks[0].sentence


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_a_terminal_of_any_width_shows_every_number(width: int) -> None:
    text = shown([compare(RUN, new({"pld": 1.25}))], width)
    assert max(map(len, text.splitlines())) <= width
    assert_in(
        text,
        "speedup",
        "MAT",
        "tokens/s",
        "B / A",
        "Mean of the tasks",
        *TASKS.values(),
    )
    assert text.count("0.80") >= 2 * 7  # PLD's speed and speedup, on six tasks and in the mean
    assert "…" not in text


def test_runs_after_the_last_letter_get_numbers() -> None:
    comparison = compare(RUN, new({"pld": 1.25}))
    table = build_comparison([replace(comparison, number=number) for number in range(27)])
    assert [note.label for note in table.legend[-3:]] == ["Z", "Z001", "Z002"]


def test_a_slower_method_is_named_with_its_ratio() -> None:
    text = sentences(compare(several(RUN), several(new({"pld": 1.25}), seed=1)))
    assert text.startswith("Vanilla is 1.00 times [0.99, 1.0")
    assert "Speedup over vanilla is lower in B for PLD (0.80 times [0." in text
    assert text.endswith("the others do not differ significantly. MAT is the same in both.")


def test_one_run_per_side_gives_no_verdict_and_the_spread_of_passes() -> None:
    passes = several(RUN, 3, sd=0.02)  # the passes of one run
    one_pass = make_run(passes.records, passes.header)
    text = sentences(compare(one_pass, slower(one_pass, {"pld": 1.25})))
    assert "lower in B" not in text
    assert_in(
        text,
        "Differences in speed are not judged: one run per side",
        "Passes of a run differ by +/- ",
        "`specbench run --runs 5`",
    )


def test_two_methods_of_one_pass_give_no_verdict() -> None:
    crossed = compare(RUN, RUN, crossed=("pld", "vanilla"))
    assert sentences(crossed).endswith(
        "on average over the tasks. "
        "One pass does not show how much passes differ. Nothing is claimed: use --repeats 3."
    )
    assert all(cell.tokens_per_s.p_value is None for cell in crossed.cells.values())


def test_two_methods_of_one_run_need_the_run_once() -> None:
    run = several(RUN, 3, sd=0.02)
    passes = make_run(run.records, run.header)
    (crossed,) = compare_runs([passes], ("sps", "pld"))
    text = sentences(crossed)
    assert re.search(r", SpS is \d\.\d\d ± \d\.\d\d times as fast as PLD, on average", text)
    assert text == sentences(compare(passes, passes, crossed=("sps", "pld")))
    page = shown([crossed])
    assert "A  SpS of old" in page and "B  PLD of old" in page
    with pytest.raises(UserError, match="One run cannot be compared"):
        compare_runs([passes])


def cut(pool: Run) -> Run:
    """The pool with one sample per task in all runs except the first."""
    kept = tuple(
        answer
        for answer in pool.records
        if answer.key.repeat == 0 or answer.key.sample_id.endswith("/0")
    )
    return replace(pool, records=kept)


def test_speeds_of_incomplete_runs_are_not_judged() -> None:
    reason = "not judged: fewer than two passes or runs are complete enough."
    pool = cut(several(RUN, 3))
    compared = compare(pool, cut(several(new({"pld": 1.25}), 3, seed=1)))
    assert compared.scope.number == 1
    text = sentences(compared)
    assert text.count(f"; {reason}") == 1
    assert text.count(f"Speedup over vanilla is {reason}") == 1
    passes = make_run(pool.records, pool.header)
    crossed = compare(passes, passes, crossed=("pld", "vanilla"))
    assert sentences(crossed).endswith(f"on average over the tasks; {reason}")


def test_a_pool_is_compared_with_a_single_run_pass_by_pass() -> None:
    two, four = (make_run(several(RUN, n).records, several(RUN, n).header) for n in (2, 4))
    pool = several(two, 2, seed=1)
    assert compare(pool, four).scope == compare(four, pool).scope == Scope("passes", 4)


def test_the_machines_noise_is_not_claimed_as_a_difference() -> None:
    compared = compare(several(RUN, sd=0.05), several(new({}), sd=0.05, seed=1))
    for cell in compared.cells.values():
        assert not cell.tokens_per_s.is_claimed
        assert not cell.speedup.is_claimed
        assert not cell.mat.is_claimed


def test_a_faster_machine_changes_no_speedup() -> None:
    text = sentences(compare(RUN, new(dict.fromkeys(RUN.header.methods, 0.5))))
    assert text.startswith("Vanilla is 2.00 times as fast in B as in A. Speedup over vanilla is")
    assert text.count("is the same in both.") == 2


def test_one_sample_per_task_shows_no_change() -> None:
    lone_sample = full_run(num_samples=1)
    compared = compare(lone_sample, slower(lone_sample, {"pld": 2.0}))
    assert "too few samples for a claim (use a larger --limit)" in sentences(compared)
    crossed = compare(lone_sample, lone_sample, crossed=("pld", "vanilla"))
    assert " ±? (one task dominates) times as fast as Vanilla" in sentences(crossed)


def test_without_vanilla_tokens_per_second_are_compared() -> None:
    run = full_run(methods=("pld", "sps"))
    text = sentences(compare(several(run), several(slower(run, {"pld": 2.0}), seed=1)))
    assert text.startswith("Tokens per second is lower in B for PLD (0.50 times")


def test_a_cross_comparison_is_one_sentence_about_two_machines() -> None:
    small = new({"pld": 1.0}, environment__cpu__model="Small CPU")
    crossed = compare(RUN, small, crossed=("pld", "vanilla"))
    sentence = sentences(crossed)
    assert sentence.startswith(
        "With tiny (embedded, trained by specbench), PLD on the Small CPU is 1."
    )
    assert " ± 0.0" in sentence
    ending = " times as fast as Vanilla on the Example CPU 9000, on average over the tasks."
    assert ending in sentence
    text = shown([crossed])
    assert "A / B" in text
    assert text.index("A  new") < text.index("B  old")
    assert "speedup" not in text


def test_each_run_is_compared_with_the_first() -> None:
    text = shown(compare_runs([RUN, new({"pld": 1.1}), with_header(RUN, id="third")]))
    assert_in(
        text,
        "B against A, Temperature=0",
        "C against A, Temperature=0",
    )
    assert text.index("A  old") < text.index("B  new") < text.index("C  third")
    served = at_loads(RUN, {1: {}, 8: {}})
    text = shown(compare_runs([served, with_header(served, id="new")]))
    assert_in(
        text,
        "B against A, Temperature=0, 1 request at a time",
        "B against A, Temperature=0, 8 requests at once",
    )
    assert "C  " not in text


def test_possible_causes_of_a_difference_are_warnings() -> None:
    other = new(
        {},
        environment__torch__version="2.14",
        environment__git__is_dirty=True,
        status="interrupted",
        warnings=["The machine was busy."],
    )
    assert_in(
        shown([compare(RUN, other)], 200),
        "from A to B: torch: 2.13.0 -> 2.14.",
        "B: its status is interrupted",
        "B: the checkout was modified",
        "B: The machine was busy.",
    )


def test_incomparable_numbers_are_marked_in_every_format() -> None:
    forced = compare(RUN, new({}, model__dtype="float16"), is_forced=True)
    rows = csv.DictReader(StringIO(render_comparison([forced], "csv")))
    assert {row["is_comparable"] for row in rows} == {"False"}
    (document,) = json.loads(render_comparison([forced], "json"))["comparisons"]
    assert document["is_comparable"] is False
    assert document["differences"] == [
        {"what": "dtype", "reference": "float32", "subject": "float16"}
    ]
    for text in (shown([forced], 200), render_comparison([forced], "markdown")):
        assert NOT_COMPARABLE in text.splitlines()[0]
        assert_in(
            text,
            "Different work, from A to B: dtype: float32 -> float16.",
            "No result: B and A did different work.",
        )
        for claim in (" as fast ", "Speedup over", "significant for"):
            assert claim not in text


def test_a_forced_comparison_of_two_methods_has_no_sentence_to_quote() -> None:
    other = new({}, model__label="Vicuna 13B", model__is_stand_in=True)
    forced = compare(RUN, other, crossed=("pld", "vanilla"), is_forced=True)
    assert sentences(forced) == "No result: A and B did different work."
    legend = {note.text for note in build_comparison([forced]).legend}
    assert any("new: Vicuna 13B (stand-in" in text for text in legend)


def test_csv_and_json_hold_every_cell_with_its_interval() -> None:
    compared = [compare(RUN, new({"pld": 1.25}))]
    rows = list(csv.DictReader(StringIO(render_comparison(compared, "csv"))))
    parts = ("reference", "subject", "ratio", "ratio_low", "ratio_high", "missing", "p_value")
    assert [*rows[0]][-7:] == [f"tokens_per_s_{part}" for part in parts]
    assert len(rows) == 4 * (6 + 2)
    assert {row["task"] for row in rows} == {*TASKS, "mean", "pooled"}
    (row,) = (row for row in rows if (row["method"], row["task"]) == ("pld", "gsm8k"))
    ratio, low, high = (float(row[f"tokens_per_s_{part}"]) for part in parts[2:5])
    assert ratio == pytest.approx(0.8)
    assert low <= 0.8 <= high
    (document,) = json.loads(render_comparison(compared, "json"))["comparisons"]
    assert len(document["cells"]) == len(rows)
    assert document["cells"][0]["speedup_ratio"] == pytest.approx(1.0)
