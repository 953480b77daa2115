"""`specbench tune --engine`: its output, and the files that it writes for runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.log.store import read_run
from specbench.measure.server.speculation_files import read_table
from specbench.measure.server.started_setup import make_started_setup
from specbench.measure.spec import RunSpec
from specbench.settings.load_table import LoadTable
from tests.cli.conftest import Specbench
from tests.support.checkpoint import write_prompts
from tests.support.gguf_files import write_gguf
from tests.support.tiny import CODEC

FAKE = f"{sys.executable} {Path(__file__).parents[1] / 'support' / 'fake_engine.py'}"
EOS = min(CODEC.eos_ids)


@pytest.mark.slow
def test_the_draft_tokens_of_a_server_are_tuned_by_load(
    specbench: Specbench, tmp_path: Path
) -> None:
    prompts = write_prompts(tmp_path / "mine.jsonl", ["one two three"], ["and four"])
    engine = ("--engine", "vllm", "--engine-command", FAKE)
    arguments = ("--engine-args", f"--eos {EOS} --counts", "--prompts", prompts)
    call = ("tune", *engine, *arguments, "--method", "eagle3:num_tokens=2", "--out", "tune")
    said = specbench(*call, "--concurrency", "2,1", "--repeats", "2", code=0)
    lines = said.out.splitlines()
    assert lines[0] == "eagle3, vLLM 0.32.0, tiny"
    assert lines[1].split() == [
        "requests",
        *["drafts", "tok/s", "of", "plain", "decoding", "(95", "%)"],
    ]
    rows = [line.split() for line in lines[2:8]]
    assert [row[:2] for row in rows[::3]] == [["1", "plain"], ["2", "plain"]]
    assert [row[0] for row in (*rows[1:3], *rows[4:])] == ["K=1", "K=2", "K=1", "K=2"]
    assert sum(row[-1] == "chosen" for row in rows) == 2
    assert max(map(len, lines[:8])) <= 80
    assert "Drafts accepted up to each position: 1.00 0.50" in lines
    assert any(line.startswith("Throughput of eagle3 / throughput of vanilla: ") for line in lines)
    assert any(line.startswith("Two equal servers differ here by up to ") for line in lines)

    result = json.loads(Path("tune/result.json").read_text())["methods"]["eagle3"]
    assert result["acceptance_by_position"] == [1.0, 0.5]
    assert [load["requests_at_once"] for load in result["loads"]] == [1, 2]
    for load in result["loads"]:
        assert [size["num_tokens"] for size in load["measured"]] == [0, 1, 2]
        speeds = {size["num_tokens"]: size["ratio"] for size in load["measured"]}
        assert speeds[load["num_tokens"]] >= 0.98 * max(speeds.values())
        assert ("--speculative-config" in load["flags"]) == (load["num_tokens"] > 0)
    written = read_table("tune/eagle3.vllm.json")
    table = LoadTable.of((first, num_tokens) for first, _, num_tokens in written)
    assert [table.at(load) for load in (1, 2)] == [load["num_tokens"] for load in result["loads"]]
    assert Path("tune/by_load_eagle3.svg").is_file()

    spec = RunSpec(
        methods=("eagle3",),
        backend="server",
        serving_engine="vllm",
        engine_command=("python3",),
        settings="tune/settings.toml",
    )
    use = "Use them: specbench run --engine vllm --model tiny --method eagle3 --settings tune"
    is_drafting = any(start.num_tokens for start in table.starts)
    assert (f"{use}/settings.toml" in lines) == is_drafting
    if is_drafting:
        options = make_started_setup(spec, is_offline=True).describe().methods["eagle3"].options
        assert options["table"]["content"] == written
    else:
        with pytest.raises(UserError, match="plain decoding is at least as fast as eagle3"):
            make_started_setup(spec, is_offline=True)

    again = specbench(*call, "--concurrency", "2,1", "--repeats", "2")
    assert (again.code, again.out) == (0, said.out), "nothing is measured again"
    assert "Measuring" not in again.err
    other = specbench(*call, "--concurrency", "1", "--repeats", "2")
    assert other.code == 2 and "Give --out another folder." in other.err


@pytest.mark.slow
def test_sglang_is_tuned_over_chains_and_trees(specbench: Specbench, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "mine.jsonl", ["one two three"], ["and four"])
    specbench(
        *("tune", "--engine", "sglang", "--engine-command", FAKE, "--prompts", prompts),
        *("--engine-args", f"--eos {EOS}", "--method", "eagle3:num_tokens=2"),
        *("--concurrency", "1", "--repeats", "2", "--out", "tune"),
        code=0,
    )
    (load,) = json.loads(Path("tune/result.json").read_text())["methods"]["eagle3"]["loads"]
    assert ("--speculative-num-draft-tokens" in load["flags"]) == (load["num_tokens"] > 0)
    header = json.loads(Path("tune/sizes/run.json").read_text())
    assert "eagle3:num_tokens=2,eagle_topk=4,num_draft_tokens=16" in header["methods"]


@pytest.mark.slow
def test_one_server_of_llama_cpp_is_tuned_with_all_sizes(
    specbench: Specbench, tmp_path: Path
) -> None:
    prompts = write_prompts(tmp_path / "mine.jsonl", ["one two three"], ["and four"])
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        write_gguf(tmp_path / name / "small.gguf")
    said = specbench(
        *("tune", "--engine", "llamacpp", "--engine-command", FAKE, "--prompts", prompts),
        *("--model", tmp_path / "target", "--max-new-tokens", "4", "--device", "cpu"),
        *("--method", f"sps:num_tokens=2,weights={tmp_path / 'draft'}", "--concurrency", "1"),
        *("--repeats", "2", "--out", "tune"),
        code=0,
    )
    assert "A server is started for each size." not in said.err
    logs = sorted(path.name for path in Path("tune/turns/engines").iterdir())
    assert logs == ["sps-weights-draft-num-tokens-2.log", "vanilla.log"]
    run = read_run(Path("tune/turns"))
    assert {record.key.method for record in run.records if record.is_ok} == {*run.header.methods}
    assert len(run.header.methods) == len(run.header.servers) == 3
