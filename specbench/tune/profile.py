"""Make an acceptance profile: vanilla's answers, and what methods draft at their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace as replace_part

from specbench.engine.decode import decode, token_limit
from specbench.engine.target import Target
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
from specbench.tune import stored_profile as files
from specbench.tune.recorder import Recorder, kinds_of
from specbench.tune.stored_profile import MOST_BYTES, AnswerHeader, Arrays, Profile, packed
from specbench.types import BASELINE, VERSION, Completion, Record, Request, StopReason

_LIBRARIES = ("torch", "transformers")
SEEDS = 3
"""Answers to each prompt above temperature 0."""
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
    """Record what methods draft at every position of vanilla's answers.

    `profile("tiny", "eagle2:depth=5,top_k=8,pld", tasks="gsm8k", output="profiles/mine")`

    The options of a method are the largest ones that the profile can be replayed with.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several.
        output: the folder of `profile.json` and `profile.npz`; by default nothing is written.
        offline: use no network.
        say: receives a line per finished answer and message.
        values: further fields of `specbench.log.spec.SpecValues`, such as `tasks`, `limit`,
            `max_new_tokens`, `dtype`, `threads` and `temperatures`. Above temperature 0 there
            are `repeats` answers to each prompt, by default 3.

    Raises:
        UserError: an unknown name or wrong value, several temperatures, a method without a
            profile, or a profile that is too large.
    """
    made = engine_plan(model, methods, values, offline=offline)
    if output is not None:
        files.check_free(Path(output))
    found = recorded_plan(*made, Lines(say or (lambda text: None)), is_named=bool(methods))
    if output is not None:
        found.write(Path(output))
    return found


def engine_plan(
    model: str, methods: str | Sequence[str], values: Mapping[str, Any], *, offline: bool
) -> tuple[Plan, EngineSetup]:
    """The plan of values from Python, with the paper's settings: one pass of greedy answers.

    Raises:
        UserError: an unknown name or wrong value, a server, or several temperatures.
    """
    given = {"repeats": SEEDS, **values, **({"methods": methods} if methods else {})}
    spec = make_spec(**given | {"model": model, "settings": "paper", "is_baseline_run": True})
    if len(spec.temperatures) > 1:
        listed = ",".join(f"{one:g}" for one in spec.temperatures)
        reason = f"A profile and a cost curve have one temperature, not {listed}."
        raise UserError(reason, "Give one of them.")
    if spec.sampling(spec.temperatures[0]).is_greedy:
        spec = replace_part(spec, repeats=1)
    plan = make_plan(spec, is_offline=offline)
    if not isinstance(plan.setup, EngineSetup):
        raise UserError("A server has neither profile nor cost curve.", "Leave --url out.")
    return plan, plan.setup


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
    loaded, sampling = load_engine(setup), plan.spec.sampling(plan.spec.temperatures[0])
    kinds = kinds_of(setup, loaded.drafters, sampling, None if is_named else progress.message)
    about = {one.label: one.describe() for one in setup.methods}
    methods = {
        label: files.ProfiledMethod(kind, loaded.drafters[label].has_fixed_size, about[label])
        for label, kind in kinds.items()
    }
    recorders = {k: Recorder(loaded.drafters[k]) for k, one in kinds.items() if one != "text"}
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
    header = files.ProfileHeader(
        schema=files.SCHEMA,
        model=plan.about.model,
        methods=methods,
        sampling=sampling,
        max_new_tokens=plan.max_new_tokens,
        vocab_size=loaded.target.vocab_size,
        prompts=tuple(one.describe() for one in plan.prompt_sets),
        answers=tuple(one.about for one in same),
        num_left_out=left_out,
        versions={"specbench": VERSION, **{one: version(one) for one in _LIBRARIES}},
    )
    drafts = {label: _joined([one.drafts[label] for one in same]) for label in recorders}
    rows = ((one.about, one.prompt_ids, one.token_ids) for one in same)
    return Profile(header, files.placed(rows), drafts)


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
            raise files.too_large(expected)
        yield one


def recorded(
    prompt: str,
    target: Target,
    recorders: Mapping[str, Recorder],
    request: Request,
    token_ids: tuple[int, ...],
    stop_reason: StopReason | None,
) -> Recorded | None:
    """The drafts of all methods for one answer; None if rounding changes any method's answer."""
    drafts: dict[str, Arrays] = {}
    is_same = True
    is_drawn = not request.sampling.is_greedy  # graphs would keep the answer's tokens
    with target.execution.paused() if is_drawn else nullcontext():
        for label, recorder in recorders.items():
            recorder.answer = token_ids
            is_same &= decode(target, recorder, request).token_ids == token_ids
            drafts[label] = recorder.taken()
    if not is_same:
        return None
    both = np.array([*request.prompt_ids, *token_ids], dtype=np.int32).tobytes()
    sizes = len(request.prompt_ids), len(token_ids), token_limit(target, request)
    about = AnswerHeader(prompt, *sizes, stop_reason, sha256(both).hexdigest())
    return Recorded(about, request.prompt_ids, token_ids, drafts)


def _name(record: Record) -> str:
    return f"{record.key.task}/{record.key.sample_id}/{record.key.turn}"


def _widened(one: RunMethod) -> RunMethod:
    """The method with the options that its drafts are recorded with."""
    profiled = getattr(one.options, "profiled", None)
    return replace(one, options=profiled()) if profiled else one


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
    """The arrays of all answers, one after the other. Chains of short answers may be shorter."""
    found = {}
    for name in {name: None for one in parts for name in one}:
        arrays = [one[name] for one in parts if one]
        if name == "path" and arrays[0].ndim == 2:
            width = max(one.shape[1] for one in arrays)
            arrays = [np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in arrays]
        found[name] = np.concatenate(arrays)
    return found
