"""Plausible records for tests."""

from typing import Any

from specbench.types import Record, RecordKey


def record(number: int = 0, **changes: Any) -> Record:
    """The record of a sample, with values changed."""
    values = {
        "key": RecordKey("pld:ngram=2", 0.0, "gsm8k", f"gsm8k/{number}", 0, 0), "status": "ok",
        "prompt_tokens": 9, "token_ids": (4, 5, 6), "text": "añ→", "stop_reason": "eos",
        "prefill_s": 0.5, "decode_s": 0.25, "accept_lengths": (2,), "num_nodes": (11,), "seed": 7,
    }  # fmt: skip
    return Record(**{**values, **changes})
