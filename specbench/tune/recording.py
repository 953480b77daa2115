"""Record a profile: vanilla answers each prompt, and each method drafts along the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace

from specbench.engine.decode import decode, token_limit
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.errors import SpecbenchError, UserError
from specbench.measure.base import Plan, Progress
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import load_engine
from specbench.measure.runner import Runner
from specbench.settings.tuned_settings import versions
from specbench.tune import profile_file
from specbench.tune.engine_plan import EnginePlan, kinds_of
from specbench.tune.kind import find_kind
from specbench.tune.profile_file import (
    Answer,
    AnswerHeader,
    Arrays,
    Profile,
    ProfiledMethod,
    ProfileHeader,
    ids_hash,
)
from specbench.types import BASELINE, Completion, Record, Request

MOST_POSITION_BYTES = 4096
"""The most compressed bytes of a method's data per position. More are seldom needed, and a profile
of a few hundred answers stays below `MOST_BYTES`.
"""
ZIP_BYTES = 1000
"""The bytes allowed in addition, for names and sizes in a file of arrays."""


class _AnswerBackend(EngineBackend):
    """The engine. It keeps its last request and the answer to it."""

    last_request: Request
    last_completion: Completion

    def complete(self, method: str, request: Request) -> Completion:
        completion = super().complete(method, request)
        self.last_request = request
        self.last_completion = completion
        return completion


class _NoRecords:
    """A sink that drops the records of a run."""

    def append(self, record: Record) -> None:
        """Drop a record."""


def recorded_plan(engine_plan: EnginePlan, progress: Progress, *, is_named: bool) -> Profile:
    """Record what methods draft at each position of vanilla's answers to all prompts of a plan.

    Args:
        engine_plan: the model, the methods and the prompts.
        progress: receives the events and messages.
        is_named: True if the user named the methods. Then a method that can have no profile is
            refused; otherwise it is left out.

    Raises:
        UserError: a named method can have no profile, or the profile would be too large.
        SpecbenchError: vanilla failed, or no answer was reproduced by all methods.
    """
    plan = engine_plan.plan
    methods = tuple(  # with the options for recording
        method.with_options(method.options.profiled()) for method in engine_plan.setup.methods
    )
    setup = replace(engine_plan.setup, methods=methods)
    loaded = load_engine(setup)
    drafters = loaded.drafters  # by label
    say = None if is_named else progress.message  # gets a line per method that is left out
    kind_names = kinds_of(setup, drafters, engine_plan.sampling, say)  # by label
    profiled_methods = {
        method.label: ProfiledMethod(
            kind=kind_names[method.label],
            has_fixed_size=drafters[method.label].has_fixed_size,  # even at the end of an answer
            about=method.describe(),  # options and weights
        )
        for method in methods
        if method.label in kind_names
    }
    # Methods that draft only from text are not recorded, since a replay drafts again.
    recorded_drafters = {
        label: drafters[label] for label, kind in kind_names.items() if find_kind(kind).is_recorded
    }
    vanilla_alone = tuple(method for method in methods if method.label == BASELINE)
    setup = replace(setup, methods=vanilla_alone)  # vanilla gives the answers
    plan = replace(plan, setup=setup)
    with _AnswerBackend(setup, loaded=loaded) as backend:  # it keeps its last request and answer
        progress.started(plan.num_records)  # number of answers that vanilla will give
        answers = tuple(_record_answers(backend, plan, recorded_drafters, progress))
        progress.finished()
    num_left_out = plan.num_records - len(answers)
    if num_left_out:
        left_out = f"{num_left_out} of {plan.num_records} answers"
        progress.message(f"{left_out} are left out: rounding changed them.")
    if not answers:
        raise SpecbenchError("No method reproduced any of vanilla's answers.")
    header = ProfileHeader(
        model=plan.about.model,
        methods=profiled_methods,
        sampling=engine_plan.sampling,
        max_new_tokens=plan.max_new_tokens,
        vocab_size=loaded.target.vocab_size,
        prompts=tuple(prompt_set.describe() for prompt_set in plan.prompt_sets),
        answers=tuple(answer.about for answer in answers),  # names, lengths and hashes
        num_left_out=num_left_out,
        versions=versions(),
    )
    return Profile(header, answers)


def _record_answers(
    backend: _AnswerBackend, plan: Plan, drafters: Mapping[str, Drafter], progress: Progress
) -> Iterator[Answer]:
    """Yield each of vanilla's answers with the drafts that all methods make along it.

    The answers come in the order of the plan. An answer is left out if a method does not reproduce
    it because of rounding.

    Args:
        backend: completes requests with vanilla, and keeps the last request and its completion.
        plan: the requests, with vanilla as the only method.
        drafters: drafters of the recorded methods, by label.
        progress: receives the events.

    Raises:
        UserError: the profile will be far too large, or a method's drafts are.
        SpecbenchError: vanilla failed.
    """
    runner = Runner(plan, backend, _NoRecords(), progress)
    total_bytes = 0  # of the drafts so far, compressed
    # `run` yields a record per request; its answer comes from the backend.
    for num_done, record in enumerate(runner.run(), start=1):
        prompt_name = f"{record.key.task}/{record.key.sample_id}/{record.key.turn}"
        if not record.is_ok:
            raise SpecbenchError(f"Vanilla failed at {prompt_name}: {record.error}")
        answer = recorded_answer(
            prompt_name, backend.target, drafters, backend.last_request, backend.last_completion
        )
        if answer is not None:  # all methods reproduced it
            total_bytes += sum(_num_bytes(label, arrays) for label, arrays in answer.drafts.items())
            yield answer
        # for all answers of the plan, if the rest are as large as those so far
        expected_bytes = total_bytes * plan.num_records // num_done
        # Later answers may be shorter: stop only at twice the size that a profile may have.
        if expected_bytes > 2 * profile_file.MOST_BYTES:
            raise profile_file.too_large(expected_bytes)


def recorded_answer(
    prompt: str,
    target: Target,
    drafters: Mapping[str, Drafter],
    request: Request,
    vanilla: Completion,
) -> Answer | None:
    """Record the drafts of all methods along one of vanilla's answers.

    The request is decoded once more for each method. The method drafts at each token, but the
    target verifies no draft token, so the completion should be vanilla's again. The result is None
    if rounding makes the completion of any method differ.

    Args:
        prompt: name of the prompt, "task/sample_id/turn".
        target: decodes the request, once per method.
        drafters: drafters of the methods, by label.
        request: the prompt, with its sampling.
        vanilla: the completion of the request by vanilla.
    """
    drafts: dict[str, Arrays] = {}  # by label: the arrays that the method's kind keeps
    is_reproduced = True  # False if a completion differs from `vanilla`
    is_sampled = not request.sampling.is_greedy
    # A recorder replaces the draws of a sampled draft by the answer's tokens. A captured graph
    # would repeat these tokens at later steps, so nothing is captured (`paused`).
    with target.execution.paused() if is_sampled else nullcontext():
        for label, drafter in drafters.items():
            kind = find_kind(str(drafter.profile))  # says what is stored of the drafts
            # a drafter that wraps the method's, and keeps the drafts in `arrays`
            recorder = kind.record(drafter, vanilla.token_ids)
            completion = decode(target, recorder, request)
            is_reproduced &= completion.token_ids == vanilla.token_ids
            drafts[label] = recorder.arrays
    if not is_reproduced:
        return None
    about = AnswerHeader(
        prompt=prompt,
        prompt_tokens=len(request.prompt_ids),
        num_tokens=len(vanilla.token_ids),
        limit=token_limit(target, request),  # most tokens that the answer could have had
        stop_reason=vanilla.stop_reason,
        sha256=ids_hash(request.prompt_ids, vanilla.token_ids),
    )
    return Answer(about, request.prompt_ids, vanilla.token_ids, drafts)


def _num_bytes(label: str, arrays: Arrays) -> int:
    """Compute the compressed size of a method's drafts along one answer, in bytes.

    Args:
        label: the method, for the error.
        arrays: the drafts: arrays by name, each with a row per position of the answer.

    Raises:
        UserError: the size is more than `MOST_POSITION_BYTES` per position, with `ZIP_BYTES` added
            for the parts that every file has.
    """
    num_bytes = len(profile_file.packed(arrays))
    num_positions = max((len(array) for array in arrays.values()), default=0)
    if num_positions and num_bytes > MOST_POSITION_BYTES * num_positions + ZIP_BYTES:
        per_position = num_bytes / num_positions
        message = f"{label} takes {per_position:,.0f} bytes per position, more than"
        hint = "Give a smaller top_k or depth, such as top_k=8,depth=5."
        raise UserError(f"{message} {MOST_POSITION_BYTES:,}.", hint)
    return num_bytes
