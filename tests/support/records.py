"""Plausible records for tests."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specbench.log.header import RunHeader
from specbench.log.store import RunFolder
from specbench.types import Record, RecordKey


def record(sample: int = 0, **changes: Any) -> Record:
    """The record of a sample, with these values changed."""
    fields = {
        "key": RecordKey("pld:ngram=2", 0.0, "gsm8k", f"gsm8k/{sample}", 0, 0), "status": "ok",
        "prompt_tokens": 9, "token_ids": (4, 5, 6), "text": "añ→", "stop_reason": "eos",
        "prefill_s": 0.5, "decode_s": 0.25, "accept_lengths": (2,), "num_nodes": (11,), "seed": 7,
    }  # fmt: skip
    return Record(**{**fields, **changes})


def store(path: Path, header: RunHeader, records: Iterable[Record]) -> Path:
    """Write a run with this header and these records. Return its folder."""
    with RunFolder(path) as folder:
        folder.write_header(header)
        for record in records:
            folder.append(record)
    return path
