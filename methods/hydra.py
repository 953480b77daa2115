"""Hydra: Medusa's heads made sequential; each reads the tokens drafted before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from specbench.engine.drafter import BuildContext, Method, State
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.layers.weights import weight_bytes
from specbench.engine.target import Forward, Needs, Target
from specbench.engine.tree import DraftTree, padded_path_length
from specbench.engine.weight_files import names_of
from specbench.methods._draft_stack import DraftStack, layer_config, rms_norm
from specbench.methods._features import PathDrafter
from specbench.methods.shared.checkpoint import Checkpoint
from specbench.methods.shared.static_tree import StaticTree, TreeOptions, best_ids, ranks_of
from specbench.types import option

FILES = names_of("hydra")
ARCHITECTURES = ("mlp", "prefix-mlp")
_PREFIX = "prefix_embeding_layer"  # the spelling of the format


@dataclass(frozen=True, slots=True)
class Options(TreeOptions):
    """Options of Hydra."""

    weights: str = option("", "checkpoint, a folder or hub id")


class Head:
    """Head i: an MLP over [hidden ; embeddings of the root and i draft tokens], and a projection.

    The first block is res(x) + SiLU(W x + b). Its two matrices are joined. Later blocks are
    x + SiLU(W x + b).
    """

    def __init__(
        self, checkpoint: Checkpoint, index: int, blocks: list[str], projection: str, target: Target
    ) -> None:
        hidden = target.config.hidden_size
        size = (index + 2) * hidden
        first_block, *later_blocks = (f"hydra_mlp.{index}.{block}" for block in blocks)
        names = [f"{first_block}.linear", f"{first_block}.res_connection"]
        weights = [checkpoint.take(f"{name}.weight", hidden, size) for name in names]
        biases = [checkpoint.take(f"{name}.bias", hidden) for name in names]
        self._weight = torch.cat(weights)
        self._bias = torch.cat(biases)
        self._later = [
            checkpoint.linear(f"{block}.linear", hidden, hidden, bias=True)
            for block in later_blocks
        ]
        self._ops = target.execution.ops
        name = f"hydra_lm_head.{index}{projection}"
        self._projection = checkpoint.linear(name, hidden, target.vocab_size, bias=True)
        checkpoint.note_zeros(f"{name}.weight", self._projection.weight)

    @property
    def num_bytes(self) -> int:
        """Bytes of the head's weights."""
        return weight_bytes(self._weight, self._bias, *self._later, self._projection)

    def logits(self, inputs: Tensor) -> Tensor:
        """The logits [n, vocab] of the next token, given `inputs` [n, (i + 2) * hidden]."""
        project = self._ops.project
        gated, residual = project(inputs, self._weight, self._bias).chunk(2, -1)
        out = residual + silu(gated)
        for block in self._later:
            out = out + silu(project(out, block.weight, block.bias))
        return project(out, self._projection.weight, self._projection.bias)


