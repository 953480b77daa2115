"""Medusa: heads on the last hidden state draft the next tokens independently of each other."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.accept import typical
from specbench.engine.drafter import BuildContext, Method, State
from specbench.engine.layers.weights import weight_bytes
from specbench.engine.target import Needs
from specbench.engine.tree import DraftTree
from specbench.engine.weight_files import names_of
from specbench.methods._features import PathDrafter
from specbench.methods._head_fields import one_value
from specbench.methods.shared.checkpoint import Checkpoint
from specbench.methods.shared.static_tree import StaticTree, TreeOptions, best_ids, ranks_of
from specbench.types import option

FILES = names_of("medusa")

_BLOCK = re.compile(r"(blocks\.(\d+)\.layers\.(\d+)\.)(weight|bias)")
_PROJECTION = re.compile(r"(lm_heads\.(\d+)\.)weight")
"""Keys of vLLM. The official ones are `{head}.{block}.linear.` and `{head}.{number of blocks}.`."""


@dataclass(frozen=True, slots=True)
class Options(TreeOptions):
    """Options of Medusa."""

    acceptance: Literal["lossless", "typical"] = option(
        "lossless", "typical: accept tokens that are likely enough (at T > 0; lossy)"
    )
    threshold: float = option(0.09, "typical: probability that is always accepted", min=0)
    alpha: float = option(0.3, "typical: share of exp(-entropy) that is accepted", min=0)
    weights: str = option("", "checkpoint, a folder or hub id")

    @property
    def is_lossless(self) -> bool:
        return self.acceptance == "lossless"


class Medusa(PathDrafter):
    """Drafts with heads on the last final hidden state (at t). Head i predicts token t + 2 + i.

    A head is a few blocks x + SiLU(W x + b) and a projection to the vocabulary. A node of the
    tree is a rank among the best tokens of the head of its depth. Its ancestors do not matter.

    Source: Cai et al. 2024, "Medusa"; behaviour checked against FasterDecoding/Medusa and
    Spec-Bench's copy of it.

    Deviation: only the heads that the tree needs are run, and only on the last accepted node.
    Officially they run on all nodes. Typical acceptance is not the default at T > 0. The numbers of
    heads and blocks are those of the tensors, because published configs are wrong about them.
    """

    needs = Needs(hidden=True)
    profile = "ranks"

    def __init__(self, options: Options, context: BuildContext) -> None:
        target = context.target
        checkpoint = Checkpoint("medusa", context, FILES)
        self.weights_layout = _use_official_keys(checkpoint)
        num_blocks = checkpoint.count(lambda i: f"0.{i}.linear.weight")
        num_heads = checkpoint.count(lambda i: f"{i}.{num_blocks}.weight")
        if num_heads == 0:
            raise checkpoint.error(f"lacks 0.{num_blocks}.weight")
        self._tree = StaticTree.load(options, target, max_depth=num_heads)
        self.tree_sizes = (self._tree.layout.num_nodes,)
        has_bias = self.weights_layout == "official" or "0.0.linear.bias" in checkpoint
        self._blocks, self._projections = self._read(checkpoint, num_heads, num_blocks, has_bias)
        depths = self._tree.layout.depths[1:]
        ranks = self._tree.ranks[1:]
        self._source = (depths - 1) * self._tree.num_candidates + ranks
        self._execution = target.execution
        self._ops = target.execution.ops
        if not options.is_lossless:
            self.rule = partial(typical, threshold=options.threshold, alpha=options.alpha)
        self._fill = target.execution.wrap(self._filled)

    def propose(self, state: State) -> DraftTree:
        tokens, scores = self._fill(*self._captured, *self._missing)
        return self._tree.filled(tokens, scores=scores)

    def _filled(
        self, hidden: Tensor, path: Tensor, token_ids: Tensor, last: Tensor
    ) -> tuple[Tensor, ...]:
        """The tree's tokens [nodes] and scores, after the path's last row of `hidden`."""
        root = token_ids.index_select(0, last)
        logits = self._logits(hidden, path, last)
        best = self._ops.topk_ids(logits, self._tree.num_candidates)  # [heads, candidates]
        draft_tokens = best.view(-1).index_select(0, self._source)
        return torch.cat([root, draft_tokens]), logits.gather(1, best[:, :1])

    def _logits(self, hidden: Tensor, path: Tensor, last: Tensor) -> Tensor:
        """Logits [heads, vocab] after the path's last row of `hidden` [n, hidden]."""
        inputs = hidden.index_select(0, path.index_select(0, last))  # [1, hidden]
        outputs = inputs.expand(self._projections.shape[0], -1)  # [heads, hidden]
        for weights, biases in self._blocks:
            outputs = outputs + silu(self._ops.project_each(outputs, weights, biases))
        return self._ops.project_each(outputs, self._projections)

    def ranks(self, state: State, token_ids: Sequence[int]) -> list[int]:
        path, _, last = self._missing
        (hidden,) = self._captured
        logits = self._logits(hidden, path, last)
        return ranks_of(token_ids, best_ids(self._ops, logits), len(logits))

    def bytes_read(self, num_nodes: int) -> float:
        return weight_bytes(*chain.from_iterable(self._blocks), self._projections)

    def _read(
        self, checkpoint: Checkpoint, num_heads: int, num_blocks: int, has_bias: bool
    ) -> tuple[list[tuple[Tensor, Tensor | None]], Tensor]:
        """Blocks and projections [heads, vocab, hidden] of the heads that the tree needs.

        A block is a weight [heads, hidden, hidden] and a bias [heads, hidden] or None.
        """
        target = checkpoint.target
        hidden, vocab = target.config.hidden_size, target.vocab_size

        def stacked(suffix: str, *shape: int) -> Tensor:
            """Stack this tensor of the heads that the tree needs. All heads must have it."""
            names = [f"{head}.{suffix}" for head in range(num_heads)]
            for name in names:
                checkpoint.expect(name, *shape)
            return checkpoint.stack(names[: len(self._tree.levels)], *shape)

        blocks = []
        for block in range(num_blocks):
            weights = stacked(f"{block}.linear.weight", hidden, hidden)
            biases = stacked(f"{block}.linear.bias", hidden) if has_bias else None
            blocks.append((weights, biases))
        projections = stacked(f"{num_blocks}.weight", vocab, hidden)
        for head, projection in enumerate(projections):
            checkpoint.note_zeros(f"{head}.{num_blocks}.weight", projection)
        self.weights_notes = checkpoint.close()
        return blocks, projections


