"""The heads in training: Medusa's and Hydra's, one for each depth, and EAGLE's draft models.

Those are one layer over the target's features, with causal attention over whole rows, in
blocks. A chain starts at each position of a row. Its element k attends to the row up to that
position and to the chain's elements up to itself, as a drafter does on one path of its tree.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    repeat_kv,
)

from specbench.engine.model_parts import decoder_layers
from specbench.training.batches import Batch
from specbench.training.head import (
    Head,
    Projection,
    TargetOutputs,
    ahead,
    depth_loss,
    weighted_mean,
)
from specbench.zoo.heads import CONFIG_KEY, feature_layers

NOISE = 0.1
"""Features get noise from U(-NOISE, NOISE) in training (EAGLE, section 4.2)."""

CLASSIFICATION = 0.1
"""Weight of the cross entropy, relative to the feature regression (EAGLE, section 4.2)."""

Chain = list[tuple[Tensor, Tensor]]
"""Keys and values [rows, heads, length, head_dim] of the rows and of each chain element so far."""

BLOCKS = "specbench_blocks"
"""The name of `attend` in transformers.

In bfloat16 on a CPU it takes about half the time of torch's own attention.
"""
_BLOCK = 128
_SHARED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "rms_norm_eps", "max_position_embeddings", "vocab_size", "bos_token_id", "eos_token_id",
)  # fmt: skip


class ResBlock(nn.Module):
    """x + SiLU(W x + b). W starts from zero, so that a new head equals the target's."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(Head):
    """Independent heads: one residual block each, and a projection that starts as the target's.

    Source: Cai et al. 2024, "Medusa": the Medusa-1 recipe, cross entropy with the text.
    """

    file_name = "medusa_lm_head.pt"

    def __init__(self, model: PreTrainedModel, num_heads: int = 4) -> None:
        super().__init__()
        weight = model.get_output_embeddings().weight
        for i in range(num_heads):
            projection = Projection(weight)
            self.add_module(str(i), nn.Sequential(ResBlock(weight.shape[1]), projection))
        self.to(weight.device)

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        return [head(target.hidden) for head in self.children()]

    def taught(self, batch: Batch, target: TargetOutputs) -> tuple[Tensor, Tensor]:
        return ahead(batch.ids, 1), batch.weights

    def config(self) -> dict[str, object]:
        return {"medusa_num_heads": len(self._modules), "medusa_num_layers": 1}


