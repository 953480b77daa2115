"""The target's outputs for rows of text, computed once and kept in a file.

A head reads them in every epoch, at 2 bytes a number in bfloat16: a few KB for each token.
"""

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.log.files import folder_errors
from specbench.training.batches import Batch, Row
from specbench.training.head import TargetOutputs

_DONE = b"\x01"


class Features:
    """Outputs by row. A row's record is its best tokens, its features, and a byte once it is whole.

    More rows may come at the end: the records of the earlier ones stay.
    """

    def __init__(
        self,
        path: Path,
        rows: Sequence[Row],
        teacher: Callable[[Tensor], TargetOutputs],
        model: PreTrainedModel,
        layer_ids: tuple[int, ...],
    ) -> None:
        self._path, self._teacher, self._layer_ids = path, teacher, layer_ids
        self._head, self._dtype = model.get_output_embeddings(), model.dtype
        self._hidden_size = model.config.get_text_config().hidden_size
        self._width = (1 + len(layer_ids)) * self._hidden_size * self._dtype.itemsize
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
        if missing := [i for i, record in enumerate(records) if record is None]:
            self._compute(batch, missing)
            records = [self._read(row) for row in batch.rows]
        shape, device = batch.ids.shape, batch.ids.device
        best = torch.zeros(shape, dtype=torch.long)
        values = torch.zeros(*shape, self._width // self._dtype.itemsize, dtype=self._dtype)
        for i, (row, record) in enumerate(zip(batch.rows, records, strict=True)):
            assert record is not None
            length = self._lengths[row]
            best[i, :length] = torch.frombuffer(record, dtype=torch.int32, count=length)
            read = torch.frombuffer(record, dtype=self._dtype, offset=4 * length)
            values[i, :length] = read.view(length, -1)
        hidden, *inputs = values.to(device).split(self._hidden_size, -1)
        named = dict(zip(self._layer_ids, inputs, strict=True))
        return TargetOutputs(hidden, named, best.to(device), self._head)

    def _compute(self, batch: Batch, missing: Sequence[int]) -> None:
        made = self._teacher(batch.ids[missing])
        for i, place in enumerate(missing):
            row = batch.rows[place]
            length = self._lengths[row]
            parts = [made.hidden, *(made.layer_inputs[layer] for layer in self._layer_ids)]
            values = torch.cat([part[i, :length].to(self._dtype) for part in parts], -1).cpu()
            content = made.best[i, :length].int().cpu().numpy().tobytes()
            content += values.contiguous().view(torch.uint8).numpy().tobytes()
            with folder_errors(self._path, "--out"):
                self._write(content, self._starts[row])
                self._write(_DONE, self._starts[row + 1] - 1)

    def _write(self, content: bytes, at: int) -> None:
        rest = memoryview(content)
        while rest:
            num = os.pwrite(self._file, rest, at)
            rest, at = rest[num:], at + num

    def _read(self, row: int) -> bytearray | None:
        """A row's record without its last byte; None if it is not whole."""
        start, end = self._starts[row], self._starts[row + 1]
        record = bytearray(os.pread(self._file, end - start, start))
        if len(record) < end - start or record[-1:] != _DONE:
            return None
        return record[:-1]
