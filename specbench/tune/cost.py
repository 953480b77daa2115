"""Cost curves: times of whole steps of the target and of methods, in steps of vanilla's.

A curve belongs to a machine, a model's shape, number formats and versions, but not to prompts.
Its times are kept block by block, so that intervals can resample blocks.

Every step runs in the engine's own loop. Right tokens are planted in the drafts, outside of the
timed region, so that steps accept 0, 1 and 2 draft tokens in turn, whatever the weights.

A curve's file and its measuring share this module: what a number means is how it was taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.engine.clock import DeviceClock
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.planting import plant
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, padded_size
from specbench.errors import UserError
from specbench.log.files import write_whole
from specbench.log.machine import Threads
from specbench.measure.base import Plan, Progress
from specbench.measure.local import threads as cores
from specbench.measure.local.engine import EngineBackend, describe_kernels
from specbench.measure.local.engine_load import LoadedEngine, build_drafters, load_engine
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.methods import BASELINE
from specbench.measure.progress import Lines
from specbench.measure.requests import user
from specbench.report.plots.style import Plot, frame, points, shades, tiles
from specbench.settings.quick_rule import ROWS
from specbench.settings.run_method import RunMethod
from specbench.tune.profile import SCHEMA, check_free, check_same, engine_plan, kinds_of, read_json
from specbench.tune.replay import Walk
from specbench.types import ProfileKind, Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

CURVE_FILE = "cost.json"
AGAIN = "Measure it here: specbench tune cost --model M --method A,B --out DIR"
TILES = (4, 8, 16, 32, 64)
"""Rows that kernels compute at once."""
STEP_ROWS = tuple(sorted({*ROWS, *(tile + i for tile in TILES for i in (-1, 0, 1))}))
"""Rows of a step that are measured: the grid of settings, and those beside tiles."""
BEFORE, IN_TURN = 3, 4
"""Steps of vanilla before each turn of a number of rows. The first of a turn is left out."""
STEPS, COLD, ACCEPTED = 10, 4, (0, 1, 2)
"""Steps of a draft, the first ones, which are left out, and the tokens accepted in turn."""
LEAST_BLOCKS, MOST_BLOCKS = 3, 6
TOP_K, NODES, CHAINS, POOL_ROWS = (1, 2, 4, 6, 10), (2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32), 6
"""Sizes of drafts that are measured. A small pool keeps the target's part of a step short."""
_SHAPE = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
          "num_key_value_heads", "vocab_size")  # fmt: skip


class MethodCost(msgspec.Struct, frozen=True):
    """Times of a method beside the target's: of its drafts, and of its prefill."""

    kind: ProfileKind
    is_padded: bool
    """The target computes its trees padded to a few sizes."""
    knots: tuple[dict[str, int], ...]
    """Values of the kind's axes, which decide the time of a draft: all combinations, the last
    axis fastest. They are depth and top_k, rows, or, for drafts from text, 1 for a match and 0
    for none.
    """
    draft: tuple[tuple[tuple[float, ...], ...], ...]
    """Steps of vanilla that a step takes beyond the target's part [blocks, threads, knots]."""
    start: tuple[tuple[float, ...], ...]
    """Steps of vanilla that a prefill takes beyond vanilla's [blocks, lengths]."""


