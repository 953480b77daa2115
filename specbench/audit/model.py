"""Load the model of a stored run again, with its methods and the prompts of its records.

A model or prompts that differ from those of the run are refused.
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
from specbench.types import Record, Request, Sampling

_NO_SERVER = {
    declared.name: declared.default
    for declared in options(SpecValues)
    if declared.group == "server"
}
"""Default values of the server options, so that the engine in this process runs instead."""
_RESTORE = "Restore them as they were, or make the run again."
_outcomes = cache(rule_outcomes)  # several methods share a rule


class RunModel:
    """The target of a run, with its methods or with vanilla only.

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
        """Load the model of a run again, from a new plan of the run's options.

        Args:
            run: the run.
            dtype: name of the dtype to load the model in. None stands for the run's dtype, or for
                "auto" if the run's has no known name.
            device: name of the device. None stands for the run's option, which may be "auto".
            has_methods: True to load all methods of the run too; False for vanilla only.
            is_offline: download nothing.
        """
        # The requested options ("auto"). Older headers have only those in effect (`values`).
        asked_values = run.header.spec.asked or run.header.spec.values
        run_dtype = run.header.model.dtype
        if run_dtype not in DTYPES:  # a server may use a dtype that has no known name
            run_dtype = "auto"
        spec_values = structs.asdict(asked_values) | {
            "methods": asked_values.methods if has_methods else (BASELINE,),
            "is_baseline_run": True,  # vanilla is always loaded
            "until_ci": None,  # needs speedups, which a run of only vanilla does not have
            "dtype": dtype or run_dtype,
            # No option names the tokenizer's template, which the header of a merge has.
            "template": asked_values.template.replace("tokenizer", "auto"),
            "phases": False,  # an audit measures no times
            "trace": False,  # an audit does not need the confidence of drafts
            "settings": PAPER,  # replaced by the methods' options in the run (`before` below)
            **_NO_SERVER,
        }
        if device:  # another device may not support the run's execution mode
            spec_values |= {"device": device, "execution": "auto"}
        plan = make_plan(RunSpec(**spec_values), is_offline=is_offline)
        assert isinstance(plan.setup, EngineSetup)  # no option of a server is set
        _check_same(run.header, plan, plan.setup)  # raises if the model or the prompts differ
        self._plan = plan  # the prompts, and the sampling
        self._codec = plan.setup.codec  # renders chats as token ids
        # Turns a reply into a chat message without its reasoning. Older runs, whose header does not
        # say how chats became prompts (`chat` is None), sent back whole replies.
        self._message_of = self._codec.reply if run.header.model.chat else whole_reply
        # The next four decide which recorded replies are in the prompts of later turns.
        self._asked = RunSpec(**structs.asdict(asked_values))
        self._records = {record.key: record for record in run.records}
        self._first_passes = _first_passes(run.records)
        # The options need not name the methods of servers. The header lists them in order.
        methods = run.header.methods if run.header.servers else run.header.spec.values.methods
        self._first_method = next(iter(methods), BASELINE)
        # Stays open as long as this object is used. Because of `before`, methods get the options
        # that they had in the run.
        self._backend = EngineBackend(plan.setup, before=run.header).__enter__()
        self.target = self._backend.target
        self.dtype: str = plan.setup.dtype  # a name, like the device
        self.device = plan.setup.device.name

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The token ids of the prompt that a record answers: the chat up to the record's turn.

        Raises:
            UserError: the prompt is missing, or its number of tokens is not that of the run.
        """
        key = record.key  # has the task, the prompt (`sample_id`), and the turn, from 0
        prompts = self._plan.prompts.get(key.task, ())
        prompt_by_id = {prompt.sample_id: prompt for prompt in prompts}
        if key.sample_id not in prompt_by_id:
            raise UserError(f"The prompt {key.sample_id} of the run is missing.", _RESTORE)
        user_texts = prompt_by_id[key.sample_id].turns[: key.turn + 1]  # up to this turn
        chat = make_chat(user_texts, self._history(record), self._message_of)
        prompt_ids = self._codec.render(chat)
        if len(prompt_ids) != record.prompt_tokens:
            raise UserError(
                f"The prompt {key.sample_id} has {len(prompt_ids)} tokens now, but had "
                f"{record.prompt_tokens} in the run: prompts, template or tokenizer have changed.",
                _RESTORE,
            )
        return prompt_ids

    def drafter(self, method: str) -> Drafter:
        """The drafter of a method, which is spelled as in records."""
        return self._backend.drafters[method]

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        """The tokens of a method's completion of a request."""
        return self._backend.complete(method, request).token_ids

    def sampling(self, temperature: float) -> Sampling:
        """The run's sampling settings at a temperature."""
        return self._plan.spec.sampling(temperature)

    def request(self, record: Record) -> Request:
        """The request that a record answers, with its seed. Raises the errors of `prompt_ids`."""
        request = make_request(self._plan.work, self.prompt_ids(record), record.key.request)
        # A seed made from `repeat` would be wrong, since a merge renumbers repeats.
        return replace(request, seed=record.seed)

    @torch.inference_mode()
    @without_cudnn_attention()
    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """The target's logits [vocab] after these tokens, from one pass over all of them."""
        with self.target.execution.paused():  # captured graphs would pad the tokens
            logits = self.target.prefill(token_ids).logits[0]
        return logits.double().cpu().numpy().copy()

    def watch(self, method: str, request: Request) -> Evidence:
        """Complete a request with a method while its drafter is watched.

        Raises:
            SpecbenchError: the method fails.
        """
        with containing(f"Method {method!r}"):
            return watched_evidence(self.target, self.drafter(method), request)

    @torch.inference_mode()
    @without_cudnn_attention()
    def token_numbers(self, record: Record) -> TokenNumbers:
        """Numbers about the tokens of a record. Its drafts are not known (`has_draft` is UNKNOWN).

        If the recorded steps do not add up to all tokens, depths except the first are UNKNOWN too.
        """
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
        """Measure how far rounding moves the logits of steps over `num_rows` tokens.

        After a prefill of all earlier tokens, a step computes a chain of tokens of the record's
        answer. The step's logits are compared with one plain forward of the model over prompt and
        answer. A few chains are spread over the answer. An answer that is not longer than a chain
        gives no numbers.
        """
        target = self.target
        prompt_ids = self.prompt_ids(record)
        token_ids = record.token_ids
        # logits before each token of the answer [tokens, vocab]
        plain_rows = plain_logits(target, prompt_ids, token_ids)
        numbers_of_chains = []
        stride = max(num_rows, len(token_ids) // 4)  # tokens from one chain's start to the next
        for start in range(0, len(token_ids) - num_rows, stride):
            end = start + num_rows
            # `num_new` reserves room in the cache for the chain.
            target.prefill([*prompt_ids, *token_ids[:start]], num_new=num_rows)
            chain_ids = torch.tensor(token_ids[start:end], device=target.device)
            logits = target.forward(DraftTree.chain(chain_ids)).logits  # after each token
            # The logits after a token are those before the next token (+ 1).
            numbers_of_chains.append(logit_numbers(logits, plain_rows[start + 1 : end + 1]))
        target.cache.reset()
        return LogitNumbers.join(numbers_of_chains)

    def rule_outcomes(self, method: str, num_draws: int) -> Sequence[Outcomes]:
        """Outcomes of a method's acceptance rule on small trees with known probabilities."""
        with containing(f"The acceptance rule of {method!r}"):
            rule: Any = self.drafter(method).rule
            return _outcomes(rule, num_draws)

    def _history(self, record: Record) -> list[Record]:
        """The recorded replies to earlier turns that the prompt of this record contains."""
        key, first_pass = record.key, self._first_passes[_prompt_of(record)]
        key_in_run = replace(key, repeat=key.repeat - first_pass)  # as it was before a merge
        replies_key = reply_key(self._asked, self._first_method, key_in_run)
        merged_key = replace(replies_key, repeat=replies_key.repeat + first_pass)
        replies = (self._records.get(replace(merged_key, turn=turn)) for turn in range(key.turn))
        return [reply for reply in replies if reply is not None]


def _first_passes(records: Sequence[Record]) -> dict[tuple[str, str, str], int]:
    """The number of the first pass over each prompt (`_prompt_of`) of a run. It is 0 without a
    merge, which numbers the passes of its runs consecutively.
    """
    last_first = sorted(records, key=lambda record: -record.key.repeat)
    return {_prompt_of(record): record.key.repeat for record in last_first}


def _prompt_of(record: Record) -> tuple[str, str, str]:
    """The run that a record comes from (empty if it was not merged), its task and its prompt."""
    return record.origin, record.key.task, record.key.sample_id


def _check_same(header: RunHeader, plan: Plan, setup: EngineSetup) -> None:
    """Refuse a model or prompts that are not those of the run.

    Two things are not compared: the prompts of a merged run, which come from several runs, and a
    model whose files are unknown, such as a server's.

    Args:
        header: the run's header, with its model and a description of each task's prompts.
        plan: the new plan, with the prompts as they are now.
        setup: the setup of the engine, with the model as it is now.

    Raises:
        UserError: the model or the prompts differ.
    """
    prompts_now = header.prompts
    if not header.origins:  # the run was not merged from several runs
        prompts_now = tuple(prompt_set.describe() for prompt_set in plan.prompt_sets)
    model_now = setup.describe().model if header.model.files else header.model
    header_now = structs.replace(header, model=model_now, prompts=prompts_now)
    conflicts = REPLAY.conflicts(header, header_now)  # fields that must be equal and are not
    if conflicts:
        names = ", ".join(conflict.field for conflict in conflicts)
        raise UserError(
            f"The model in {setup.path} or its prompts differ from the run's: {names}.", _RESTORE
        )
