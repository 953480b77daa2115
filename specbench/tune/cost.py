"""Measure a cost curve from Python, or for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from specbench.engine.clock import DeviceClock
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.measure.base import Plan, Progress
from specbench.measure.local.engine import EngineBackend, describe_kernels
from specbench.measure.local.engine_load import LoadedEngine, build_drafters, load_engine
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.progress import Lines
from specbench.measure.requests import user
from specbench.settings import grids
from specbench.settings.cost_curve import CURVE_FILE, Curve
from specbench.settings.json_files import check_free
from specbench.settings.run_method import RunMethod
from specbench.tune.bench import STEPS_PER_TURN, STEPS_PER_VISIT, VANILLA_STEPS, Bench, Knot
from specbench.tune.engine_plan import EnginePlan, Say, kinds_of, make_engine_plan
from specbench.tune.fit_curve import MeasuredKind, fit_curve
from specbench.tune.kind import SizedDraft, find_kind
from specbench.tune.timed import PLANTED_TOKENS
from specbench.types import BASELINE, Request

LEAST_BLOCKS = 3
"""Blocks that are measured in any case: an interval needs several."""
MOST_BLOCKS = 6
"""Blocks after which further ones change little."""
_SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
"""The sizes of a target that decide its times, as in its config."""


def cost(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path | None = None,
    minutes: float | None = None,
    offline: bool = False,
    say: Say | None = None,
    **values: Any,
) -> Curve:
    """Measure the time of a step by rows and context, and of methods' drafts.

    `cost("tiny", "eagle2:depth=5,top_k=6,pld", tasks="gsm8k", output="costs/mine")`

    The options of a method are the largest ones that are measured, as in `profile`. The prompts
    give the lengths.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several.
        output: the folder of `cost.json`; by default nothing is written.
        minutes: no further block begins after this time; three are measured in any case.
        offline: use no network.
        say: receives a line per message.
        values: further fields of `specbench.log.spec.SpecValues`, such as `tasks`, `limit`,
            `temperatures`, `dtype`, `threads`, `weights` and `execution`.

    Raises:
        UserError: an unknown name, a wrong value, or several temperatures.
    """
    engine_plan = make_engine_plan(model, methods, values, offline=offline)
    check_free(output, CURVE_FILE, "cost curve")
    progress = Lines(say or (lambda text: None))
    curve = measured_curve(engine_plan, minutes, progress)
    if output is not None:
        curve.write(Path(output))
    return curve


def measured_curve(engine_plan: EnginePlan, minutes: float | None, progress: Progress) -> Curve:
    """The cost curve of a plan's model and methods on this machine."""
    setup = engine_plan.setup
    loaded = load_engine(setup)
    target, vanilla = loaded.target, loaded.drafters[BASELINE]
    kinds = kinds_of(setup, loaded.drafters, engine_plan.sampling, progress.message)
    knots: list[Knot] = []
    methods: dict[str, MeasuredKind] = {}
    for method in setup.methods:
        if method.label in kinds and method.label != BASELINE:
            kind = find_kind(kinds[method.label])
            sizes = [*kind.sizes(method.options, loaded.drafters[method.label])]
            methods[method.label] = MeasuredKind(kind, kind.knots(sizes))
            knots += _knots(method, sizes, loaded)
    drafters = {BASELINE: vanilla}
    drafters |= {str(number): knot.drafter for number, knot in enumerate(knots)}
    with EngineBackend(setup, loaded=replace(loaded, drafters=drafters)) as backend:
        requests = _requests(engine_plan.plan, target)
        backend.warm_up(requests[len(requests) // 2 :])  # a usual one, and the longest
        threads = backend.describe().threads
        assert threads is not None
        bench = Bench(target, DeviceClock(target.device), vanilla, knots, requests, threads)
        _measure_blocks(bench, minutes, progress)
    return fit_curve(bench, about_of(setup, target), methods)


def _measure_blocks(bench: Bench, minutes: float | None, progress: Progress) -> None:
    """Measure blocks until there are enough, or the time is over."""
    began = perf_counter()
    most_s = 60 * minutes if minutes else float("inf")
    for number in range(1, MOST_BLOCKS + 1):
        bench.measure_block()
        seconds = perf_counter() - began
        progress.message(f"Block {number}/{MOST_BLOCKS}: {seconds:.0f} s")
        if number >= LEAST_BLOCKS and seconds > most_s:
            break


def about_of(setup: EngineSetup, target: Target) -> dict[str, str]:
    """The machine, versions and target of a new curve. The target is named by its sizes."""
    kernels = describe_kernels(target)
    sizes = [f"{name}={getattr(target.config, name, 0)}" for name in _SHAPE]
    return {
        "model": setup.describe().model.name,
        **setup.fits(),
        "target": ", ".join(sizes),
        "kernels": f"{kernels.name} ({kernels.reason})" if kernels.reason else kernels.name,
    }


def _requests(plan: Plan, target: Target) -> list[Request]:
    """The shortest prompt, the median one, and one as long as the longest answer's context."""
    render = plan.setup.codec.render
    prompts = [prompt for prompt_set in plan.prompt_sets for prompt in prompt_set.prompts]
    first_turns = sorted((render([user(prompt.turns[0])]) for prompt in prompts), key=len)
    shortest, usual, long = first_turns[0], first_turns[len(first_turns) // 2], first_turns[-1]
    most_turns = max(len(prompt.turns) for prompt in prompts)
    most_prompt_tokens = max(len(render([user(" ".join(prompt.turns))])) for prompt in prompts)
    most_context = most_prompt_tokens + most_turns * plan.max_new_tokens
    # Tokens of the answers that are timed, and of the context that they need.
    num_turns = len(grids.STEP_ROWS) + 1
    most_step_tokens = max(PLANTED_TOKENS) + 2
    num_new_tokens = (
        num_turns * (VANILLA_STEPS + STEPS_PER_TURN) + STEPS_PER_VISIT * most_step_tokens
    )
    longest = min(most_context, target.context - num_new_tokens)
    repeated = long * (longest // len(long) + 1)
    prompts_by_length = {len(ids): ids for ids in (shortest, usual, repeated[:longest])}
    sampling = plan.spec.sampling(plan.spec.temperatures[0])
    return [
        Request(ids, num_new_tokens, sampling, eos_ids=frozenset())
        for _, ids in sorted(prompts_by_length.items())
    ]


def _knots(method: RunMethod, sizes: Sequence[SizedDraft], loaded: LoadedEngine) -> list[Knot]:
    """The knots of a method, with a drafter each; the last size has two."""

    def build(size: SizedDraft) -> Drafter:
        sized = method.with_options(size.options)
        return build_drafters(loaded.target, [sized], loaded.ledger)[method.label]

    knots = [Knot(method.label, number, 0, build(size)) for number, size in enumerate(sizes)]
    last = knots[-1]
    return [*knots, last._replace(copy=1, drafter=build(sizes[-1]))]