class FirstBlock(nn.Module):
    """res(x) + SiLU(W x + b) over [hidden ; embeddings]; res starts as the identity on hidden."""

    def __init__(self, size_in: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size_in, size)
        self.res_connection = nn.Linear(size_in, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.eye_(self.res_connection.weight)
        nn.init.zeros_(self.res_connection.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.res_connection(x) + F.silu(self.linear(x))


class HydraHeads(Head):
    """Medusa's heads, each also reading the tokens drafted before its own: `mlp`, one block each.

    Source: Ankner et al. 2024, "Hydra": heads are given the text's tokens in training, and learn
    the target's distributions (the teacher loss of section 5).
    """

    file_name = "hydra_lm_head.pt"

    def __init__(self, model: PreTrainedModel, num_heads: int = 4) -> None:
        super().__init__()
        weight = model.get_output_embeddings().weight
        hidden = weight.shape[1]
        self._embedding = (model.get_input_embeddings().weight.detach(),)  # not in the state dict
        projections = [Projection(weight, bias=True) for _ in range(num_heads)]
        blocks = (FirstBlock((i + 2) * hidden, hidden) for i in range(num_heads))
        self.hydra_mlp = nn.ModuleList(nn.Sequential(block) for block in blocks)
        self.hydra_lm_head = nn.ModuleList(projections)
        self.to(weight.device)

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        embedded = F.embedding(ids, self._embedding[0])
        path, logits = target.hidden, []
        heads = zip(self.hydra_mlp, self.hydra_lm_head, strict=True)
        for depth, (block, projection) in enumerate(heads, start=1):
            path = torch.cat([path, ahead(embedded, depth)], -1)
            logits.append(projection(block(path)))
        return logits

    def taught(self, batch: Batch, target: TargetOutputs) -> tuple[Tensor, Tensor]:
        return target.logits, batch.weights

    def config(self) -> dict[str, object]:
        return {
            "hydra_num_heads": len(self.hydra_mlp),
            "hydra_num_layers": 1,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
        }


def config_fields(model: PreTrainedModel) -> dict[str, object]:
    """The official config.json of a one-layer Llama of the target's sizes and rotary base."""
    config = model.config.get_text_config()
    given: Mapping[str, Any] = config.to_dict()
    fields: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    shared = {name: getattr(config, name, None) for name in _SHARED}  # also by another name
    fields |= {name: value for name, value in shared.items() if value is not None}
    fields.setdefault("intermediate_size", 4 * config.hidden_size)
    fields |= {"num_hidden_layers": 1, "tie_word_embeddings": False, "torch_dtype": "float16"}
    head_dim = given.get("head_dim")
    if head_dim and head_dim * config.num_attention_heads != config.hidden_size:
        fields["head_dim"] = head_dim
    rope = dict(given.get("rope_parameters") or {})
    fields["rope_theta"] = rope.pop("rope_theta", None) or given.get("rope_theta", 10000.0)
    rope.pop("partial_rotary_factor", None)  # a head rotates all of its heads
    if rope.get("rope_type") in ("linear", "llama3", "yarn"):  # others depend on the length
        fields["rope_scaling"] = rope
    return fields


def layer_config(fields: Mapping[str, object]) -> LlamaConfig:
    """The layer's config from the fields of its config.json."""
    return LlamaConfig(**fields, attn_implementation=BLOCKS)


def attend(query: Tensor, chain: Chain) -> Tensor:
    """Attention of the chain's last element at every position.

    `query` [rows, heads, length, head_dim] is scaled already; the result has the same shape.
    """
    (key, value), *later = chain
    length = query.shape[2]
    blocks = []
    with torch.autocast(query.device.type, enabled=False):
        for start in range(0, length, _BLOCK):
            part = slice(start, min(start + _BLOCK, length))
            block = query[:, :, part]
            scores = block @ key[:, :, : part.stop].transpose(-1, -2)
            mask = torch.full_like(scores[0, 0], float("-inf")).triu(start + 1)
            own = [(block * k[:, :, part]).sum(-1, keepdim=True) for k, _ in later]
            shares = torch.cat([scores + mask, *own], -1).softmax(-1)
            out = shares[..., : part.stop] @ value[:, :, : part.stop]
            for i, (_, v) in enumerate(later):
                out = out + shares[..., part.stop + i, None] * v[:, :, part]
            blocks.append(out)
    return torch.cat(blocks, dim=2)


def _attend_rows(
    _: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, *, scaling: float, **named: Any
) -> tuple[Tensor, None]:
    """Attention of the rows, or of the next element of every chain, which is added to `chain`."""
    num_queries = q.shape[1] // k.shape[1]
    chain: Chain = named.get("chain", [])
    chain.append((repeat_kv(k.to(v.dtype), num_queries), repeat_kv(v, num_queries)))
    out = attend(q.to(v.dtype) * scaling, chain)
    return out.transpose(1, 2).contiguous(), None  # [rows, length, heads, head_dim]


AttentionInterface.register(BLOCKS, _attend_rows)


class Layer(nn.Module):
    """Attention and MLP of one decoder layer, without a norm before the attention."""

    def __init__(self, config: LlamaConfig, input_size: int) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_idx=0)
        if input_size != config.hidden_size:
            for name in ("q_proj", "k_proj", "v_proj"):
                num_outputs = self.self_attn.get_submodule(name).out_features
                self.self_attn.add_module(name, nn.Linear(input_size, num_outputs, bias=False))
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._rotary = (LlamaRotaryEmbedding(config),)  # constants, not in the state dict

    def forward(self, residual: Tensor, attended: Tensor, chain: Chain) -> Tensor:
        """Output [rows, length, hidden]: of the rows if `chain` is empty, else of its next element.

        Attention reads `attended` [rows, length, input]. Its output is added to `residual`
        [rows, length, hidden].
        """
        positions = torch.arange(residual.shape[1], device=residual.device)[None] + len(chain)
        rotary = self._rotary[0].to(residual.device)(residual, positions)
        hidden = residual + self.self_attn(attended, rotary, chain=chain)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class VocabularyHead(Head):
    """A head over the most frequent tokens, or all of the target's.

    Positions where the target would choose another token are left out, as in EAGLE-3's official
    code.
    """

    file_name = "pytorch_model.bin"
    d2t: Tensor  # [draft vocab] difference between the target's id and the draft's
    t2d: Tensor  # [vocab] bool, true for the tokens of the draft vocabulary

    def __init__(self, model: PreTrainedModel, draft_ids: Tensor) -> None:
        """`draft_ids` are the target's ids of the draft vocabulary, increasing."""
        super().__init__()
        self._fields = config_fields(model)
        self._embedding = (model.get_input_embeddings().weight.detach(),)
        head = model.get_output_embeddings()
        bias: Tensor | None = getattr(head, "bias", None)
        is_drafted = torch.zeros(len(head.weight), dtype=torch.bool).index_fill(0, draft_ids, True)
        self.register_buffer("d2t", draft_ids - torch.arange(len(draft_ids)))
        self.register_buffer("t2d", is_drafted)
        self._head = (head.weight.detach(), None if bias is None else bias.detach())

    def token_ids(self, head_ids: Tensor) -> Tensor:
        return head_ids + self.d2t[head_ids]

    def projection(self) -> tuple[Tensor, Tensor | None]:
        """The target's rows for the draft vocabulary, which a loaded head may bring."""
        weight, bias = self._head
        if len(self.d2t) == len(weight):
            return weight, bias
        ids = self.t2d.nonzero().flatten()
        return weight[ids], None if bias is None else bias[ids]

    def taught(self, batch: Batch, target: TargetOutputs) -> tuple[Tensor, Tensor]:
        """The target's logits of its draft vocabulary, and the weights of tokens."""
        weights = batch.weights.clone()  # of token t, which the target chooses at t - 1
        weights[:, 1:] *= self.t2d[target.best][:, :-1]
        return F.linear(target.hidden, *self.projection()), weights


class EagleHead(VocabularyHead):
    """One decoder layer over fc([embedding of token t + 1 ; feature t]), which gives feature t + 1.

    The target's embedding and head are used as they are. EAGLE-2 runs the same weights.

    Source: Li et al. 2024, "EAGLE": smooth L1 to the target's features, and cross entropy with
    its distributions.
    """

    def __init__(self, model: PreTrainedModel, draft_ids: Tensor) -> None:
        super().__init__(model, draft_ids)
        config = layer_config(self._fields)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, config.hidden_size)])
        self.to(self._embedding[0].device)

    def features(self, ids: Tensor, features: Tensor) -> Tensor:
        """The extrapolated features [rows, length, hidden]; row t is for position t + 1."""
        tokens = F.embedding(ahead(ids, 1), self._embedding[0])
        joint = self.fc(torch.cat([tokens, features.to(tokens.dtype)], -1))
        return self.layers[0](joint, joint, [])

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        return [F.linear(self.features(ids, target.hidden), *self.projection())]

    def loss(self, batch: Batch, target: TargetOutputs) -> Tensor:
        features = self.features(batch.ids, add_noise(target.hidden, int(batch.ids.sum())))
        expected = ahead(target.hidden, 1).float()
        distances = F.smooth_l1_loss(features.float(), expected, reduction="none").mean(-1)
        logits = F.linear(features, *self.projection())
        cross_entropy = depth_loss(logits, *self.taught(batch, target), depth=1)
        regression = weighted_mean(distances, ahead(batch.weights, 2))
        return regression + CLASSIFICATION * cross_entropy

    def config(self) -> dict[str, object]:
        size, fields = len(self.d2t), {**self._fields, "bias": True}
        return fields if size == len(self.t2d) else {**fields, "draft_vocab_size": size}


