"""The frozen target as heads in training see it: logits, last hidden states, inputs of layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.target import decoder_layers
from specbench.zoo import attention
from specbench.zoo.heads.head import Seen


class Teacher:
    """A target that is read and never changed."""

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...] = ()) -> None:
        self._model = model.eval().requires_grad_(False)
        self._inputs: dict[int, Tensor] = {}
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        if model.device.type == "cpu" and heads == getattr(config, "num_key_value_heads", heads):
            model.set_attn_implementation(attention.register())
        layers = decoder_layers(model)
        for index in layer_ids:
            layers[index].register_forward_pre_hook(self._keep(index), with_kwargs=True)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> Seen:
        """What it shows of rows of text [rows, length]."""
        hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        logits = self._model.get_output_embeddings()(hidden)
        seen = Seen(logits, hidden, dict(self._inputs))
        self._inputs.clear()
        return seen

    def _keep(self, index: int) -> Callable[..., None]:
        def hook(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._inputs[index] = args[0] if args else kwargs["hidden_states"]

        return hook
