"""Measure a cost curve: whole steps of the target and of methods, beside steps of vanilla.

Every step runs in the engine's own loop. Right tokens are planted in the drafts, outside of the
timed region, so that steps accept 0, 1 and 2 draft tokens in turn, whatever the weights.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from random import Random
from statistics import mean, median
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from specbench.engine.clock import DeviceClock, Phase, Stopwatch
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.planting import plant
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, padded_size
from specbench.errors import UserError
from specbench.machine.threads import thread_counts
from specbench.measure.base import Plan, Progress
from specbench.measure.local import threads as cores
from specbench.measure.local.engine import describe_kernels
from specbench.measure.local.engine_load import build_drafters, load_engine, warm_up
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.local.memory import MemoryLedger
from specbench.measure.local.tuning import ROWS
from specbench.measure.methods import BASELINE, RunMethod
from specbench.measure.progress import Lines
from specbench.measure.requests import user
from specbench.measure.settings import fits_of
from specbench.measure.spec import RunSpec
from specbench.tune import stored_cost as files
from specbench.tune.profile import engine_plan
from specbench.tune.recorder import kinds_of
from specbench.tune.stored_cost import FILE, CostHeader, Curve, MethodCost
from specbench.types import Completion, ProfileKind, Request

TILES = (4, 8, 16, 32, 64)
"""Rows that kernels compute at once."""
STEP_ROWS = tuple(sorted({*ROWS, *(tile + i for tile in TILES for i in (-1, 0, 1))}))
"""Rows of a step that are measured: the grid of settings, and those beside tiles."""
BEFORE, IN_TURN = 3, 4
"""Steps of vanilla before each turn of a number of rows. The first of each turn is left out: the
steps before it leave other caches behind.
"""
STEPS, COLD, ACCEPTED = 9, 3, (0, 1, 2)
"""Steps of a draft, the first ones, which are left out, and the tokens accepted in turn."""
LEAST_BLOCKS, MOST_BLOCKS = 3, 6
TOP_K, NODES, CHAINS, POOL_ROWS = (1, 2, 4, 6, 10), (2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32), 24
"""Sizes of drafts that are measured."""
_SHAPE = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
          "num_key_value_heads", "vocab_size")  # fmt: skip


def cost(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path | None = None,
    minutes: float | None = None,
    offline: bool = False,
    say: Callable[[str], None] | None = None,
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
    made = engine_plan(model, methods, values, offline=offline)
    if output is not None and (Path(output) / FILE).exists():
        raise UserError(f"{output} holds a cost curve.", "Give --out another folder.")
    curve = Curve(measured(*made, minutes, Lines(say or (lambda text: None))))
    if output is not None:
        curve.write(Path(output))
    return curve


class _Enough(Exception):
    """Ends the completion whose steps were timed."""


class Laps(Stopwatch):
    """Seconds of the first `num_steps` steps after one warm-up step, without time in `pausing`."""

    def __init__(self, clock: DeviceClock, num_steps: int) -> None:
        self.now, self._num_steps = clock.now, num_steps
        self.seconds: list[float] = []
        self.start_s = self.prefill_s = self._paused = 0.0
        self._began: float | None = None

    def lap(self, phase: Phase) -> None:
        if phase != "host":
            return
        if self._began is not None:
            self.seconds.append(self.now() - self._began - self._paused)
            if len(self.seconds) == self._num_steps:
                raise _Enough
        self._paused, self._began = 0.0, self.now()

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Do not count the block's time."""
        began = self.now()
        yield
        self._paused += self.now() - began