class MidLayer(Layer):
    """A layer whose attention reads [norm(embedding) ; norm(feature)]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def step(self, tokens: Tensor, features: Tensor, chain: Chain) -> Tensor:
        attended = torch.cat([self.input_layernorm(tokens), self.hidden_norm(features)], -1)
        return self(features, attended, chain)


class Eagle3Head(VocabularyHead):
    """One decoder layer with a head of its own over the draft vocabulary.

    Source: Li et al. 2025, "EAGLE-3": training-time test. Depth 1 reads the target's features at
    every position, depth d its own outputs of depth d - 1, the tokens being the text's. Every
    depth learns the target's distributions.
    """

    first_decay = 0

    def __init__(self, model: PreTrainedModel, draft_ids: Tensor, num_unrolled: int = 6) -> None:
        super().__init__(model, draft_ids)
        config = layer_config(self._fields)
        self.layer_ids = feature_layers(model.config.get_text_config().num_hidden_layers)
        self._num_unrolled = num_unrolled
        rows, hidden = self.projection()[0], config.hidden_size
        self.fc = nn.Linear(len(self.layer_ids) * hidden, hidden, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
        self.lm_head = Projection(rows)
        self._start_from(model)
        self.to(rows.device)

    @torch.no_grad()
    def _start_from(self, model: PreTrainedModel) -> None:
        """Start as the target's last layer over the last feature, where the shapes are the same.

        Attention then ignores the embeddings, and the norm is the one that `lm_head` expects.
        """
        hidden, own = self.fc.out_features, dict(self.midlayer.named_parameters())
        own["input_layernorm.weight"] = own["hidden_norm.weight"]  # the norm of features
        for name, weight in decoder_layers(model)[-1].state_dict().items():
            if name in own and own[name].shape == weight.shape:
                own[name].copy_(weight)
            elif name in own and own[name].shape == (len(weight), 2 * hidden):
                own[name][:, :hidden] = 0
                own[name][:, hidden:] = weight
        norm = getattr(model.base_model, "norm", None)
        if norm is not None:
            self.norm.weight.copy_(norm.weight)
        self.fc.weight.zero_()
        self.fc.weight[:, -hidden:] = torch.eye(hidden)

    def outputs(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        """The layer's outputs of every depth [rows, length, hidden]."""
        tokens = F.embedding(ids, self._embedding[0])
        features = self.fc(torch.cat([target.layer_inputs[i] for i in self.layer_ids], -1))
        chain: Chain = []
        outputs = []
        for depth in range(1, self._num_unrolled + 1):
            features = self.midlayer.step(ahead(tokens, depth), features, chain)
            outputs.append(features)
        return outputs

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        return [self.lm_head(self.norm(output)) for output in self.outputs(ids, target)]

    def config(self) -> dict[str, object]:
        return {
            **self._fields,
            "architectures": ["LlamaForCausalLMEagle3"],  # the name that SGLang and vLLM look up
            "draft_vocab_size": self.lm_head.out_features,
            CONFIG_KEY: list(self.layer_ids),
        }


def add_noise(features: Tensor, seed: int) -> Tensor:
    """The features with uniform noise. It has its own seed, so that a resumed run repeats it."""
    generator = torch.Generator(features.device).manual_seed(seed)
    noise = torch.rand(features.shape, generator=generator, device=features.device)
    return features + (2 * noise - 1) * NOISE