def _use_official_keys(checkpoint: Checkpoint) -> str:
    """Give vLLM's keys their official names. Returns the name of the layout.

    Source: vLLM's model_executor/models/medusa.py. A draft vocabulary (`token_map`) and a
    projection that heads share (`lm_head`) are refused as unexpected tensors.
    """
    checkpoint.rename(("medusa_heads.", ""))
    blocks = [match for key in checkpoint if (match := _BLOCK.fullmatch(key))]
    if not blocks:
        return "official"
    num_blocks = 1 + max(int(match[3]) for match in blocks)
    projections = [match for key in checkpoint if (match := _PROJECTION.fullmatch(key))]
    official = {match[1]: f"{match[2]}.{match[3]}.linear." for match in blocks}
    official |= {match[1]: f"{match[2]}.{num_blocks}." for match in projections}
    checkpoint.rename(*official.items())
    sizes = {
        "truncated_vocab_size": checkpoint.config().get("truncated_vocab_size"),
        "the target's vocabulary is": checkpoint.target.vocab_size,
    }
    one_value(checkpoint, sizes)
    return "vLLM"


METHOD = Method(
    name="medusa",
    title="Medusa",
    summary="heads on the last hidden state draft the next tokens independently of each other",
    paper="Cai et al. 2024, Medusa: Simple LLM Inference Acceleration Framework",
    options=Options,
    build=Medusa,
    weights="medusa",
    head="medusa",
    paper_order=4,
    colour="#00A261",
)
