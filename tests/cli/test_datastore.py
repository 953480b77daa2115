"""`specbench datastore build`, and the run that its last line names."""

from __future__ import annotations

import json
from pathlib import Path

from specbench.log.store import read_run
from tests.cli.conftest import Specbench

CORPUS = [
    {"text": "Once upon a time there was a fox."},
    {"turns": ["What is 2 + 2?"], "reference": ["2 + 2 = 4."]},
]


def test_a_datastore_is_built_and_its_hash_is_recorded(
    specbench: Specbench, tmp_path: Path
) -> None:
    corpus, store = tmp_path / "corpus.jsonl", tmp_path / "store"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    build = ("datastore", "build", str(corpus), "--model", "tiny", "--output", str(store))
    assert "2 texts" in specbench(*build).out
    assert "exists" in specbench(*build).err
    out = tmp_path / "run"
    specbench(
        "run", "--method", f"rest:datastore={store}", "--dataset", "gsm8k", "--limit", "1",
        "--max-new-tokens", "4", "--output", str(out),
    )  # fmt: skip
    about = read_run(out).header.methods["rest:datastore=store"]
    assert about.weights is not None
    assert about.weights.files["store"].bytes == store.stat().st_size
