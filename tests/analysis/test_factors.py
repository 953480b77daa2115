"""The product of factors, over hand-made tables and over EAGLE's published answers."""

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specbench.analysis.factors import (
    AVERAGING,
    COST,
    COUNTING,
    IN_FLIGHT,
    MAT,
    PER_TOKEN,
    PREFILL,
    PROMPTS,
    Product,
    explain,
)
from specbench.types import RequestKey
from tests.support.answer_rows import Answer, pair_answers

Rows = dict[RequestKey, Answer]


def keys(num_prompts: int = 12, num_passes: int = 1) -> list[RequestKey]:
    return [
        RequestKey(0.0, task, f"{task}/{number}", turn, repeat)
        for repeat in range(num_passes)
        for task in ("gsm8k", "alpaca")
        for number in range(num_prompts)
        for turn in (0, 1)
    ]


def vanilla_rows(requests: list[RequestKey]) -> Rows:
    draw = random.Random(1)
    return {
        key: Answer(tokens, wall_s=0.3 + 0.1 * tokens, decode_s=0.1 * tokens)
        for key in requests
        for tokens in (draw.randint(20, 60),)
    }


def method_rows(vanilla: Rows, *, step_s: float = 0.15, mat: float = 2.5) -> Rows:
    draw = random.Random(2)
    rows = {}
    for key, answer in vanilla.items():
        steps = math.ceil((answer.tokens - 1) / mat) + draw.randint(0, 3)
        decode_s = steps * step_s * draw.uniform(0.95, 1.05)
        rows[key] = Answer(answer.tokens, 0.3 + decode_s, decode_s, steps)
    return rows


def effects(product: Product) -> dict[str, float]:
    return {factor.name: factor.effect.value for factor in product.factors}


def test_a_side_is_explained_from_its_mat_down() -> None:
    vanilla = vanilla_rows(keys())
    method = method_rows(vanilla)
    product = explain(pair_answers(method, vanilla, "totals"))
    tokens = sum(row.tokens for row in method.values())
    emitted, steps = tokens - len(method), sum(row.steps for row in method.values())
    wall_s, decode_s = (
        sum(getattr(row, n) for row in method.values()) for n in ("wall_s", "decode_s")
    )
    base_wall_s, base_decode_s = (
        sum(getattr(row, n) for row in vanilla.values()) for n in ("wall_s", "decode_s")
    )
    assert product.subject == pytest.approx(base_wall_s / wall_s, rel=1e-12)
    assert effects(product) == pytest.approx(
        {
            AVERAGING: 1,
            COUNTING: 1,
            PROMPTS: 1,
            MAT: emitted / steps,
            COST: (base_decode_s / emitted) / (decode_s / steps),
            PREFILL: (decode_s / wall_s) / (base_decode_s / base_wall_s),
        },
        rel=1e-12,
    )
    assert product.remainder == pytest.approx(1, abs=1e-9)
    step, base_step = product.steps
    assert (step.subject, base_step.subject) == pytest.approx(
        (decode_s / steps, base_decode_s / emitted)
    )


def test_without_decode_times_cost_includes_prefill() -> None:
    vanilla = vanilla_rows(keys())
    method = method_rows(vanilla)
    key = next(iter(method))
    method[key] = method[key]._replace(decode_s=float("nan"))
    product = explain(pair_answers(method, vanilla))
    wall_s = sum(row.wall_s for row in method.values())
    base_wall_s = sum(row.wall_s for row in vanilla.values())
    emitted = sum(row.tokens - 1 for row in vanilla.values())
    steps = sum(row.steps for row in method.values())
    assert not product.has_prefill
    assert effects(product)[COST] == pytest.approx(base_wall_s / emitted * steps / wall_s)
    assert effects(product)[PREFILL] == pytest.approx(1)  # answers are equally long
    assert product.remainder == pytest.approx(1, abs=1e-9)


