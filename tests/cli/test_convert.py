"""`specbench convert`: runs from answers, published tables from totals, files from runs."""

import json
from pathlib import Path

from specbench.log.store import read_run
from tests.cli.conftest import Specbench
from tests.log.exchange.files import answer, write_lines
from tests.log.exchange.test_vllm_bench import RESULT


def test_the_publishers_numbers_come_before_ours(specbench: Specbench, tmp_path: Path) -> None:
    base = [answer(n, idxs=[9], new_tokens=[0], wall_time=[2.0]) for n in range(3)]
    paths = [
        write_lines(tmp_path / "b.jsonl", *base),
        write_lines(
            tmp_path / "e.jsonl", *(answer(n, idxs=[2], new_tokens=[12]) for n in range(3))
        ),
    ]
    out = tmp_path / "run"
    files = [f"base={paths[0]}", f"eagle={paths[1]}"]
    done = specbench("convert", *files, "--baseline", "base", "--out", str(out))
    publishers, recomputed = done.out.split("Ours:")
    assert "speedup 5.333x by EAGLE's formula, with idx as the baseline's tokens" in publishers
    assert (
        "eagle: speedup 4.80x" in recomputed
        and "counting for 1.1111 (idx instead of idx + 1)" in recomputed
    )
    assert "new_tokens is 0 in all turns" in done.err and "Not in the files" in done.err
    assert read_run(out).header.command[0] == "convert"
    again = specbench("convert", *files, "--out", str(out))
    assert "holds a run already" in again.err
    assert "cannot be audited" in specbench("audit", str(out)).err
    assert "cannot be resumed" in specbench("run", "--resume", "--output", str(out)).err
    written = specbench("convert", str(out), "--to", "spec-bench", "--out", str(tmp_path / "w"))
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == [
        "eagle.jsonl",
        "vanilla.jsonl",
    ]
    assert "eagle.jsonl" in written.err


def test_totals_become_a_table(specbench: Specbench, tmp_path: Path) -> None:
    totals = {name: RESULT[name] for name in RESULT if name not in ("itls", "ttfts")}
    (tmp_path / "r.json").write_text(json.dumps(totals))
    done = specbench("convert", str(tmp_path / "r.json"), "--out", str(tmp_path / "table"))
    assert "1 cells of vllm bench serve without --save-detailed" in done.err
    assert (tmp_path / "table.csv").read_text().startswith("table,model,method,task")


def test_a_missing_tokenizer_gives_one_message(specbench: Specbench, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(1))
    out = ("--out", str(tmp_path / "o"))
    done = specbench("convert", str(path), "--tokenizer", str(tmp_path), *out)
    assert "Tokenizer: " in done.err and "cannot be read" in done.err
