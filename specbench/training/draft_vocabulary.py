"""Train heads over a draft vocabulary: the target's most frequent tokens, or all of them."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specbench.training.batches import Batch
from specbench.training.head import Head, Labels, TargetOutputs
from specbench.training.llama_layer import config_fields


class LinearMap(NamedTuple):
    """The weight and the bias of a frozen projection to a vocabulary."""

    weight: Tensor  # [vocab, hidden]
    bias: Tensor | None  # [vocab]


class VocabularyHead(Head):
    """A head over the target's most frequent tokens, or over all of its tokens.

    Training leaves out positions where the target chooses a token that the head lacks, as in
    EAGLE-3's official code.
    """

    file_name = "pytorch_model.bin"
    d2t: Tensor  # [draft vocab] difference between the target's id and the draft's
    t2d: Tensor  # [vocab] bool, true for the tokens of the draft vocabulary

    def __init__(self, model: PreTrainedModel, draft_ids: Tensor) -> None:
        """`draft_ids` are the target's ids of the tokens to draft, in ascending order."""
        super().__init__()
        self._fields = config_fields(model)
        # Plain tensors stay out of the state dict.
        self._embedding = model.get_input_embeddings().weight.detach()
        head = model.get_output_embeddings()
        bias: Tensor | None = getattr(head, "bias", None)
        self._head = LinearMap(head.weight.detach(), None if bias is None else bias.detach())
        num_tokens = len(head.weight)
        is_drafted = torch.zeros(num_tokens, dtype=torch.bool).index_fill(0, draft_ids, True)
        self.register_buffer("d2t", draft_ids - torch.arange(len(draft_ids)))
        self.register_buffer("t2d", is_drafted)

    def token_ids(self, head_ids: Tensor) -> Tensor:
        return head_ids + self.d2t[head_ids]

    def projection(self) -> LinearMap:
        """Return the rows of the target's projection for the draft vocabulary."""
        weight, bias = self._head
        if len(self.d2t) == len(weight):
            return self._head
        draft_ids = self.t2d.nonzero().flatten()
        return LinearMap(weight[draft_ids], None if bias is None else bias[draft_ids])

    def labels(self, batch: Batch, target: TargetOutputs) -> Labels:
        """Return the target's logits of the draft vocabulary, and the weights of tokens."""
        # Entry t is the weight of token t, which the target chooses at t - 1.
        weights = batch.weights.clone()
        weights[:, 1:] *= self.t2d[target.best][:, :-1]
        return Labels(F.linear(target.hidden, *self.projection()), weights)
