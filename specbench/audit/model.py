"""A stored run's model, loaded again: the prompts of its records, its logits and its methods.

The module restores the state of the run, and refuses anything else.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from msgspec import structs

from specbench.analysis.stats.arrays import FloatArray
from specbench.audit.evidence import (
    Evidence,
    logit_numbers,
    numbers_in_steps,
    token_numbers,
    watched_evidence,
)
from specbench.audit.numbers import LogitNumbers, TokenNumbers
from specbench.audit.reference import plain_logits
from specbench.audit.rule_cases import Outcomes, rule_outcomes
from specbench.engine.drafter import Drafter
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.tree import DraftTree
from specbench.errors import UserError, containing
from specbench.log.header import RunHeader
from specbench.log.options import options
from specbench.log.policies import REPLAY
from specbench.log.run import Run
from specbench.log.spec import SpecValues
from specbench.measure.base import Plan
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.methods import BASELINE
from specbench.measure.plan import make_plan
from specbench.measure.requests import make_chat, make_request, reply_key, whole_reply
from specbench.measure.spec import PAPER, RunSpec
from specbench.models.cards import DTYPES
from specbench.types import Record, RecordKey, Request, Sampling

_NO_SERVER = {
    declared.name: declared.default
    for declared in options(SpecValues)
    if declared.group == "server"
}
"""Defaults of the options of servers, with which the engine in this process runs instead."""
_RESTORE = "Restore them as they were, or make the run again."
_outcomes = cache(rule_outcomes)  # methods share their rules


class RunModel:
    """The target of a run, with its methods or with vanilla alone.

    `dtype` and `device` are the run's own unless they are given.

    Raises:
        UserError: the model, its drafters or the prompts are missing or have changed.
    """

    def __init__(
        self,
        run: Run,
        *,
        dtype: str | None = None,
        device: str | None = None,
        has_methods: bool,
        is_offline: bool = False,
    ) -> None:
        """Load the model of a run with all its methods or, without `has_methods`, vanilla alone.

        The run's own specification is planned again, with the changes that an audit needs. `dtype`
        and `device` are the run's unless given. With `is_offline` nothing is downloaded. In a
        header, `spec.values` are the options in effect, and `spec.asked` the options as they were
        asked for, before `auto` and the like were resolved; None if it lacks them.
        """
        asked_values = run.header.spec.asked or run.header.spec.values
        run_dtype = run.header.model.dtype
        if run_dtype not in DTYPES:  # names of known dtypes; a server's is unknown
            run_dtype = "auto"
        spec_values = structs.asdict(asked_values) | {
            "methods": asked_values.methods if has_methods else (BASELINE,),
            "is_baseline_run": True,
            "dtype": dtype or run_dtype,
            "phases": False,
            "trace": False,
            "settings": PAPER,  # `before` gives the run's options: none is chosen anew
            **_NO_SERVER,  # the defaults of the options of servers
        }
        if device:  # the run's way of execution may not be possible there
            spec_values |= {"device": device, "execution": "auto"}
        # What is to be run: the prompts, the methods, and the model to load (`setup`).
        plan = make_plan(RunSpec(**spec_values), is_offline=is_offline)
        assert isinstance(plan.setup, EngineSetup)
        _check_same(run.header, plan, plan.setup)  # model and prompts must be those of the run
        self._plan = plan
        self._codec = plan.setup.codec  # of chats and token ids
        # Older runs sent answers back with their reasoning.
        self._message_of = self._codec.reply if run.header.model.chat else whole_reply
        # Options, records and first method give the replies to earlier turns of a chat.
        self._asked = RunSpec(**structs.asdict(asked_values))
        self._records = {record.key: record for record in run.records}
        # The header lists servers in their order. No option names the methods of running servers.
        methods = run.header.methods if run.header.servers else run.header.spec.values.methods
        self._first_method = next(iter(methods), BASELINE)
        # Open for as long as this object is used; `before` is the run whose choices are kept.
        self._backend = EngineBackend(plan.setup, before=run.header).__enter__()
        self.target = self._backend.target
        self.dtype: str = plan.setup.dtype
        self.device = plan.setup.device.name

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The prompt tokens that a record answers.

        A record's key names the task, the prompt (`sample_id`) and the turn of the chat, from 0.

        Raises:
            UserError: the prompt has changed.
        """
        key = record.key
        prompts = self._plan.prompts.get(key.task, ())  # of the task
        prompt_by_id = {prompt.sample_id: prompt for prompt in prompts}
        if key.sample_id not in prompt_by_id:
            raise UserError(f"The prompt {key.sample_id} of the run is missing.", _RESTORE)
        # The chat up to this turn, with the recorded replies to the turns before (`_history`).
        user_turns = prompt_by_id[key.sample_id].turns[: key.turn + 1]  # texts
        chat = make_chat(user_turns, self._history(key), self._message_of)
        prompt_ids = self._codec.render(chat)
        if len(prompt_ids) != record.prompt_tokens:  # their number in the run
            raise UserError(
                f"The prompt {key.sample_id} has {len(prompt_ids)} tokens now, and had "
                f"{record.prompt_tokens} in the run: prompts, template or tokenizer have changed.",
                _RESTORE,
            )
        return prompt_ids

    def drafter(self, method: str) -> Drafter:
        """The drafter of a method, as records spell it."""
        return self._backend.drafters[method]

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        """The tokens with which a method, as records spell it, completes a request."""
        return self._backend.complete(method, request).token_ids

    def sampling(self, temperature: float) -> Sampling:
        """The run's sampling at a temperature."""
        return self._plan.spec.sampling(temperature)

    def request(self, record: Record) -> Request:
        """The request that a record answers, with its seed; errors as for `prompt_ids`."""
        request = make_request(self._plan.work, self.prompt_ids(record), record.key.request)
        return replace(request, seed=record.seed)  # a merged run counts repeats anew

    @torch.inference_mode()
    @without_cudnn_attention()
    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """The target's logits [vocab] after these tokens, in one pass over all of them."""
        with self.target.execution.paused():  # not padded, as prompts of captured graphs are
            logits = self.target.prefill(token_ids).logits[0]
        return logits.double().cpu().numpy().copy()

    def watch(self, method: str, request: Request) -> Evidence:
        """A method's answer to a request, watched, with its numbers.

        Raises:
            SpecbenchError: the method fails.
        """
        with containing(f"Method {method!r}"):
            return watched_evidence(self.target, self.drafter(method), request)

    @torch.inference_mode()
    @without_cudnn_attention()
    def token_numbers(self, record: Record) -> TokenNumbers:
        """Numbers about the tokens of a record. Depths are unknown if no steps are recorded."""
        token_ids = record.token_ids
        logits = plain_logits(self.target, self.prompt_ids(record), token_ids)
        numbers = token_numbers(logits, token_ids, self.sampling(record.key.temperature))
        if 1 + sum(record.accept_lengths) != len(token_ids):
            return numbers
        in_steps = numbers_in_steps(record.accept_lengths, token_ids, trees=[])
        return replace(numbers, depth=in_steps.depth)

    @torch.inference_mode()
    @without_cudnn_attention()
    def chains(self, record: Record, num_rows: int) -> LogitNumbers:
        """Numbers about logits of chains of `num_rows` tokens, which differ by rounding alone.

        About four chains of the record's tokens are spread over its answer, each after a clean
        prefill. Their logits are compared with one plain forward of the model over prompt and
        answer.
        """
        target = self.target
        prompt_ids = self.prompt_ids(record)
        token_ids = record.token_ids
        plain_rows = plain_logits(target, prompt_ids, token_ids)  # [tokens, vocab]
        deviations = []  # of each chain: numbers about its rows
        stride = max(num_rows, len(token_ids) // 4)  # tokens from one chain's start to the next
        for start in range(0, len(token_ids) - num_rows, stride):
            end = start + num_rows
            # `num_new` reserves room in the cache for the chain.
            target.prefill([*prompt_ids, *token_ids[:start]], num_new=num_rows)
            chain_ids = torch.tensor(token_ids[start:end], device=target.device)
            logits = target.forward(DraftTree.chain(chain_ids)).logits
            # Row i of plain_rows stands before token i, a chain's row after its token.
            deviations.append(logit_numbers(logits, plain_rows[start + 1 : end + 1]))
        target.cache.reset()
        return LogitNumbers.join(deviations)

    def rule_outcomes(self, method: str, num_draws: int) -> Sequence[Outcomes]:
        """Outcomes of a method's acceptance rule on small trees with known probabilities."""
        with containing(f"The acceptance rule of {method!r}"):
            rule: Any = self.drafter(method).rule
            return _outcomes(rule, num_draws)

    def _history(self, key: RecordKey) -> list[Record]:
        """The replies to the turns before this one, as the run's `history` had them."""
        replies_key = reply_key(self._asked, self._first_method, key)
        replies = (self._records.get(replace(replies_key, turn=turn)) for turn in range(key.turn))
        return [record for record in replies if record is not None]


def _check_same(header: RunHeader, plan: Plan, setup: EngineSetup) -> None:
    """Refuse a model or prompts that are not the run's.

    `header` is the run's. It is compared with a copy that describes the model of `setup` and the
    prompts of `plan`, which were loaded again. The prompts of a merged run come from several runs,
    and are not compared. Prompts are described by a hash per task.
    """
    prompt_descriptions = header.prompts
    if not header.origins:  # the run was not merged from several
        prompt_descriptions = tuple(prompt_set.describe() for prompt_set in plan.prompt_sets)
    # A model without known files, such as a server's, is not compared.
    model_now = setup.describe().model if header.model.files else header.model
    header_now = structs.replace(header, model=model_now, prompts=prompt_descriptions)
    conflicts = REPLAY.conflicts(header, header_now)  # fields that must be equal and are not
    if conflicts:
        names = ", ".join(difference.field for difference in conflicts)
        raise UserError(
            f"The model in {setup.path} or its prompts are not the run's: {names} differ.", _RESTORE
        )