def test_without_steps_mat_and_cost_are_one_factor() -> None:
    vanilla = vanilla_rows(keys())
    method = method_rows(vanilla)
    with_steps = explain(pair_answers(method, vanilla))
    key = next(iter(method))
    method[key] = method[key]._replace(steps=float("nan"))
    product = explain(pair_answers(method, vanilla))
    assert MAT not in effects(product) and not product.steps
    assert effects(product)[PER_TOKEN] == pytest.approx(
        with_steps.effect(MAT) * with_steps.effect(COST)
    )
    assert product.remainder == pytest.approx(1, abs=1e-9)


def test_answers_of_one_token_leave_no_steps_and_no_decode_time() -> None:
    vanilla = {key: Answer(1, 0.4, decode_s=0.0) for key in keys()}
    method = {key: Answer(1, 0.2, decode_s=0.0, steps=0) for key in keys()}
    product = explain(pair_answers(method, vanilla))
    assert product.subject == pytest.approx(2) == effects(product)[PER_TOKEN]
    assert product.remainder == pytest.approx(1, abs=1e-9)


def test_without_a_baseline_the_number_is_tokens_per_second() -> None:
    rows = method_rows(vanilla_rows(keys()))
    slow = {
        key: row._replace(wall_s=row.wall_s / 0.92, decode_s=row.decode_s / 0.92)
        for key, row in rows.items()
    }
    product = explain(pair_answers(slow, None, "totals"), pair_answers(rows, None, "totals"))
    tokens, wall_s = (sum(getattr(row, n) for row in rows.values()) for n in ("tokens", "wall_s"))
    assert product.reference == pytest.approx(tokens / wall_s)
    expected = {name: 0.92 if name == COST else 1 for name in effects(product)}
    assert effects(product) == pytest.approx(expected, abs=1e-9)
    decode_s, steps = (sum(getattr(row, n) for row in rows.values()) for n in ("decode_s", "steps"))
    cost = next(factor for factor in product.factors if factor.name == COST)
    assert cost.reference == pytest.approx(decode_s / steps)


def test_requests_in_flight_are_a_factor_of_a_throughput() -> None:
    rows = {
        key: row._replace(block_s=row.wall_s / 6)
        for key, row in method_rows(vanilla_rows(keys())).items()
    }
    vanilla = {
        key: row._replace(block_s=row.wall_s / 4) for key, row in vanilla_rows(keys()).items()
    }
    product = explain(pair_answers(rows, vanilla, "totals"))
    assert effects(product)[IN_FLIGHT] == pytest.approx(6 / 4)
    tokens, block_s = (sum(getattr(row, n) for row in rows.values()) for n in ("tokens", "block_s"))
    base_s = sum(row.block_s for row in vanilla.values())
    assert product.subject == pytest.approx(tokens / block_s / (tokens / base_s))
    assert product.remainder == pytest.approx(1, abs=1e-9)


def test_sides_without_shared_prompts_keep_their_own() -> None:
    vanilla = vanilla_rows(keys())
    method = method_rows(vanilla)
    halves: tuple[Rows, Rows] = ({}, {})
    for key, row in method.items():
        halves[int(key.sample_id.rpartition("/")[2]) % 2][key] = row
    product = explain(*(pair_answers(half, vanilla) for half in halves))
    assert product.num_shared == 0 and effects(product)[PROMPTS] == 1
    assert product.remainder == pytest.approx(1, abs=1e-9)


def test_a_prompt_is_drawn_alike_for_both_sides() -> None:
    vanilla = vanilla_rows(keys())
    method = method_rows(vanilla)
    dearer = {key: row._replace(decode_s=1.2 * row.decode_s) for key, row in method.items()}
    product = explain(pair_answers(dearer, vanilla), pair_answers(method, vanilla))
    cost = next(factor for factor in product.factors if factor.name == COST)
    assert cost.effect.value == pytest.approx(1 / 1.2)
    interval = cost.effect.interval
    assert interval is not None and interval.high - interval.low < 1e-12


def test_passes_widen_the_interval_of_times_and_not_of_counts() -> None:
    vanilla = vanilla_rows(keys(num_passes=3))
    method = method_rows(vanilla)

    def widths(spread: float) -> dict[str, float]:
        factors = (1 - spread, 1, 1 + spread)
        noisy = {
            key: row._replace(decode_s=row.decode_s * factors[key.repeat])
            for key, row in method.items()
        }
        product = explain(pair_answers(noisy, vanilla), pair_answers(method, vanilla))
        intervals = {factor.name: factor.effect.interval for factor in product.factors}
        return {name: ends.high - ends.low for name, ends in intervals.items() if ends}

    calm, noisy = widths(0.0), widths(0.2)
    assert noisy[COST] > 5 * calm[COST]
    assert noisy[MAT] == calm[MAT]


