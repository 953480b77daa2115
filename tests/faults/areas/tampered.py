"""Attacks on a stored run, of every kind in SECURITY.md. `check RUN` finds what that page says.

A change of any value in the records of an audited run is found, or makes the audit invalid.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

from specbench.types import Record
from tests.faults.areas.mutated_files import changed_value
from tests.judge.making import EOS, good_records, store
from tests.judge.test_tampering import CHANGES, audited, expected_verdict, tamper, verdict

TRIES = 300
UNKNOWN = "cannot be known"
FOUND = ("found", "found with the audit")
"""Verdicts on a change that shows in the records, or in the hash that an audit kept."""
IN_LINES = [name for name, change in CHANGES.items() if callable(change)]
IN_HEADER = [name for name, change in CHANGES.items() if not callable(change)]


def attack(random: Random, folder: Path) -> None:
    run = audited(store(folder / "run", records=_records(random)))
    assert verdict(run) == UNKNOWN, "an honest run is accused"
    if random.random() < 0.3:
        file = run / "samples.jsonl"
        before = file.read_bytes()
        file.write_bytes(changed_value(random, before))
        assert verdict(run) != UNKNOWN or file.read_bytes() == before
        return
    name = random.choice(IN_LINES)
    tamper(run, name)
    expected = expected_verdict(name)
    if random.random() < 0.3:
        name = random.choice(IN_HEADER)
        tamper(run, name)
        if expected_verdict(name) == "found":
            expected = "found"
    outcome = verdict(run)
    # The drawn times decide whether a changed time is impossible or merely another time.
    assert outcome == expected or {outcome, expected} <= {*FOUND}, expected


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
