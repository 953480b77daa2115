"""The draft models of EAGLE and EAGLE-3 in training: one layer over the target's features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

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
from specbench.training.layer import Chain, Layer, config_fields, layer_config
from specbench.zoo.heads import CONFIG_KEY, feature_layers

NOISE = 0.1
"""Features get noise from U(-NOISE, NOISE) in training (EAGLE, section 4.2)."""

CLASSIFICATION = 0.1
"""Weight of the cross entropy, relative to the feature regression (EAGLE, section 4.2)."""


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
