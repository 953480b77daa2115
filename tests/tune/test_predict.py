"""Predictions for a machine whose times are known, and the reasons for refusing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from specbench.errors import UserError
from specbench.settings.cost_curve import MethodCost
from specbench.settings.cost_model import CostModel
from specbench.settings.grids import STEP_ROWS
from specbench.settings.walk import Step
from specbench.tune import Curve, Profile, Walk, predict, profile, read_curve, replay
from specbench.tune.candidates import candidates
from specbench.tune.frames import curve_frame, prediction_frame, profile_frame
from specbench.tune.plots import cost_curve, heat_map
from tests.support.methods import parse_methods

PREFILL, SLOPE, MIDDLE = 7.0, 0.001, 200
LENGTHS = (1, MIDDLE, 1000)
EAGLE, MEDUSA, SPS = "eagle2:depth=3,top_k=4", "medusa", "sps"
KNOTS = tuple({"depth": depth, "top_k": top_k} for depth in (0, 2, 3) for top_k in (1, 2, 4))
SIZES = tuple({"rows": n} for n in (2, 16, 64))
DRAFTS: dict[str, Any] = {
    EAGLE: (KNOTS, lambda depth, top_k: 0.1 * (1 + depth) + 0.01 * top_k * depth),
    MEDUSA: (SIZES, lambda rows: 0.3),
    SPS: (SIZES, lambda rows: 0.2 * (rows - 1)),
}


@pytest.fixture(scope="module")
def profiled() -> Profile:
    values: dict[str, Any] = {"tasks": "gsm8k,mt_bench", "limit": 2, "max_new_tokens": 16}
    return profile("tiny", [EAGLE, MEDUSA, SPS, "pld"], threads=1, dtype="float32", **values)


def by_rows(rows: int) -> float:
    """The time of a step, which is linear between the measured rows as in a curve."""
    return 1 + 0.08 * (rows - 1)


def planted(profile: Profile, drafts: dict[str, Any] = DRAFTS, **changes: str) -> Curve:
    """The curve of a machine with known times.

    A step takes `by_rows`(n) and `SLOPE` per token before it, a prefill `PREFILL`. `drafts` are the
    knots of each method of the profile, and the time of its draft at each.
    """
    model = profile.header.model
    about = {
        "model": model.name,
        "dtype": model.dtype,
        "quantization": "",
        "temperature": "0",
        "machine": "a planted machine",
        "threads": "auto",
        "torch": "2",
    }
    steps = tuple(
        tuple(by_rows(n) + SLOPE * (length - MIDDLE) for n in STEP_ROWS) for length in LENGTHS
    )
    methods = {
        label: MethodCost(
            profile.header.methods[label].kind,
            False,
            knots,
            (((tuple(seconds(**knot) for knot in knots)),),) * 3,
            ((1.0,) * len(LENGTHS),) * 3,
        )
        for label, (knots, seconds) in drafts.items()
    }
    return Curve(
        about=about | changes,
        vanilla_s=0.01,
        threads=(1,),
        rows=STEP_ROWS,
        lengths=LENGTHS,
        most_context=1000,
        steps=((steps,),) * 3,
        prefill=((PREFILL,) * len(LENGTHS),) * 3,
        methods=methods,
        num_pairs=1,
    )


def seconds(profile: Profile, setting: str, draft: Any) -> dict[str, float]:
    """The time of a setting on that machine for each answer, as a plain sum."""
    times = dict[str, float]()
    for walk in replay(profile, setting):
        total, before = PREFILL + 1, float(walk.prompt_tokens)
        for count, rows in zip(walk.accepts, walk.nodes, strict=True):
            total += by_rows(rows) + SLOPE * (before - MIDDLE)
            total += draft(rows) if rows > 1 else 0.0
            before += count
        times[walk.prompt] = total
    return times


def speedup(profile: Profile, setting: str, draft: Any) -> float:
    times = seconds(profile, setting, draft)
    vanilla = {name: time - 1 for name, time in seconds(profile, "vanilla", draft).items()}
    ratios = []
    for task in ("gsm8k", "mt_bench"):
        names = [name for name in times if name.startswith(task)]
        ratios.append(sum(vanilla[name] for name in names) / sum(times[name] for name in names))
    return sum(ratios) / len(ratios)


@pytest.mark.parametrize("label", [EAGLE, MEDUSA, SPS])
def test_the_best_setting_and_its_speedup_are_predicted(label: str, profiled: Profile) -> None:
    curve = planted(profiled)
    settings = candidates(profiled, label)
    predicted = {
        prediction.settings: prediction.speedup for prediction in predict(profiled, curve, settings)
    }

    def plain(setting: str) -> float:
        (method,) = parse_methods([setting])
        formula = DRAFTS[label][1]
        if label == EAGLE:
            cost = formula(method.options.depth, method.options.top_k)
            return speedup(profiled, setting, lambda rows: cost)
        return speedup(profiled, setting, lambda rows: formula(rows=rows))

    plain_speedups = {setting: plain(setting) for setting in settings}
    assert len(plain_speedups) > 5
    for setting, plain_speedup in plain_speedups.items():
        assert predicted[setting] == pytest.approx(plain_speedup, rel=1e-9), setting
    assert max(predicted, key=predicted.__getitem__) == max(
        plain_speedups, key=plain_speedups.__getitem__
    )


def test_an_interval_covers_prompts_blocks_and_the_process(profiled: Profile) -> None:
    curve = planted(profiled)

    def width(changed: Curve) -> float:
        (prediction,) = predict(profiled, changed, [MEDUSA])
        assert prediction.low <= prediction.speedup <= prediction.high
        return prediction.high / prediction.low

    noisy = (((0.1,) * len(SIZES),), ((0.3,) * len(SIZES),), ((0.9,) * len(SIZES),))
    methods = {
        **curve.methods,
        MEDUSA: msgspec.structs.replace(curve.methods[MEDUSA], draft=noisy),
    }
    blocks = msgspec.structs.replace(curve, methods=methods)
    process = msgspec.structs.replace(curve, process=0.01)
    assert width(blocks) > width(curve) > 1
    assert width(process) > width(curve)
    (both,) = predict(profiled, curve, [MEDUSA])
    names = [answer.about.prompt for answer in profiled.answers if "gsm8k/" in answer.about.prompt]
    (part,) = predict(profiled, curve, [MEDUSA], prompts=names)
    assert part.speedup != both.speedup


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "other"}, "model: tiny in the profile, other in the curve"),
        ({"dtype": "bfloat16"}, "dtype: float32 in the profile, bfloat16 in the curve"),
        ({"temperature": "1"}, "temperature: 0 in the profile, 1 in the curve"),
        ({"quantization": "int8"}, "quantization: none in the profile, int8 in"),
    ],
)
def test_a_curve_of_other_work_is_refused_with_both_values(
    changes: dict[str, Any], reason: str, profiled: Profile
) -> None:
    with pytest.raises(UserError, match=reason):
        predict(profiled, planted(profiled, **changes), [MEDUSA])


def test_an_answer_without_a_draft_takes_vanillas_time_and_the_prefill(profiled: Profile) -> None:
    model = CostModel(planted(profiled))
    without_draft = Step(emitted=1, rows=1, before=0, times=1)
    for count in (0, 1):  # one token, or two: no room for a draft
        walk = Walk("gsm8k/1/0", 9, (without_draft,) * count)
        for label in DRAFTS:
            options = {"depth": 2, "top_k": 2}
            weights, costs = model.weights(label, options, walk), model.costs(label, 0)[0]
            vanilla = model.weights(None, {}, walk) @ model.costs(None, 0)[0]
            assert weights @ costs == pytest.approx(vanilla + 1)


def test_a_prediction_beyond_the_measurements_is_refused(profiled: Profile) -> None:
    small = {SPS: (SIZES[:1], DRAFTS[SPS][1]), EAGLE: (KNOTS[:6], DRAFTS[EAGLE][1])}
    curve = planted(profiled, small)
    messages = {
        "eagle2:total_tokens=12,depth=3,top_k=2": "Depth: 3, but the cost curve has at most 2",
        "sps:num_tokens=20,schedule=constant": "Rows: .*, but the cost curve has at most 2",
        MEDUSA: r"does not have medusa\. It has sps, eagle2",
    }
    for setting, message in messages.items():
        with pytest.raises(UserError, match=message):
            predict(profiled, curve, [setting])
    short = msgspec.structs.replace(curve, most_context=20)
    with pytest.raises(UserError, match=r"Context: .*, but the cost curve has at most 20"):
        predict(profiled, short, [SPS])


def test_by_default_methods_of_both_profile_and_curve_are_predicted(profiled: Profile) -> None:
    curve = planted(profiled, {SPS: DRAFTS[SPS]})
    other_method = curve.methods[SPS]
    curve = msgspec.structs.replace(curve, methods={**curve.methods, "hydra": other_method})
    assert {prediction.method for prediction in predict(profiled, curve)} == {"sps"}


def test_a_curve_is_shown_and_a_newer_one_refused(profiled: Profile, tmp_path: Path) -> None:
    curve = planted(profiled)
    frame = curve_frame(curve)
    assert len(frame) == 3 * 3 * len(curve.rows)
    assert frame.query("rows == 1 and context == 200").steps.unique() == [1.0]
    predictions = predict(profiled, curve, candidates(profiled, EAGLE)[:9])
    assert [*prediction_frame(predictions).settings] == [
        prediction.settings for prediction in predictions
    ]
    steps = profile_frame(profiled, EAGLE)
    assert len(steps) == sum(len(walk.accepts) for walk in replay(profiled, EAGLE))
    plot = heat_map(predictions)
    assert plot and "The best is" in plot.alt and plot.images.png
    assert cost_curve(curve).images.svg
    assert heat_map(predict(profiled, curve, [SPS])) is None
    msgspec.structs.replace(curve, schema=2).write(tmp_path / "newer")
    with pytest.raises(UserError, match="schema 2, newer than 1"):
        read_curve(tmp_path / "newer")
    with pytest.raises(UserError, match="holds no cost curve"):
        read_curve(tmp_path)
