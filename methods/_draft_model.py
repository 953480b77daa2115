"""A language model that drafts for another model with the same vocabulary."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.load import load_target
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, padded_size
from specbench.errors import UserError
from specbench.methods.shared.checkpoint import given_weights


class DraftModelDrafter(Drafter):
    """Drafts a chain with a language model that has its own cache."""

    has_chains = True

    def __init__(self, model: Target, vocab_size: int) -> None:
        """`vocab_size` is the target's."""
        self._model = model
        self._vocab_size = vocab_size
        self._num_rows = model.model.get_input_embeddings().num_embeddings
        self.num_positions = getattr(model.config, "max_position_embeddings", None) or 0
        head = getattr(model.model.get_output_embeddings(), "weight", None)
        if head is not None and not head.any():
            self.weights_notes = ("Its output layer is all zeros, so its drafts are useless.",)

    def start(self, state: State, prefill: Forward) -> None:
        self._model.crop(0)

    def missing_ids(self, state: State) -> Sequence[int]:
        """The committed tokens that the draft model has not read.

        Raises:
            UserError: one of them is beyond its embedding.
        """
        missing_ids = state.token_ids[self._model.cache.length :]
        if max(missing_ids, default=0) >= self._num_rows:
            raise UserError(
                f"The text has the token {max(missing_ids)}, and the draft model's embedding has "
                f"the rows 0 to {self._num_rows - 1}.",
                "Use a draft model with the target's vocabulary.",
            )
        return missing_ids

    def longest_chain(self, num_tokens: int) -> int:
        """Nodes of the longest chain in a completion of `num_tokens`."""
        raise NotImplementedError

    def trees_to_record(self, num_tokens: int, sampler: Sampler) -> Iterable[DraftTree]:
        """A chain of each padded size, up to the longest."""
        device = sampler.generator.device
        lengths = range(1, self.longest_chain(num_tokens) + 1)
        for size in sorted({padded_size(length) for length in lengths}):
            tokens = torch.zeros(size, dtype=torch.long, device=device)
            if size == 1:
                yield DraftTree.chain(tokens)
                continue
            logits = torch.zeros(size, self._vocab_size, dtype=self._model.dtype, device=device)
            if sampler.sampling.is_greedy:
                yield DraftTree.chain(tokens, scores=logits[0, :1])
            else:
                q = sampler.probs(logits)
                yield DraftTree.chain(tokens, q, q[0, :1])


def load_draft_model(method: str, context: BuildContext) -> Target:
    """The draft model of a method, in the target's dtype and execution.

    Raises:
        UserError: the method has no checkpoint.
        CheckpointError: the checkpoint does not load.
    """
    weights, target = given_weights(method, context), context.target
    return load_target(
        weights, dtype=target.dtype, device=target.device, execution=target.execution
    )


def fit_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """Cut or pad draft logits [..., draft vocabulary] to the size of the target's vocabulary."""
    num_missing = vocab_size - logits.shape[-1]  # negative: the last tokens are cut off
    return pad(logits, (0, num_missing), value=float("-inf"))
