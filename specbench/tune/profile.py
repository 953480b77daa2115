"""Make an acceptance profile: vanilla's answers, and what methods draft at their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specbench.engine.decode import decode, token_limit
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.errors import SpecbenchError, UserError
from specbench.measure.base import Plan, Progress
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import load_engine
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.methods import RunMethod
from specbench.measure.plan import make_plan
from specbench.measure.progress import Lines
from specbench.measure.runner import Runner
from specbench.measure.spec import make_spec
from specbench.methods._stored_pool import StoredPool
from specbench.tune.stored_profile import (
    MOST_BYTES,
    SCHEMA,
    AnswerHeader,
    Arrays,
    Profile,
    ProfiledMethod,
    ProfileHeader,
    check_free,
    packed,
    placed,
    too_large,
)
from specbench.types import BASELINE, VERSION, Completion, Record, Request, StopReason

_LIBRARIES = ("torch", "transformers")
MOST_BYTES_A_POSITION, ZIP_BYTES = 4096, 1000
"""Size of what one method has at one position, and of the names of the file's arrays."""


def profile(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path | None = None,
    offline: bool = False,
    say: Callable[[str], None] | None = None,
    **values: Any,
) -> Profile:
    """Record what methods draft at every position of vanilla's greedy answers.

    `profile("tiny", "eagle2:depth=5,top_k=8,pld", tasks="gsm8k", output="profiles/mine")`

    The options of a method are the largest ones that the profile can be replayed with.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several.
        output: the folder of `profile.json` and `profile.npz`; by default nothing is written.
        offline: use no network.
        say: receives a line per finished answer and message.
        values: further fields of `specbench.log.spec.SpecValues`, such as `tasks`, `limit`,
            `max_new_tokens`, `dtype` and `threads`.

    Raises:
        UserError: an unknown name or wrong value, a temperature above 0, a method without a
            profile, or a profile that is too large.
    """
    made = engine_plan(model, methods, values, offline=offline)
    if output is not None:
        check_free(Path(output))
    progress = Lines(say or (lambda text: None))
    found = recorded_plan(*made, progress, is_named=bool(methods))
    if output is not None:
        found.write(Path(output))
    return found


class EnginePlan(NamedTuple):
    """A plan of the engine in this process, with its setup."""

    plan: Plan
    setup: EngineSetup


def engine_plan(
    model: str,
    methods: str | Sequence[str],
    values: Mapping[str, Any],
    *,
    offline: bool,
    is_greedy: bool = True,
) -> EnginePlan:
    """The plan of values from Python: one pass, with the paper's settings.

    Raises:
        UserError: an unknown name or wrong value, a server, or temperatures that do not fit.
    """
    given = {**values, "model": model} | ({"methods": methods} if methods else {})
    spec = make_spec(**given | {"repeats": 1, "settings": "paper", "is_baseline_run": True})
    listed = ",".join(f"{one:g}" for one in spec.temperatures)
    if is_greedy and spec.temperatures != (0.0,):
        raise UserError(
            f"A profile has greedy answers, and the temperature is {listed}.",
            "Leave it out. Above 0, runs measure settings: specbench run --method 'A:x=1|2'.",
        )
    if len(spec.temperatures) > 1:
        raise UserError(f"A cost curve has one temperature, not {listed}.", "Give one of them.")
    plan = make_plan(spec, is_offline=offline)
    if not isinstance(plan.setup, EngineSetup):
        raise UserError("A server has neither profile nor cost curve.", "Leave --url out.")
    return EnginePlan(plan, plan.setup)


class Recorder(Drafter):
    """Lets a drafter propose at every position of `answer`; the target gets the root alone.

    The target's answer is therefore vanilla's, and every step emits one token.
    """

    tree_sizes = (1,)

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.needs = drafter, drafter.needs
        self._pools: list[StoredPool] = []
        self._rows: list[Any] = []
        self.answer: Sequence[int] = ()

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        following = self.answer[len(state.token_ids) - len(state.request.prompt_ids) :]
        if self._drafter.profile == "ranks":
            self._rows.append(self._drafter.ranks(state, following))
        else:
            tree = self._drafter.propose(state)
            if self._drafter.profile == "pool":
                self._pools.append(StoredPool.read(tree))
            else:
                pairs = zip(tree.tokens.tolist()[1:], following, strict=False)
                right = takewhile(lambda one: one[0] == one[1], pairs)
                self._rows.append(sum(1 for _ in right))
        return state.chain()

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)

    def taken(self) -> Arrays:
        """The arrays since the last call, a row for each token of an answer but the last."""
        pools, rows = self._pools, self._rows
        self._pools, self._rows = [], []
        if pools:
            parts = map(np.stack, zip(*pools, strict=True))
            return dict(zip(StoredPool._fields, parts, strict=True))
        return {str(self._drafter.profile): np.array(rows, dtype=np.uint16)} if rows else {}


class _Backend(EngineBackend):
    """The engine, which keeps its last request."""

    request: Request

    def complete(self, method: str, request: Request) -> Completion:
        self.request = request
        return super().complete(method, request)


class _Memory:
    """A log that keeps nothing."""

    def append(self, record: Record) -> None: ...
    def changed(self) -> None: ...


