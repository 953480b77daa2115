"""The target's outputs for rows of text, computed once and kept in a file.

A head reads them in every epoch, at 2 bytes a number in bfloat16: a few KB for each token.
"""

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.layers.torch_attention import attention_kinds
from specbench.engine.model_parts import decoder_layers
from specbench.errors import NonFiniteError
from specbench.log.files import folder_errors
from specbench.training.batches import Batch, Row
from specbench.training.files import NO_NUMBERS
from specbench.training.head import TargetOutputs
from specbench.training.layer import BLOCKS

_DONE = b"\x01"


class Teacher:
    """The frozen target that heads learn from."""

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...] = ()) -> None:
        self.model, self.layer_ids = model.eval().requires_grad_(False), layer_ids
        self._inputs: dict[int, Tensor] = {}
        config = model.config.get_text_config()
        heads, has_windows = config.num_attention_heads, any(attention_kinds(config).values())
        is_plain = heads == getattr(config, "num_key_value_heads", heads) and not has_windows
        if model.device.type == "cpu" and is_plain:
            model.set_attn_implementation(BLOCKS)
        for index in layer_ids:
            hook = partial(self._capture, index)
            decoder_layers(model)[index].register_forward_pre_hook(hook, with_kwargs=True)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> TargetOutputs:
        """Its outputs for rows of text [rows, length].

        Raises:
            NonFiniteError: they are NaN or infinite.
        """
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        head = self.model.get_output_embeddings()
        top = head(hidden).max(-1)
        if not (hidden.abs().amax() + top.values.amax()).isfinite():  # a logit may be -inf
            raise NonFiniteError("The target's outputs are NaN or infinite.", NO_NUMBERS)
        return TargetOutputs(hidden, dict(self._inputs), top.indices, head)

    def _capture(
        self, index: int, layer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._inputs[index] = args[0] if args else kwargs["hidden_states"]


class Features:
    """Outputs by row. A row's record is its best tokens, its features, and a byte once it is whole.

    More rows may come at the end: the records of the earlier ones stay.
    """

    def __init__(self, path: Path, rows: Sequence[Row], teacher: Teacher) -> None:
        self._path, self._teacher, self._dtype = path, teacher, teacher.model.dtype
        self._hidden_size = teacher.model.config.get_text_config().hidden_size
        num_features = 1 + len(teacher.layer_ids)
        self._width = num_features * self._hidden_size * self._dtype.itemsize
        self._lengths = [len(row.ids) for row in rows]
        sizes = (length * (4 + self._width) + 1 for length in self._lengths)
        self._starts = list(accumulate(sizes, initial=0))
        with folder_errors(path, "--out"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        os.close(self._file)

    def __call__(self, batch: Batch) -> TargetOutputs:
        """The outputs for a batch, zero on padding. Unknown rows run through the target."""
        if not batch.rows:
            return self._teacher(batch.ids)
        records = [self._read(row) for row in batch.rows]
        if missing := [i for i, record in enumerate(records) if not record]:
            self._compute(batch, missing)
        shape, device = batch.ids.shape, batch.ids.device
        best = torch.zeros(shape, dtype=torch.long)
        values = torch.zeros(*shape, self._width // self._dtype.itemsize, dtype=self._dtype)
        for i, row in enumerate(batch.rows):
            record, length = records[i] or self._read(row), self._lengths[row]
            best[i, :length] = torch.frombuffer(record, dtype=torch.int32, count=length)
            read = torch.frombuffer(record, dtype=self._dtype, offset=4 * length)
            values[i, :length] = read.view(length, -1)
        hidden, *inputs = values.to(device).split(self._hidden_size, -1)
        named = dict(zip(self._teacher.layer_ids, inputs, strict=True))
        head = self._teacher.model.get_output_embeddings()
        return TargetOutputs(hidden, named, best.to(device), head)

    def _compute(self, batch: Batch, missing: Sequence[int]) -> None:
        made = self._teacher(batch.ids[missing])
        for i, place in enumerate(missing):
            row = batch.rows[place]
            length = self._lengths[row]
            parts = [made.hidden, *made.layer_inputs.values()]
            values = torch.cat([part[i, :length].to(self._dtype) for part in parts], -1).cpu()
            content = made.best[i, :length].int().cpu().numpy().tobytes()
            content += values.contiguous().view(torch.uint8).numpy().tobytes() + _DONE
            rest, at = memoryview(content), self._starts[row]
            while rest:
                with folder_errors(self._path, "--out"):
                    num = os.pwrite(self._file, rest, at)
                rest, at = rest[num:], at + num

    def _read(self, row: int) -> bytearray:
        """A row's record without its last byte; nothing if it is not whole."""
        start, end = self._starts[row], self._starts[row + 1]
        record = bytearray(os.pread(self._file, end - start, start))
        is_whole = len(record) == end - start and record[-1:] == _DONE
        return record[:-1] if is_whole else bytearray()
