"""The sampler of a request: it turns logits into distributions, and draws tokens from them."""

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
        """Probabilities [rows, vocab] that tokens are drawn from, for `logits` [rows, vocab].

        At least float32: in half precision a softmax over a vocabulary does not sum to one.
        """
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        for processor in self._processors:
            scores = processor(None, scores)  # it needs no token ids
        return torch.softmax(scores, -1)

    def uniform(self, rows: int) -> Tensor:
        """Random numbers [rows] in [0, 1), float64. Padding a tree does not change them."""
        generator = self.generator
        numbers = torch.rand(
            padded_size(rows), dtype=torch.float64, device=generator.device, generator=generator
        )
        return numbers[:rows]

    def draw(self, probs: Tensor) -> Tensor:
        """One token [rows] per row of `probs` [rows, vocab], whose rows need not sum to one."""
        num_rows, vocab_size = probs.shape
        cdf = probs.double().cumsum(-1)
        total = cdf[:, -1:]
        thresholds = self.uniform(num_rows)[:, None] * total  # [rows, 1]
        token_ids = torch.searchsorted(cdf, thresholds, right=True).squeeze(-1)
        return token_ids.clamp_(max=vocab_size - 1)

    def draw_distinct(self, probs: Tensor, count: int) -> Tensor:
        """Tokens [rows, count], drawn in this order without replacement from each row.

        A row with fewer than `count` tokens of nonzero probability is filled with other tokens.
        """
        # With waiting times Exp(1) / p, the first tokens to arrive are such a draw.
        times = torch.empty_like(probs, dtype=torch.float64)
        times.exponential_(generator=self.generator)
        return (probs / times).topk(count).indices

    def best_ids(self, logits: Tensor) -> Tensor:
        """The best token [rows] of logits [rows, vocab]; of equal logits, the first."""
        return self._ops.best_ids(logits)

    def pick(self, logits: Tensor) -> Tensor:
        """The next token [rows] after `logits` [rows, vocab]: the best one, or a drawn one."""
        if self.sampling.is_greedy:
            return self.best_ids(logits)
        return self.draw(self.probs(logits))
