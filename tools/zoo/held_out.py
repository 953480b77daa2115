"""Draw held-out text from seeds that no training stream uses, and write the bundled prompts."""

import json
import random
from functools import cache
from pathlib import Path

from tools.zoo.text import FAMILIES, Dialogue, sample

PROMPT_SEED, LOG_SEED, EVALUATION_SEED = 20, 21, 22
NUM_PROMPTS, NUM_LEFT_OUT = 8, 12
"""Number of bundled prompts per family, and of held-out requests that training leaves out."""


def held_out_dialogues(family: str, num: int, seed: int = PROMPT_SEED) -> list[Dialogue]:
    """Return the family's first `num` held-out dialogues, without repeated first requests."""
    rng = random.Random(f"specbench-held-out/{seed}/{family}")
    chosen: dict[str, Dialogue] = {}
    while len(chosen) < num:
        dialogue = sample(family, rng)
        chosen.setdefault(dialogue.turns[0].user, dialogue)
    return list(chosen.values())


@cache
def bundled_requests() -> frozenset[str]:
    """Return first requests that training leaves out, including those of all bundled prompts."""
    return frozenset(
        dialogue.turns[0].user
        for family in FAMILIES
        for dialogue in held_out_dialogues(family, NUM_LEFT_OUT)
    )


def prompt_lines(family: str) -> str:
    """Return the bundled prompt file of the family, with one JSON object per line."""
    first_id = 1 + FAMILIES.index(family) * 100
    dialogues = held_out_dialogues(family, NUM_PROMPTS)
    records = [
        {
            "question_id": question_id,
            "category": dialogue.category,
            "turns": [turn.user for turn in dialogue.turns],
            "reference": [turn.assistant for turn in dialogue.turns],
        }
        for question_id, dialogue in enumerate(dialogues, start=first_id)
    ]
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_prompts(folder: Path) -> None:
    """Write the six bundled prompt files into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        (folder / f"{family}.jsonl").write_text(prompt_lines(family), encoding="utf-8")
