"""Measure a cost curve, from Python or for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from specbench.engine.clock import DeviceClock
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.errors import UserError
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
from specbench.tune.bench import STEPS_PER_TURN, STEPS_PER_VISIT, VANILLA_STEPS, Bench, TimedSize
from specbench.tune.engine_plan import EnginePlan, Say, kinds_of, make_engine_plan
from specbench.tune.fit_curve import MeasuredKind, fit_curve
from specbench.tune.kind import SizedDraft, find_kind
from specbench.tune.timed import PLANTED_TOKENS
from specbench.types import BASELINE, Request

LEAST_BLOCKS = 3
"""The fewest blocks to measure, since an interval needs several."""
MOST_BLOCKS = 6
"""The most blocks to measure. More blocks change little."""
_SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
"""The sizes of a target that determine its times, under their names in the config."""


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
    """Measure the times of the target's steps by rows and context, and of methods' drafts.

    `cost("tiny", "eagle2:depth=5,top_k=6,pld", tasks="gsm8k", output="costs/mine")`

    The options of a method give the largest drafts that are measured. The prompts give the lengths
    of the contexts.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several; if empty, a plain run's methods.
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

    A method's drafts are timed at a few sizes, and the curve has their time at its knots. Both
    depend on the method's kind: the kind of data that an acceptance profile stores of its drafts.
    A method that can have no acceptance profile is left out.

    Args:
        engine_plan: the model, the methods and the prompts.
        minutes: no block (a measurement of everything) begins after this time; None: no such bound.
            In any case `LEAST_BLOCKS` to `MOST_BLOCKS` blocks are measured.
        progress: receives messages.
    """
    setup = engine_plan.setup  # has the model, and the methods with their options
    loaded = load_engine(setup)  # the target, and the drafters by method label
    target, vanilla = loaded.target, loaded.drafters[BASELINE]
    # the name of each method's kind, by label, without methods that can have no profile
    kind_names = kinds_of(setup, loaded.drafters, engine_plan.sampling, progress.message)
    # for each method: a drafter per size, and a second drafter of the largest size
    timed_sizes: list[TimedSize] = []
    # by label: the kind of the method, and the knots of its curve, made from the timed sizes
    measured_kinds: dict[str, MeasuredKind] = {}
    for method in setup.methods:
        if method.label in kind_names and method.label != BASELINE:
            kind = find_kind(kind_names[method.label])
            # sizes to time, the largest with the method's own options
            sizes = [*kind.sizes(method.options, loaded.drafters[method.label])]
            measured_kinds[method.label] = MeasuredKind(kind, kind.knots(sizes))
            timed_sizes += _timed_sizes(method, sizes, loaded)
    # The backend warms up all drafters that are timed; each has a number in place of a label.
    drafters = {BASELINE: vanilla}
    drafters |= {str(number): size.drafter for number, size in enumerate(timed_sizes)}
    with EngineBackend(setup, loaded=replace(loaded, drafters=drafters)) as backend:
        # The prompts have at most three lengths. The shortest is first.
        requests = _requests(engine_plan.plan, target)
        backend.warm_up(requests[len(requests) // 2 :])  # from the middle length on
        threads = backend.describe().threads  # numbers of CPU threads
        assert threads is not None  # this backend always describes them
        bench = Bench(target, DeviceClock(target.device), vanilla, timed_sizes, requests, threads)
        _measure_blocks(bench, minutes, progress)  # the bench keeps the times
    return fit_curve(bench, about_of(setup, target), measured_kinds)


def _measure_blocks(bench: Bench, minutes: float | None, progress: Progress) -> None:
    """Measure `MOST_BLOCKS` blocks, or as many as begin in `minutes`, at least `LEAST_BLOCKS`.

    A block has steps with each number of rows and drafts of each size, at every prompt length. The
    bench keeps the times. There is no bound if `minutes` is None. `progress` receives a message per
    block.
    """
    began_s = perf_counter()
    most_s = 60 * minutes if minutes else float("inf")  # in seconds
    for block_number in range(1, MOST_BLOCKS + 1):
        bench.measure_block()
        elapsed_s = perf_counter() - began_s
        progress.message(f"Block {block_number}/{MOST_BLOCKS}: {elapsed_s:.0f} s")
        if block_number >= LEAST_BLOCKS and elapsed_s > most_s:
            break


def about_of(setup: EngineSetup, target: Target) -> dict[str, str]:
    """Describe the machine, the versions and the target of a new curve.

    The target is described by its sizes.
    """
    kernels = describe_kernels(target)
    sizes = [f"{name}={getattr(target.config, name, 0)}" for name in _SHAPE]
    return {
        "model": setup.describe().model.name,
        **setup.fits(),
        "target": ", ".join(sizes),
        "kernels": f"{kernels.name} ({kernels.reason})" if kernels.reason else kernels.name,
    }


def _requests(plan: Plan, target: Target) -> list[Request]:
    """Make the requests whose steps are timed, the one with the shortest prompt first.

    There are three: for the plan's shortest prompt, the median one, and the longest one. The
    longest is repeated up to the largest context in the plan: the user's texts of a whole chat,
    with all answers. All three are cut so that the timed steps still fit into the target's
    context. If two prompts have equally many tokens, only one gets a request. No request ends at
    EOS.

    Args:
        plan: its prompts are chats: `turns` has the user's text of each turn. Only the text of the
            first turn is used, except to find the most tokens.
        target: bounds the context (`context` tokens).

    Raises:
        UserError: the context has no room for a prompt beside the timed steps.
    """
    render = plan.setup.codec.render  # returns the token ids of chat messages
    prompts = [prompt for prompt_set in plan.prompt_sets for prompt in prompt_set.prompts]
    # token ids of each prompt's first turn, the shortest first
    prompt_ids = sorted((render([user(prompt.turns[0])]) for prompt in prompts), key=len)
    shortest_ids, longest_ids = prompt_ids[0], prompt_ids[-1]
    median_ids = prompt_ids[len(prompt_ids) // 2]
    most_chat_turns = max(len(prompt.turns) for prompt in prompts)
    most_chat_tokens = max(len(render([user(" ".join(prompt.turns))])) for prompt in prompts)
    most_context = most_chat_tokens + most_chat_turns * plan.max_new_tokens
    # The answer must be long enough for the steps that are timed in it. These are either the
    # target's steps, which emit a token each, or the steps of a visit (a completion by a size's
    # drafter). The sum is enough for both. Vanilla's steps come before the steps with each number
    # of rows, and after the last (+ 1).
    most_target_steps = (len(grids.STEP_ROWS) + 1) * (VANILLA_STEPS + STEPS_PER_TURN)
    # Right tokens that are planted in a draft, the target's own token, and one to spare. A draft
    # with more right tokens uses room that is planned for the target's steps.
    planned_step_tokens = max(PLANTED_TOKENS) + 2
    num_new_tokens = most_target_steps + STEPS_PER_VISIT * planned_step_tokens
    most_tokens = min(most_context, target.context - num_new_tokens)  # of a request's prompt
    if most_tokens < 1:
        raise UserError(
            f"A cost curve times {num_new_tokens} tokens after a prompt, but the model's context "
            f"has {target.context}.",
            "Use a model with a longer context.",
        )
    num_copies = most_tokens // len(longest_ids) + 1
    uncut_prompts = (shortest_ids, median_ids, longest_ids * num_copies)
    cut_prompts = [ids[:most_tokens] for ids in uncut_prompts]
    # by number of tokens; of prompts with equally many tokens, the last stays
    ids_by_length = {len(ids): ids for ids in cut_prompts}
    sampling = plan.spec.sampling(plan.spec.temperatures[0])
    return [
        Request(ids, num_new_tokens, sampling, eos_ids=frozenset())
        for _, ids in sorted(ids_by_length.items())
    ]


def _timed_sizes(
    method: RunMethod, sizes: Sequence[SizedDraft], loaded: LoadedEngine
) -> list[TimedSize]:
    """Make the timed sizes of a method, each with its own drafter.

    The last size comes twice, with two drafters. They show how far the times of equal drafters
    differ.
    """

    def build(size: SizedDraft) -> Drafter:
        """Make a new drafter of the method whose drafts have this size."""
        sized_method = method.with_options(size.options)
        return build_drafters(loaded.target, [sized_method], loaded.ledger)[method.label]

    timed_sizes = [
        TimedSize(method.label, number, copy=0, drafter=build(size))
        for number, size in enumerate(sizes)
    ]
    return [*timed_sizes, timed_sizes[-1]._replace(copy=1, drafter=build(sizes[-1]))]
