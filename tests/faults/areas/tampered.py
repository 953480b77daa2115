"""Attacks on a stored run, of every kind in SECURITY.md: `check RUN` finds what that page says.

A change of any value in the records of an audited run is found, or makes the audit invalid.
"""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from specbench.types import Record
from tests.faults.areas.mutated_files import changed_value
from tests.judge.making import EOS, good_records, rewrite, store
from tests.judge.test_tampering import KINDS, audited, verdict
from tests.support.headers import merged

TRIES = 300
UNKNOWN = "cannot be known"
FOUND = ("found", "found with the audit")
"""Verdicts on a change that is found: by the records alone, or by the hash that an audit kept."""


def attack(random: Random, folder: Path) -> None:
    run = audited(store(folder / "run", records=_records(random)))
    assert verdict(run) == UNKNOWN, "an honest run"
    if random.random() < 0.3:
        file = run / "samples.jsonl"
        before = file.read_bytes()
        file.write_bytes(changed_value(random, before))
        assert verdict(run) != UNKNOWN or file.read_bytes() == before
        return
    kind, change, _ = random.choice([entry for entry in KINDS.values() if callable(entry[1])])
    rewrite(run, change)
    if random.random() < 0.3:
        more, change, _ = random.choice(
            [entry for entry in KINDS.values() if not callable(entry[1])]
        )
        _change_header(run, change)
        kind = "found" if more == "found" else kind
    outcome = verdict(run)
    # The drawn times decide whether a changed time is impossible by itself or only another one.
    assert outcome == kind or {outcome, kind} <= {*FOUND}, kind


def _change_header(run: Path, change: dict[str, Any]) -> None:
    file = run / "run.json"
    file.write_text(json.dumps(merged(json.loads(file.read_text()), change)))


def _records(random: Random) -> list[Record]:
    """Sound records with tokens and times drawn anew."""
    token_ids = (*random.sample(range(10, 1000), 3), EOS)
    return [
        replace(
            record, token_ids=token_ids, prefill_s=random.uniform(0.2, 0.8),
            decode_s=random.uniform(0.2, 0.45), text="".join(random.choices("vwxyz", k=4)),
        )
        for record in good_records()
    ]  # fmt: skip
