"""The sampler of a request, which turns logits into distributions and draws tokens from them."""

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specbench.engine.layers.ops import TORCH, Ops
from specbench.engine.tree import padded_size
from specbench.types import Sampling


class Sampler:
    """Turns logits into distributions and tokens with transformers' logits processors."""

    def __init__(
        self, sampling: Sampling, device: torch.device, seed: int = 0, ops: Ops = TORCH
    ) -> None:
        self.sampling = sampling
        self._ops = ops
        self.generator = torch.Generator(device).manual_seed(seed)
        # Called in turn: a LogitsProcessorList would read their signatures at each call.
        self._processors: list[LogitsProcessor] = []
        if sampling.is_greedy:
            return
        if sampling.temperature != 1.0:
            self._processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            self._processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            self._processors.append(TopPLogitsWarper(sampling.top_p))

    def probs(self, logits: Tensor) -> Tensor:
        """The probabilities [rows, vocab] of tokens, given `logits` [rows, vocab].

        They are at least float32, because a softmax over a vocabulary does not sum to one in half
        precision.
        """
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        for processor in self._processors:
            scores = processor(None, scores)  # it needs no token ids
        return torch.softmax(scores, -1)

    def uniform(self, rows: int) -> Tensor:
        """Random float64 numbers [rows] in [0, 1). Padding a tree does not change them."""
        generator = self.generator
        numbers = torch.rand(
            padded_size(rows), dtype=torch.float64, device=generator.device, generator=generator
        )
        return numbers[:rows]

    def draw(self, probs: Tensor) -> Tensor:
        """Draw a token [rows] from each row of `probs` [rows, vocab]. Rows need not sum to one."""
        num_rows, vocab_size = probs.shape
        cdf = probs.double().cumsum(-1)
        total = cdf[:, -1:]
        thresholds = self.uniform(num_rows)[:, None] * total  # [rows, 1]
        token_ids = torch.searchsorted(cdf, thresholds, right=True).squeeze(-1)
        return token_ids.clamp_(max=vocab_size - 1)

    def draw_distinct(self, probs: Tensor, count: int) -> Tensor:
        """Draw tokens [rows, count] from each row of `probs`, in this order, without replacement.

        If fewer than `count` tokens of a row have a probability, other tokens fill the row.
        """
        # If each token waits for Exp(1) / p, the tokens that arrive first are drawn this way.
        times = torch.empty_like(probs, dtype=torch.float64)
        times.exponential_(generator=self.generator)
        return (probs / times).topk(count).indices

    def best_ids(self, logits: Tensor) -> Tensor:
        """The best token [rows] of each row of logits [rows, vocab]; the first of equal logits."""
        return self._ops.best_ids(logits)

    def pick(self, logits: Tensor) -> Tensor:
        """Choose the next token [rows] after `logits` [rows, vocab]: the best, or a drawn token."""
        if self.sampling.is_greedy:
            return self.best_ids(logits)
        return self.draw(self.probs(logits))
