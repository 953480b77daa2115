"""A language model that drafts for another one with the same vocabulary."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.engine.buckets import run_in_every_bucket
from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.load import load_target
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, padded_size
from specbench.methods._checkpoint import given_weights


class DraftModelDrafter(Drafter):
    """Drafts a chain with a language model that has its own cache."""

    pass_sizes: Iterable[int]
    """Numbers of tokens that a pass of the model may read."""

    def __init__(self, model: Target, vocab_size: int) -> None:
        """`vocab_size` is the target's."""
        self._model, self._vocab_size = model, vocab_size

    def start(self, state: State, prefill: Forward) -> None:
        self._model.crop(0)

    def longest_chain(self, num_tokens: int) -> int:
        """Nodes of the longest chain in a completion of `num_tokens`."""
        raise NotImplementedError

    def trees_to_record(self, num_tokens: int, sampler: Sampler) -> Iterable[DraftTree]:
        device, is_greedy = sampler.generator.device, sampler.sampling.is_greedy
        for size in sorted(set(map(padded_size, range(1, self.longest_chain(num_tokens) + 1)))):
            tokens = torch.zeros(size, dtype=torch.long, device=device)
            no_logits = torch.zeros(size, self._vocab_size, dtype=self._model.dtype, device=device)
            q = None if is_greedy or size == 1 else sampler.probs(no_logits)
            score = (no_logits if q is None else q)[0, :1]
            yield DraftTree.chain(tokens, q, None if size == 1 else score)

    def capture_graphs(self, num_tokens: int) -> None:
        for size in self.pass_sizes:
            tokens = torch.zeros(size, dtype=torch.long, device=self._model.device)
            run_in_every_bucket(self._model, DraftTree.chain(tokens), num_tokens)
        self._model.crop(0)


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
    """Draft logits [..., draft vocabulary], cut or padded to the target's padded vocabulary."""
    return pad(logits, (0, vocab_size - logits.shape[-1]), value=float("-inf"))