def recorded_plan(plan: Plan, setup: EngineSetup, progress: Progress, *, is_named: bool) -> Profile:
    """Complete all requests with vanilla, then each with a recorder of each method.

    A method without a profile is refused if the user named it, else left out.
    """
    setup = replace(setup, methods=tuple(map(_widened, setup.methods)))
    loaded = load_engine(setup)
    methods = {}
    for one in setup.methods:
        drafter = loaded.drafters[one.label]
        if (kind := drafter.profile) is None:
            _ = drafter.needs  # a broken one says why
            if is_named:
                raise _no_profile(one.label)
            progress.message(f"{one.label}: has no acceptance profile")
        else:
            methods[one.label] = ProfiledMethod(kind, drafter.has_fixed_size, one.describe())
    recorders = {
        label: Recorder(loaded.drafters[label])
        for label, one in methods.items()
        if one.kind != "text"
    }
    vanilla = tuple(one for one in setup.methods if one.label == BASELINE)
    setup = replace(setup, methods=vanilla)
    plan = replace(plan, setup=setup)
    with _Backend(setup, loaded=loaded) as backend:
        progress.started(plan.num_records)
        found = list(_answers(backend, plan, recorders, progress))
        progress.finished()
    same = [one for one in found if one is not None]
    if left_out := len(found) - len(same):
        progress.message(
            f"{left_out} of {len(found)} answers are left out: they differ by rounding."
        )
    if not same:
        raise SpecbenchError("No method reproduced any of vanilla's answers.")
    header = ProfileHeader(
        schema=SCHEMA,
        model=plan.about.model,
        methods=methods,
        temperature=0.0,
        max_new_tokens=plan.max_new_tokens,
        vocab_size=loaded.target.vocab_size,
        prompts=tuple(one.describe() for one in plan.prompt_sets),
        answers=tuple(one.about for one in same),
        num_left_out=left_out,
        versions={"specbench": VERSION, **{one: version(one) for one in _LIBRARIES}},
    )
    drafts = {label: _joined([one.drafts[label] for one in same]) for label in recorders}
    rows = ((one.about, one.prompt_ids, one.token_ids) for one in same)
    return Profile(header, placed(rows), drafts)


class Recorded(NamedTuple):
    """One of vanilla's answers with what each method drafted."""

    about: AnswerHeader
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    drafts: dict[str, Arrays]


def _answers(
    backend: _Backend, plan: Plan, recorders: Mapping[str, Recorder], progress: Progress
) -> Iterator[Recorded | None]:
    size = 0
    for number, record in enumerate(Runner(plan, backend, _Memory(), progress).run(), start=1):
        if not record.is_ok:
            raise SpecbenchError(f"Vanilla failed at {_name(record)}: {record.error}")
        answer = record.token_ids, record.stop_reason
        one = recorded(_name(record), backend.target, recorders, backend.request, *answer)
        size += sum(_size(label, arrays) for label, arrays in one.drafts.items()) if one else 0
        expected = size * plan.num_records // number
        if expected > 2 * MOST_BYTES:  # answers may be shorter than the first ones
            raise too_large(expected)
        yield one


def recorded(
    prompt: str,
    target: Target,
    recorders: Mapping[str, Recorder],
    request: Request,
    token_ids: tuple[int, ...],
    stop_reason: StopReason | None,
) -> Recorded | None:
    """What all methods draft on an answer; None if rounding gives one another answer."""
    drafts: dict[str, Arrays] = {}
    is_same = True
    for label, recorder in recorders.items():
        recorder.answer = token_ids
        is_same &= decode(target, recorder, request).token_ids == token_ids
        drafts[label] = recorder.taken()
    if not is_same:
        return None
    both = np.array([*request.prompt_ids, *token_ids], dtype=np.int32).tobytes()
    about = AnswerHeader(
        prompt,
        len(request.prompt_ids),
        len(token_ids),
        token_limit(target, request),
        stop_reason,
        sha256(both).hexdigest(),
    )
    return Recorded(about, request.prompt_ids, token_ids, drafts)


def _name(record: Record) -> str:
    return f"{record.key.task}/{record.key.sample_id}/{record.key.turn}"


def _widened(one: RunMethod) -> RunMethod:
    """The method with the options that its drafts are recorded with."""
    profiled = getattr(one.options, "profiled", None)
    return replace(one, options=profiled()) if profiled else one


def _no_profile(label: str) -> UserError:
    return UserError(
        f"{label} has no acceptance profile: its drafts depend on more than the tokens before "
        "them, or the method does not say.",
        f"Leave it out. Ordinary runs measure its settings: specbench run --method '{label}'",
    )


def _size(label: str, arrays: Arrays) -> int:
    """Bytes of a method's drafts on an answer, which may be too many a position."""
    size, positions = len(packed(arrays)), len(next(iter(arrays.values()), ()))
    if positions and size > MOST_BYTES_A_POSITION * positions + ZIP_BYTES:
        raise UserError(
            f"{label} takes {size / positions:,.0f} bytes a position, not "
            f"{MOST_BYTES_A_POSITION:,}.",
            "Give a smaller top_k or depth, such as top_k=8,depth=5.",
        )
    return size


def _joined(parts: Sequence[Arrays]) -> Arrays:
    """The arrays of all answers, one after the other."""
    names = {name: None for one in parts for name in one}
    return {name: np.concatenate([one[name] for one in parts if one]) for name in names}