class Forced(Drafter):
    """A drafter whose trees get right tokens: `ACCEPTED` says how many, step by step."""

    def __init__(self, drafter: Drafter, answer: Sequence[int], laps: Laps) -> None:
        self._drafter, self._answer, self._laps = drafter, answer, laps
        self.needs, self.rule, self.tree_sizes = drafter.needs, drafter.rule, drafter.tree_sizes
        self.rows: list[int] = []
        self.contexts: list[int] = []

    def start(self, state: State, prefill: Forward) -> None:
        began = self._laps.now()
        self._drafter.start(state, prefill)
        self._laps.start_s = self._laps.now() - began

    def propose(self, state: State) -> DraftTree:
        tree = self._drafter.propose(state)
        with self._laps.pausing():
            at, wanted = len(state.token_ids), ACCEPTED[len(self.rows) % len(ACCEPTED)]
            self.rows.append(tree.num_nodes)
            self.contexts.append(state.num_committed)
            if tree.num_nodes > 1 and wanted:
                tree = plant(tree, self._answer[at : at + wanted], 0)[0]
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)


class Rota(Drafter):
    """Chains of a wrong token, of these rows in turn, each with its number of threads.

    The target drops what it committed since the prefill, so that all have the same context.
    """

    tree_sizes = (1,)  # as if: each number of rows is measured without padding

    def __init__(self, order: Sequence[tuple[int, int]], target: Target, laps: Laps) -> None:
        self._order, self._target, self._laps = iter(order), target, laps
        self._token = target.vocab_size - 2

    def propose(self, state: State) -> DraftTree:
        with self._laps.pausing():
            rows, threads = next(self._order)
            cores.set_threads(threads)
            self._target.crop(len(state.request.prompt_ids))
        return state.chain([self._token] * (rows - 1))


class Knot(NamedTuple):
    """A setting of a method whose draft is measured. The last one is there twice."""

    label: str
    values: dict[str, int]
    drafter: Drafter
    number: int


class Visit(NamedTuple):
    """Steps of a knot in steps of vanilla's beside them, and what its prefill adds, in seconds."""

    block: int
    threads: int
    length: int
    knot: Knot
    ratios: list[float]
    rows: list[int]
    contexts: list[int]
    start: float


