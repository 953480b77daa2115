"""Run a frozen target over rows of text, and store its outputs in a file for heads to learn from.

The outputs are computed once. A head reads them in every epoch. In bfloat16 they take 2 bytes per
number, a few KB per token.
"""

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.layers.torch_attention import attention_kinds
from specbench.engine.model_parts import decoder_layers
from specbench.errors import NonFiniteError
from specbench.log.files import folder_errors
from specbench.training.batches import Batch, Row
from specbench.training.chain_attention import BLOCKS
from specbench.training.head import NON_FINITE_HINT, TargetOutputs

_DONE = b"\x01"
"""The last byte of a complete record."""
_ID_BYTES = 4
"""Bytes of a token id in a record."""


class Teacher:
    """The frozen target that heads learn from."""

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...] = ()) -> None:
        """Freeze the model, and collect the inputs of these layers."""
        self.model = model.eval().requires_grad_(False)
        self.layer_ids = layer_ids
        self._inputs: dict[int, Tensor] = {}
        config = model.config.get_text_config()
        num_heads = config.num_attention_heads
        has_groups = num_heads != getattr(config, "num_key_value_heads", num_heads)
        has_windows = any(attention_kinds(config).values())
        if model.device.type == "cpu" and not has_groups and not has_windows:
            model.set_attn_implementation(BLOCKS)
        for index in layer_ids:
            hook = partial(self._capture, index)
            decoder_layers(model)[index].register_forward_pre_hook(hook, with_kwargs=True)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> TargetOutputs:
        """Return the target's outputs for rows of text [rows, length].

        Raises:
            NonFiniteError: the outputs are NaN or infinite.
        """
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        projection = self.model.get_output_embeddings()
        best = projection(hidden).max(-1)
        largest = hidden.abs().amax() + best.values.amax()  # a logit may be -inf
        if not largest.isfinite():
            raise NonFiniteError("The target's outputs are NaN or infinite.", NON_FINITE_HINT)
        return TargetOutputs(hidden, dict(self._inputs), best.indices, projection)

    def _capture(
        self, index: int, layer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Store the input of a layer before it runs."""
        self._inputs[index] = args[0] if args else kwargs["hidden_states"]


class RowOutputs(NamedTuple):
    """The target's outputs for one row."""

    best: Tensor  # [length] int32
    features: Tensor  # [length, features], hidden states and the inputs of layers side by side


class Features:
    """A file of the target's outputs for each row.

    A row's record has its best tokens, its features, and a byte that marks it as complete. If rows
    are added at the end, the records of earlier rows stay.
    """

    def __init__(self, path: Path, rows: Sequence[Row], teacher: Teacher) -> None:
        """Open the file at `path`, which may already have records of these rows."""
        self._path = path
        self._teacher = teacher
        self._dtype = teacher.model.dtype
        self._hidden_size = teacher.model.config.get_text_config().hidden_size
        self._num_features = (1 + len(teacher.layer_ids)) * self._hidden_size
        self._lengths = [len(row.ids) for row in rows]
        token_bytes = _ID_BYTES + self._num_features * self._dtype.itemsize
        record_bytes = (length * token_bytes + len(_DONE) for length in self._lengths)
        self._starts = list(accumulate(record_bytes, initial=0))
        with folder_errors(path, "--out"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        os.close(self._file)

    def __call__(self, batch: Batch) -> TargetOutputs:
        """Return the outputs for a batch, zero on padding. Rows without a record are computed."""
        if not batch.rows:
            return self._teacher(batch.ids)
        outputs_of_rows = [self._read(row) for row in batch.rows]
        missing = [index for index, outputs in enumerate(outputs_of_rows) if outputs is None]
        if missing:
            self._compute(batch, missing)
        device = batch.ids.device
        best = torch.zeros(batch.ids.shape, dtype=torch.long)
        features = torch.zeros(*batch.ids.shape, self._num_features, dtype=self._dtype)
        for index, row in enumerate(batch.rows):
            outputs = outputs_of_rows[index] or self._read(row)
            assert outputs is not None
            length = self._lengths[row]
            best[index, :length] = outputs.best
            features[index, :length] = outputs.features
        hidden, *inputs = features.to(device).split(self._hidden_size, -1)
        layer_inputs = dict(zip(self._teacher.layer_ids, inputs, strict=True))
        projection = self._teacher.model.get_output_embeddings()
        return TargetOutputs(hidden, layer_inputs, best.to(device), projection)

    def _compute(self, batch: Batch, missing: Sequence[int]) -> None:
        """Run these rows of the batch through the target, and write their records."""
        outputs = self._teacher(batch.ids[missing])
        for index, index_in_batch in enumerate(missing):
            row = batch.rows[index_in_batch]
            length = self._lengths[row]
            tensors = [outputs.hidden, *outputs.layer_inputs.values()]
            features = [tensor[index, :length].to(self._dtype) for tensor in tensors]
            feature_bytes = torch.cat(features, -1).cpu().contiguous().view(torch.uint8)
            id_bytes = outputs.best[index, :length].int().cpu().numpy().tobytes()
            self._write(row, id_bytes + feature_bytes.numpy().tobytes() + _DONE)

    def _write(self, row: int, record: bytes) -> None:
        """Write a row's record at its position in the file."""
        rest = memoryview(record)
        position = self._starts[row]
        while rest:
            with folder_errors(self._path, "--out"):
                num_written = os.pwrite(self._file, rest, position)
            rest = rest[num_written:]
            position += num_written

    def _read(self, row: int) -> RowOutputs | None:
        """Return the outputs in a row's record, or None if it is not complete."""
        start = self._starts[row]
        num_bytes = self._starts[row + 1] - start
        record = bytearray(os.pread(self._file, num_bytes, start))
        if len(record) < num_bytes or not record.endswith(_DONE):
            return None
        del record[-len(_DONE) :]
        length = self._lengths[row]
        best = torch.frombuffer(record, dtype=torch.int32, count=length)
        features = torch.frombuffer(record, dtype=self._dtype, offset=_ID_BYTES * length)
        return RowOutputs(best, features.view(length, -1))
