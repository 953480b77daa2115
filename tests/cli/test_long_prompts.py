"""Prompts that a run cuts from a text file."""

from __future__ import annotations

from pathlib import Path

from specbench.log.store import read_run
from tests.cli.conftest import Specbench


def test_prompts_of_several_lengths_are_cut_from_a_text_file(
    specbench: Specbench, model: Path
) -> None:
    Path("book.txt").write_text(" ".join(f"word{i}" for i in range(400)))
    said = specbench(
        "run", "--model", model, "--template", "none", "--method", "pld", "--max-new-tokens", 2,
        "--prompts", "book.txt", "--pad-to", "200,400", "--limit", 2, "--repeats", 1, "--full",
        "--output", "out",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "book, 200 tokens" in said.out
    run = read_run(Path("out"))
    ids = [record.key.sample_id for record in run.records if record.key.method == "vanilla"]
    assert ids == ["book/200/1", "book/200/2", "book/400/1", "book/400/2"]
    assert run.header.spec.values.pad_to == (200, 400)
    assert all(0 <= 400 - record.prompt_tokens < 20 for record in run.records[-2:])
    assert "--pad-to 200,400" in specbench("show", "out").out
    assert specbench("run", "--output", "out", "--resume").code == 0
    refused = specbench("run", "--pad-to", "200", "--prompts", "bundled")
    assert (refused.code, "has prompts of its own" in refused.err) == (2, True)