class Prefix:
    """Hydra++'s prefix attention: an extra decoder layer over the target's hidden states."""

    def __init__(self, checkpoint: Checkpoint, target: Target) -> None:
        name = f"{_PREFIX}.layers.0"
        config = layer_config(checkpoint, target.config.to_dict(), name)
        self._input_norm = rms_norm(checkpoint, f"{name}.input_layernorm", config)
        self._ops = target.execution.ops
        self.stack = DraftStack(checkpoint, [name], config, config.hidden_size, self._ops)
        self._norm = rms_norm(checkpoint, f"{_PREFIX}.norm", config)

    def read(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        """Begin a sequence with the first n rows of `hidden`, where `tokens` is [n]."""
        hidden = hidden[: tokens.shape[0]]
        self.stack.prefill(hidden, self._ops.norm(hidden, self._input_norm))
        return ()

    def feed(self, hidden: Tensor, last: Tensor, end: Tensor, cache_span: CacheSpan) -> Tensor:
        """Feed rows [n, hidden] up to `end` []. Returns the output [1, hidden] of `last` [1]."""
        attended = self._ops.norm(hidden, self._input_norm)
        start = end - 1 - last[0]
        out = self.stack.feed(hidden, attended, start, last, cache_span)
        return self._ops.norm(out, self._norm)


class Hydra(PathDrafter):
    """Drafts with a head for each depth. Head i reads the i draft tokens above it.

    A node of the tree is a rank among the best tokens after its parent. So the tree is filled level
    by level, and only nodes with children are expanded. Architecture `mlp` reads the last final
    hidden state. `prefix-mlp` (Hydra++) reads the output of an extra attention layer over all final
    hidden states.

    Source: Ankner et al. 2024, "Hydra"; behaviour checked against zankner/Hydra and Spec-Bench's
    copy of it.

    Deviation: the prefix layer takes its RoPE base from the target's config. The official code
    always uses 10000.
    """

    profile = "ranks"

    def __init__(self, options: Options, context: BuildContext) -> None:
        target = context.target
        checkpoint = Checkpoint("hydra", context, FILES)
        has_prefix = _has_prefix(checkpoint)
        heads = _heads(checkpoint, target, has_prefix)
        self._prefix = Prefix(checkpoint, target) if has_prefix else None
        checkpoint.skip("input_embed_fn.weight", f"{_PREFIX}.embed_tokens.weight")
        self.weights_notes = checkpoint.close()
        self._tree = StaticTree.load(options, target, max_depth=len(heads))
        self.tree_sizes = (self._tree.layout.num_nodes,)
        self._heads = heads[: len(self._tree.levels)]
        self._num_scratch = padded_path_length(len(self._heads))
        self._embedding = target.model.get_input_embeddings().weight
        self.needs = Needs(hidden=True, all_prompt_positions=has_prefix)
        self._execution = target.execution
        self._prompt_size = target.prompt_size
        self._fill = self._execution.wrap(self._filled)

    def start(self, state: State, prefill: Forward) -> None:
        super().start(state, prefill)
        if self._prefix:
            self.make_room(state, self._prefix.stack.reserve)
            self.read_prompt(state, prefill, self._prefix.read)

    def propose(self, state: State) -> DraftTree:
        inputs = self.draft_inputs(state)
        tokens, scores = self._fill(*inputs, cache_span=self.cache_span(state))
        return self._tree.filled(tokens, scores=scores)

    def _filled(
        self, end: Tensor, path: Tensor, token_ids: Tensor, last: Tensor, hidden: Tensor, *,
        cache_span: CacheSpan,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The tree's tokens [nodes] and scores after the missing rows, which end at `end` []."""
        expanded = token_ids.index_select(0, last)
        tokens = [expanded]  # the tokens of each level
        scores = []
        inputs = self._first_input(end, path, last, hidden, cache_span)
        for head, level in zip(self._heads, self._tree.levels, strict=True):
            inputs = torch.cat([inputs, embedding(expanded, self._embedding)], -1)
            logits = head.logits(inputs)
            best = self._execution.ops.topk_ids(logits, self._tree.num_candidates)
            scores.append(logits.gather(1, best[:, :1]))
            tokens.append(best.view(-1).index_select(0, level.source))
            expanded = tokens[-1].index_select(0, level.expanders)
            inputs = inputs.index_select(0, level.above)
        return torch.cat(tokens), torch.cat(scores)

    def cache_span(self, state: State) -> CacheSpan:
        return super().cache_span(state) if self._prefix else CacheSpan(0)  # `mlp` has no cache

    def _first_input(
        self, end: Tensor, path: Tensor, last: Tensor, hidden: Tensor, cache_span: CacheSpan
    ) -> Tensor:
        """The first head's input [1, hidden], without the embedding of the root."""
        if self._prefix:
            return self._prefix.feed(hidden.index_select(0, path), last, end, cache_span)
        return hidden.index_select(0, path.index_select(0, last))

    def ranks(self, state: State, token_ids: Sequence[int]) -> list[int]:
        return ranks_of(token_ids, self._best_along(state, token_ids), len(self._heads))

    def _best_along(self, state: State, token_ids: Sequence[int]) -> Iterator[Tensor]:
        """The best tokens [ranks] of each head, which reads `token_ids` instead of a draft."""
        end, path, _, last, hidden = self.draft_inputs(state)
        inputs = self._first_input(end, path, last, hidden, self.cache_span(state))
        tokens = [state.pending, *token_ids]
        for head, token in zip(self._heads, tokens, strict=False):
            inputs = torch.cat([inputs, self._embedding[None, token]], -1)
            yield best_ids(self._execution.ops, head.logits(inputs))[0]

    def bytes_read(self, num_nodes: int) -> float:
        num_bytes = sum(head.num_bytes for head in self._heads)
        if self._prefix:
            num_bytes += self._prefix.stack.num_bytes
        return num_bytes


def _has_prefix(checkpoint: Checkpoint) -> bool:
    """True if the heads have prefix attention. Refuses other architectures and states."""
    config = checkpoint.config()
    name = config.get("hydra_head_arch", "mlp")
    if name not in ARCHITECTURES:
        raise checkpoint.error(f"is of architecture {name!r}, not {' or '.join(ARCHITECTURES)}")
    if not config.get("grounded_heads", True) or config.get("hidden_state_offset", 0):
        raise checkpoint.error("has ungrounded heads, or reads an earlier hidden state")
    return bool(name == "prefix-mlp")


def _heads(checkpoint: Checkpoint, target: Target, has_prefix: bool) -> list[Head]:
    """All heads of the checkpoint. The keys give the numbers of heads and blocks."""
    first_block = 0
    stride = 1  # difference between the numbers of successive blocks
    projection = ""
    if has_prefix:  # the dropouts before blocks and projections have numbers too
        first_block = 1
        stride = 2
        projection = ".1"
    num_heads = checkpoint.count(lambda i: f"hydra_mlp.{i}.{first_block}.linear.weight")
    if num_heads == 0:
        raise checkpoint.error(f"lacks hydra_mlp.0.{first_block}.linear.weight")
    num_blocks = checkpoint.count(lambda i: f"hydra_mlp.0.{first_block + i * stride}.linear.weight")
    blocks = [str(first_block + i * stride) for i in range(num_blocks)]
    return [Head(checkpoint, i, blocks, projection, target) for i in range(num_heads)]


METHOD = Method(
    name="hydra",
    title="Hydra",
    summary="Medusa's heads made sequential; each reads the tokens drafted before it",
    paper="Ankner et al. 2024, Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding",
    options=Options,
    build=Hydra,
    weights="hydra",
    head="hydra",
    paper_order=5,
    colour="#22510A",
)
