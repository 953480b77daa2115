"""Runs with random numbers: each cheat is named by its rule, and honest methods by none."""

from pathlib import Path
from random import Random

from tests.analysis.test_cheats import CHEATS, honest, methods_named, of, run

TRIES = 200


def attack(random: Random, folder: Path) -> None:
    seed = random.randrange(10**9)
    if random.random() < 0.4:
        assert not methods_named(honest(seed)), "an honest run is accused"
        return
    key = random.choice([*CHEATS])
    cheat = CHEATS[key]
    cheated = run(of(cheat.method, cheat.change), repeats=2, num_samples=24, seed=seed)
    named = methods_named(cheated)
    assert key in named and {name for rule in named.values() for name in rule} == {cheat.method}, (
        named
    )
