"""EAGLE's draft models, and what their drafters share: pairs of a feature and the next token.

Knows how a draft model reads (feature, token) pairs and keeps them. Knows nothing of trees.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from specbench.engine.drafter import BuildContext, Drafter, Outcome, State
from specbench.engine.execution import Execution
from specbench.engine.layer import Reach
from specbench.engine.target import Forward, Needs
from specbench.engine.weights import weight_bytes
from specbench.methods._checkpoint import Checkpoint, frozen
from specbench.methods._draft_layer import DraftLayer, layer_config, rms_norm

FILES = ("model.safetensors", "pytorch_model.bin")
_EMBEDDING = "embed_tokens.weight"


class DraftModel:
    """One decoder layer over pairs of the target's feature at t and the token at t + 1.

    Its output at t is fed back as the feature at t + 1 where the target has none yet.
    """

    needs: Needs
    layer: DraftLayer
    vocab_size: int

    def features(self, forward: Forward, rows: Tensor | None = None) -> Tensor:
        """What a pair holds of the target [n, feature], for all rows of a forward or for some."""
        raise NotImplementedError

    def pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer reads of pairs with the target's features.

        Its residual [n, hidden] and what its attention sees [n, input].
        """
        raise NotImplementedError

    def guesses(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The same of guesses [n], `hidden` [n, hidden] being the outputs above them."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [n, draft vocabulary] of the token behind each output."""
        raise NotImplementedError

    def token_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's token ids of ids in the draft vocabulary."""
        return draft_ids

    def bytes_read(self, num_levels: int) -> int:
        """Bytes of weights that a draft reads whose outputs are those of `num_levels` passes."""
        raise NotImplementedError


class EagleModel(DraftModel):
    """The draft model of EAGLE and EAGLE-2.

    One layer without input norm over fc([embedding ; feature]); the feature is the target's final
    hidden state, and the target's own head reads the outputs.

    Source: Li et al. 2024, "EAGLE", section 4; behaviour checked against SafeAILab/EAGLE,
    model/cnets1.py.

    Deviation: an embedding that equals the target's is shared with it, not held twice.
    """

    needs = Needs(hidden=True, all_prompt_positions=True)

    def __init__(self, method: str, context: BuildContext) -> None:
        checkpoint = Checkpoint(method, context, FILES)
        fields = checkpoint.config()
        config = layer_config(checkpoint, fields, "layers.0.self_attn.q_proj.weight")
        hidden = config.hidden_size
        _check_width(checkpoint, context, hidden)
        self._embedding = _embedding_of(checkpoint, context, hidden)
        self._fc = checkpoint.linear("fc", 2 * hidden, hidden, bias=bool(fields.get("bias", True)))
        self.layer = DraftLayer(checkpoint, "layers.0", config, hidden)
        checkpoint.close()
        self._head = context.target.model.get_output_embeddings()
        self.vocab_size = context.target.vocab_size

    def features(self, forward: Forward, rows: Tensor | None = None) -> Tensor:
        assert forward.hidden is not None
        return forward.hidden if rows is None else forward.hidden.index_select(0, rows)

    def pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        joint = self._fc(torch.cat([embedding(tokens, self._embedding), features], -1))
        return joint, joint

    def guesses(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.pairs(hidden, tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def bytes_read(self, num_levels: int) -> int:
        return num_levels * (self.layer.num_bytes + weight_bytes(self._fc, self._head))


class Eagle3Model(DraftModel):
    """The draft model of EAGLE-3.

    The feature is fc over the inputs of three target layers, or the model's own output. The layer
    attends over [norm(embedding) ; norm(feature)], its head is over a smaller vocabulary.

    Source: Li et al. 2025, "EAGLE-3", section 3; behaviour checked against SafeAILab/EAGLE,
    model/cnets.py.

    Deviation: a target on which the formula names a layer twice (4 to 6 layers) is refused, there
    the feature comes out too short.
    """

    def __init__(self, method: str, context: BuildContext) -> None:
        checkpoint = Checkpoint(method, context, FILES)
        fields = checkpoint.config()
        config = layer_config(checkpoint, fields, "midlayer.self_attn.q_proj.weight")
        hidden, target = config.hidden_size, context.target
        self._layers = captured_layers(checkpoint, fields, len(target.layers))
        self.needs = Needs(layer_inputs=self._layers, all_prompt_positions=True)
        self._embedding = _embedding_of(checkpoint, context, hidden)
        size = len(self._layers) * target.config.hidden_size
        self._fc = checkpoint.linear("fc", size, hidden, bias=False)
        self._token_norm = rms_norm(checkpoint, "midlayer.input_layernorm", config)
        self._feature_norm = rms_norm(checkpoint, "midlayer.hidden_norm", config)
        self.layer = DraftLayer(checkpoint, "midlayer", config, 2 * hidden)
        self._norm = rms_norm(checkpoint, "norm", config)
        self.vocab_size = checkpoint.shape("lm_head.weight")[0]
        self._head = checkpoint.linear("lm_head", hidden, self.vocab_size, bias=False)
        self._token_ids = draft_vocabulary(checkpoint, self.vocab_size, target.vocab_size)
        if "t2d" in checkpoint:  # the same map, the other way round
            checkpoint.expect("t2d", target.vocab_size)
        checkpoint.close()

    def features(self, forward: Forward, rows: Tensor | None = None) -> Tensor:
        inputs = [forward.layer_inputs[layer] for layer in self._layers]
        if rows is not None:
            inputs = [rows_of.index_select(0, rows) for rows_of in inputs]
        return torch.cat(inputs, -1)

    def pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.guesses(self._fc(features), tokens)

    def guesses(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self._token_norm(embedding(tokens, self._embedding))
        return hidden, torch.cat([embedded, self._feature_norm(hidden)], -1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(self._norm(hidden))

    def token_ids(self, draft_ids: Tensor) -> Tensor:
        return self._token_ids[draft_ids]

    def bytes_read(self, num_levels: int) -> int:
        a_level = self.layer.num_bytes + weight_bytes(self._head)
        return num_levels * a_level + weight_bytes(self._fc)  # fc is for what the target computed


class EagleDrafter(Drafter):
    """Base of EAGLE's drafters: shows the draft model every committed pair, once.

    The pair at t holds the target's feature at t and token t + 1, the pending token in the last.
    `num_scratch` bounds the guesses that a draft runs over, `depth` the tree that it makes.
    """

    def __init__(
        self, model: DraftModel, execution: Execution, num_scratch: int, depth: int
    ) -> None:
        self.model = model
        self.needs = model.needs
        self._execution = execution
        self._path_length = depth + 1
        self._num_scratch = max(num_scratch, self._path_length)
        self._features: Tensor  # [n, feature], of the pairs that the draft model has not seen
        self._tokens: Tensor  # [n]
        self._last: Tensor  # [1], the last pair among them; padding is behind it

    def start(self, state: State, prefill: Forward) -> None:
        model = self.model
        reach = self._execution.reach(state.num_committed + state.room, self._num_scratch)
        if model.layer.reserve(reach.span(self._num_scratch)):
            self._execution.forget()
        tokens = torch.tensor(state.token_ids[1:], device=state.sampler.generator.device)
        features = model.features(prefill)
        if tokens.shape[0] > 1:
            model.layer.prefill(model.pairs(features[:-1], tokens[:-1])[1])
        self._features, self._tokens, self._last = self._padded(features[-1:], tokens[-1:])

    def observe(self, state: State, outcome: Outcome) -> None:
        verdict = outcome.verdict
        both = torch.tensor([verdict.path, verdict.token_ids], device=self._tokens.device)
        features = self.model.features(outcome.forward, both[0])
        self._features, self._tokens, self._last = self._padded(features, both[1])

    def pairs(self, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a draft begins with: features, tokens, the last one's row, and their `end` []."""
        end = torch.full((), state.num_committed, device=self._tokens.device)
        return self._features, self._tokens, self._last, end

    def reach(self, state: State) -> Reach:
        """How much of its cache the draft looks at."""
        return self._execution.reach(state.num_committed, self._num_scratch)

    def feed(
        self, features: Tensor, tokens: Tensor, last: Tensor, end: Tensor, reach: Reach
    ) -> Tensor:
        """Show the draft model the missing pairs; returns the last one's output [1, hidden]."""
        residual, attended = self.model.pairs(features, tokens)
        return self.model.layer.feed(residual, attended, end - 1 - last[0], last, reach)

    def _padded(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs, to as many as a step can leave where shapes have to stay the same."""
        n = tokens.shape[0]
        missing = self._path_length - n if self._execution.is_static else 0
        last = torch.full((1,), n - 1, device=tokens.device)
        return pad(features, (0, 0, 0, missing)), pad(tokens, (0, missing)), last


def captured_layers(
    checkpoint: Checkpoint, fields: dict[str, Any], num_layers: int
) -> tuple[int, ...]:
    """The target layers whose inputs are EAGLE-3's features, in increasing order."""
    key = "eagle_aux_hidden_state_layer_ids"
    layers = fields.get(key) or [2, num_layers // 2, num_layers - 3]
    is_valid = isinstance(layers, list) and all(
        isinstance(layer, int) and 0 <= layer < num_layers for layer in layers
    )
    if not is_valid or len(set(layers)) < len(layers):
        raise checkpoint.error(
            f"reads the inputs of target layers {layers}, which are not all different layers of "
            f"a target with {num_layers} ({key} in its config may name others)"
        )
    return tuple(sorted(layers))


def draft_vocabulary(checkpoint: Checkpoint, size: int, vocab_size: int) -> Tensor:
    """The target's token id for each id of the draft vocabulary [size]; `d2t` holds offsets."""
    if "d2t" not in checkpoint and size == vocab_size:
        return torch.arange(size, device=checkpoint.device)
    offsets = checkpoint.take("d2t", size)
    ids = offsets.long() + torch.arange(size, device=offsets.device)
    if ids.min() < 0 or ids.max() >= vocab_size or ids.unique().shape[0] < size:
        raise checkpoint.error(f"has a d2t that is no map into {vocab_size} tokens")
    return ids


def _embedding_of(checkpoint: Checkpoint, context: BuildContext, hidden: int) -> Tensor:
    """The checkpoint's embedding, or the target's own where it has none or the same."""
    shared = context.target.model.get_input_embeddings().weight
    if _EMBEDDING not in checkpoint:
        _check_width(checkpoint, context, hidden)
        return shared
    own = checkpoint.take(_EMBEDDING, shared.shape[0], hidden)
    return shared if torch.equal(own, shared) else frozen(own)


def _check_width(checkpoint: Checkpoint, context: BuildContext, hidden: int) -> None:
    """Refuse a head of another width than the target whose embedding or head it uses."""
    expected = context.target.config.hidden_size
    if hidden != expected:
        raise checkpoint.error(f"has a hidden size of {hidden}, but the target one of {expected}")
