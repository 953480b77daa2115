"""Read the names and sizes of tensors from the headers of safetensors files."""

import math
import struct
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

import msgspec

from specbench.errors import CheckpointError, reading

DOWNLOAD_AGAIN = (
    "Download or copy the folder again (`specbench fetch --model NAME` for a known model)."
)
"""The hint for a broken checkpoint."""

_LONGEST_HEADER = 100 * 2**20
"""Bytes of the largest header that the safetensors library accepts."""

_TYPES_OF_BITS = {
    64: ("F64", "I64", "U64", "C64"),
    32: ("F32", "I32", "U32"),
    16: ("F16", "BF16", "I16", "U16"),
    8: ("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"),
}
_BITS = {name: bits for bits, names in _TYPES_OF_BITS.items() for name in names}
"""Name of a type in a safetensors file -> the bits of one element."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class TensorEntry(TypedDict):
    """A tensor in the header of a safetensors file."""

    dtype: str
    """Type of its elements, such as BF16."""
    shape: tuple[_Count, ...]
    """Sizes of its dimensions."""
    data_offsets: tuple[_Count, _Count]
    """Begin and end of its data, in bytes after the end of the header."""


class _TensorHeader(NamedTuple):
    """The header of a safetensors file."""

    tensors: dict[str, TensorEntry]
    """Tensors by name."""
    num_bytes: int
    """Bytes of the header, after which the data begin."""


def safetensors_header(file: Path, what: str) -> dict[str, TensorEntry]:
    """Return the dtype, shape and offsets of every tensor by its name, from the file's first bytes.

    Raise CheckpointError if the file is not in the safetensors format, or if its tensors do not
    fill it exactly, one after the other.
    """
    with reading(file, what, DOWNLOAD_AGAIN):
        num_bytes = file.stat().st_size
        if not file.is_file():  # a pipe would wait for a writer
            raise ValueError("it is not a regular file")
        header = _read_header(file, num_bytes)
        in_order = sorted(header.tensors, key=lambda name: header.tensors[name]["data_offsets"])
        data_end = 0
        for name in in_order:
            tensor = header.tensors[name]
            begin, end = tensor["data_offsets"]
            # 0 for a tensor of an unknown type, and for an empty tensor.
            num_bits = math.prod(tensor["shape"]) * _BITS.get(tensor["dtype"], 0)
            is_wrong_size = num_bits != 0 and num_bits != 8 * (end - begin)
            if begin != data_end or end < begin or is_wrong_size:
                raise ValueError(f"the offsets {begin} to {end} of {name} are wrong")
            data_end = end
    num_expected = header.num_bytes + data_end
    if num_bytes != num_expected:
        state = "truncated" if num_bytes < num_expected else "longer than its header says"
        message = f"{what}: {file} is {state}: {num_bytes:,} bytes, expected {num_expected:,}."
        raise CheckpointError(message, DOWNLOAD_AGAIN)
    return header.tensors


def _read_header(file: Path, num_bytes: int) -> _TensorHeader:
    """Read the header of a safetensors file of this size.

    The file begins with eight bytes that give the length of a JSON text, which follows.
    """
    with file.open("rb") as stream:
        length_bytes = stream.read(8)
        length = struct.unpack("<Q", length_bytes)[0] if len(length_bytes) == 8 else num_bytes
        if not 0 < length <= min(num_bytes - 8, _LONGEST_HEADER):
            raise ValueError("it is not a whole safetensors file: the header is cut off")
        entries = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
    entries.pop("__metadata__", None)
    decode = msgspec.json.Decoder(TensorEntry).decode
    return _TensorHeader({name: decode(raw) for name, raw in entries.items()}, 8 + length)
