"""--threads: refused, recorded, and kept by a run that is resumed."""

from __future__ import annotations

from pathlib import Path

import torch

from specbench.log.machine import Threads
from specbench.log.store import read_run
from specbench.machine.threads import waiting
from tests.cli.conftest import Specbench


def test_a_run_records_its_threads_and_is_resumed_with_them(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    words = ("run", "--model", model, "--prompts", prompt_file, "--method", "pld", "--template",
             "none", "--max-new-tokens", "4", "--output", "out")  # fmt: skip
    assert specbench(*words, "--threads", "2").code == 0
    found = read_run(Path("out")).header
    assert found.threads == Threads(2, "option", waiting())
    assert (found.num_threads, torch.get_num_threads()) == (2, 1)
    assert "2 threads" in found.machine.device
    lines = Path("out/samples.jsonl").read_text().splitlines(keepends=True)
    Path("out/samples.jsonl").write_text("".join(lines[:-1]))
    assert specbench("run", "--output", "out", "--resume").code == 0
    assert read_run(Path("out")).header.threads == found.threads
