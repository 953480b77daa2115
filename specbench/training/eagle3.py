"""EAGLE-3's head in training: a decoder layer that is unrolled over its own outputs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specbench.engine.model_parts import decoder_layers
from specbench.training.chain_attention import Chain
from specbench.training.draft_vocabulary import VocabularyHead
from specbench.training.head import Projection, TargetOutputs, ahead
from specbench.training.llama_layer import Layer, layer_config
from specbench.zoo.heads import CONFIG_KEY, feature_layers


class MidLayer(Layer):
    """A layer whose attention reads [norm(embedding) ; norm(feature)]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def step(self, embedded: Tensor, features: Tensor, chain: Chain) -> Tensor:
        """Return the output of the chain's next element. All tensors are [rows, length, hidden]."""
        attended = torch.cat([self.input_layernorm(embedded), self.hidden_norm(features)], -1)
        return self(features, attended, chain)


class Eagle3Head(VocabularyHead):
    """One decoder layer, with its own projection to the draft vocabulary.

    Source: Li et al. 2025, "EAGLE-3": training-time test. Depth 1 reads the target's features at
    every position, and depth d reads the outputs of depth d - 1. At every depth, the tokens are the
    text's, and the head learns the target's distributions.
    """

    first_decay = 0

    def __init__(self, model: PreTrainedModel, draft_ids: Tensor, num_unrolled: int = 6) -> None:
        """Make a head for this target. Training unrolls it over `num_unrolled` depths."""
        super().__init__(model, draft_ids)
        config = layer_config(self._fields)
        self.layer_ids = feature_layers(model.config.get_text_config().num_hidden_layers)
        self._num_unrolled = num_unrolled
        target_weight = self.projection().weight
        hidden_size = config.hidden_size
        self.fc = nn.Linear(len(self.layer_ids) * hidden_size, hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = LlamaRMSNorm(hidden_size, eps=config.rms_norm_eps)
        self.lm_head = Projection(target_weight)
        self._start_from(model)
        self.to(target_weight.device)

    @torch.no_grad()
    def _start_from(self, model: PreTrainedModel) -> None:
        """Start as the target's last layer, which reads the last feature.

        Attention ignores the embeddings at first. Weights of other shapes stay as they are. `norm`
        is the target's, which `lm_head` expects.
        """
        hidden_size = self.fc.out_features
        parameters = dict(self.midlayer.named_parameters())
        parameters["input_layernorm.weight"] = self.midlayer.hidden_norm.weight  # it reads features
        for name, weight in decoder_layers(model)[-1].state_dict().items():
            parameter = parameters.get(name)
            if parameter is None:
                continue
            if parameter.shape == weight.shape:
                parameter.copy_(weight)
            elif parameter.shape == (len(weight), 2 * hidden_size):
                parameter[:, :hidden_size] = 0
                parameter[:, hidden_size:] = weight
        norm = getattr(model.base_model, "norm", None)
        if norm is not None:
            self.norm.weight.copy_(norm.weight)
        self.fc.weight.zero_()
        self.fc.weight[:, -hidden_size:] = torch.eye(hidden_size)

    def outputs(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        """Return the layer's outputs [rows, length, hidden] of every depth."""
        embedded = F.embedding(ids, self._embedding)
        layer_inputs = [target.layer_inputs[layer_id] for layer_id in self.layer_ids]
        features = self.fc(torch.cat(layer_inputs, -1))
        chain: Chain = []
        outputs = []
        for depth in range(1, self._num_unrolled + 1):
            features = self.midlayer.step(ahead(embedded, depth), features, chain)
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
