"""A stored run's model, loaded again: the prompts its records answer, its logits and its methods.

Knows how to get back what a run was made with, and refuses anything else. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.bench.contestants import BASELINE
from specbench.bench.plan import Plan, make_plan
from specbench.bench.runner import chat_until
from specbench.bench.session import build_completers, build_drafters, load_model
from specbench.bench.spec import RunSpec
from specbench.bench.store import StoredRun
from specbench.errors import RunFolderError, UserError
from specbench.types import Record, Request, SampleKey, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ASK_AGAIN = "Restore them as they were, or make the run again."


class Replay:
    """The target of a run, in `dtype` or the run's own, with its methods or vanilla alone.

    Raises:
        UserError: the model, its drafters or the prompts are gone or are others now.
    """

    def __init__(
        self, run: StoredRun, *, dtype: str | None, has_methods: bool, is_offline: bool = False
    ) -> None:
        spec = _spec(run, dtype, has_methods)
        self._plan = make_plan(spec, is_offline=is_offline)
        _check_same(run.header, self._plan)
        self._prompts = {
            (task, prompt.sample_id): prompt
            for task, prompts in self._plan.prompts.items()
            for prompt in prompts
        }
        self._records = {record.key: record for record in run.records}
        self._first = next(iter(run.header["spec"]["values"].get("methods", ())), BASELINE)
        self._target = load_model(self._plan.setup)
        drafters = build_drafters(self._target, self._plan.setup.contestants)
        self._completers = build_completers(self._target, drafters)

    @property
    def dtype(self) -> str:
        """What the target computes in."""
        return self._plan.setup.dtype

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The prompt tokens that a record answers.

        Raises:
            UserError: the prompt is not what it was.
        """
        key = record.key
        prompt = self._prompts.get((key.task, key.sample_id))
        if prompt is None:
            raise UserError(f"The prompt {key.sample_id} of the run is gone.", _ASK_AGAIN)
        chat = chat_until(prompt.turns[: key.turn + 1], self._heard_by(key))
        ids = self._plan.setup.codec.render(chat)
        if len(ids) != record.prompt_tokens:
            raise UserError(
                f"The prompt {key.sample_id} has {len(ids)} tokens now, and had "
                f"{record.prompt_tokens} in the run: prompts, template or tokenizer have changed.",
                _ASK_AGAIN,
            )
        return ids

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """The target's logits [vocab] behind these tokens, in one pass over all of them."""
        import torch

        with torch.inference_mode():
            return self._target.prefill(token_ids).logits[0].double().cpu().numpy()

    def entropies(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling
    ) -> NDArray[np.float64]:
        """How open each of the tokens [tokens] behind the prompt was, in nats, given those before.

        In one pass, as the nodes of a chain.
        """
        import torch

        from specbench.engine.accept import Sampler
        from specbench.engine.tree import DraftTree

        target = self._target
        with torch.inference_mode():
            rows = [target.prefill(prompt_ids).logits.clone()]  # a forward may reuse its place
            if len(token_ids) > 1:
                chain = torch.tensor(token_ids[:-1], device=target.device)
                rows.append(target.forward(DraftTree.chain(chain)).logits)
            probs = Sampler(sampling, target.device, seed=0).probs(torch.cat(rows))
            return torch.special.entr(probs).sum(-1).double().cpu().numpy()

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        """The tokens with which a method, as records call it, completes a request."""
        return self._completers[method](request).token_ids

    def sampling(self, temperature: float) -> Sampling:
        """How the run picked tokens at a temperature."""
        return self._plan.spec.sampling(temperature)

    def _heard_by(self, key: SampleKey) -> list[Record]:
        """The answers to the turns before this one, as the run's `history` had them."""
        is_shared = self._plan.spec.history == "shared"
        speaker = replace(key, method=self._first) if is_shared else key
        earlier = (self._records.get(replace(speaker, turn=turn)) for turn in range(key.turn))
        return [record for record in earlier if record is not None]


def _spec(run: StoredRun, dtype: str | None, has_methods: bool) -> RunSpec:
    try:
        spec = RunSpec.from_json(run.header["spec"]["asked"])
        own_dtype = str(run.header["model"]["dtype"])
    except (KeyError, TypeError) as error:
        raise RunFolderError(
            f"The header of {run.path} does not say how the run was made ({error} is missing).",
            "Audit a run as `specbench run` wrote it.",
        ) from error
    methods = spec.methods if has_methods else (BASELINE,)
    return replace(
        spec, methods=methods, is_baseline_run=True, dtype=dtype or own_dtype, phases=False
    )


def _check_same(header: Mapping[str, Any], plan: Plan) -> None:
    """Refuse a model or prompts that are not the run's."""
    files, now = header["model"].get("files"), plan.setup.describe().get("files")
    if files and now:
        changed = sorted(name for name in {*files, *now} if files.get(name) != now.get(name))
        if changed:
            raise UserError(
                f"The model in {plan.setup.path} is not the run's: {', '.join(changed)} differ.",
                _ASK_AGAIN,
            )
    hashes = {one["task"]: one["sha256"] for one in header.get("prompts", ())}
    for one in plan.prompt_sets:
        if hashes.get(one.task.name, one.sha256) != one.sha256:
            raise UserError(f"The prompts of {one.task.name} are not the run's.", _ASK_AGAIN)
