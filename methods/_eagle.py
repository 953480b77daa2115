"""EAGLE's draft models, which read pairs of a feature and a token, and the base of its drafters."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from specbench.engine.drafter import BuildContext, State
from specbench.engine.layers.operands import CacheSpan, Norm, PairNorms
from specbench.engine.layers.ops import DraftHead
from specbench.engine.layers.weights import weight_bytes
from specbench.engine.target import Needs
from specbench.methods._captured_layers import captured_layers
from specbench.methods._draft_stack import DraftStack, layer_config, rms_norm
from specbench.methods._features import FeatureDrafter, FeatureModel
from specbench.methods._head_config import (
    LAYERS,
    SWITCHES,
    HeadConfig,
    HeadFormat,
    is_on,
    read_config,
)
from specbench.methods._head_parts import (
    check_width,
    embedding_of,
    head_of,
    in_vocabulary,
    tell_rope,
)
from specbench.methods.shared.checkpoint import FILES, Checkpoint

EAGLE3_READS = (LAYERS, "num_aux_hidden_states", "parallel_draft_heads_num_layers")
"""Config fields that EAGLE-3 heads have in addition to the common ones."""


class PairModel(FeatureModel):
    """Decoder layers over pairs of the target's feature at t and the token at t + 1.

    As long as the target has no feature at t + 1, the layers' output at t replaces this feature.
    """

    _token_ids: Tensor | None
    """The target's token id for each id of the draft vocabulary. None if both are the same."""

    def prefill(self, features: Tensor, tokens: Tensor) -> None:
        self.stack.prefill(*self.target_pairs(features, tokens))

    def target_pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's inputs: the residual [n, hidden], and its attention's [n, input]."""
        raise NotImplementedError

    def token_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's token ids for ids of the draft vocabulary."""
        return draft_ids if self._token_ids is None else self._token_ids[draft_ids]