class Curve(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A cost curve, as in `cost.json`.

    `weights` and `costs` multiply to the time of an answer. The unit is vanilla's step at the
    middle length, close in time.
    """

    schema: int = SCHEMA
    about: dict[str, str]
    """The machine, the sizes of the model, number formats and versions of this curve."""
    vanilla_s: float
    """Seconds of a step of vanilla."""
    threads: tuple[int, ...]
    """Numbers of threads that were measured, vanilla's first."""
    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens of the prompts that prefills and steps were measured with."""
    most_context: int
    """Most tokens before a step that was measured."""
    steps: tuple[tuple[tuple[tuple[float, ...], ...], ...], ...]
    """Time of a step of the target [blocks, threads, lengths, rows]."""
    prefill: tuple[tuple[float, ...], ...]
    """Time of vanilla's prefill [blocks, lengths]."""
    methods: dict[str, MethodCost] = {}
    """By the spelling that was asked for."""
    process: float = 0.0
    """Variance of the logarithm of a step's time that one setting, entered twice, has."""
    num_pairs: int = 0
    """Settings that were entered twice."""

    def check(self, about: Mapping[str, str]) -> None:
        """Refuse another machine, model, number format, temperature or version.

        Raises:
            UserError: with both values.
        """
        pairs = ((name, one, about[name]) for name, one in self.about.items())
        where = "in the curve", "here"
        check_same("The cost curve is not one of this run:", where, pairs, AGAIN)

    def write(self, folder: Path) -> None:
        """Write `cost.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(self), indent=0)
        write_whole(folder / CURVE_FILE, content)

    @property
    def middle(self) -> int:
        """Context of the step that all times are in."""
        return self.lengths[len(self.lengths) // 2]

    def costs(self, label: str | None, threads: int, num_resamples: int) -> FloatArray:
        """The numbers of a method, or vanilla's, with the number of threads at this place: the
        estimate, then resamples [1 + num_resamples, k].

        In this order: a step by rows, context, rows times context, prefill by length, a
        method's draft by knot, and what its prefill adds by length. Blocks are drawn with
        replacement, the same ones for all methods and threads.
        """
        known: dict[Any, FloatArray] = self.__dict__.setdefault("known", {})
        key = label, threads, num_resamples
        if key not in known:
            size = num_resamples + 1, len(self.steps)
            blocks = np.random.default_rng(0).integers(len(self.steps), size=size)
            blocks[0] = np.arange(len(self.steps))
            tables = [np.array(self.steps)[:, threads], np.array(self.prefill)]
            if label is not None:
                one = self.methods[label]
                tables += [np.array(one.draft)[:, threads], np.array(one.start)]
            steps, *others = (np.median(table[blocks], 1) for table in tables)
            known[key] = np.hstack([_fit(steps, self), *(one.clip(0) for one in others)])
        return known[key]

    def step(self, costs: FloatArray, rows: Any, context: Any) -> Any:
        """The time of a step of the target, or of several [n], by the estimate of `costs`."""
        at, rows, context = self.rows, np.array(rows), np.array(context)
        here = _between(at, rows, "rows of a step") @ costs[0, : len(at)]
        slope, slope_of_rows = costs[0, len(at) : len(at) + 2]
        return here + (context - self.middle) * (slope + slope_of_rows * rows)

    def weights(self, label: str | None, options: Mapping[str, Any], walk: Walk) -> FloatArray:
        """Number of times that an answer pays each of the `costs` [k].

        Args:
            label: the method as the curve spells it; None for vanilla.
            options: the setting.
            walk: the steps of the answer.

        Raises:
            UserError: rows, options or lengths that were not measured.
        """
        one = self.methods[label] if label is not None else None
        rows, times = np.array(walk.nodes, int), np.array(walk.chances, float)
        before = walk.prompt_tokens + np.array(walk.before, int)
        if len(before) and before.max() > self.most_context:
            raise _outside("context", int(before.max()), self.most_context)
        is_padded = one is not None and one.is_padded
        sizes = np.array([padded_size(n) for n in rows], int) if is_padded else rows
        away = (before - self.middle) * times
        prefill = _between(self.lengths, walk.prompt_tokens, "length of a prompt")
        steps = times @ _between(self.rows, sizes, "rows of a step")
        found = [steps, np.array([away.sum(), away @ sizes]), prefill]
        if one is not None:  # nothing is drafted at the end of a budget
            is_drafted = (rows > 1) | (one.kind == "text")
            drafts = times[is_drafted] @ _between_knots(one, options, rows[is_drafted])
            found += [drafts, prefill]
        return np.concatenate(found)


def _fit(steps: FloatArray, curve: Curve) -> FloatArray:
    """A step by rows at the middle context, and its slopes by context and rows times context.

    `steps` are [resamples, lengths, rows]. Only the slopes are fitted, by least squares of the
    relative differences from the middle; the result is [resamples, rows + 2]. Steps never
    become faster with more context, and the shortest one takes at least half of the middle
    one.
    """
    middle, rows = len(curve.lengths) // 2, np.array(curve.rows, float)
    away = np.array(curve.lengths, float) - curve.middle
    if not away.any():
        return np.hstack([steps[:, middle], np.zeros((len(steps), 2))])
    base = steps[:, middle : middle + 1]
    scale = 1 / np.median(base, 0)
    design = np.stack([(away[:, None] * scale * n).ravel() for n in (1, rows)], 1)
    change = ((steps - base) * scale).reshape(len(steps), -1)
    slopes = (change @ np.linalg.pinv(design).T).clip(0)
    fall = -away[0] * (slopes[:, :1] + slopes[:, 1:] * rows)
    slopes *= (0.5 * base[:, 0] / np.maximum(fall, 1e-9)).min(1, keepdims=True).clip(max=1)
    risen = away[:, None] * (slopes[:, :1, None] + slopes[:, 1:, None] * rows)
    found = (steps * base / (base + risen)).mean(1)
    return np.hstack([np.maximum(found, 0.6 * base[:, 0]), slopes])


def _between(knots: Sequence[int], values: Any, what: str) -> FloatArray:
    """The weights [..., k] of the knots, in order, that interpolate linearly at values [...].

    Raises:
        UserError: a value is outside.
    """
    values = np.array(values)
    outside = values[(values < knots[0]) | (values > knots[-1])]
    if outside.size:
        value = int(outside.min())
        raise _outside(what, value, knots[0] if value < knots[0] else knots[-1])
    return np.stack([np.interp(values, knots, one) for one in np.eye(len(knots))], -1)


def _between_knots(one: MethodCost, options: Mapping[str, Any], rows: IntArray) -> FloatArray:
    """The weights [n, knots] of a method's knots in steps of a setting with these rows [n]."""
    values, found = {**options, "rows": rows, "drafted": rows > 1}, np.ones((len(rows), 1))
    for name in one.knots[0]:
        axis = sorted({knot[name] for knot in one.knots})
        weights = np.broadcast_to(_between(axis, values[name], name), (len(rows), len(axis)))
        pairs = found[:, :, None] * weights[:, None, :]
        found = pairs.reshape(len(rows), found.shape[1] * len(axis))  # -1 needs a row
    return found


def _outside(what: str, value: int, end: int) -> UserError:
    side = "at most" if value > end else "at least"
    return UserError(f"{what.capitalize()}: {value}, and {side} {end} in the cost curve.", AGAIN)


def read_curve(folder: str | Path) -> Curve:
    """Read the cost curve in a folder.

    Raises:
        UserError: the folder has no curve, or it is damaged or of a newer version.
    """
    return read_json(Path(folder) / CURVE_FILE, Curve, "Cost curve", AGAIN)


def variance_of_pairs(differences: Sequence[float]) -> float:
    """The variance of one of two equal settings, from differences of their logarithms."""
    return math.fsum(one**2 for one in differences) / (2 * len(differences)) if differences else 0.0


def curve_frame(curve: Curve) -> DataFrame:
    """One row a number of rows: `block`, `threads`, `context`, `rows` and `steps` of vanilla."""
    import pandas as pd

    axes = range(len(curve.steps)), curve.threads, curve.lengths, curve.rows
    index = pd.MultiIndex.from_product(axes, names=["block", "threads", "context", "rows"])
    return pd.Series(np.array(curve.steps).ravel(), index, name="steps").reset_index()


def cost_curve(curve: Curve) -> Plot:
    """The time of a step by rows, a line for each number of threads and length."""
    title = "Time of a step by rows"
    steps = np.median(np.array(curve.steps), 0)  # [threads, lengths, rows]

    def draw() -> Figure:
        lines = [(t, c) for t in range(len(curve.threads)) for c in range(len(curve.lengths))]
        words = ", ".join(curve.about[name] for name in ("model", "dtype", "machine"))
        names = [f"{curve.threads[t]} threads, {curve.lengths[c]} tokens before" for t, c in lines]
        shown = shades(names).values()
        drawn, (axes,) = tiles(title, words, 1, height=3.6, handles=points(shown))
        for (t, c), look in zip(lines, shown, strict=True):
            axes.plot(curve.rows, steps[t, c], markersize=4, **look.point)
        axes.set_ylim(bottom=0)
        frame(axes, x="rows", y="steps of vanilla", grid="both")
        return drawn

    most = f"{steps[0, len(curve.lengths) // 2, -1]:.2f} at {curve.rows[-1]} rows"
    caption = "Time of a step of the target by rows; 1 is a step of vanilla at the middle length."
    return Plot("cost_curve", title, f"Line chart. {most}.", caption, draw)


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
    check_free(output, CURVE_FILE, "cost curve")
    curve = measured(*made, minutes, Lines(say or (lambda text: None)))
    if output is not None:
        curve.write(Path(output))
    return curve


class _Enough(Exception):
    """Ends the completion whose steps were timed."""


class Timed(Drafter):
    """Times the first steps of a completion, from draft to draft, and then ends it.

    The drafter's trees get right tokens: `ACCEPTED` says how many, step by step.
    """

    def __init__(
        self, drafter: Drafter, clock: DeviceClock, num_steps: int, answer: Sequence[int] = ()
    ) -> None:
        self._drafter, self._answer = drafter, answer
        self._now, self._num_steps, self._began = clock.now, num_steps, 0.0
        self.needs, self.rule, self.tree_sizes = drafter.needs, drafter.rule, drafter.tree_sizes
        self.prefill_s = self.start_s = 0.0
        self.seconds: list[float] = []
        self.rows: list[int] = []
        self.contexts: list[int] = []

    def start(self, state: State, prefill: Forward) -> None:
        began = self._now()
        self._drafter.start(state, prefill)
        self.start_s = self._now() - began

    def propose(self, state: State) -> DraftTree:
        self._lap(state)
        tree = self._drafter.propose(state)
        paused = self._now()
        at, wanted = len(state.token_ids), ACCEPTED[len(self.rows) % len(ACCEPTED)]
        self.rows.append(tree.num_nodes)
        if tree.num_nodes > 1 and wanted:
            tree = plant(tree, self._answer[at : at + wanted], 0)[0]
        self._began += self._now() - paused  # planting does not count
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)

    def _lap(self, state: State) -> None:
        """End a step, and begin the next one."""
        if self.contexts:
            self.seconds.append(self._now() - self._began)
        if len(self.seconds) == self._num_steps:
            raise _Enough
        self.contexts.append(state.num_committed)
        self._began = self._now()


