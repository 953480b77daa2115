"""Attacks with records written by hand. Each value is possible, but together they make no sense.

Every command ends with a result, or with one message and exit code 2.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from specbench.types import Record
from tests.analysis.run_factory import full_run
from tests.faults.program import specbench, without_plots
from tests.support.headers import make_header, values_of
from tests.support.records import store

TRIES = 200
SECONDS = (0.0, 5e-324, 1e-9, 0.25, 0.25, 3.0, 1e300)
COUNTS = (0, 1, 2, 7, 10**6)
COMMANDS = (
    ("report", "odd"),
    ("report", "odd", "good", "--format", "json"),
    ("report", "odd", "--pool"),
    ("report", "odd", "--format", "html"),
    ("check", "odd"),
    ("check", "odd", "--json"),
    ("check", "odd", "--baseline", "good"),
    ("check", "good", "--baseline", "odd"),
    ("compare", "odd", "good"),
    ("merge", "odd", "good", "--out", "merged"),
    ("show", "odd"),
)


def attack(random: Random, folder: Path) -> None:
    run = full_run(("vanilla", "pld"), ("gsm8k",), num_samples=random.randint(1, 5))
    store(folder / "good", run.header, run.records)
    share = random.choice((0.05, 0.5, 1.0))
    records = [
        _odd(random, record) if random.random() < share else record for record in run.records
    ]
    kept = random.sample(records, random.choice((0, 1, len(records), len(records))))
    header = values_of(run.header)
    header.update(id="odd", status=random.choice(("complete", "failed", "interrupted")))
    header.update(num_records=random.choice((len(kept), 0, 10**9)))
    store(folder / "odd", make_header(header), kept)
    with without_plots():
        said = specbench(*random.choice(COMMANDS), folder=folder)
        checked = specbench("check", "odd", folder=folder)
    assert "nan" not in said.out.lower().split(), said.out
    assert checked.code == 1 or any(record.is_ok for record in kept), (
        "a run without an answer passes"
    )


def _odd(random: Random, record: Record) -> Record:
    """The record with other values, each of which is possible for its field."""
    if random.random() < 0.2:
        return Record(record.key, "error", 3, seed=record.seed, error="no memory")
    lengths = tuple(random.choice((1, 1, 2, 9)) for _ in range(random.choice((0, 1, 5, 300))))
    changes: dict[str, Any] = {
        "prefill_s": random.choice(SECONDS),
        "decode_s": random.choice(SECONDS),
        "outer_s": random.choice((None, *SECONDS)),
        "prompt_tokens": random.choice(COUNTS),
        "accept_lengths": lengths,
        "num_nodes": lengths if random.random() < 0.5 else (),
        "token_ids": (random.choice(COUNTS),) * (1 + sum(lengths)),
        "energy_j": random.choice(SECONDS),
        "peak_memory_bytes": random.choice(COUNTS),
        "is_paused": True,
        "token_ends": (),
    }
    names = random.sample(sorted(changes), random.randint(1, len(changes)))
    counted = ("accept_lengths", "num_nodes", "token_ids", "token_ends")
    if {*names} & {*counted}:
        names += counted
    return replace(record, **{name: changes[name] for name in names})
