"""EAGLE's draft models, and what their drafters share: pairs of a feature and the next token.

Knows how a draft model reads (feature, token) pairs and keeps them. Knows nothing of trees.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from specbench.engine.accept import Accepted
from specbench.engine.drafter import BuildContext, Drafter, Outcome, State
from specbench.engine.execution import Execution
from specbench.engine.ops import Reach
from specbench.engine.target import Forward, Needs
from specbench.engine.tree import path_room
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

    def seen(self, forward: Forward) -> tuple[Tensor, ...]:
        """The parts of a forward that features are made of, each a row a node."""
        raise NotImplementedError

    def features(self, seen: Sequence[Tensor], rows: Tensor) -> Tensor:
        """What pairs hold of the target [n, feature], at these rows [n] of what was seen."""
        parts = [part.index_select(0, rows) for part in seen]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

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
        self._ops = context.target.execution.ops
        self.layer = DraftLayer(checkpoint, "layers.0", config, hidden, self._ops)
        checkpoint.close()
        self._head = context.target.model.get_output_embeddings()
        self.vocab_size = context.target.vocab_size

    def seen(self, forward: Forward) -> tuple[Tensor, ...]:
        assert forward.hidden is not None
        return (forward.hidden,)

    def pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([embedding(tokens, self._embedding), features], -1)
        joint = self._ops.project(both, self._fc.weight, self._fc.bias)
        return joint, joint

    def guesses(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.pairs(hidden, tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._ops.project(hidden, self._head.weight, self._head.bias)

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
        self._ops = target.execution.ops
        self.layer = DraftLayer(checkpoint, "midlayer", config, 2 * hidden, self._ops)
        self._norm = rms_norm(checkpoint, "norm", config)
        self.vocab_size = checkpoint.shape("lm_head.weight")[0]
        self._head = checkpoint.linear("lm_head", hidden, self.vocab_size, bias=False)
        self._token_ids = draft_vocabulary(checkpoint, self.vocab_size, target.vocab_size)
        if "t2d" in checkpoint:  # the same map, the other way round
            checkpoint.expect("t2d", target.vocab_size)
        checkpoint.close()

    def seen(self, forward: Forward) -> tuple[Tensor, ...]:
        return tuple(forward.layer_inputs[layer] for layer in self._layers)

    def pairs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.guesses(self._ops.project(features, self._fc.weight), tokens)

    def guesses(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self._ops.norm(embedding(tokens, self._embedding), self._token_norm)
        return hidden, torch.cat([embedded, self._ops.norm(hidden, self._feature_norm)], -1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._ops.project(hidden, self._head.weight, norm=self._norm)

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
        self._num_scratch = max(num_scratch, path_room(depth))
        self._seen: tuple[Tensor, ...]  # of the last forward
        self._missing: Accepted  # the pairs that the draft model has not seen, as rows of it

    def start(self, state: State, prefill: Forward) -> None:
        model = self.model
        reach = self._execution.reach(state.num_committed + state.room, self._num_scratch)
        if model.layer.reserve(reach.span(self._num_scratch)):
            self._execution.forget()
        tokens = torch.tensor(state.token_ids[1:], device=state.sampler.generator.device)
        seen, rows = model.seen(prefill), torch.arange(len(tokens), device=tokens.device)
        if len(tokens) > 1:
            features = model.features(seen, rows[:-1])
            model.layer.prefill(model.pairs(features, tokens[:-1])[1])
        self._seen = tuple(part[-1:] for part in seen)
        self._missing = Accepted.only(state.pending, tokens.device)

    def observe(self, state: State, outcome: Outcome) -> None:
        self._seen = self.model.seen(outcome.forward)
        self._missing = outcome.accepted

    def given(self, state: State) -> tuple[Tensor, ...]:
        """What a draft begins with, the arguments of `feed`."""
        end = torch.full((), state.num_committed, device=self._missing.last.device)
        return end, *self._missing, *self._seen

    def reach(self, state: State) -> Reach:
        """How much of its cache the draft looks at."""
        return self._execution.reach(state.num_committed, self._num_scratch)

    def feed(
        self, end: Tensor, path: Tensor, tokens: Tensor, last: Tensor, *seen: Tensor, reach: Reach
    ) -> tuple[Tensor, Tensor]:
        """Show the draft model the missing pairs, which end at `end` [] in the sequence.

        `path` [n] are rows of what was `seen`, `tokens` [n] those behind them; what comes behind
        `last` [1] is padding. Returns the last one's token [1] and output [1, hidden].
        """
        residual, attended = self.model.pairs(self.model.features(seen, path), tokens)
        hidden = self.model.layer.feed(residual, attended, end - 1 - last[0], last, reach)
        return tokens.index_select(0, last), hidden


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
