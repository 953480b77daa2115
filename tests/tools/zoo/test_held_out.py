"""The bundled prompts: held out, in the published format, and regenerable."""

import json
from itertools import islice
from pathlib import Path

import pytest

from tools.zoo.__main__ import PROMPTS
from tools.zoo.held_out import NUM_PROMPTS, bundled_requests, prompt_lines, write_prompts
from tools.zoo.language_models import SPS_DISTILLED, SPS_TEXT, TARGET
from tools.zoo.text import FAMILIES, stream


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bundled_prompts_regenerate_byte_for_byte(family: str) -> None:
    assert (PROMPTS / f"{family}.jsonl").read_bytes() == prompt_lines(family).encode()


def test_writing_the_prompts_writes_six_files(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(FAMILIES)


def test_the_bundled_prompts_have_the_published_format() -> None:
    seen: set[int] = set()
    for family in FAMILIES:
        lines = (PROMPTS / f"{family}.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == NUM_PROMPTS
        for line in lines:
            record = json.loads(line)
            assert list(record) == ["question_id", "category", "turns", "reference"]
            assert len(record["turns"]) == len(record["reference"])
            assert all(isinstance(text, str) for text in record["turns"] + record["reference"])
            seen.add(record["question_id"])
    assert len(seen) == NUM_PROMPTS * len(FAMILIES)


@pytest.mark.parametrize("seed", [TARGET.seed, SPS_TEXT.seed, SPS_DISTILLED.seed])
def test_no_bundled_prompt_is_in_the_training_stream(seed: int) -> None:
    requests = bundled_requests()
    for dialogue in islice(stream(seed, held_out=requests), 5000):
        assert dialogue.turns[0].user not in requests
