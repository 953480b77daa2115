"""The decoding loop of all methods. Tokens are counted and cut only here."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.accept import Verdict, accept_path
from specbench.engine.clock import Clock, DeviceClock, Stopwatch
from specbench.engine.draft_check import CheckedStep, check_draft
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.target import Forward, Target
from specbench.engine.verify import verify
from specbench.errors import ContractFault, NonFiniteError, UserError, checked_seconds
from specbench.types import Completion, Request, Step, StopReason, TracedStep


class _TracedTree(NamedTuple):
    """A proposed tree on the device, with its accepted path. It is read after the last step."""

    parents: Tensor  # [nodes]
    log_probs: Tensor  # [nodes] log-probability of the path to each node; undefined for the root
    path: tuple[int, ...]

    def read(self) -> TracedStep:
        """Copy the tree to the host, which waits for the device."""
        log_probs = (0.0, *self.log_probs[1:].tolist())
        return TracedStep(tuple(self.parents.tolist()), log_probs, self.path)


@dataclass(frozen=True, slots=True)
class _StepLog:
    """The steps of a completion."""

    steps: list[Step] = field(default_factory=list)
    traced: list[_TracedTree] = field(default_factory=list)
    checked: list[CheckedStep] = field(default_factory=list)
    """Copies of steps, which are checked after the timed region."""


@torch.inference_mode()
@without_cudnn_attention()
def decode(
    target: Target,
    drafter: Drafter,
    request: Request,
    clock: Clock | None = None,
    stopwatch: Stopwatch | None = None,
    *,
    is_traced: bool = False,
    is_checked: bool = False,
    on_prefilled: Callable[[], None] | None = None,
) -> Completion:
    """Complete one request. `stopwatch` measures the phases of its steps.

    `is_traced` keeps the trees of drafters that set `log_probs`. `is_checked` checks every tree and
    verdict. Otherwise only eager steps on a CPU are checked: copies of them are kept on the host,
    and checked after the timed region. `on_prefilled` is called after the prefill, and not timed.

    Raises:
        UserError: the budget is not positive, or the prompt is empty or fills the context.
        NonFiniteError: logits are NaN or infinite.
        ClockError: the clock went back or stood still.
        ContractFault: the drafter breaks its contract (see `engine.draft_check`).
    """
    limit = token_limit(target, request)
    clock = clock or DeviceClock(target.device)
    watch = stopwatch or Stopwatch()
    execution = target.execution
    state = State(request, target.sampler(request.sampling, request.seed), limit)
    log = _StepLog()
    is_on_host = target.device.type == "cpu" and not execution.is_static
    with target.capture(drafter.needs), _naming_step(state, log.steps):
        prefill_begin_s = clock.now()
        prefill, is_done = _prefill(target, drafter, state)
        prefill_end_s = clock.now()
        decode_begin_s = prefill_end_s
        if on_prefilled:
            on_prefilled()
            decode_begin_s = clock.now()
        watch.start()
        draft_prefill_s: float | None = None
        if not is_done:
            drafter.start(state, prefill)
            draft_prefill_s = clock.now() - decode_begin_s if is_on_host else None
            _take_steps(
                target, drafter, state, watch, log,
                is_joined=execution.is_joined and stopwatch is None and not is_traced,
                is_traced=is_traced, is_checked=is_checked, is_copied=is_on_host or is_checked,
            )  # fmt: skip
        decode_end_s = clock.now()
    for step in log.checked:
        step.check(target.vocab_size)
    token_ids = tuple(state.token_ids[len(request.prompt_ids) :])
    completion = Completion(
        token_ids, stop_reason(request, token_ids), tuple(log.steps),
        checked_seconds(prefill_end_s - prefill_begin_s, "a prefill"),
        decode_end_s - decode_begin_s, watch.read(),
        trace=tuple(tree.read() for tree in log.traced), draft_prefill_s=draft_prefill_s,
    )  # fmt: skip
    checked_seconds(completion.least_s, "an answer")
    return completion


def _take_steps(
    target: Target, drafter: Drafter, state: State, watch: Stopwatch, log: _StepLog, *,
    is_joined: bool, is_traced: bool, is_checked: bool, is_copied: bool,
) -> None:  # fmt: skip
    """Take steps until the completion is over, and keep them in `log`.

    `is_traced` keeps trees. `is_checked` checks each draft at once, and `is_copied` keeps copies of
    steps for checks after the timed region. See `verify` for `is_joined`.
    """
    is_done = False
    while not is_done:
        tree = proposed = drafter.propose(state)
        if is_checked:
            check_draft(proposed, state, target.vocab_size)
        if not drafter.has_fixed_size:
            tree = proposed.padded(target.execution.num_nodes(proposed.num_nodes))
        watch.lap("draft")  # includes `observe` of the last step
        forward, verdict, accepted_path = verify(
            target, tree, drafter, state.sampler, watch, is_joined=is_joined
        )
        watch.lap("commit")
        if is_copied:
            log.checked.append(CheckedStep.read(state.pending, proposed, verdict))
        num_emitted, is_done = emit(state, verdict.token_ids, target.vocab_size)
        log.steps.append(Step(proposed.num_nodes, num_emitted))
        if is_traced and proposed.log_probs is not None:
            parents = proposed.layout.parents.clone()  # the next step overwrites both
            log.traced.append(_TracedTree(parents, proposed.log_probs.clone(), verdict.path))
        watch.lap("host")
        if not is_done:
            drafter.observe(state, StepResult(tree, forward, verdict, accepted_path))


@contextmanager
def _naming_step(state: State, steps: Sequence[Step]) -> Iterator[None]:
    """Name the step in the message of a `NonFiniteError` that the block raises."""
    try:
        yield
    except NonFiniteError as error:
        num_new = len(state.token_ids) - len(state.request.prompt_ids)
        where = f"step {len(steps) + 1}, after {num_new} tokens" if num_new else "the prefill"
        raise NonFiniteError(f"{error.message} in {where}.", error.hint) from None


def _prefill(target: Target, drafter: Drafter, state: State) -> tuple[Forward, bool]:
    """Run the prompt and emit the first token. Returns the target's outputs, and True if that token
    completes the request.

    The rule is applied as in a step whose tree is only the last token of the prompt.
    """
    prefill = target.prefill(state.request.prompt_ids, num_new=state.remaining)
    root = state.chain()
    chosen = accept_path(drafter.rule, root, prefill.logits, state.sampler, target.execution)
    verdict = Verdict.read(chosen)
    _, is_done = emit(state, verdict.token_ids, target.vocab_size)
    return prefill, is_done


def token_limit(target: Target, request: Request) -> int:
    """The most tokens that the request may produce: its budget, or what is left of the context."""
    if request.max_new_tokens < 1:
        raise UserError(
            f"A budget of {request.max_new_tokens} new tokens leaves nothing to measure.",
            "Give --max-new-tokens a positive number.",
        )
    num_left = target.context - len(request.prompt_ids)
    if not request.prompt_ids or num_left < 1:
        raise UserError(
            f"A prompt of {len(request.prompt_ids)} tokens cannot be completed by a model with a "
            f"context of {target.context}.",
            "Shorten the prompt, or use a model with a longer context.",
        )
    return min(request.max_new_tokens, num_left)


def emit(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Append the tokens of a step, up to the first EOS or the limit.

    Returns the number of appended tokens, and True if the completion is over.

    Raises:
        ContractFault: the acceptance rule emitted a token that is not in the vocabulary. Looking
            the token up on a GPU would make the GPU unusable for this process.
    """
    num_emitted = 0
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise ContractFault(
                f"The acceptance rule emitted token {token}, but the vocabulary has {vocab_size}."
            )
        state.append(token)
        num_emitted += 1
        if token in state.request.eos_ids or state.remaining == 0:
            return num_emitted, True
    return num_emitted, False


def stop_reason(request: Request, token_ids: tuple[int, ...]) -> StopReason:
    """The reason that a completion stopped. If the last allowed token is EOS, the reason is EOS."""
    if token_ids[-1] in request.eos_ids:
        return "eos"
    return "budget" if len(token_ids) == request.max_new_tokens else "length"
