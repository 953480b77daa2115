"""The benchmark against the official EAGLE code, with a stub of that code.

The last test runs the official code, if SPECBENCH_EAGLE names a checkout of it and
SPECBENCH_EAGLE_PYTHON an interpreter that can import it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.official_eagle.__main__ import main
from benchmarks.official_eagle.official import official_completion
from benchmarks.official_eagle.summary import summarize
from benchmarks.official_eagle.turns import Measured, Sample, take_turns
from specbench.types import Completion, Record, RecordKey, Request, Step
from tests.zoo.stand_in_shapes import write_config

STUB = '''
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

print("what a library prints is no answer")

class EaModel(torch.nn.Module):
    """One token a step, and one more than asked for."""

    @classmethod
    def from_pretrained(
        cls, use_eagle3, base_model_path, ea_model_path, total_token, depth, top_k, threshold,
        torch_dtype, device_map,
    ):
        made = cls()
        made.base_model = AutoModelForCausalLM.from_pretrained(base_model_path, dtype=torch_dtype)
        made.tokenizer = AutoTokenizer.from_pretrained(base_model_path)
        return made

    def eagenerate(self, input_ids, temperature, max_new_tokens):
        return self.base_model.generate(
            input_ids, max_new_tokens=max_new_tokens + 1, do_sample=False
        )

    naivegenerate = eagenerate

    def ea_generate(self, input_ids, temperature, max_new_tokens):
        output = self.eagenerate(input_ids, temperature, max_new_tokens)
        for end in range(input_ids.shape[1] + 1, output.shape[1] + 1):
            yield output[:, :end]
'''


def checkout(folder: Path, code: str = STUB) -> Path:
    """A folder that looks like one of the official code."""
    (folder / "eagle" / "model").mkdir(parents=True)
    (folder / "eagle" / "model" / "ea_model.py").write_text(code)
    return folder


def arguments(tmp_path: Path, **changes: object) -> list[str]:
    shape = write_config(tmp_path / "shape", num_hidden_layers=13, hidden_size=384, head_dim=64)
    values: dict[str, object] = {
        "checkout": tmp_path / "EAGLE", "model": shape, "device": "cpu", "dtype": "float32",
        "limit": 1, "max_new_tokens": 24, "output": tmp_path / "out",
    }  # fmt: skip
    words = {f"--{name.replace('_', '-')}": value for name, value in {**values, **changes}.items()}
    return [str(word) for pair in words.items() for word in pair]


def result(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "out" / "official_eagle.json").read_text())


@pytest.mark.slow
def test_both_sides_run_the_same_weights_and_prompts_and_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout(tmp_path / "EAGLE")
    given = arguments(tmp_path, max_new_tokens=12, total_tokens=20, depth=3, top_k=4)
    assert main(given) == 0
    found = result(tmp_path)
    assert [row["same_tokens"] for row in found["summary"].values()] == [6, 6]
    assert found["summary"]["vanilla"]["same_steps"] == 6
    assert (
        found["summary"]["eagle2"]["mat"]["official"]
        == 1
        < (found["summary"]["eagle2"]["mat"]["specbench"])
    )
    assert len(found["samples"]) == 24
    kept = (tmp_path / "out" / "samples.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in kept] == found["samples"]
    assert found["official"]["commit"] is None
    assert found["options"]["depth"] == 3
    assert str(tmp_path) not in json.dumps(found)
    said = capsys.readouterr().out
    assert "the same tokens on 6 and the same steps on 6 of 6 samples" in " ".join(said.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("from transformers.utils import NoSuchName", "cannot import name 'NoSuchName'"),
        ("import os\nos.write(2, b'going\\nno such driver\\n')\nos._exit(3)", ": no such driver"),
    ],
)
def test_code_that_cannot_be_imported_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, reason: str
) -> None:
    checkout(tmp_path / "EAGLE", code)
    assert main(arguments(tmp_path)) == 2
    said = capsys.readouterr().err
    assert "cannot import the official code" in said
    assert reason in said
    assert "--site" in said
    assert not (tmp_path / "out" / "work").exists()


@pytest.mark.slow
def test_code_that_cannot_load_the_weights_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = STUB.replace("made = cls()", "raise KeyError('rope_theta')")
    checkout(tmp_path / "EAGLE", code)
    assert main(arguments(tmp_path)) == 2
    assert "cannot load the weights: KeyError: 'rope_theta'" in capsys.readouterr().err


def test_a_folder_without_the_official_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path)) == 2
    assert "there is no such folder" in capsys.readouterr().err
    (tmp_path / "EAGLE").mkdir()
    assert main(arguments(tmp_path)) == 2
    said = capsys.readouterr().err
    assert "it has no eagle/model/ea_model.py" in said
    assert "git clone https://github.com/SafeAILab/EAGLE" in said


def test_an_interpreter_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout(tmp_path / "EAGLE")
    assert main(arguments(tmp_path, python="/no/python")) == 2
    assert "--python /no/python does not run: No such file" in capsys.readouterr().err


def test_tokens_after_eos_are_not_counted_on_either_side() -> None:
    done = official_completion([5, 6, 2, 7, 8], [1, 4], 2.0, frozenset({2}))
    assert (done.token_ids, done.accept_lengths, done.stop_reason) == ((5, 6, 2), (1, 2), "eos")
    assert done.wall_s == 2.0
    over = official_completion([5, 6, 7], [3], 2.0, frozenset({2}))
    assert (over.token_ids, over.stop_reason) == ((5, 6, 7), "budget")


def test_steps_of_a_run_that_differs_are_left_out() -> None:
    assert official_completion([5, 6, 7], [1, 1], 2.0, frozenset()).accept_lengths == ()


def measured(side: str, method: str, seconds: float, lengths: tuple[int, ...], *ids: int) -> Any:
    key = RecordKey(method, 0.0, "gsm8k", "gsm8k/1", 0, 0)
    return Measured(
        side, Record(key, "ok", 3, ids, prefill_s=0.0, decode_s=seconds, accept_lengths=lengths)
    )


def test_the_ratio_is_of_tokens_a_second_each_by_its_own_tokens() -> None:
    found = summarize(
        [
            measured("official", "vanilla", 4.0, (1, 1, 1, 1), 4, 5, 6, 7),
            measured("specbench", "vanilla", 1.5, (1, 1), 4, 5, 6),
            measured("official", "eagle2", 2.0, (2, 2), 4, 5, 6, 7),
            measured("specbench", "eagle2", 0.5, (2,), 4, 5, 6),
        ],
        "eagle2",
    )
    assert found["tokens_per_s"] == {
        "official": 2.0, "specbench": 6.0, "ratio": 3.0, "interval": None,
    }  # fmt: skip
    assert (found["speedup"]["official"], found["speedup"]["specbench"]) == (2.0, 3.0)
    assert found["step_ms"] == {"official": 1000.0, "specbench": 500.0}


def test_steps_are_compared_up_to_the_first_that_a_stop_rule_cut() -> None:
    cells = [measured(side, "vanilla", 1.0, (), 4, 5) for side in ("official", "specbench")]
    official = measured("official", "eagle2", 1.0, (3, 2, 3), 4, 5, 6, 7, 8, 9, 10, 11)
    ours = measured("specbench", "eagle2", 1.0, (3, 1), 4, 5, 6, 7, 8)
    found = summarize([*cells, official, ours], "eagle2")
    assert (found["same_tokens"], found["same_steps"]) == (1, 1)
    assert found["mat"] == {"official": 3.0, "specbench": 3.0}
    other = measured("specbench", "eagle2", 1.0, (2, 2), 4, 5, 6, 7, 9)
    found = summarize([*cells, official, other], "eagle2")
    assert (found["same_tokens"], found["same_steps"]) == (0, 0)


def test_the_entries_take_turns_and_each_is_first_once() -> None:
    asked: list[str] = []

    def entry(name: str) -> Any:
        def complete(request: Request) -> Completion:
            asked.append(name)
            return Completion((4, 5), "budget", (Step(1, 1),), 0.1, 0.1)

        return complete

    names = ("a", "b", "c")
    sample = Sample("gsm8k", "gsm8k/1", Request((1, 2), 2))
    entries = {(name, "vanilla"): entry(name) for name in names}
    assert len(list(take_turns([sample], entries, 3, lambda _: None))) == 9
    assert "".join(asked) == "abcbcacab"
    said: list[object] = []
    done = list(take_turns([sample], entries, 3, said.append, until=0.0))
    assert len(done) == 3  # of one sample, so that there is something to say
    assert said[-1] == "Out of time: 2 of 3 samples are skipped."


@pytest.mark.slow
@pytest.mark.skipif(
    not {"SPECBENCH_EAGLE", "SPECBENCH_EAGLE_PYTHON"} <= os.environ.keys(),
    reason="SPECBENCH_EAGLE and SPECBENCH_EAGLE_PYTHON name no official code and interpreter",
)
@pytest.mark.parametrize("tree", [{}, {"total_tokens": 24, "depth": 3, "top_k": 4}])
def test_the_official_code_gives_the_same_tokens_in_the_same_steps(
    tmp_path: Path, tree: dict[str, int]
) -> None:
    given = arguments(
        tmp_path, checkout=os.environ["SPECBENCH_EAGLE"],
        python=os.environ["SPECBENCH_EAGLE_PYTHON"], max_new_tokens=64, **tree,
    )  # fmt: skip
    assert main(given) == 0
    for row in result(tmp_path)["summary"].values():
        assert row["same_tokens"] == row["same_steps"] == row["samples"] == 6
