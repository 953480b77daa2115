"""Speculative sampling with a separate draft model, the chain length set by a schedule."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from specbench.engine.drafter import BuildContext, Drafter, Method, Outcome, State
from specbench.engine.load import load_target
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.engine.weights import pass_bytes
from specbench.errors import UserError


@dataclass(frozen=True, slots=True)
class Options:
    """Options of speculative sampling."""

    num_tokens: int = field(
        default=5, metadata={"help": "draft tokens in the first step", "min": 1}
    )
    schedule: Literal["heuristic", "constant"] = field(
        default="heuristic",
        metadata={"help": "heuristic: two more after a fully accepted draft, else one less"},
    )
    weights: str = field(default="", metadata={"help": "draft model, a folder or hub id"})


class SpeculativeSampling(Drafter):
    """Drafts a chain with a small model that keeps its own cache.

    The draft model runs ahead of the target; a step begins by cropping its cache to what the
    target has committed and feeding what is missing, which covers rejection and full acceptance
    alike. The draft is drawn with the request's own sampling.

    Source: Leviathan et al. 2023; the heuristic schedule is that of transformers' assisted
    generation, which Spec-Bench runs as SpS.

    Deviation: a draft is not ended at EOS; what follows EOS is cut by the engine all the same.
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        if context.weights is None:
            raise UserError(
                "sps has no draft model for this target.",
                "Name one: --method sps:weights=DIR_OR_HUB_ID",
            )
        target = context.target
        self._options = options
        self._model = load_target(
            context.weights, dtype=target.dtype, device=target.device, execution=target.execution
        )
        self._vocab_size = target.vocab_size
        self._num_tokens = options.num_tokens

    def start(self, state: State, prefill: Forward) -> None:
        self._num_tokens = self._options.num_tokens
        self._model.crop(0)

    def propose(self, state: State) -> DraftTree:
        model, sampler = self._model, state.sampler
        model.crop(min(model.cache.length, state.num_committed))
        feed = torch.tensor(state.token_ids[model.cache.length :], device=model.device)
        tokens = [feed[-1:]]
        rows: list[torch.Tensor] = []
        for _ in range(min(self._num_tokens, state.room - 1)):
            logits = self._fit(model.extend(feed))
            if sampler.sampling.is_greedy:
                feed = logits.argmax(-1, keepdim=True)
            else:
                rows.append(sampler.probs(logits[None])[0])
                feed = sampler.draw(rows[-1][None])
            tokens.append(feed)
        q = torch.stack([torch.zeros_like(rows[0]), *rows]) if rows else None
        return DraftTree.chain(torch.cat(tokens), q)

    def observe(self, state: State, outcome: Outcome) -> None:
        if self._options.schedule == "heuristic":
            if outcome.verdict.num_accepted == self._num_tokens:
                self._num_tokens += 2
            else:
                self._num_tokens = max(1, self._num_tokens - 1)

    def bytes_read(self, num_nodes: float) -> float:
        return pass_bytes(self._model.model) * (num_nodes - 1)  # a pass a guess

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """Cut or pad draft logits [vocab] to the target's padded vocabulary."""
        missing = self._vocab_size - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))


METHOD = Method(
    name="sps",
    title="SpS",
    summary="speculative sampling: a small draft model proposes a chain",
    paper="Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding",
    options=Options,
    build=SpeculativeSampling,
    weights="sps",
)
