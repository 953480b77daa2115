"""The training of one head: its settings, the frozen target, batches, and the files it ends in.

The target's outputs for rows of text are computed once and kept in a file. A head reads them
in every epoch, at 2 bytes a number in bfloat16: a few KB for each token.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.layers.torch_attention import attention_kinds
from specbench.engine.model_parts import decoder_layers
from specbench.errors import NonFiniteError, UserError
from specbench.log.files import folder_errors
from specbench.training.batches import Batch, BatchSource, Row, ShuffledBatches
from specbench.training.head import Head, TargetOutputs, agreement
from specbench.training.kinds import BLOCKS, Eagle3Head, EagleHead, HydraHeads, MedusaHeads
from specbench.training.loop import NO_NUMBERS, Plan, Schedule, optimizers_for, train, write_head

_VOCABULARY = 32_000
_DECAY = 0.5
"""Share of the steps in which the learning rate falls; before, a run may get more steps."""
_DONE = b"\x01"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one training run, with the peak learning rates of Muon and of AdamW.

    A step trains on `num_rows` rows of at most `length` tokens. A request's tokens have
    `request_weight` in the loss, an answer's 1.
    """

    num_steps: int = 2000
    num_rows: int = 8
    length: int = 1024
    request_weight: float = 0.3
    seed: int = 1
    matrix_lr: float = 0.02
    other_lr: float = 0.002
    num_heads: int = 4
    num_unrolled: int = 6
    draft_vocab: int | None = None
    """Most frequent tokens that EAGLE's heads draft; None: 32,000 for EAGLE-3, else all."""

    num_tokens: int = 1_000_000
    """Tokens of answers that the target writes, where it writes the text."""

    openings: list[str] | None = None
    """Beginnings of the requests that the target writes; None: it writes them whole."""

    is_mixed: bool = True
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""

    @property
    def schedule(self) -> Schedule:
        warmup = min(50, self.num_steps // 10)
        return Schedule(self.num_steps, warmup=warmup, decay=_DECAY)


_BY_DEPTH = {"medusa": MedusaHeads, "hydra": HydraHeads}
HEADS = (*_BY_DEPTH, "eagle", "eagle3")
"""Kinds of heads that can be trained."""


def new_head(method: str, model: PreTrainedModel, settings: Settings, batches: BatchSource) -> Head:
    """An untrained head for the target. EAGLE's may draft the frequent tokens of `batches`."""
    torch.manual_seed(settings.seed)
    if method in _BY_DEPTH:
        return _BY_DEPTH[method](model, settings.num_heads)
    vocab = model.get_output_embeddings().weight.shape[0]
    size = settings.draft_vocab or (_VOCABULARY if method == "eagle3" else vocab)
    is_part = size < vocab
    ids = frequent_tokens(batches.rows, size, vocab) if is_part else torch.arange(vocab)
    if method == "eagle":
        return EagleHead(model, ids)
    return Eagle3Head(model, ids, settings.num_unrolled)


def frequent_tokens(rows: Iterable[Row], size: int, vocab: int) -> Tensor:
    """The `size` tokens with most weight, increasing. [size] int64

    Among equals the smallest id comes first.
    """
    counts = torch.zeros(vocab, dtype=torch.float64)
    for row in rows:
        weights = torch.tensor(row.weights, dtype=torch.float64)
        counts += torch.bincount(torch.tensor(row.ids), weights, vocab)
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


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


def fit(
    head: Head,
    model: PreTrainedModel,
    settings: Settings,
    batches: BatchSource,
    held_out: ShuffledBatches,
    plan: Plan,
    out: Path,
) -> Mapping[str, float]:
    """Train the head in place, and write it to `out` at every evaluation and at the end.

    The log has the rates at which its best tokens on held-out text are the target's; the last
    rates are returned. The target's outputs are kept beside the log, so that it runs once over
    each row.

    Raises:
        UserError: the memory is full.
    """
    teacher = Teacher(model, head.layer_ids)
    kind, is_mixed = model.device.type, settings.is_mixed
    mixed = partial(torch.autocast, kind, dtype=torch.bfloat16, enabled=is_mixed)

    def kept(name: str, source: BatchSource) -> closing[Features]:
        return closing(Features(plan.log.path.with_name(name), source.rows, teacher))

    optimizers = optimizers_for(head, head.vocab_weights(), settings.matrix_lr, settings.other_lr)
    last: dict[str, float] = {}
    with kept("features.bin", batches) as features, kept("held_out.bin", held_out) as tested:

        def loss_of(batch: Batch) -> Tensor:
            with mixed():
                return head.loss(batch, features(batch))

        def evaluate() -> Mapping[str, float]:
            write_head(head, out)
            text = (batch.to(model.device) for batch in held_out.in_order())
            with mixed():
                last.update(agreement(head, ((batch, tested(batch)) for batch in text)))
            return last

        try:
            train(head, loss_of, batches, optimizers, plan, evaluate)
            if not last:  # a resumed training that had all its steps
                evaluate()
        except RuntimeError as error:
            if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate" in str(error)):
                raise
            size = f"--rows {settings.num_rows} and --length {settings.length}"
            raise UserError(f"{size} need more memory than is free.", "Lower them.") from error
    return last
