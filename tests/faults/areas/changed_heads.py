"""Attacks with several changes to a draft head.

Each change is refused or reported as if it were the only one. A head that is not refused drafts as
the unchanged head does.
"""

import json
from pathlib import Path
from random import Random
from re import findall

from specbench.errors import CheckpointError
from tests.methods.checkpoints import IDS, Tensors
from tests.methods.test_changed_heads import CASES, Case, a_head, drafted, unchanged

TRIES = 200
APART = [case for case in CASES.values() if IDS not in json.dumps(dict(case.config), default=str)]
"""Changes whose meaning does not depend on other changes."""
SOUND = Case().tensors


def attack(random: Random, folder: Path) -> None:
    method = random.choice(("eagle", "eagle3", "peagle", "dflash"))
    drawn = random.sample([case for case in APART if case.method == method], 9)
    cases: list[Case] = []  # at most one change of tensors, and one per field
    for case in drawn[: random.randint(1, 3)]:
        names = {name for case in cases for name in case.config}
        if not names & case.config.keys() and not (cases and case.tensors is not SOUND):
            cases.append(case)

    def change(tensors: Tensors) -> None:
        for case in cases:
            case.tensors(tensors)

    config = {name: content for case in cases for name, content in case.config.items()}
    head = a_head(Case(config, tensors=change, method=method), folder / "head")
    refusals = [case.refused for case in cases if case.refused]
    try:
        tokens, drafter = drafted(head, method)
    except CheckpointError as error:
        assert any(words in error.message for words in refusals), error.message
        return
    assert not refusals, f"none of these refused the head: {refusals}"
    notes = " ".join(drafter.weights_notes)
    for case in cases:  # notes list the fields of all cases together
        assert all(word in notes for word in findall(r"\w+", case.told)), case
    assert tokens == unchanged(method), "the drafts have changed"
