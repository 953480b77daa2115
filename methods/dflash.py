"""DFlash: one non-causal pass over a block of masks, which reads features of the target."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from specbench.engine.drafter import BuildContext, Method
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.layers.weights import weight_bytes
from specbench.engine.method_options import MethodOptions
from specbench.engine.sampler import Sampler
from specbench.engine.target import Needs
from specbench.methods._draft_stack import DraftStack, layer_config, rms_norm
from specbench.methods._features import FeatureModel
from specbench.methods._head_config import HeadConfig, HeadFormat, read_config
from specbench.methods._head_parts import embedding_of, head_of, in_vocabulary, tell_rope
from specbench.methods._parallel import ParallelDrafter, draw_chain, mask_token
from specbench.methods.shared.checkpoint import FILES, Checkpoint
from specbench.types import option

_INPUT_IDS = "aux_hidden_state_layer_ids"
"""Field of speculators' layout that names the target layers whose inputs a head reads."""
_OUTPUT_IDS = "target_layer_ids"
"""Field of other layouts that names the target layers whose outputs a head reads."""

_OFF_SWITCHES = """
    add_swa_attention_sink_bias attention_sink_bias causal is_causal sample_from_anchor
    sliding_window_non_causal use_swa"""
"""Switches that are supported only if they are false."""

