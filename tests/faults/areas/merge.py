"""Attacks on merge: measurements that are given again in disguise, kills, a full disk.

Copies are refused by name. An interrupted merge never looks complete, and it can be repeated.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from specbench.log.store import HEADER, SAMPLES, read_run
from tests.analysis.run_factory import full_run
from tests.faults.limits import file_size_limit
from tests.faults.processes import kill_at_a_write
from tests.faults.program import specbench
from tests.judge.making import Change, rewrite
from tests.support.headers import make_header, values_of
from tests.support.records import store

TRIES = 160
TWICE = "it is given twice, or one is a copy"


def attack(random: Random, folder: Path) -> None:
    num_samples = random.randint(4, 9)
    num_first = random.randint(2, num_samples - 2)
    _write(random, folder / "first", range(num_first))
    _write(random, folder / "second", range(num_first, num_samples))
    random.choice((_disguised, _ended))(random, folder)


def _write(random: Random, path: Path, samples: range) -> None:
    """Write a run of these prompts, with times that no other run has."""
    run = full_run(("vanilla", "pld"), ("gsm8k",), num_samples=samples.stop)
    records = [
        record for record in run.records if int(record.key.sample_id.split("/")[1]) in samples
    ]
    header = values_of(run.header)
    header.update(id=path.name, uid=random.randbytes(8).hex(), num_records=len(records))
    for place, record in enumerate(records):
        prefill_s, decode_s = (
            (seconds or 0) * random.uniform(0.8, 1.2)
            for seconds in (record.prefill_s, record.decode_s)
        )
        records[place] = replace(record, prefill_s=prefill_s, decode_s=decode_s, place=place)
    store(path, make_header(header), records)


def _disguised(random: Random, folder: Path) -> None:
    """Merge a run, or two merged runs, with a changed copy of it, in any order."""
    source = random.choice(("first", "both"))
    if source == "both":
        assert _merge(folder, "first", "second", out="both") == ""
    shutil.copytree(folder / source, folder / "copy")
    header = json.loads((folder / "copy" / HEADER).read_text())
    header["id"] = "copy"
    if random.random() < 0.9:
        header["uid"] = random.choice(("", random.randbytes(8).hex()))
    if header.get("origins") and random.random() < 0.9:
        header["origins"] = []
    for _ in range(random.randint(1, 3)):
        _disguise(random)(folder / "copy")
    if header.get("num_records"):
        lines = (folder / "copy" / SAMPLES).read_text().splitlines()
        header["num_records"] = len(lines)
    (folder / "copy" / HEADER).write_text(json.dumps(header))
    names = [random.choice(("first", source)), "copy"]
    random.shuffle(names)
    said = _merge(folder, *names)
    # A single pass may also be refused because its number is beyond the repeats of its header.
    assert TWICE in said or "but the run has" in said, said or "it was merged"


def _disguise(random: Random) -> Callable[[Path], object]:
    """A change that leaves both times of most records within 2 µs."""

    def shorter(lines: list[dict[str, Any]]) -> None:
        del lines[random.randrange(len(lines))]

    def stripped(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line.update(place=None, text="other", origin="")

    def jittered(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["prefill_s"] += random.uniform(-0.6e-6, 0.6e-6)
            line["decode_s"] += random.uniform(-0.6e-6, 0.6e-6)

    def passes(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["repeat"] += 1

    changes: tuple[Change, ...] = (random.shuffle, shorter, stripped, jittered, passes)
    change = random.choice(changes)
    return lambda path: rewrite(path, change)


def _ended(random: Random, folder: Path) -> None:
    """End a merge at a write, by a kill or a full disk, once or twice. Then let it finish."""
    num_records = sum(len(read_run(folder / name).records) for name in ("first", "second"))
    for _ in range(random.randint(1, 2)):
        if random.random() < 0.6:
            if not kill_at_a_write(random, folder, _merge, folder, "first", "second"):
                break
        else:
            with file_size_limit(random.randrange(30_000)):
                said = _merge(folder, "first", "second")
            if not said:
                break
            assert "cannot be written" in said, said
        for file in folder.rglob(HEADER):
            status = json.loads(file.read_text())["status"]
            assert (file.parent.name in ("first", "second")) == (status == "complete"), file
    merged = folder / "out" / HEADER
    if not merged.exists() or json.loads(merged.read_text())["status"] != "complete":
        assert _merge(folder, "first", "second") == ""
    run = read_run(folder / "out")
    assert (run.header.status, len(run.records)) == ("complete", num_records)
    assert {file.name for file in folder.iterdir()} == {"first", "second", "out"}, (
        "files are left behind"
    )


def _merge(folder: Path, *names: str, out: str = "out") -> str:
    """Merge runs, and return the error message, empty if none is printed."""
    said = specbench("merge", *names, "--out", out, folder=folder)
    assert said.code in (0, 2), said
    return said.err if said.code else ""
