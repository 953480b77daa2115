"""The target model and its checkpoints in `run.json`."""

import re
from typing import Annotated, Any, Literal

from msgspec import Struct

from specbench.log.machine import UNKNOWN
from specbench.log.options import role, shown_as
from specbench.types import Shape

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""The id of a repository on the Hub: "org/name"."""

_DEQUANTISED = "dequantised "


def precision(quantization: str, dtype: str) -> str:
    """The number formats of a model in words, such as "Q4_1 → bfloat16" for dequantised weights."""
    if dtype == UNKNOWN:
        return "unknown dtype"
    if quantization.startswith(_DEQUANTISED):
        return f"{quantization.removeprefix(_DEQUANTISED)} → {dtype}"
    return f"{quantization} weights, {dtype}" if quantization else dtype


class FileHeader(Struct, frozen=True):
    """A file of a checkpoint."""

    bytes: int
    """Size of the file."""
    sha256: str | None
    """Hash of the file. Null for a large file in runs of older versions."""


class WeightsHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint. For a stand-in, the files are those of the small model that it is made from."""

    is_stand_in: bool = False
    """True for the weights of a stand-in."""
    num_numbers: int | None = None
    """Number of values in a stand-in's tensors."""
    seed: int | None = None
    """Seed of a stand-in's noise."""
    revision: str | None
    """Commit on the Hub. Null for a local folder."""
    files: Annotated[dict[str, FileHeader], shown_as("file {}")]
    """Files by name."""


class ThinkingHeader(Struct, frozen=True, omit_defaults=True):
    """The thinking mode of the prompts, found from their tokens."""

    state: Literal["switched", "fixed", "unknown"]
    """switched: the template has switches that change prompts; fixed: it has none, and always
    thinks; unknown: it has switches, but they change no prompt.
    """
    is_on: bool | None = None
    """True if the model is asked to think or always thinks. Absent if unknown."""
    values: dict[str, Any] = {}
    """Values of the template's switches. Absent if empty."""


class ChatHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rendering of dialogues as prompts."""

    num_bos: int | None = None
    """Number of BOS tokens before a prompt. Absent if the tokenizer has none."""
    ends: dict[str, tuple[int, ...]] = {}
    """Tokens that end an answer, by the file that names them: a config or the template."""
    thinking: ThinkingHeader | None = None
    """Thinking mode. Absent if the template has no switch and no answer begins with thinking."""
    history: str = ""
    """Parts of an answer that later prompts of the chat keep. Absent if they keep all, as in older
    runs.
    """
    think_ids: tuple[int, ...] = ()
    """Special tokens that mark thinking and are left out of the texts of answers. Absent if
    empty.
    """


class ModelHeader(Struct, frozen=True, kw_only=True):
    """The target model."""

    name: Annotated[str, shown_as("model")]
    """Name on the model card, or folder."""
    label: str
    """Name in tables."""
    source: str
    """Hub id or folder of the weights, or `embedded`."""
    dtype: Annotated[str, shown_as("dtype")]
    """Number format of the weights."""
    quantization: Annotated[str, shown_as("quantised weights")] = ""
    """The checkpoint's quantisation, such as awq int4 or dequantised fp8. Absent if it has none."""
    is_stand_in: Annotated[bool, shown_as("stand-in instead of the real weights")] = False
    """True for a small model in the real model's shape."""
    is_embedded: bool = False
    """True if the weights ship with specbench."""
    num_parameters: Annotated[int | None, role("note")] = None
    """Number of all parameters, experts included. The papers' trees depend on it. Absent if
    unknown.
    """
    shape: Shape | None = None
    """Shape of a stand-in. Absent for other models."""
    revision: Annotated[str | None, shown_as("model revision")] = None
    """Commit on the Hub. Null for a local folder."""
    files: Annotated[dict[str, FileHeader], shown_as("file {}")] = {}
    """Files of the checkpoint by name."""
    template_sha256: Annotated[str | None, shown_as("text of the chat template")] = None
    """Hash of the chat template. Absent without a template."""
    chat: Annotated[ChatHeader | None, role("note")] = None
    """Rendering of dialogues as prompts. Absent in older runs."""

    @property
    def marked_label(self) -> str:
        """The name in tables, with a note if the model is a stand-in."""
        if self.is_stand_in and "stand-in" not in self.label.lower():
            return f"{self.label} (stand-in: the real shape, not the real weights)"
        return self.label

    @property
    def precision(self) -> str:
        """The number formats of the model in words."""
        return precision(self.quantization, self.dtype)

    def rounding(self, dtype: str) -> str:
        """The number format that a model in `dtype` rounds to, for the audit.

        Whatever the dtype, the libraries for quantised weights compute in half precision, or with
        inputs of 8 bits. torchao's int8 and int4, and dequantised weights, compute in the dtype.
        """
        in_dtype = self.quantization in ("", "int8", "int4")
        return dtype if in_dtype or self.quantization.startswith(_DEQUANTISED) else "bfloat16"
