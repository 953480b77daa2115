"""Sound runs on disk, and changes to their lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import convert
from msgspec.structs import replace as replaced

from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.log.audit import write_audit
from specbench.log.header import RunHeader
from specbench.log.model import FileHeader
from specbench.types import Record, RecordKey, seed_of
from tests.support.audits import passed_audit, stored_audit
from tests.support.headers import make_header, merged
from tests.support.records import store as store_run

(PROMPTS,) = load_prompt_sets(plan_tasks(["gsm8k"], "bundled"), "bundled", num_prompts=2)
IDS = [prompt.sample_id for prompt in PROMPTS.prompts]
EOS = 2
FILE = {"bytes": 14 * 10**9, "sha256": "ab" * 32}
HEADER: dict[str, Any] = {
    "id": "good",
    "finished": "2026-11-20T12:01:00+00:00",
    "spec": {
        "values": {
            "model": "vicuna-7b", "tasks": ["gsm8k"], "methods": ["vanilla", "pld"], "limit": 2,
            "max_new_tokens": 8, "prompts": "bundled", "seed": 5,
        },
    },
    "model": {
        "name": "vicuna-7b", "label": "Vicuna 7B", "source": "lmsys/vicuna-7b", "dtype": "float32",
        "revision": "abc", "files": {"model.safetensors": FILE},
    },
    "methods": {"vanilla": {}, "pld": {}},
    "columns": {"gsm8k": "GSM8K"},
    "num_records": 4,
    "cpu": {
        "num_samples": 9, "interval_s": 1.0, "share_of_others": {"min": 0, "mean": 0.01, "max": 0.1}
    },
}  # fmt: skip
Change = Callable[[list[dict[str, Any]]], None]


def good_header(
    *, is_original: bool = True, files: dict[str, Any] | None = None, **changes: Any
) -> RunHeader:
    """The header with these values changed. `files` describe the model in place of its commit."""
    header = make_header(merged(HEADER, changes))
    if files:
        described = convert(files, dict[str, FileHeader])
        header = replaced(header, model=replaced(header.model, revision=None, files=described))
    return replaced(header, prompts=(replaced(PROMPTS.describe(), is_original=is_original),))


def good_records() -> list[Record]:
    records = []
    for sample in IDS:
        for method, lengths in (("vanilla", (1, 1, 1)), ("pld", (3,))):
            key = RecordKey(method, 0.0, "gsm8k", sample, 0, 0)
            records.append(
                Record(
                    key, "ok", 9, (7, 8, 9, EOS), "abcd", "eos", 0.500000001, 0.249999999, lengths,
                    tuple(max(lengths) for _ in lengths), seed_of(5, key.request),
                    token_ends=(1, 2, 3, 4),
                )
            )  # fmt: skip
    return records


def store(
    folder: Path,
    header: RunHeader | None = None,
    records: list[Record] | None = None,
    *,
    is_audited: bool = True,
) -> Path:
    store_run(folder, header or good_header(), good_records() if records is None else records)
    if is_audited:
        write_audit(folder, stored_audit(passed_audit("pld", 0.0), num_records=4))
    return folder


def rewrite(folder: Path, change: Change) -> Path:
    """Change the lines of a stored run as plain values. Return its folder."""
    file = folder / "samples.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def setting(number: int, **values: Any) -> Change:
    return lambda lines: lines[number].update(values)
