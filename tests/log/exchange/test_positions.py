"""Walks over accepted lengths at positions, as SpecDecode-Bench's simulator stores them."""

from pathlib import Path

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors import UserError
from specbench.log.exchange.formats.positions import walk
from tests.log.exchange.files import about, imported, needs_published, published, write_lines


@needs_published
def test_a_walk_gives_the_published_lengths(tmp_path: Path) -> None:
    run = imported(tmp_path, f"sim={published('simulator/combined_gsm8k.jsonl')}", task="gsm8k")
    overall = measure(run).overall
    mats = [overall[f"sim eagle {name}", 0.0].mat for name in ("K=1", "K=3", "K=5", "oracle")]
    assert [round(mat.value, 3) for mat in mats if isinstance(mat, Estimate)] == [
        1.693,
        2.379,
        2.651,
        2.783,
    ]
    assert overall["sim eagle K=1", 0.0].pooled.tokens_per_s == Missing(
        "no times in the imported files"
    )
    (oddity,) = about(run).oddities
    assert "300 of 300 prompts begin with two equal tokens (BOS)" in oddity


def test_a_step_is_bounded_by_its_drafts_and_the_answers_end() -> None:
    lengths = [3, 1, 2, 5, 4, 3]
    assert walk(lengths, 1) == (2, 2, 2)
    assert walk(lengths, 9) == (3, 3)
    assert walk([1, 4], 9) == (1, 1)


def test_a_length_of_zero_is_damage(tmp_path: Path) -> None:
    line = {"id": 1, "prompt_token_ids": [1, 2], "acc_ngram": {"acc_len": [2, 0]}}
    path = write_lines(tmp_path / "p.jsonl", line)
    with pytest.raises(UserError, match=r"line 1: acc_ngram.acc_len\[1\]: expected int >= 1"):
        imported(tmp_path, str(path))