def test_an_interrupted_pass_is_not_a_unit_of_variance() -> None:
    vanilla = vanilla_rows(keys(num_passes=3))
    method = method_rows(vanilla)
    last = [key for key in method if key.repeat == 2]
    for key in last[2:]:
        del method[key]
    product = explain(pair_answers(method, vanilla))
    cost = next(factor for factor in product.factors if factor.name == COST)
    (logs,) = cost.effect.units
    assert np.isfinite(logs).tolist() == [True, True, False]
    assert cost.effect.machine is not None and cost.effect.machine.degrees == 1


def test_one_pass_leaves_the_machine_unknown() -> None:
    vanilla = vanilla_rows(keys())
    product = explain(pair_answers(method_rows(vanilla), vanilla))
    machines = {factor.name: factor.effect.machine for factor in product.factors}
    assert machines[COST] is None and machines[PREFILL] is None
    assert machines[MAT] is not None


def _eagle(name: str, *, is_baseline: bool) -> Rows:
    folder = os.environ.get("SPECBENCH_PUBLISHED")
    if not folder:
        pytest.skip("SPECBENCH_PUBLISHED does not name the folder of published answers")
    path = Path(folder, "eagle", f"llama-2-chat-70b-fp16-{name}-in-temperature-0.0.jsonl")
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        choice = answer["choices"][0]
        turns = zip(choice["idxs"], choice["new_tokens"], choice["wall_time"], strict=True)
        for turn, (index, num_tokens, wall_s) in enumerate(turns):
            key = RequestKey(0.0, "mt_bench", str(answer["question_id"]), turn, 0)
            if is_baseline:  # its index is that of the last token
                rows[key] = Answer(index + 1, wall_s, first_tokens=0, source_tokens=index)
            else:
                rows[key] = Answer(num_tokens, wall_s, steps=index + 1, first_tokens=0)
    return rows


def test_eagles_published_70b_speedup_is_explained_from_mat_down() -> None:
    method, vanilla = _eagle("ea", is_baseline=False), _eagle("base", is_baseline=True)
    product = explain(pair_answers(method, vanilla, "rates"))
    assert product.subject == pytest.approx(3.00947, abs=5e-6)
    values = {factor.name: factor.subject for factor in product.factors}
    assert values == pytest.approx(
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
    assert not product.has_prefill
    assert product.remainder == pytest.approx(1, abs=1e-9)
    ends = {factor.name: factor.effect.interval for factor in product.factors}
    for name, low, high, allowed in (
        (AVERAGING, 1.015, 1.048, 2e-3),
        (COUNTING, 1.0030, 1.0037, 1e-4),
        (MAT, 3.53, 3.72, 0.03),
        (COST, 1 / 1.249, 1 / 1.242, 2e-3),
    ):
        interval = ends[name]
        assert interval is not None
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=allowed)
    step, base_step = product.steps
    assert (step.subject, base_step.subject) == pytest.approx((0.166142, 0.133408), abs=5e-7)


def test_the_published_average_is_of_rates_per_question() -> None:
    method, vanilla = _eagle("ea", is_baseline=False), _eagle("base", is_baseline=True)
    whole = {key: row._replace(source_tokens=row.tokens) for key, row in vanilla.items()}
    pairs = pair_answers(method, whole, "rates")
    assert explain(pairs).subject == pytest.approx(2.995, abs=5e-4)
    assert explain(replace(pairs, arithmetic="totals")).subject == pytest.approx(2.907, abs=5e-4)
    rates = [
        (sum(m.tokens for m in rows) / sum(m.wall_s for m in rows))
        for rows in (
            [method[key] for key in method if key.sample_id == sample]
            for sample in dict.fromkeys(key.sample_id for key in method)
        )
    ]
    assert np.mean(rates) == pytest.approx(22.4714, abs=5e-5)
