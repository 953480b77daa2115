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
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import (
    LoadedEngine,
    build_drafters,
    describe_kernels,
    load_engine,
)
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
"""Fewest measured blocks: an interval needs several."""
MOST_BLOCKS = 6
"""Most measured blocks: more blocks change little."""
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
        minutes: no further block begins after this time; at least three are measured.
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
    """Measure the cost curve of a plan's model and methods on this machine.

    A method that can have no acceptance profile is left out. A kind says what a profile stores of
    a method's drafts, and which sizes of drafts are to be timed.

    Args:
        engine_plan: the model, the methods and the prompts.
        minutes: no further block begins after this time; None: as many as are useful.
        progress: receives messages.
    """
    setup = engine_plan.setup  # model and methods, with options
    # `loaded.drafters` are by label, a method with its options; vanilla's drafts nothing.
    loaded = load_engine(setup)
    target, vanilla = loaded.target, loaded.drafters[BASELINE]
    # the name of each method's kind of profile, by label
    kind_names = kinds_of(setup, loaded.drafters, engine_plan.sampling, progress.message)
    # A knot is a size of a method's draft that is timed; times of others are interpolated.
    knots: list[Knot] = []  # of all methods, with a drafter each
    measured_kinds: dict[str, MeasuredKind] = {}  # by label: the kind, and its knots
    for method in setup.methods:
        if method.label in kind_names and method.label != BASELINE:
            kind = find_kind(kind_names[method.label])
            # the sizes of drafts to time, up to the size that the method's options give
            sizes = [*kind.sizes(method.options, loaded.drafters[method.label])]
            measured_kinds[method.label] = MeasuredKind(kind, kind.knots(sizes))
            knots += _knots(method, sizes, loaded)
    # The backend warms up every drafter that is timed; numbers serve as their labels.
    drafters = {BASELINE: vanilla}
    drafters |= {str(number): knot.drafter for number, knot in enumerate(knots)}
    with EngineBackend(setup, loaded=replace(loaded, drafters=drafters)) as backend:
        # with prompts of three lengths at most, the shortest first
        requests = _requests(engine_plan.plan, target)
        backend.warm_up(requests[len(requests) // 2 :])  # the median one, and the longest
        threads = backend.describe().threads  # CPU threads of vanilla
        assert threads is not None  # the engine always knows them
        bench = Bench(target, DeviceClock(target.device), vanilla, knots, requests, threads)
        # The bench keeps the times.
        _measure_blocks(bench, minutes, progress)
    return fit_curve(bench, about_of(setup, target), measured_kinds)


def _measure_blocks(bench: Bench, minutes: float | None, progress: Progress) -> None:
    """Measure `MOST_BLOCKS` blocks, or as many as begin in `minutes`, at least `LEAST_BLOCKS`.

    A block measures each step and each draft once, at every prompt length. The bench keeps what
    it measured. `minutes` is None for no bound; `progress` receives a message per block.
    """
    began_s = perf_counter()
    most_s = 60 * minutes if minutes else float("inf")  # seconds for all blocks
    for block_number in range(1, MOST_BLOCKS + 1):
        bench.measure_block()
        elapsed_s = perf_counter() - began_s
        progress.message(f"Block {block_number}/{MOST_BLOCKS}: {elapsed_s:.0f} s")
        if block_number >= LEAST_BLOCKS and elapsed_s > most_s:
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
    """The requests that steps are timed in, the shortest prompt first. No request ends at EOS.

    They are the shortest prompt of the plan, the median one, and the longest, repeated until it
    is as long as the longest context of an answer: all turns of a chat with their answers.
    Prompts of equal length count once. A prompt holds a chat: the user's text of each turn. Only
    the first turn is rendered, except for the longest context.
    """
    render = plan.setup.codec.render  # from chat messages to token ids
    prompts = [prompt for prompt_set in plan.prompt_sets for prompt in prompt_set.prompts]
    # token ids of each prompt's first turn, the shortest first
    prompt_ids = sorted((render([user(prompt.turns[0])]) for prompt in prompts), key=len)
    shortest_ids, longest_ids = prompt_ids[0], prompt_ids[-1]
    median_ids = prompt_ids[len(prompt_ids) // 2]
    most_chat_turns = max(len(prompt.turns) for prompt in prompts)
    most_prompt_tokens = max(len(render([user(" ".join(prompt.turns))])) for prompt in prompts)
    most_context = most_prompt_tokens + most_chat_turns * plan.max_new_tokens
    # Enough tokens for all steps that a request times. Steps of the target have a token each: some
    # of vanilla before the steps of each number of rows, and after the last. Drafters have visits.
    num_groups = len(grids.STEP_ROWS) + 1
    most_step_tokens = max(PLANTED_TOKENS) + 2  # the target's own, and one to spare
    num_new_tokens = (
        num_groups * (VANILLA_STEPS + STEPS_PER_TURN) + STEPS_PER_VISIT * most_step_tokens
    )
    num_repeated_ids = min(most_context, target.context - num_new_tokens)  # at most what fits
    num_copies = num_repeated_ids // len(longest_ids) + 1
    repeated_ids = (longest_ids * num_copies)[:num_repeated_ids]
    # of prompts of equal length, the last one stays
    ids_by_length = {len(ids): ids for ids in (shortest_ids, median_ids, repeated_ids)}
    sampling = plan.spec.sampling(plan.spec.temperatures[0])
    return [
        Request(ids, num_new_tokens, sampling, eos_ids=frozenset())
        for _, ids in sorted(ids_by_length.items())
    ]


def _knots(method: RunMethod, sizes: Sequence[SizedDraft], loaded: LoadedEngine) -> list[Knot]:
    """The knots of a method, with a drafter each. The last size has two knots."""

    def build(size: SizedDraft) -> Drafter:
        sized = method.with_options(size.options)
        return build_drafters(loaded.target, [sized], loaded.ledger)[method.label]

    knots = [Knot(method.label, number, 0, build(size)) for number, size in enumerate(sizes)]
    last = knots[-1]
    return [*knots, last._replace(copy=1, drafter=build(sizes[-1]))]
