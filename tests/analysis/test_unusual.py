"""Unusual answers are reported, and answers that are unusual by chance are not."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.analysis.unusual import find_unusual
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.types import Record, Serving
from tests.analysis.run_factory import make_run, record
from tests.support.headers import make_header
from tests.support.paths import RECORDED_RUNS

STEPS = (3, 3, 3)


def answers(number: int, *, tick_s: float = 1e-9, method: str = "sam") -> list[Record]:
    """Answers to different prompts, timed by a clock with this tick."""
    generator = np.random.default_rng(number)
    times = generator.normal((0.05, 0.7), (0.001, 0.01), (number, 2))  # prefill and decoding
    return [
        record(
            method,
            f"p{index}",
            prefill_s=round(float(prefill_s) / tick_s) * tick_s,
            decode_s=round(float(decode_s) / tick_s) * tick_s,
            accept_lengths=STEPS,
            token_ids=range(index, index + 10),
        )
        for index, (prefill_s, decode_s) in enumerate(times)
    ]


def with_times_of(records: Sequence[Record], source: int, target: int) -> list[Record]:
    """The answers, with the times of the answer `source` copied to the answer `target`."""
    copied = list(records)
    times = {name: getattr(records[source], name) for name in ("prefill_s", "decode_s")}
    copied[target] = replace(copied[target], **times)
    return copied


def test_two_answers_that_took_the_same_time_are_reported() -> None:
    assert list(find_unusual(answers(300))) == []
    (sentence,) = find_unusual(with_times_of(answers(300), 17, 203))
    assert sentence.startswith("sam: 1 pair of answers took the same time to the last digit")
    assert "gsm8k/p17 and gsm8k/p203" in sentence


def test_answers_of_two_methods_may_take_the_same_time() -> None:
    of_sam, of_pld = answers(5), answers(5, method="pld")
    assert list(find_unusual([*of_sam, *of_pld])) == []


def test_equal_times_beyond_a_coarse_clocks_are_reported() -> None:
    coarse = answers(1500, tick_s=1e-3)  # about 6 prefill times and 60 decode times
    equal = len(coarse) - len({(answer.prefill_s, answer.decode_s) for answer in coarse})
    assert equal > 100
    assert list(find_unusual(coarse)) == []
    for index in range(100, 400):
        coarse = with_times_of(coarse, index % 7, index)
    (sentence,) = find_unusual(coarse)
    assert "took the same time" in sentence


def test_equal_tokens_with_another_text_are_reported() -> None:
    first, second = answers(2)
    twin = replace(second, token_ids=first.token_ids, text="ERROR")
    (sentence,) = find_unusual([replace(first, text="Good day"), twin])
    assert sentence == (
        "1 answer differs in text from an answer with the same token ids, first sam on "
        "gsm8k/p1: 'ERROR'."
    )


def test_text_may_differ_from_token_ids_made_from_it() -> None:
    first, second = answers(2)
    serving = Serving(began_s=0.0, reported_tokens=10)
    twin = replace(second, token_ids=first.token_ids, text="other", serving=serving)
    assert list(find_unusual([first, twin])) == []


def test_answers_without_token_ids_may_have_any_text() -> None:
    first, second = (replace(answer, token_ids=()) for answer in answers(2))
    assert list(find_unusual([replace(first, text="a"), replace(second, text="b")])) == []


@pytest.mark.parametrize("folder", RECORDED_RUNS, ids=lambda folder: folder.name)
def test_no_recorded_run_is_unusual(folder: Path) -> None:
    assert list(find_unusual(read_run(folder).records)) == []


def two_methods(num_prompts: int) -> list[Record]:
    generator = np.random.default_rng(3)
    return [
        record(method, f"p{number}", prefill_s=0.01, decode_s=seconds, accept_lengths=STEPS)
        for method, mean_s in (("vanilla", 1.0), ("pld", 0.5))
        for number, seconds in enumerate(generator.normal(mean_s, 0.1, num_prompts).tolist())
    ]


def test_copies_of_a_prompt_are_one_prompt_in_intervals() -> None:
    records = two_methods(6)
    copies = {f"gsm8k/p{number}": "gsm8k/p0" for number in range(1, 6)}
    clusters = make_table(records, copied_prompts=copies).frame["cluster"]
    assert clusters.nunique() == 1
    prompts = {"task": "gsm8k", "title": "GSM8K", "source": "file", "origin": "a.jsonl"}
    numbers = {"file_sha256": None, "num_available": 6, "num_prompts": 6, "sha256": ""}

    def speedup(copied: dict[str, str]) -> Estimate | Missing | None:
        header = make_header({"prompts": [{**prompts, **numbers, "copies": copied}]})
        cells = measure(make_run(records, header)).cells
        return next(cell.speedup for key, cell in cells.items() if key.method == "pld" and key.task)

    one_each, all_copies = speedup({}), speedup(copies)
    assert isinstance(one_each, Estimate)
    assert one_each.resamples is not None
    assert isinstance(all_copies, Estimate)
    assert all_copies.value == one_each.value
    assert all_copies.resamples is None


def pool(change: float) -> Run:
    """Two runs of three passes each. In the second one, vanilla takes longer by this share."""
    generator = np.random.default_rng(11)
    records = [
        record("vanilla", f"p{number}", repeat=repeat, prefill_s=0.01, decode_s=seconds)
        for repeat in range(6)
        for number, seconds in enumerate(
            (generator.normal(1.0, 0.002, 8) * (1 + change * (repeat >= 3))).tolist()
        )
    ]
    header = make_header({"spec": {"repeats": 6}})
    return Run(header, tuple(records), run_of_repeat=(0, 0, 0, 1, 1, 1))


@pytest.mark.parametrize(("change", "is_reported"), [(0.0, False), (0.05, True), (-0.05, True)])
def test_pooled_runs_whose_vanilla_changed_are_reported(
    change: float, *, is_reported: bool
) -> None:
    warnings = measure(pool(change)).warnings
    reported = [warning.numbers for warning in warnings if warning.key == "changed_pool"]
    assert bool(reported) == is_reported
    if reported:
        assert reported[0]["change"] == pytest.approx(
            abs(np.expm1(abs(np.log1p(change)))), abs=0.005
        )


def test_passes_of_one_run_are_not_a_pool() -> None:
    run = pool(0.05)
    alone = Run(run.header, run.records)
    assert "changed_pool" not in {warning.key for warning in measure(alone).warnings}
