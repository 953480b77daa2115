"""PARD: a draft model that is trained to predict several tokens in one pass, through masks."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specbench.engine.buckets import run_in_every_bucket
from specbench.engine.drafter import BuildContext, Method, State
from specbench.engine.method_options import MethodOptions
from specbench.engine.model_parts import pass_bytes
from specbench.engine.tree import DraftTree, padded_size
from specbench.errors import CheckpointError
from specbench.methods._draft_model import DraftModelDrafter, fit_vocabulary, load_draft_model
from specbench.methods._parallel import chain_of, draw_chain
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of PARD."""

    num_tokens: int = option(12, "draft tokens per step", min=1)
    weights: str = option("", "draft model, a folder or hub id")

    def most_nodes(self) -> int:
        return self.num_tokens + 1


class Pard(DraftModelDrafter):
    """Drafts a chain in one pass of a small model with its own cache.

    The pass reads the tokens committed since the last pass, then a mask token for each further
    draft token. The mask token is `pard_token` of the model's config. The rows of mask tokens
    do not stay in the cache. Above temperature 0, draft tokens are drawn independently with
    the request's own settings: none depends on another.

    Source: An et al. 2025, "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model
    Adaptation"; behaviour checked against AMD-AGI/PARD, pard/pard_infer.py.

    Deviation: the official code drafts before the target's first token, ours after it. The
    official code has no temperature.
    """

    profile = "path"

    def __init__(self, options: Options, context: BuildContext) -> None:
        model = load_draft_model("pard", context)
        super().__init__(model, context.target.vocab_size)
        mask_id = getattr(model.config, "pard_token", None)
        if not isinstance(mask_id, int) or not 0 <= mask_id < model.vocab_size:
            raise CheckpointError(
                f"{context.weights} has no mask token for PARD: pard_token is {mask_id!r}, and the "
                f"vocabulary has {model.vocab_size} tokens.",
                "Use a draft model that was trained with PARD; its config.json has pard_token.",
            )
        self._num_tokens = count = options.num_tokens
        self._masks = torch.full((count - 1,), mask_id, device=model.device)
        missing_counts = range(1, count + 2)  # at most all draft tokens and the target's token
        self._pass_sizes = sorted({padded_size(n + count - 1) for n in missing_counts})

    def propose(self, state: State) -> DraftTree:
        """A chain from one pass over the missing tokens, then the masks."""
        model = self._model
        count = min(self._num_tokens, state.remaining - 1)
        if count < 1:
            return state.chain()
        if model.cache.length == 0:
            model.prefill(self.missing_ids(state)[:-1], num_new=state.remaining + self._num_tokens)
        missing = torch.tensor(self.missing_ids(state), device=model.device)
        num_missing = len(missing)
        logits = self._pass(torch.cat([missing, self._masks]))
        model.commit(range(num_missing))
        draft_logits = logits[num_missing - 1 : num_missing - 1 + count]
        draft_logits = fit_vocabulary(draft_logits, self._vocab_size)
        return chain_of(*draw_chain(missing[-1:], draft_logits, state.sampler))

    def _pass(self, tokens: Tensor) -> Tensor:
        """The draft model's logits [n, vocab] after each of `tokens` [n]."""
        chain = DraftTree.chain(tokens)
        size = self._model.execution.num_nodes(chain.num_nodes)
        return self._model.forward(chain.padded(size)).logits[: chain.num_nodes]

    def capture_graphs(self, num_tokens: int) -> None:
        for size in self._pass_sizes:
            tokens = torch.zeros(size, dtype=torch.long, device=self._model.device)
            read = partial(self._model.forward, DraftTree.chain(tokens))
            run_in_every_bucket(self._model, size, num_tokens, read)
        self._model.crop(0)

    def longest_chain(self, num_tokens: int) -> int:
        return 1 + self._num_tokens

    def bytes_read(self, num_nodes: int) -> float:
        return pass_bytes(self._model.model)


METHOD = Method(
    name="pard",
    title="PARD",
    summary="PARD: a small draft model proposes a chain in one pass, through mask tokens",
    paper="An et al. 2025, PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model",
    options=Options,
    build=Pard,
    weights="pard",
    head="model",
    is_default=False,
    colour="#15A4FC",
)
