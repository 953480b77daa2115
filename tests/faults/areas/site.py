"""Attacks on the site: odd, damaged or replaced runs beside good ones, and a full disk.

The page has every good run, or one message names the bad one.
"""

import shutil
from pathlib import Path
from random import Random

from tests.faults import damage
from tests.faults.areas.mutated_files import changed_value
from tests.faults.limits import file_size_limit
from tests.faults.program import run_folder, specbench, without_plots

TRIES = 150
FILES = ("run.json", "run.json", "samples.jsonl", "audit.json")


def attack(random: Random, folder: Path) -> None:
    for name in ("good", "odd"):
        shutil.copytree(run_folder(), folder / name)
    file = folder / "odd" / random.choice(FILES)
    if random.random() < 0.2:
        damage.replace_file(random, file)
        if file.is_fifo():  # a command would wait for a writer
            file.unlink()
    else:
        for _ in range(random.randint(1, 3)):
            file.write_bytes(changed_value(random, file.read_bytes()))
    names = random.sample(("good", "odd"), 2)
    limit = random.randrange(400_000) if random.random() < 0.2 else 2**30
    with without_plots(), file_size_limit(limit):
        said = specbench("site", *names, "--out", "site", folder=folder)
    if said.code == 0:
        assert "good" in (folder / "site" / "index.html").read_text()
        return
    assert "odd" in said.err or (limit < 2**30 and "cannot be written" in said.err), said.err
    with without_plots():
        assert specbench("site", "good", "--out", "site", folder=folder).code == 0