class Rota(Timed):
    """Chains of a wrong token, of these rows in turn, each with its number of threads.

    The target drops what it committed since the prefill, so that all have the same context.
    Vanilla's only tree size counts: each number of rows is measured without padding.
    """

    def __init__(self, bench: Bench, order: Sequence[tuple[int, int]]) -> None:
        super().__init__(bench.vanilla, bench.clock, len(order))
        self._order, self._target = order, bench.target

    def propose(self, state: State) -> DraftTree:
        self._lap(state)
        rows, threads = self._order[len(self.seconds)]
        cores.set_threads(threads)
        self._target.crop(len(state.request.prompt_ids))
        chain = state.chain([self._target.vocab_size - 2] * (rows - 1))
        self._began = self._now()
        return chain


class Knot(NamedTuple):
    """A setting of a method whose draft is measured. The last one is there twice."""

    label: str
    values: dict[str, int]
    drafter: Drafter
    number: int


@dataclass
class Bench:
    """A loaded target with requests of three lengths, and what was measured so far.

    `visits` has the steps of a knot in steps of vanilla's beside them, and what its prefill
    adds.
    """

    target: Target
    clock: DeviceClock
    vanilla: Drafter
    knots: list[Knot]
    requests: list[Request]
    threads: Threads
    random: Random = field(default_factory=lambda: Random(0))
    visits: list[dict[str, Any]] = field(default_factory=list)
    steps: list[FloatArray] = field(default_factory=list)
    prefill: list[FloatArray] = field(default_factory=list)
    vanilla_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Choose the numbers of threads, and let vanilla answer the requests."""
        num, usual = self.threads.num, self.requests[len(self.requests) // 2].prompt_ids
        self.counts: tuple[int, ...] = (num,)
        if self.threads.chosen_by == "measured":
            most_rows = cores.step_times(self.target, usual, self.threads).threads_at(max(ROWS))
            self.counts += tuple({most_rows} - {num})
        self.answers = [
            (*one.prompt_ids, *decode(self.target, self.vanilla, one).token_ids)
            for one in self.requests
        ]

    def block(self) -> None:
        """Measure everything once, at each length."""
        number, middle = len(self.requests), len(self.requests) // 2
        steps = np.empty((len(self.counts), number, len(STEP_ROWS)))
        vanilla, prefill = np.empty((len(self.counts), number)), np.empty(number)
        for length in self.random.sample(range(number), number):
            for place in range(len(self.counts)):
                steps[place, length], vanilla[place, length] = self._rows(length, place)
            prefill[length] = self._drafts(length)
        self.steps.append(steps * (vanilla[0] / vanilla[0, middle])[:, None])
        self.prefill.append(prefill)
        self.vanilla_s.append(float(vanilla[0, middle]))

    def _rows(self, length: int, place: int) -> tuple[FloatArray, float]:
        """Steps by rows in steps of vanilla's, and vanilla's seconds."""
        number = len(STEP_ROWS)
        places, vanilla = self.random.sample(range(number), number), [(1, self.counts[0])]
        order = [*vanilla]  # left out
        for i in places:
            order += [*vanilla * BEFORE, *[(STEP_ROWS[i], self.counts[place])] * IN_TURN]
        rota = Rota(self, [*order, *vanilla * BEFORE])
        self._complete(rota, length, self.counts[0])
        turns = np.reshape(rota.seconds[1:-BEFORE], (number, BEFORE + IN_TURN))
        beside = np.vstack([turns[:, :BEFORE], rota.seconds[-BEFORE:]])[:, 1:]
        units = np.median(np.hstack([beside[:-1], beside[1:]]), 1)
        found = np.empty(number)
        found[places] = np.median(turns[:, BEFORE + 1 :], 1) / units
        if place == 0:
            found[0] = 1.0  # by definition
        return found, float(np.median(beside))

    def _drafts(self, length: int) -> float:
        """Visit each knot with each number of threads, between visits of vanilla.

        Returns the time of vanilla's prefill in its steps.
        """
        items = [(knot, place) for knot in self.knots for place in range(len(self.counts))]
        beside = [self._visit(self.vanilla, length, 0)]
        for knot, place in self.random.sample(items, len(items)):
            own = self._visit(knot.drafter, length, place)
            beside.append(self._visit(self.vanilla, length, 0))
            before, after = beside[-2:]
            unit = median([*before.seconds, *after.seconds])
            rest = own.prefill_s - (before.prefill_s + after.prefill_s) / 2 + own.start_s
            where = {"block": len(self.steps), "place": place, "length": length}
            times = {"ratio": [one / unit for one in own.seconds], "start": rest / unit}
            sizes = {"rows": own.rows, "context": own.contexts}
            self.visits.append({**where, **knot._asdict(), **times, **sizes})
        return median(one.prefill_s / median(one.seconds) for one in beside)

    def _visit(self, drafter: Drafter, length: int, place: int) -> Timed:
        timed = Timed(drafter, self.clock, STEPS, self.answers[length])
        self._complete(timed, length, self.counts[place])
        for values in (timed.seconds, timed.rows, timed.contexts):
            del values[:COLD]
        return timed

    def _complete(self, timed: Timed, length: int, count: int) -> None:
        cores.set_threads(self.threads.of_prefill)
        began = self.clock.now()

        def prefilled() -> None:
            timed.prefill_s = self.clock.now() - began
            cores.set_threads(count)

        with suppress(_Enough):
            decode(self.target, timed, self.requests[length], on_prefilled=prefilled)


def measured(plan: Plan, setup: EngineSetup, minutes: float | None, progress: Progress) -> Curve:
    """The cost curve of a plan's model and methods on this machine."""
    loaded, sampling = load_engine(setup), plan.spec.sampling(plan.spec.temperatures[0])
    kinds = kinds_of(setup, loaded.drafters, sampling, progress.message)
    del kinds[BASELINE]
    target, vanilla = loaded.target, loaded.drafters[BASELINE]
    knots = [*_knots(setup.methods, kinds, loaded)]
    drafters = {BASELINE: vanilla, **{str(i): one.drafter for i, one in enumerate(knots)}}
    with EngineBackend(setup, loaded=replace(loaded, drafters=drafters)) as backend:
        requests = _requests(plan, target)
        backend.warm_up(requests[len(requests) // 2 :])  # a usual one, and the longest
        threads = backend.describe().threads
        assert threads is not None
        bench = Bench(target, DeviceClock(target.device), vanilla, knots, requests, threads)
        limit, began = 60 * minutes if minutes else float("inf"), perf_counter()
        for number in range(1, MOST_BLOCKS + 1):
            bench.block()
            seconds = perf_counter() - began
            progress.message(f"Block {number}/{MOST_BLOCKS}: {seconds:.0f} s")
            if number >= LEAST_BLOCKS and seconds > limit:
                break
    return _curve(bench, about_of(setup, target), kinds)


def about_of(setup: EngineSetup, target: Target) -> dict[str, str]:
    """The machine, versions and target of a new curve. The target is named by its sizes."""
    kernels = describe_kernels(target)
    return {
        "model": setup.describe().model.name,
        **setup.fits(),
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
    filled = (texts[-1] * (longest // len(texts[-1]) + 1))[:longest]
    sampling = plan.spec.sampling(plan.spec.temperatures[0])
    found = {len(ids): ids for ids in (texts[0], texts[len(texts) // 2], filled)}
    return [Request(ids, room, sampling, frozenset()) for _, ids in sorted(found.items())]


def _knots(
    methods: Sequence[RunMethod], kinds: Mapping[str, ProfileKind], loaded: LoadedEngine
) -> Iterator[Knot]:
    """The settings of methods whose drafts are measured; the last one of each twice."""
    target, ledger = loaded.target, loaded.ledger
    for one in (each for each in methods if each.label in kinds):
        every = [*enumerate(_sizes(kinds[one.label], one.options, loaded.drafters[one.label]))]
        for number, (values, options) in [*every, every[-1]]:
            drafter = build_drafters(target, [one.with_options(options)], ledger)[one.label]
            yield Knot(one.label, values, drafter, number)


def _sizes(
    kind: ProfileKind, options: Any, drafter: Drafter
) -> Iterator[tuple[dict[str, int], Any]]:
    """Values of the kind's axes, with a method's options for them."""
    if kind == "text":
        yield {}, options
    elif kind == "pool":
        depths = sorted({0, min(2, options.depth), options.depth})
        for depth, top_k in product(depths, _up_to(options.top_k, TOP_K)):
            size = min(POOL_ROWS, 1 + top_k + depth * top_k**2)
            values = {"depth": depth, "top_k": top_k}
            yield values, replace(options, total_tokens=size, **values)
    elif kind == "ranks":
        for nodes in _up_to(max(drafter.tree_sizes), NODES):
            yield {"rows": nodes}, replace(options, nodes=nodes)
    else:
        constant = {"schedule": "constant"} if hasattr(options, "schedule") else {}
        for number in _up_to(max(CHAINS) if kind == "token" else options.num_tokens, CHAINS):
            yield {"rows": number + 1}, replace(options, num_tokens=number, **constant)


def _up_to(most: int, sizes: Sequence[int]) -> list[int]:
    return sorted({*(one for one in sizes if one < most), most})


def _curve(bench: Bench, about: dict[str, str], kinds: Mapping[str, ProfileKind]) -> Curve:
    import pandas as pd

    lengths = tuple(len(one.prompt_ids) for one in bench.requests)
    curve = Curve(
        about=about,
        vanilla_s=median(bench.vanilla_s),
        threads=bench.counts,
        rows=STEP_ROWS,
        lengths=lengths,
        most_context=lengths[-1] + STEPS - 1,
        steps=_nested(bench.steps),
        prefill=_nested(bench.prefill),
        num_pairs=len(kinds),
    )
    beside = np.array(lengths) + (COLD + STEPS - 1) // 2  # contexts of vanilla beside drafts
    units = curve.step(curve.costs(None, 0, 0), [1] * len(lengths), beside)
    found = pd.DataFrame(bench.visits)
    visits = {label: found[found["label"] == label] for label in kinds}
    return msgspec.structs.replace(
        curve,
        prefill=_nested(np.array(bench.prefill) * units),
        methods={k: _method(kinds[k], bench, curve, units, own) for k, own in visits.items()},
        process=variance_of_pairs([_difference(own) for own in visits.values()]),
    )


def _method(
    kind: ProfileKind, bench: Bench, curve: Curve, units: FloatArray, visits: DataFrame
) -> MethodCost:
    """The time that a method adds to the target's steps and prefills."""
    from scipy.stats import trim_mean

    own = [one for one in bench.knots if one.label == visits["label"].iloc[0]]
    knots = [one.values for one in own[:-1]]
    is_padded = bench.target.execution.is_static and not own[0].drafter.has_fixed_size
    types = {"ratio": float, "rows": int, "context": int}
    steps = visits.explode([*types], ignore_index=True).astype(types)
    if kind == "text":
        knots = [{"drafted": 0}, {"drafted": 1}]
        steps["number"] = (steps["rows"] > 1).astype(int)
    sizes = steps["rows"].map(padded_size) if is_padded else steps["rows"]
    places = range(len(bench.counts))
    targets = [curve.step(curve.costs(None, i, 0), sizes, steps["context"]) for i in places]
    of_target = np.array(targets)[steps["place"], range(len(steps))]
    steps["rest"] = steps["ratio"] * units[steps["length"]] - of_target
    middle = partial(trim_mean, proportiontocut=0.25)  # few disturbed steps do not matter
    drafts = steps.pivot_table("rest", ["block", "place"], "number", aggfunc=middle)
    # In a block without any draft from text, or with nothing else, both count the same.
    drafts = drafts.reindex(columns=range(len(knots))).bfill(axis=1).ffill(axis=1)
    cells = np.reshape(drafts.to_numpy(), (len(bench.steps), len(places), len(knots)))
    starts = visits.assign(start=visits["start"] * units[visits["length"]])
    begins = starts.pivot_table("start", "block", "length", aggfunc="median").to_numpy()
    return MethodCost(kind, is_padded, tuple(knots), _nested(cells), _nested(begins))


def _nested(values: Iterable[Any]) -> Any:
    """Nested tuples of numbers with six digits."""
    return tuple(float(f"{one:.6g}") if isinstance(one, float) else _nested(one) for one in values)


def _difference(visits: DataFrame) -> float:
    """The difference of the logarithms of a step's time of the last knot, which is there twice."""
    last = visits[visits["number"] == visits["number"].max()]
    first, second = last["ratio"].map(median).map(math.log).groupby(last["drafter"].map(id)).mean()
    return float(first - second)