@dataclass
class Bench:
    """A loaded target with requests of three lengths, and what was measured so far."""

    target: Target
    vanilla: Drafter
    knots: list[Knot]
    requests: list[Request]
    counts: tuple[int, ...]
    prefill_threads: int
    random: Random = field(default_factory=lambda: Random(0))
    answers: list[Sequence[int]] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    steps: list[list[list[list[float]]]] = field(default_factory=list)
    prefill: list[list[float]] = field(default_factory=list)
    vanilla_s: list[float] = field(default_factory=list)

    def block(self) -> None:
        """Measure everything once, at each length."""
        lengths, places = range(len(self.requests)), range(len(self.counts))
        steps: dict[int, list[list[float]]] = {}
        vanilla, prefill = dict[int, float](), dict[int, float]()
        for length in self.random.sample(lengths, len(lengths)):
            found = [self._rows(length, count) for count in self.counts]
            steps[length], vanilla[length] = [rows for rows, _ in found], found[0][1]
            prefill[length] = self._drafts(length)
        middle = vanilla[len(lengths) // 2]
        scale = [vanilla[length] / middle for length in lengths]
        ratios = [[np.array(steps[i][t]) * scale[i] for i in lengths] for t in places]
        self.steps.append(np.array(ratios).tolist())
        self.prefill.append([prefill[length] for length in lengths])
        self.vanilla_s.append(middle)

    def _rows(self, length: int, count: int) -> tuple[list[float], float]:
        """Steps by rows in steps of vanilla's, and vanilla's seconds."""
        sizes = self.random.sample(STEP_ROWS, len(STEP_ROWS))
        vanilla = [(1, self.counts[0])] * BEFORE
        order = [*vanilla[:1]]  # left out
        for size in sizes:
            order += [*vanilla, *[(size, count)] * IN_TURN]
        laps = Laps(DeviceClock(self.target.device), len(order) + BEFORE - 1)
        rota = Rota([*order, *vanilla], self.target, laps)
        self._complete(rota, length, laps, self.counts[0])
        turn, ratios = BEFORE + IN_TURN, {}
        starts = range(0, len(laps.seconds), turn)
        beside = [laps.seconds[at + 1 : at + BEFORE] for at in starts]  # each turn of vanilla
        for i, size in enumerate(sizes):
            own = laps.seconds[i * turn + BEFORE + 1 : (i + 1) * turn]
            ratios[size] = median(own) / median(beside[i] + beside[i + 1])
        if count == self.counts[0]:
            ratios[1] = 1.0  # by definition
        found = [ratios[size] for size in STEP_ROWS]
        return found, median([one for turn in beside for one in turn])

    def _drafts(self, length: int) -> float:
        """Visit each knot with each number of threads, between visits of vanilla.

        Returns the time of vanilla's prefill in its steps.
        """
        items = [(knot, place) for knot in self.knots for place in range(len(self.counts))]
        before = self._visit(self.vanilla, length, self.counts[0])[0]
        prefills = [before.prefill_s / median(before.seconds[COLD:])]
        for knot, place in self.random.sample(items, len(items)):
            own, forced = self._visit(knot.drafter, length, self.counts[place])
            after = self._visit(self.vanilla, length, self.counts[0])[0]
            unit = median([*before.seconds[COLD:], *after.seconds[COLD:]])
            rest = own.prefill_s - (before.prefill_s + after.prefill_s) / 2 + own.start_s
            ratios = [seconds / unit for seconds in own.seconds[COLD:]]
            rows, contexts = forced.rows[COLD + 1 :], forced.contexts[COLD + 1 :]
            place_of = len(self.steps), place, length, knot
            self.visits.append(Visit(*place_of, ratios, rows, contexts, rest / unit))
            prefills.append(after.prefill_s / median(after.seconds[COLD:]))
            before = after
        return median(prefills)

    def _visit(self, drafter: Drafter, length: int, count: int) -> tuple[Laps, Forced]:
        laps = Laps(DeviceClock(self.target.device), STEPS)
        forced = Forced(drafter, self.answers[length], laps)
        self._complete(forced, length, laps, count)
        return laps, forced

    def _complete(self, drafter: Drafter, length: int, laps: Laps, count: int) -> None:
        cores.set_threads(self.prefill_threads)
        began = laps.now()

        def prefilled() -> None:
            laps.prefill_s = laps.now() - began
            cores.set_threads(count)

        request = self.requests[length]
        with suppress(_Enough):
            decode(self.target, drafter, request, stopwatch=laps, on_prefilled=prefilled)


def measured(
    plan: Plan, setup: EngineSetup, minutes: float | None, progress: Progress
) -> CostHeader:
    """The cost curve of a plan's model and methods on this machine."""
    import torch

    loaded = load_engine(setup)
    target, before = loaded.target, torch.get_num_threads()
    sampling = plan.spec.sampling(plan.spec.temperatures[0])
    kinds = kinds_of(setup, loaded.drafters, sampling, progress.message)
    del kinds[BASELINE]
    knots = list[Knot]()
    for one in (each for each in setup.methods if each.label in kinds):
        knots += _knots(one, kinds[one.label], target, loaded.drafters[one.label])
    requests = _requests(plan, target)
    threads = cores.choose_threads(target, setup.spec.threads)
    counts, prefill_threads = [threads.num], threads.num
    if threads.chosen_by == "measured":
        usual = requests[len(requests) // 2].prompt_ids
        most_rows = cores.step_times(target, usual, threads).threads_at(max(ROWS))
        counts += {most_rows} - {threads.num}
        trial = cores.Trial(thread_counts(), threads.num, cores.PREFILL_S)
        prefill_threads = trial.measure(cores.reading(target, usual)).best
    vanilla = loaded.drafters[BASELINE]
    bench = Bench(target, vanilla, knots, requests, tuple(counts), prefill_threads)
    gc.freeze()
    try:
        with without_cudnn_attention():
            _prepare(bench)
            limit, began = 60 * minutes if minutes else float("inf"), perf_counter()
            while len(bench.steps) < MOST_BLOCKS:
                if len(bench.steps) >= LEAST_BLOCKS and perf_counter() - began > limit:
                    break
                bench.block()
                seconds = perf_counter() - began
                progress.message(f"Block {len(bench.steps)}/{MOST_BLOCKS}: {seconds:.0f} s")
    finally:
        cores.set_threads(before)
        gc.unfreeze()
    return _header(bench, about_of(plan.spec, setup, target), kinds)


def about_of(spec: RunSpec, setup: EngineSetup, target: Target) -> dict[str, str]:
    """The machine, versions and target of a new curve. The target is named by its sizes."""
    kernels, model = describe_kernels(target), setup.describe().model
    return {
        "model": model.name,
        **fits_of(model, setup.device.name, setup.mode.name, spec),
        "target": ", ".join(f"{name}={getattr(target.config, name, 0)}" for name in _SHAPE),
        "kernels": f"{kernels.name} ({kernels.reason})" if kernels.reason else kernels.name,
    }


def _requests(plan: Plan, target: Target) -> list[Request]:
    """The shortest prompt, the median one, and one as long as the longest answer's context."""
    render = plan.setup.codec.render
    prompts = [prompt for one in plan.prompt_sets for prompt in one.prompts]
    texts = sorted((render([user(one.turns[0])]) for one in prompts), key=len)
    whole = max(len(render([user(" ".join(one.turns))])) for one in prompts)
    turns = max(len(one.turns) for one in prompts)
    room = (len(STEP_ROWS) + 1) * (BEFORE + IN_TURN) + STEPS * (max(ACCEPTED) + 2)
    longest = min(whole + turns * plan.max_new_tokens, target.context - room)
    shortest, middle, last = texts[0], texts[len(texts) // 2], texts[-1]
    filled = (last * (longest // len(last) + 1))[:longest]
    sampling = plan.spec.sampling(plan.spec.temperatures[0])
    found = {len(ids): ids for ids in (shortest, middle, filled)}
    return [Request(ids, room, sampling, frozenset()) for _, ids in sorted(found.items())]


def _knots(one: RunMethod, kind: ProfileKind, target: Target, drafter: Drafter) -> Iterator[Knot]:
    """The settings of a method whose drafts are measured; the last one twice."""
    every = list(enumerate(_sizes(kind, one.options, drafter)))
    for number, (values, options) in [*every, every[-1]]:
        made = replace(one, options=options)
        built = build_drafters(target, [made], MemoryLedger(target))[one.label]
        yield Knot(one.label, values, built, number)


def _sizes(
    kind: ProfileKind, options: Any, drafter: Drafter
) -> Iterator[tuple[dict[str, int], Any]]:
    """Values of the kind's axes, with a method's options for them."""
    if kind == "text":
        yield {}, options
    elif kind == "pool":
        for depth in sorted({0, min(2, options.depth), options.depth}):
            for top_k in sorted({*(k for k in TOP_K if k < options.top_k), options.top_k}):
                size = min(POOL_ROWS, 1 + top_k + depth * top_k**2)
                made = replace(options, depth=depth, top_k=top_k, total_tokens=size)
                yield {"depth": depth, "top_k": top_k}, made
    elif kind == "ranks":
        most = max(drafter.tree_sizes)
        for nodes in sorted({*(n for n in NODES if n < most), most}):
            yield {"rows": nodes}, replace(options, nodes=nodes)
    else:
        is_chosen = hasattr(options, "schedule")
        most = max(CHAINS) if kind == "token" else options.num_tokens
        for number in sorted({*(n for n in CHAINS if n < most), most}):
            made = replace(options, num_tokens=number)
            yield {"rows": number + 1}, replace(made, schedule="constant") if is_chosen else made


def _prepare(bench: Bench) -> None:
    """Vanilla's answers to plant, kernels loaded, and graphs captured."""
    vanilla = bench.vanilla
    for request in bench.requests:
        answer = decode(bench.target, vanilla, request).token_ids
        bench.answers.append((*request.prompt_ids, *answer))
    drafters = {f"{one.label}/{one.number}": one.drafter for one in bench.knots}

    def complete(label: str, request: Request) -> Completion:
        return decode(bench.target, drafters[label], request)

    warm_up(bench.target, drafters, complete, bench.requests)


def _header(bench: Bench, about: dict[str, str], kinds: Mapping[str, ProfileKind]) -> CostHeader:
    head = CostHeader(
        schema=files.SCHEMA,
        about=about,
        vanilla_s=median(bench.vanilla_s),
        threads=bench.counts,
        rows=STEP_ROWS,
        lengths=tuple(len(one.prompt_ids) for one in bench.requests),
        most_context=len(bench.requests[-1].prompt_ids) + STEPS,
        steps=nested(bench.steps),
        prefill=nested(bench.prefill),
        methods={},
        process=0.0,
        num_pairs=0,
    )
    curve = Curve(head)
    prefill = nested((np.array(bench.prefill) * _units(curve)).tolist())
    methods = {label: _method(label, kind, bench, curve) for label, kind in kinds.items()}
    pairs = [_difference([one for one in bench.visits if one.knot.label == k]) for k in kinds]
    variance = files.variance_of_pairs(pairs)
    return msgspec.structs.replace(
        head, prefill=prefill, methods=methods, process=variance, num_pairs=len(pairs)
    )


def _units(curve: Curve) -> list[float]:
    """The time of the steps of vanilla beside drafts, by length: a few tokens after the prompt."""
    vanilla, after = curve.costs(None, 0, 0), (COLD + 1 + STEPS) // 2
    return [curve.step(vanilla, 1, length + after) for length in curve.header.lengths]


def _method(label: str, kind: ProfileKind, bench: Bench, curve: Curve) -> MethodCost:
    """The time that a method adds to the target's steps and prefills."""
    visits = [one for one in bench.visits if one.knot.label == label]
    knots = {one.knot.number: one.knot.values for one in visits}
    if is_text := kind == "text":
        knots = {0: {"drafted": 0}, 1: {"drafted": 1}}
    drafter, is_static = visits[0].knot.drafter, bench.target.execution.is_static
    is_padded = is_static and not drafter.has_fixed_size
    units = _units(curve)
    drafts = dict[tuple[int, int, int], list[float]]()
    starts = dict[tuple[int, int], list[float]]()
    for one in visits:
        target = curve.costs(None, one.threads, 0)
        starts.setdefault((one.block, one.length), []).append(one.start * units[one.length])
        for ratio, size, context in zip(one.ratios, one.rows, one.contexts, strict=True):
            rows, number = padded_size(size) if is_padded else size, one.knot.number
            rest = ratio * units[one.length] - curve.step(target, rows, context)
            place = (one.block, one.threads, int(size > 1) if is_text else number)
            drafts.setdefault(place, []).append(rest)

    def draft(block: int, threads: int, number: int) -> float:
        """In a block without any draft from text, or with nothing else, both count the same."""
        known = drafts.get((block, threads, number)) or drafts[block, threads, 1 - number]
        return _middle(known)

    blocks, threads = range(len(bench.steps)), range(len(bench.counts))
    numbers, lengths = sorted(knots), range(len(bench.requests))
    cells = [[[draft(b, t, n) for n in numbers] for t in threads] for b in blocks]
    begins = nested([[median(starts[b, i]) for i in lengths] for b in blocks])
    return MethodCost(kind, is_padded, tuple(knots[n] for n in numbers), nested(cells), begins)


def nested(values: Sequence[Any]) -> Any:
    """Nested tuples of numbers with six digits."""
    return tuple(float(f"{one:.6g}") if isinstance(one, float) else nested(one) for one in values)


def _middle(values: Sequence[float]) -> float:
    """The mean of the middle half, so that few disturbed steps do not matter."""
    quarter = len(values) // 4
    return mean(sorted(values)[quarter : len(values) - quarter])


def _difference(visits: Sequence[Visit]) -> float:
    """The difference of the logarithms of a step's time of the last knot, which is there twice."""
    logs: dict[int, list[float]] = {}
    for one in visits:
        if one.knot.number == max(each.knot.number for each in visits):
            logs.setdefault(id(one.knot.drafter), []).append(log(median(one.ratios)))
    first, second = map(mean, logs.values())
    return first - second
