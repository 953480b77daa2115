"""EAGLE-3's draft model in training: on features of three layers, then on its own outputs."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specbench.zoo.batches import Batch
from specbench.zoo.heads.head import Head, Seen, ahead, soft_loss
from specbench.zoo.heads.layer import Chain, Layer, head_fields, llama_config

DECAY = 0.8
"""What each unrolled step's loss weighs against that of the step before it."""

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def feature_layers(num_layers: int) -> tuple[int, ...]:
    """The target layers whose inputs are the features.

    The official choice, where that is three different layers; else three others, or all there are.
    """
    official = sorted({2, num_layers // 2, num_layers - 3})
    if len(official) == 3 and official[0] >= 0 and official[-1] < num_layers:
        return tuple(official)
    if num_layers < 3:
        return tuple(range(num_layers))
    return tuple(sorted({num_layers // 4, num_layers // 2, num_layers - 1}))


class MidLayer(Layer):
    """A layer whose attention reads [norm(embedding) ; norm(feature)]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def step(self, tokens: Tensor, features: Tensor, chain: Chain) -> Tensor:
        attended = torch.cat([self.input_layernorm(tokens), self.hidden_norm(features)], -1)
        return self(features, attended, chain)


class Eagle3Head(Head):
    """One decoder layer with a head of its own over the most frequent tokens.

    Source: Li et al. 2025, "EAGLE-3": training-time test. Step 0 reads the target's features at
    every position, step k its own outputs of step k - 1, the tokens being the text's; every step
    learns the target's distributions. Positions where the target would choose a token outside the
    draft vocabulary are left out, as in the official code.
    """

    file_name = "pytorch_model.bin"
    d2t: Tensor  # [draft vocab] what to add to a draft id for the target's
    t2d: Tensor  # [vocab] bool, whether the draft has it

    def __init__(
        self, model: PreTrainedModel, draft_ids: Tensor | None = None, num_unrolled: int = 6
    ) -> None:
        """`draft_ids` are the target's ids of the draft vocabulary, increasing; None is all."""
        super().__init__()
        self._fields = head_fields(model)
        config = llama_config(self._fields)
        text = model.config.get_text_config()
        self.layer_ids = feature_layers(text.num_hidden_layers)
        self._embedding = (model.get_input_embeddings().weight.detach(),)
        self._num_unrolled = num_unrolled
        own = model.get_output_embeddings().weight.detach()
        ids = torch.arange(len(own)) if draft_ids is None else draft_ids.cpu()
        hidden = config.hidden_size
        self.register_buffer("d2t", ids - torch.arange(len(ids)))
        self.register_buffer(
            "t2d", torch.zeros(len(own), dtype=torch.bool).index_fill(0, ids, True)
        )
        self.fc = nn.Linear(len(self.layer_ids) * hidden, hidden, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, len(ids), bias=False)
        self.lm_head.weight = nn.Parameter(own[ids.to(own.device)].float().clone())
        self.to(own.device)

    def token_ids(self, head_ids: Tensor) -> Tensor:
        return head_ids + self.d2t[head_ids]

    def outputs(self, ids: Tensor, seen: Seen) -> list[Tensor]:
        """The layer's outputs of each unrolled step [rows, length, hidden]."""
        tokens = F.embedding(ids, self._embedding[0])
        features = self.fc(torch.cat([seen.layer_inputs[i] for i in self.layer_ids], -1))
        chain: Chain = []
        found = []
        for step in range(self._num_unrolled):
            features = self.midlayer.step(ahead(tokens, step + 1), features, chain)
            found.append(features)
        return found

    def guesses(self, ids: Tensor, seen: Seen) -> list[Tensor]:
        return [self.lm_head(self.norm(output)) for output in self.outputs(ids, seen)]

    def loss(self, batch: Batch, seen: Seen) -> Tensor:
        vocabulary = self.t2d.nonzero().flatten()
        teacher = seen.logits.index_select(-1, vocabulary)
        is_known = self.t2d[seen.logits.argmax(-1)]
        losses = []
        for step, logits in enumerate(self.guesses(batch.ids, seen)):
            weights = ahead(batch.weights, step + 2) * ahead(is_known, step + 1)
            losses.append(DECAY**step * soft_loss(logits, ahead(teacher, step + 1), weights))
        return torch.stack(losses).sum()

    def projections(self) -> Iterable[nn.Linear]:
        return (self.lm_head,)

    def config(self) -> dict[str, object]:
        return {
            **self._fields,
            "draft_vocab_size": self.lm_head.out_features,
            LAYER_IDS: list(self.layer_ids),
        }
