"""A stored run's model, loaded again: the prompts of its records, its logits and its methods.

Restores what a run was made with, and refuses anything else.
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
    LogitNumbers,
    TokenNumbers,
    logit_numbers,
    places,
    plain_logits,
    token_numbers,
    watched_evidence,
)
from specbench.audit.rule_cases import Outcomes, rule_outcomes
from specbench.engine.drafter import Drafter
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.tree import DraftTree
from specbench.errors import UserError, containing
from specbench.log.differences import REPLAY
from specbench.log.header import RunHeader
from specbench.log.options import options
from specbench.log.run import Run
from specbench.log.spec import SpecValues
from specbench.measure.base import Plan
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.methods import BASELINE
from specbench.measure.plan import make_plan
from specbench.measure.requests import make_chat, make_request, reply_key
from specbench.measure.spec import PAPER, RunSpec
from specbench.models.cards import DTYPES
from specbench.types import Record, RecordKey, Request, Sampling

_NO_SERVER = {one.name: one.default for one in options(SpecValues) if one.group == "server"}
"""The values of a run on servers, for the engine in this process."""
_RESTORE = "Restore them as they were, or make the run again."
_outcomes = cache(rule_outcomes)  # methods share their rules


class RunModel:
    """The target of a run with its methods or vanilla alone.

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
        asked = run.header.spec.asked or run.header.spec.values
        own = run.header.model.dtype
        values = structs.asdict(asked) | {
            "methods": asked.methods if has_methods else (BASELINE,),
            "is_baseline_run": True,
            "dtype": dtype or (own if own in DTYPES else "auto"),  # a server's is unknown
            "phases": False,
            "trace": False,
            "settings": PAPER,  # else those in the header
            **({"device": device, "execution": "auto"} if device else {}),
            **_NO_SERVER,
        }
        plan = make_plan(RunSpec(**values), is_offline=is_offline)
        assert isinstance(plan.setup, EngineSetup)
        _check_same(run.header, plan, plan.setup)
        self._plan, self._codec = plan, plan.setup.codec
        self._asked = RunSpec(**structs.asdict(asked))
        self._records = {record.key: record for record in run.records}
        self._first = next(iter(run.header.spec.values.methods), BASELINE)
        self._backend = EngineBackend(plan.setup, before=run.header).__enter__()
        self.target = self._backend.target
        self.dtype: str = plan.setup.dtype
        self.device = plan.setup.device.name

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The prompt tokens that a record answers.

        Raises:
            UserError: the prompt is not what it was.
        """
        key = record.key
        prompts = self._plan.prompts.get(key.task, ())
        prompt = next((one for one in prompts if one.sample_id == key.sample_id), None)
        if prompt is None:
            raise UserError(f"The prompt {key.sample_id} of the run is missing.", _RESTORE)
        ids = self._codec.render(make_chat(prompt.turns[: key.turn + 1], self._history(key)))
        if len(ids) != record.prompt_tokens:
            raise UserError(
                f"The prompt {key.sample_id} has {len(ids)} tokens now, and had "
                f"{record.prompt_tokens} in the run: prompts, template or tokenizer have changed.",
                _RESTORE,
            )
        return ids

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
        request = make_request(self._plan, self.prompt_ids(record), record.key.request)
        return replace(request, seed=record.seed)  # of a merged run, it was another repeat's

    @torch.inference_mode()
    @without_cudnn_attention()
    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """The target's logits [vocab] after these tokens, in one pass over all of them."""
        return self.target.prefill(token_ids).logits[0].double().cpu().numpy().copy()

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
        """Numbers about the tokens of a record. Unknown steps are empty."""
        ids, sampling = record.token_ids, self.sampling(record.key.temperature)
        logits = plain_logits(self.target, self.prompt_ids(record), ids)
        numbers = token_numbers(logits, ids, sampling)
        if 1 + sum(record.accept_lengths) != len(ids):
            return numbers
        return replace(numbers, depth=places(record.accept_lengths, ids, [])[0])

    @torch.inference_mode()
    @without_cudnn_attention()
    def chains(self, record: Record, num_rows: int) -> LogitNumbers:
        """Logits of chains of `num_rows` of a record's tokens, each after a clean prefill: off by
        rounding alone.
        """
        target, prompt_ids, ids = self.target, self.prompt_ids(record), record.token_ids
        reference, parts = plain_logits(target, prompt_ids, ids), []
        for start in range(0, len(ids) - num_rows, max(num_rows, len(ids) // 4)):
            target.prefill([*prompt_ids, *ids[:start]], num_new=num_rows)
            chain = torch.tensor(ids[start : start + num_rows], device=target.device)
            found = target.forward(DraftTree.chain(chain)).logits
            parts.append(logit_numbers(found, reference[start + 1 : start + 1 + num_rows]))
        target.cache.reset()
        return LogitNumbers.join(parts)

    def rule_outcomes(self, method: str, num_draws: int) -> Sequence[Outcomes]:
        """Outcomes of a method's acceptance rule on small trees with known probabilities."""
        with containing(f"The acceptance rule of {method!r}"):
            rule: Any = self.drafter(method).rule
            return _outcomes(rule, num_draws)

    def _history(self, key: RecordKey) -> list[Record]:
        """The replies to the turns before this one, as the run's `history` had them."""
        own = reply_key(self._asked, self._first, key)
        earlier = (self._records.get(replace(own, turn=turn)) for turn in range(key.turn))
        return [record for record in earlier if record is not None]


def _check_same(header: RunHeader, plan: Plan, setup: EngineSetup) -> None:
    """Refuse a model or prompts that are not the run's. A merged run's are of several runs."""
    prompts = () if header.origins else tuple(one.describe() for one in plan.prompt_sets)
    model = setup.describe().model if header.model.files else header.model  # of a server, unknown
    now = structs.replace(header, model=model, prompts=prompts)
    if found := REPLAY.conflicts(header, now):
        names = ", ".join(one.field for one in found)
        raise UserError(
            f"The model in {setup.path} or its prompts are not the run's: {names} differ.", _RESTORE
        )
