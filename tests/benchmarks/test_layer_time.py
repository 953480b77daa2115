"""benchmarks/layer_time.py: a table, a line of JSON for each measurement, and failures.

The table of benchmarks/step_cost.py has all numbers of rows. In benchmarks/peers.py, programs take
turns, complete equally many tokens, and report busy speeds as shares of idle ones.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec import structs

from benchmarks import layer_time, neighbour, peers, step_cost
from specbench.engine.layers.ops import Ops
from specbench.models.cards import find_model
from specbench.types import Shape

SHAPE = Shape(3, 128, 320, 4, 2, 2304, 2048)
OPERATIONS = ["q, k, v", "rope, cache", "attention", "output", "gate, up", "down", "layer"]


class Broken(Ops):
    def gated(self, *given: object, **more: object) -> torch.Tensor:
        raise RuntimeError("no C++ compiler\nlook elsewhere")


def test_each_operation_is_a_line_of_json_and_a_failure_has_its_reason(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = structs.replace(find_model("tiny"), shape=SHAPE)
    monkeypatch.setattr(layer_time, "find_model", lambda name: card)
    monkeypatch.setattr(layer_time, "LEAST_BYTES", 2**16)
    monkeypatch.setattr(layer_time, "cache_bytes", lambda device: 0)
    monkeypatch.setattr(layer_time, "bandwidth", lambda device: 1e9)
    monkeypatch.setattr(layer_time, "_ways", lambda *where: {"torch": Ops(), "broken": Broken()})
    out = tmp_path / "layers.jsonl"
    options = ("--device", "cpu", "--dtype", "float32", "--rows", "3", "--cached", "9")
    assert layer_time.main([*options, "--out", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    by_torch, by_broken = lines[::2], lines[1::2]
    assert [line["operation"] for line in by_torch] == OPERATIONS
    for line in by_torch:
        assert line["us"] > 0
        assert line["reason"] is None
    failed = [line for line in by_broken if line["us"] is None]
    assert [(line["operation"], line["way"], line["reason"]) for line in failed] == [
        ("gate, up", "broken", "no C++ compiler"),
        ("layer", "broken", "no C++ compiler"),
    ]
    layer = by_torch[-1]
    layer_bytes = 4 * 128 * (128 + 2 * 64 + 128 + 3 * 320)
    assert layer["weight_bytes"] == layer_bytes
    assert layer["share"] == pytest.approx(layer_bytes / layer["us"] / 1e3, rel=0.01)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 + len(OPERATIONS)
    assert said.out.count("fails") == 2
    assert "layer, 3 rows, broken: no C++ compiler" in said.err


def test_a_table_has_a_row_for_each_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_cost, "bandwidth", lambda device, block: 2e10)
    monkeypatch.setattr(step_cost, "PRODUCT", 64)
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command))
        return started[-1]

    monkeypatch.setattr(neighbour, "Popen", start)
    monkeypatch.setattr(neighbour, "SETTLE_S", 0)
    before = torch.get_num_threads()
    words = (
        "--model tiny --dtype float32 --rows 1 3 --threads 1 --prompt 20 --steps 4 --rounds 1 "
        "--neighbour"
    )
    try:
        assert step_cost.main(words.split()) == 0
    finally:
        torch.set_num_threads(before)
    title, heads, _, *rows, level = capsys.readouterr().out.strip().splitlines()
    assert "20.0 GB/s read" in title
    one_row, three_rows = (row.strip("|").replace(" ", "").split("|") for row in rows)
    assert len(one_row) == len(three_rows) == heads.count("|") - 1
    assert one_row[0] == "1"
    assert one_row[2] == "1.00"
    assert three_rows[0] == "3"
    assert float(three_rows[1]) > 0
    assert three_rows[-1] == "1.00", "a wrong token was accepted"
    assert re.match(r"A draft level of 10 nodes \(\d+ MB\): \S+ ms, \S+ of vanilla's step", level)
    assert [process.returncode for process in started] == [-9], "the neighbour has not ended"


def test_programs_take_turns_on_each_prompt_and_the_first_round_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    order: list[tuple[str, int]] = []

    def complete(name: str, seconds: float, ids: Sequence[int]) -> int:
        nonlocal now_s
        order.append((name, ids[0]))
        now_s += seconds if len(order) > 4 else 100.0
        return 10

    monkeypatch.setattr("benchmarks.peers.time.perf_counter", lambda: now_s)
    programs = {"a": partial(complete, "a", 0.5), "b": partial(complete, "b", 2.0)}
    assert peers.rates(programs, [(1,), (2,)], rounds=3) == {"a": 20.0, "b": 5.0}
    assert order == [("a", 1), ("b", 1), ("a", 2), ("b", 2)] * 3


@pytest.mark.slow
def test_all_programs_complete_the_same_number_of_tokens() -> None:
    given = peers.parse(["--num-tokens", "8"])
    with peers.peers(given, 1) as programs:
        assert {complete(peers.prompt_ids("Hello")) for complete in programs.values()} == {8}
    assert len(programs) == 6
