"""Sequences of a model that grow together by one token a step, each in a slot of one cache."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from specbench.engine.kv import layer_shapes

_ATTENTION = "specbench_slots"


class _Layer(CacheLayerMixin):
    """Keys and values [slots, heads, capacity, head_dim] of one layer."""

    is_sliding = False

    def __init__(self, slots: "Slots", keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self._slots = slots
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the slots exist from the start."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        num, _, new, _ = key_states.shape
        positions, end = self._slots.positions, self._slots.end
        if positions is None:  # the prefix, the same in every slot
            self.keys[:, :, :new], self.values[:, :, :new] = key_states, value_states
        else:
            row = torch.arange(num, device=positions.device)
            self.keys[row, :, positions] = key_states[:, :, 0]
            self.values[row, :, positions] = value_states[:, :, 0]
        return self.keys[:num, :, :end], self.values[:num, :, :end]

    def get_seq_length(self) -> int:
        return self._slots.end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slots.end, 0

    def get_max_length(self) -> int:
        return self.keys.shape[2]

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` in earlier transformers releases."""
        return self.keys.shape[2]


class Slots:
    """A cache for `num` sequences of at most `capacity` tokens that begin with the same prefix."""

    @torch.inference_mode()
    def __init__(
        self, model: PreTrainedModel, prefix: Sequence[int], *, num: int, capacity: int
    ) -> None:
        self._model = model
        self.end = len(prefix)
        shapes, layers = layer_shapes(model, model.device), []
        self._attention = model.config._attn_implementation
        model.set_attn_implementation(_registered())
        for shape in shapes:
            made = {"dtype": shape.dtype, "device": shape.device}
            (heads, width), (_, value_width) = shape.key, shape.value
            keys = torch.zeros(num, heads, capacity, width, **made)  # type: ignore[call-overload]
            values = torch.zeros(num, heads, capacity, value_width, **made)  # type: ignore[call-overload]
            layers.append(_Layer(self, keys, values))
        self._cache = Cache(layers=layers)
        self.positions: Tensor | None = None  # [slots in use] int64, where new tokens are written
        if prefix:
            ids = torch.tensor([prefix], device=model.device)
            mask = torch.full((self.end, self.end), float("-inf"), device=model.device).triu(1)
            self._forward(ids, torch.arange(self.end, device=model.device)[None], mask[None, None])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Logits [n, vocab] after the next token of each of the first n slots."""
        device = self._model.device
        self.positions = at = torch.tensor(positions, device=device)
        self.end = max(positions) + 1
        is_later = torch.arange(self.end, device=device) > at[:, None]
        mask = torch.zeros(is_later.shape, device=device).masked_fill_(is_later, float("-inf"))
        ids = torch.tensor(tokens, device=device)[:, None]
        return self._forward(ids, at[:, None], mask[:, None, None])[:, -1]

    @torch.inference_mode()
    def move(self, source: int, to: int) -> None:
        """Copy a sequence to another slot."""
        for layer in self._cache.layers:
            layer.keys[to], layer.values[to] = layer.keys[source], layer.values[source]

    def close(self) -> None:
        """Give the model its own attention back."""
        self._model.set_attn_implementation(self._attention)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self._model(
            input_ids=ids, position_ids=positions, attention_mask=mask.to(self._model.dtype),
            past_key_values=self._cache, use_cache=True,
        ).logits  # fmt: skip
        return logits


def _registered() -> str:
    """Register attention that does not repeat shared keys with transformers; return its name."""

    def attend(
        _: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **__: object
    ) -> tuple[Tensor, None]:
        rows, heads, length, width = q.shape
        is_step = length == 1  # the heads that share keys are then the queries of one head
        q = q.reshape(rows, k.shape[1], -1, width) if is_step else q
        mixed = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scaling, enable_gqa=not is_step
        )
        return mixed.reshape(rows, heads, length, -1).transpose(1, 2).contiguous(), None

    AttentionInterface.register(_ATTENTION, attend)
    return _ATTENTION