_FORMAT = HeadFormat(
    "dflash",
    "dflash",
    section="dflash_config",
    reads=("block_size", "mask_token_id", "num_target_layers", _INPUT_IDS, _OUTPUT_IDS),
    computed={
        **dict.fromkeys(_OFF_SWITCHES.split(), False),
        "input_embedding_scale": 1,
        "markov_rank": None,
        "projector_type": None,
    },
)


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of DFlash."""

    num_tokens: int = option(0, "draft tokens per step; 0: one less than its block size", min=0)
    weights: str = option("", "checkpoint, a folder or hub id")


class DFlashModel(FeatureModel):
    """Decoder layers whose keys and values of committed tokens come only from target features.

    The feature is norm(fc(outputs of some target layers)), and is the same for all layers. Only a
    block has queries: the pending token and the mask tokens after it, which all see each other.
    """

    def __init__(self, context: BuildContext) -> None:
        checkpoint = Checkpoint("dflash", context, FILES)
        head, target = read_config(checkpoint, _FORMAT), context.target
        self.layout = head.layout
        config = layer_config(checkpoint, head.fields)
        tell_rope(checkpoint, config)
        checkpoint.shape("layers.0.self_attn.q_norm.weight")  # a DraftStack does not require it
        hidden = config.hidden_size
        target_hidden = target.config.hidden_size
        layers = _target_layers(checkpoint, head, len(target.layers))
        self.needs = Needs(layer_inputs=layers, all_prompt_positions=True)
        self._embedding = embedding_of(checkpoint, hidden)
        self._fc = checkpoint.linear("fc", len(layers) * target_hidden, hidden, bias=False)
        self._feature_norm = rms_norm(checkpoint, "hidden_norm", config)
        self._input_norm = rms_norm(checkpoint, "layers.0.input_layernorm", config)
        self._ops = target.execution.ops
        self.stack = DraftStack(checkpoint, head.layer_names, config, hidden, self._ops)
        self._norm = rms_norm(checkpoint, "norm", config)
        self._head, self._token_ids = head_of(checkpoint, head, hidden)
        self._vocab_size = target.vocab_size
        self.mask_token = mask_token(
            checkpoint, head.fields, ("mask_token_id",), self._embedding.shape[0]
        )
        self.block_size = head.fields.get("block_size")
        if type(self.block_size) is not int or self.block_size < 2:
            raise checkpoint.error(f"has block_size {self.block_size!r}, not a number above 1")
        self.notes, self.facts = checkpoint.close(), tuple(checkpoint.facts)
        self.num_positions = head.num_positions

    def context(self, features: Tensor) -> Tensor:
        """The layers' inputs [n, hidden] for features [n, feature]."""
        reduced = self._ops.project(features, self._fc.weight)
        return self._ops.norm(reduced, self._feature_norm)

    def prefill(self, features: Tensor, tokens: Tensor) -> None:
        self.stack.write_context(self.context(features))

    def logits(
        self, context: Tensor, tokens: Tensor, rows: Tensor, end: Tensor, cache_span: CacheSpan
    ) -> Tensor:
        """Logits [n - 1, vocab] of the masks in a block of `tokens` [n]: the root, then masks.

        The other arguments are those of `DraftStack.fill_block`.
        """
        residual = embedding(tokens, self._embedding)
        attended = self._ops.norm(residual, self._input_norm)
        hidden = self.stack.fill_block(context, residual, attended, rows, end, cache_span)
        after_masks = hidden[1:]
        head = self._head
        logits = self._ops.project(after_masks, head.weight, head.bias, norm=self._norm)
        return in_vocabulary(logits, self._token_ids, self._vocab_size)

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that a draft reads."""
        return self.stack.num_bytes + weight_bytes(self._fc, self._head)


class DFlash(ParallelDrafter[DFlashModel]):
    """Drafts a chain in one pass over the pending token and a mask per draft token.

    Above temperature 0, draft tokens are drawn independently: none depends on another.

    Source: Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding"; behaviour
    checked against z-lab/dflash, dflash/model.py, and speculators 0.9, models/dflash.

    Deviation: refuses a head that reads the output of the target's last layer. The official code
    takes it after the final norm, vLLM before.
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        model = DFlashModel(context)
        count = options.num_tokens or model.block_size - 1
        super().__init__(model, context, num_scratch=0, depth=count)
        self._num_scratch += 1 + count  # the block, then the rows that pad the context
        self.tree_sizes = (1 + count,)
        device = context.target.device
        self._masks = torch.full((count,), model.mask_token, device=device)

    def _drafted(
        self, end: Tensor, path: Tensor, tokens: Tensor, last: Tensor, *captured: Tensor,
        cache_span: CacheSpan, sampler: Sampler,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Read the path's nodes, then draft after them. `draft_inputs` explains the arguments."""
        model = self.model
        context = model.context(model.features(captured, path))
        block = torch.cat([tokens.index_select(0, last), self._masks])
        num_path, num_block = path.shape[0], block.shape[0]
        indices = torch.arange(num_path + num_block, device=path.device)
        in_path = indices[:num_path]
        in_block = indices[:num_block]
        # The path's last row is at end - 1; padding after it goes to rows after the block.
        path_start = torch.where(in_path <= last, end - 1 - last, end + num_block)
        rows = torch.cat([path_start + in_path, end + in_block])
        logits = model.logits(context, block, rows, end, cache_span)
        return draw_chain(block[:1], logits, sampler)

    def bytes_read(self, num_nodes: int) -> float:
        return self.model.num_bytes


def _target_layers(checkpoint: Checkpoint, head: HeadConfig, num_layers: int) -> tuple[int, ...]:
    """Target layers whose inputs the head reads, in increasing order.

    The config names their inputs in speculators' layout (0 is the first layer's), or else outputs.
    """
    name = _OUTPUT_IDS
    lowest = -1  # the output of layer -1 is the input of layer 0
    if head.layout == "speculators":
        name = _INPUT_IDS
        lowest = 0
    layers = head.fields.get(name)
    expected = head.fields.get("num_target_layers")
    if expected not in (None, num_layers):
        raise checkpoint.error(
            f"is for a target of {expected} layers, but this target has {num_layers}"
        )
    highest = lowest + num_layers - 1
    if (
        not isinstance(layers, list)
        or not layers
        or not all(type(layer) is int and lowest <= layer <= highest for layer in layers)
        or sorted(set(layers)) != layers
    ):
        raise checkpoint.error(
            f"has {name} {layers!r} in its config, not increasing numbers from {lowest} to "
            f"{highest}"
        )
    return tuple(layer - lowest for layer in layers)


METHOD = Method(
    name="dflash",
    title="DFlash",
    summary="one non-causal pass over a block of mask tokens, which reads features of the target",
    paper="Chen et al. 2026, DFlash: Block Diffusion for Flash Speculative Decoding",
    options=Options,
    build=DFlash,
    weights="dflash",
    is_default=False,
    colour="#6D0959",
)
