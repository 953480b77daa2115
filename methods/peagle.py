"""P-EAGLE: EAGLE-3's draft model predicts several tokens in one pass, through mask features."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.engine.drafter import BuildContext, Method
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.method_options import MethodOptions
from specbench.engine.sampler import Sampler
from specbench.methods._captured_layers import LAYERS_HELP
from specbench.methods._eagle import EAGLE3_READS, AnyModel, Eagle3Model, EagleDrafter
from specbench.methods._head_config import SWITCHES, HeadConfig, HeadFormat
from specbench.methods._head_parts import in_vocabulary
from specbench.methods._parallel import ParallelDrafter, draw_chain, mask_token
from specbench.methods.shared.checkpoint import Checkpoint
from specbench.types import option

_MASK_TOKENS = ("mask_token_id", "ptd_token_id", "pard_token")
"""Names that speculators, and the layout that vLLM loads, give to the mask token's id."""


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of P-EAGLE."""

    num_tokens: int = option(8, "draft tokens per step", min=1)
    layers: str = option("", LAYERS_HELP)
    mask_token: int | None = option(None, "id of the mask token; by default the config's")
    weights: str = option("", "checkpoint, a folder or hub id")

    def most_nodes(self) -> int:
        return self.num_tokens + 1


class PEagleModel(Eagle3Model):
    """EAGLE-3's draft model with a learned mask feature and a mask token for unknown pairs."""

    head_format = HeadFormat(
        "eagle3",
        "peagle",
        reads=(*EAGLE3_READS, *_MASK_TOKENS),
        switches=SWITCHES,
        computed={"parallel_drafting": True},
    )

    def __init__(self, context: BuildContext, options: Options) -> None:
        self._chosen_mask = options.mask_token
        super().__init__("peagle", context, options.layers)
        self._target_vocab_size = context.target.vocab_size

    def _take_more(self, checkpoint: Checkpoint, head: HeadConfig) -> None:
        """Take the mask's token from the option or config, and its feature from the file."""
        names: tuple[str, ...] = _MASK_TOKENS
        if self._chosen_mask is not None:
            names = ("mask_token",)
        fields = {**head.fields, "mask_token": self._chosen_mask}
        vocab_size = self._embedding.shape[0]
        self.mask_token = mask_token(checkpoint, fields, names, vocab_size)
        shape = checkpoint.shape("mask_hidden")
        size = self._fc.in_features
        if shape[-1:] != (size,) or shape[:-1] not in ((), (1,), (1, 1)):
            raise checkpoint.error(f"has mask_hidden of shape {list(shape)}, not [{size}]")
        mask = checkpoint.take("mask_hidden", *shape).view(1, size)
        states = mask.chunk(len(self.needs.layer_inputs), -1)  # as if captured in each layer
        first_row = torch.zeros(1, dtype=torch.long, device=mask.device)
        self.mask_feature = self.features(states, first_row)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of the target's tokens."""
        return in_vocabulary(super().logits(hidden), self._token_ids, self._target_vocab_size)


class PEagle(EagleDrafter, ParallelDrafter[AnyModel]):
    """Drafts a chain in one pass over the committed pairs and a mask pair for each further token.

    The mask pairs follow the last committed pair. Each sees all pairs before it, and none stays
    in the cache. Above temperature 0, draft tokens are drawn independently: none depends on
    another.

    Source: Hui et al. 2026, "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training"; behaviour
    checked against speculators 0.9, models/peagle, and vLLM's loader.
    """

    profile = "path"
    model: PEagleModel

    def __init__(self, options: Options, context: BuildContext) -> None:
        model = PEagleModel(context, options)
        super().__init__(model, context, num_scratch=0, depth=options.num_tokens)
        self._num_masks = options.num_tokens - 1
        self._num_scratch += self._num_masks  # the masks follow a padded path
        self.tree_sizes = (options.num_tokens + 1,)

    def _drafted(
        self, end: Tensor, path: Tensor, tokens: Tensor, last: Tensor, *captured: Tensor,
        cache_span: CacheSpan, sampler: Sampler,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Read the path's pairs, then draft after them. `draft_inputs` explains the arguments."""
        model = self.model
        num_masks = self._num_masks
        rows = torch.arange(path.shape[0] + num_masks, device=path.device)
        is_pair = rows <= last  # the rest are masks
        features = model.features(captured, pad(path, (0, num_masks)))
        features = torch.where(is_pair[:, None], features, model.mask_feature)
        root = tokens.index_select(0, last)
        tokens = torch.where(is_pair, pad(tokens, (0, num_masks)), model.mask_token)
        pairs = model.target_pairs(features, tokens)
        start = end - 1 - last[0]
        wanted = last + rows[: num_masks + 1]
        hidden = model.stack.feed(*pairs, start, wanted, cache_span)
        return draw_chain(root, model.logits(hidden), sampler)

    def bytes_read(self, num_nodes: int) -> float:
        return self.model.bytes_read(1)


METHOD = Method(
    name="peagle",
    title="P-EAGLE",
    summary="EAGLE-3's draft model, which predicts a chain in one pass through mask features",
    paper="Hui et al. 2026, P-EAGLE: Parallel-Drafting EAGLE with Scalable Training",
    options=Options,
    build=PEagle,
    weights="peagle",
    is_default=False,
    colour="#2206FE",
)