class EagleModel(PairModel):
    """The draft model of EAGLE and EAGLE-2.

    It is one layer without input norm over fc([embedding ; feature]). The feature is the target's
    final hidden state. Logits come from the target's own head, or from the checkpoint's copy of
    this head. With `d2t`, only the rows of the most frequent tokens are used.

    Source: Li et al. 2024, "EAGLE", section 4; behaviour checked against SafeAILab/EAGLE,
    model/cnets1.py. Frequent tokens: Zhao et al. 2025, "FR-Spec".

    Deviation: an embedding equal to the target's is shared, not stored twice.
    """

    needs = Needs(hidden=True, all_prompt_positions=True)

    def __init__(self, method: str, context: BuildContext) -> None:
        checkpoint = Checkpoint(method, context, FILES)
        head = read_config(checkpoint)
        self.layout = head.layout
        config = layer_config(checkpoint, head.fields)
        tell_rope(checkpoint, config)
        hidden = config.hidden_size
        check_width(checkpoint, hidden)
        self._embedding = embedding_of(checkpoint, hidden)
        has_bias = head.fields.get("bias")  # None: as in the file
        self._fc = checkpoint.linear("fc", 2 * hidden, hidden, bias=has_bias)
        self._ops = context.target.execution.ops
        self.stack = DraftStack(checkpoint, head.layer_names, config, hidden, self._ops)
        self._head, ids = head_of(checkpoint, head, hidden, may_share_rows=True)
        self._vocab_size = context.target.vocab_size
        self._token_ids = ids if "d2t" in checkpoint else None
        self.notes, self.facts = checkpoint.close(), tuple(checkpoint.facts)
        self.num_positions = head.num_positions

    def target_pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.draft_pairs(features, tokens)

    def draft_pairs(
        self, hidden: Tensor, tokens: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The layers' inputs for draft tokens [n].

        The outputs of their parents are `rows` [n] of `hidden`, or all rows by default.
        """
        pairs, _ = self._ops.pairs(self._embedding, tokens, hidden, rows)
        inputs = self._ops.project(pairs, self._fc.weight, self._fc.bias)
        return inputs, inputs

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, draft vocabulary] of the token after each output."""
        return self._ops.project(hidden, self._head.weight, self._head.bias)

    def whole_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of the target's tokens."""
        logits, ids = self.logits(hidden), self._token_ids
        return logits if ids is None else in_vocabulary(logits, ids, self._vocab_size)

    @property
    def parts(self) -> DraftHead:
        """The parts that compute a level of a draft tree, from its tokens to the logits."""
        ids, fc = self._token_ids, self._fc
        return DraftHead(self.stack.joined, self._embedding, self._head, ids, fc=fc)

    def bytes_read(self, num_levels: int) -> int:
        """Bytes of weights that a draft of `num_levels` passes reads."""
        return num_levels * (self.stack.num_bytes + weight_bytes(self._fc, self._head))


class Eagle3Model(PairModel):
    """The draft model of EAGLE-3.

    The feature is fc over the inputs of three target layers, or the model's own output. The first
    layer attends over [norm(embedding) ; norm(feature)]. The draft vocabulary may be smaller than
    the target's. The config may switch on three things. fc may read normed inputs, with a norm for
    each layer (`fc_norm`) or one norm over all (`norm_before_fc`). The residual may be the normed
    feature (`norm_before_residual`). The next feature may be the normed output (`norm_output`).

    Source: Li et al. 2025, "EAGLE-3", section 3; behaviour checked against SafeAILab/EAGLE,
    model/cnets.py; switches and more layers against speculators 0.9, models/eagle3/core.py.

    Deviation: refuses a target of 4 to 6 layers, since the formula of the default layers names
    one of them twice. The official code then builds a feature that is too short.
    """

    head_format = HeadFormat("eagle3", "eagle3", reads=EAGLE3_READS, switches=SWITCHES)
    _token_ids: Tensor

    def __init__(
        self, method: str, context: BuildContext, layers: str = "", rope_theta: float | None = None
    ) -> None:
        checkpoint, target = Checkpoint(method, context, FILES), context.target
        head = read_config(checkpoint, self.head_format).with_rope_theta(rope_theta)
        self.layout = head.layout
        config = layer_config(checkpoint, head.fields)
        tell_rope(checkpoint, config)
        hidden, width = config.hidden_size, target.config.hidden_size
        inputs = captured_layers(checkpoint, head, len(target.layers), layers)
        self.has_guessed_layers = not (layers or head.names_layers)
        self.needs = Needs(layer_inputs=inputs, all_prompt_positions=True)
        self._embedding = embedding_of(checkpoint, hidden)
        feature_size = len(inputs) * width
        self._layer_norms: list[Norm] = []  # a norm for each captured layer, or no norms
        if is_on(checkpoint, head, "fc_norm", "fc_norm.0.weight"):
            names = [f"fc_norm.{i}" for i in range(len(inputs))]
            self._layer_norms = [rms_norm(checkpoint, name, config, width) for name in names]
        self._input_norm: Norm | None = None
        if is_on(checkpoint, head, "norm_before_fc", "input_norm.weight"):
            self._input_norm = rms_norm(checkpoint, "input_norm", config, feature_size)
        self._fc = checkpoint.linear("fc", feature_size, hidden)
        self._token_norm = rms_norm(checkpoint, "layers.0.input_layernorm", config)
        self._feature_norm = rms_norm(checkpoint, "layers.0.hidden_norm", config)
        self._is_residual_normed = bool(head.fields.get("norm_before_residual"))
        self._is_output_normed = bool(head.fields.get("norm_output"))
        self._ops = target.execution.ops
        self.stack = DraftStack(checkpoint, head.layer_names, config, 2 * hidden, self._ops)
        self._norm = rms_norm(checkpoint, "norm", config)
        self._head, self._token_ids = head_of(checkpoint, head, hidden)
        self._take_more(checkpoint, head)
        self.notes, self.facts = checkpoint.close(), tuple(checkpoint.facts)
        self.num_positions = head.num_positions

    def _take_more(self, checkpoint: Checkpoint, head: HeadConfig) -> None:
        """Take tensors that only a subclass has."""

    def features(self, captured: Sequence[Tensor], rows: Tensor) -> Tensor:
        if not self._layer_norms:
            return super().features(captured, rows)
        normed = [
            self._ops.norm(states.index_select(0, rows), norm)
            for states, norm in zip(captured, self._layer_norms, strict=True)
        ]
        return torch.cat(normed, -1)

    def target_pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        fc = self._fc
        hidden = self._ops.project(features, fc.weight, fc.bias, norm=self._input_norm)
        return self._inputs(hidden, tokens)

    def draft_pairs(
        self, hidden: Tensor, tokens: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if self._is_output_normed:
            hidden = self._ops.norm(hidden, self._norm)
        return self._inputs(hidden, tokens, rows)

    def _inputs(
        self, hidden: Tensor, tokens: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The layers' inputs for tokens [n] and `rows` [n] of the reduced features `hidden`."""
        norms = PairNorms(self._token_norm, self._feature_norm, self._is_residual_normed)
        pairs, residual = self._ops.pairs(self._embedding, tokens, hidden, rows, norms)
        return residual, pairs

    def logits(self, hidden: Tensor) -> Tensor:
        head = self._head
        return self._ops.project(hidden, head.weight, head.bias, norm=self._norm)

    @property
    def parts(self) -> DraftHead:
        return DraftHead(
            self.stack.joined,
            self._embedding,
            self._head,
            self._token_ids,
            token_norm=self._token_norm,
            output_norm=self._norm if self._is_output_normed else None,
            feature_norm=self._feature_norm,
            norm=self._norm,
            is_residual_normed=self._is_residual_normed,
        )

    def bytes_read(self, num_levels: int) -> int:
        bytes_per_level = self.stack.num_bytes + weight_bytes(self._head)
        return num_levels * bytes_per_level + weight_bytes(self._fc)  # fc: target features only


AnyModel: TypeAlias = EagleModel | Eagle3Model


class EagleDrafter(FeatureDrafter[AnyModel]):
    """The base of EAGLE's drafters, which feeds each committed pair to the draft model once.

    The pair at t has the target's feature at t and token t + 1. So the last pair has the pending
    token.
    """

    def skip(self, state: State) -> None:
        self.feed(*self.draft_inputs(state), cache_span=self.cache_span(state))

    def feed(
        self,
        end: Tensor,
        path: Tensor,
        tokens: Tensor,
        last: Tensor,
        *captured: Tensor,
        cache_span: CacheSpan,
    ) -> tuple[Tensor, Tensor]:
        """Feed the missing pairs, which end at position `end` [], to the draft model.

        `path` [n] are rows of `captured`, `tokens` [n] the tokens after them. Rows after
        `last` [1] are padding. Returns token [1] and output [1, hidden] of row `last`.
        """
        model = self.model
        features = model.features(captured, path)
        residual, attended = model.target_pairs(features, tokens)
        start = end - 1 - last[0]
        hidden = model.stack.feed(residual, attended, start, last, cache_span)
        return tokens.index_select(0, last), hidden
