"""A stored run's model, loaded again: the prompts of its records, its logits and its methods.

Restores what a run was made with, and refuses anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench.audit.evidence import Evidence, LogitNumbers, TokenNumbers
    from specbench.audit.rule_cases import Outcomes
    from specbench.engine.accept import Rule

_NO_SERVER = {one.name: one.default for one in options(SpecValues) if one.group == "server"}
"""The values of a run on servers, for the engine in this process."""
_RESTORE = "Restore them as they were, or make the run again."


class Replay:
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
        values = structs.asdict(asked) | {
            "methods": asked.methods if has_methods else (BASELINE,),
            "is_baseline_run": True,
            "dtype": dtype or _own_dtype(run.header),
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
        self._prompts = {
            (task, prompt.sample_id): prompt
            for task, prompts in plan.prompts.items()
            for prompt in prompts
        }
        self._records = {record.key: record for record in run.records}
        self._first = next(iter(run.header.spec.values.methods), BASELINE)
        self._backend = EngineBackend(plan.setup, before=run.header).__enter__()
        self._outcomes: dict[Rule, Sequence[Outcomes]] = {}
        self.dtype, self.device = plan.setup.dtype, plan.setup.device.name

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The prompt tokens that a record answers.

        Raises:
            UserError: the prompt is not what it was.
        """
        key = record.key
        prompt = self._prompts.get((key.task, key.sample_id))
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

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """The target's logits [vocab] after these tokens, in one pass over all of them."""
        import torch

        from specbench.engine.layers.torch_attention import without_cudnn_attention

        with torch.inference_mode(), without_cudnn_attention():
            return self._backend.target.prefill(token_ids).logits[0].double().cpu().numpy()

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

    def watch(self, method: str, request: Request) -> Evidence:
        """A method's answer to a request, watched, with its numbers.

        Raises:
            SpecbenchError: the method fails.
        """
        from specbench.audit.evidence import watched_evidence

        with containing(f"Method {method!r}"):
            return watched_evidence(self._backend.target, self._backend.drafter(method), request)

    def token_numbers(self, record: Record) -> TokenNumbers:
        """Numbers about the tokens of a record."""
        from specbench.audit.evidence import answer_evidence

        return answer_evidence(
            self._backend.target,
            self.prompt_ids(record),
            record.token_ids,
            accept_lengths=record.accept_lengths,
            sampling=self.sampling(record.key.temperature),
        )

    def chains(self, record: Record, num_rows: int) -> LogitNumbers:
        """Logits of chains of `num_rows` of a record's tokens, each after a clean prefill."""
        from specbench.audit.evidence import chain_evidence

        prompt_ids = self.prompt_ids(record)
        return chain_evidence(self._backend.target, prompt_ids, record.token_ids, num_rows)

    def rule_outcomes(self, method: str, num_draws: int) -> Sequence[Outcomes]:
        """Outcomes of a method's acceptance rule on small trees; drawn once for each rule."""
        from specbench.audit.rule_cases import rule_outcomes

        rule = self._backend.drafter(method).rule
        if rule not in self._outcomes:
            with containing(f"The acceptance rule of {method!r}"):
                self._outcomes[rule] = rule_outcomes(rule, num_draws)
        return self._outcomes[rule]

    def _history(self, key: RecordKey) -> list[Record]:
        """The replies to the turns before this one, as the run's `history` had them."""
        own = reply_key(self._asked, self._first, key)
        earlier = (self._records.get(replace(own, turn=turn)) for turn in range(key.turn))
        return [record for record in earlier if record is not None]


def _own_dtype(header: RunHeader) -> str:
    """The run's dtype; that of a server is unknown, and the device's usual one stands in."""
    return header.model.dtype if header.model.dtype in DTYPES else "auto"


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
