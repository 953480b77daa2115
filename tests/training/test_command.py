"""`train_head` trains a head for a model folder from a file, or fails with a clear error.

It reads chats of public data sets, and gives the reasons for leaving some out.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.errors import CheckpointError, NonFiniteError, UserError
from specbench.log.files import LineFile
from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from specbench.training.batches import stack
from specbench.training.command import train_head
from specbench.training.examples import Example, encode, read_chat, read_examples
from specbench.training.medusa import MedusaHeads
from specbench.training.options import TrainingOptions
from tests.faults.limits import file_size_limit
from tests.support.checkpoint import save_checkpoint
from tests.support.refusals import error_with
from tests.support.tiny import CODEC

OPTIONS = TrainingOptions(num_steps=4, num_rows=2, length=64, num_unrolled=2, is_mixed=False)
MORE = replace(OPTIONS, num_steps=6)
CHAT: dict[str, Any] = {"turns": ["Say one.", "And two?"], "reference": ["One.", "Two!"]}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A target, its codec and a file of text."""
    folder = save_checkpoint(tmp_path_factory.mktemp("target"), layers=6, head_dim=16)
    rows = [{**CHAT, "turns": [f"Say {i}.", "Again?"]} for i in range(12)]
    text_file = tmp_path_factory.mktemp("text") / "data.jsonl"
    rows.append({"text": "The cat sat on the mat, and that was that."})
    text_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    codec = load_codec(folder, find_model(str(folder)), "auto")
    return {"model_dir": folder, "codec": codec, "data": text_file}


Train = Callable[..., list[str]]


@pytest.fixture
def train(given: dict[str, Any], tmp_path: Path) -> Train:
    """A function that trains a head into the folder `head`, and returns the messages."""

    def train(
        method: str, options: TrainingOptions = OPTIONS, out: str = "head", **more: Any
    ) -> list[str]:
        lines: list[str] = []
        train_head(method, out=tmp_path / out, options=options, say=lines.append, **given | more)
        return lines

    return train


@pytest.fixture(scope="module")
def trained(given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_head("medusa", out=folder, options=OPTIONS, say=lambda line: None, **given)
    return folder


@pytest.fixture
def head(trained: Path, tmp_path: Path) -> Path:
    """The folder that `train` writes to, with trained Medusa heads."""
    return Path(shutil.copytree(trained, tmp_path / "head"))


def test_a_training_starts_from_a_trained_head(train: Train, tmp_path: Path) -> None:
    options, first = replace(OPTIONS, draft_vocab=40), tmp_path / "first"
    train("eagle3", options, "first")
    still = replace(options, num_steps=1, seed=2, matrix_lr=0.0, other_lr=0.0)
    train("eagle3", still, "second", start=first)
    before, after = (
        torch.load(tmp_path / name / "pytorch_model.bin") for name in ("first", "second")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    with pytest.raises(UserError, match="start was"):
        train("eagle3", still, "second", is_resumed=True)
    with pytest.raises(CheckpointError, match="no head to start from"):
        train("medusa", out="third", start=first)
    train("eagle3", replace(still, draft_vocab=20), "fourth", start=first)
    fewer = torch.load(tmp_path / "fourth" / "pytorch_model.bin")
    is_kept = fewer["t2d"][before["t2d"]]
    assert is_kept.sum() == 20
    assert torch.equal(fewer["lm_head.weight"], before["lm_head.weight"][is_kept])


def test_own_text_without_a_template_is_refused_before_a_folder_is_made(
    train: Train, given: dict[str, Any], tmp_path: Path
) -> None:
    folder = given["model_dir"]
    plain = load_codec(folder, find_model(str(folder)), "none")
    with pytest.raises(UserError, match="needs a chat template"):
        train("medusa", out="self", data=Path("self"), codec=plain)
    assert not (tmp_path / "self").exists()


def test_only_more_steps_extend_a_training(head: Path, train: Train) -> None:
    kept = [head / name for name in ("README.md", "training/log.jsonl")]
    before = [file.read_text() for file in kept]
    train("medusa", is_resumed=True)
    assert [file.read_text() for file in kept] == before and "; MAT of a single path: " in before[0]
    with pytest.raises(UserError, match="method was 'medusa' and is 'hydra'"):
        train("hydra", is_resumed=True)
    lines = train("medusa", MORE, is_resumed=True)
    assert any(line.startswith("step 6/6  loss ") for line in lines)
    log = (head / "training" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [4, 6]
    with error_with(UserError, "num_steps was 6 and is 4", hint="may grow"):
        train("medusa", is_resumed=True)


def test_a_changed_target_or_template_is_refused(
    head: Path, train: Train, given: dict[str, Any], tmp_path: Path
) -> None:
    """The same weights in another folder are accepted. An older training names no template."""
    other = save_checkpoint(tmp_path / "other", seed=1, layers=6, head_dim=16)
    with pytest.raises(UserError, match="target_sha256 was"):
        train("medusa", model_dir=other, is_resumed=True)
    folder = Path(shutil.copytree(given["model_dir"], tmp_path / "away"))
    train("medusa", model_dir=folder, is_resumed=True)
    codec = load_codec(folder, find_model(str(folder)), "vicuna-v1.1")
    with pytest.raises(UserError, match=r"other settings: template was \["):
        train("medusa", codec=codec, is_resumed=True)
    path = head / "training" / "settings.json"
    settings = json.loads(path.read_text())
    assert settings.pop("template")
    path.write_text(json.dumps(settings))
    train("medusa", codec=codec, is_resumed=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("settings.json", b"[]", "settings.json cannot be read: it is not a JSON object"),
        ("settings.json", b'{"a": \xff', "settings.json cannot be read"),
        ("checkpoint.pt", b"PK", "checkpoint.pt cannot be read: File is not a zip file"),
        ("checkpoint.pt", None, "in it is damaged"),
        ("log.jsonl", b'{"step": 2}\nhalf\n{"step": 4}\n', "log.jsonl cannot be read"),
        ("log.jsonl", b'{"step": 4}\n{"step": 2}\n', "its steps are out of order"),
    ],
)
def test_damaged_files_of_a_training_are_named_and_nothing_is_lost(
    head: Path, train: Train, name: str, content: bytes | None, message: str
) -> None:
    work = head / "training"
    whole = (work / name).read_bytes()
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    (work / name).write_bytes(damaged if content is None else content)
    before = {file.name: file.read_bytes() for file in work.iterdir()}
    with pytest.raises(UserError) as caught:
        train("medusa", MORE, is_resumed=True)
    assert message in caught.value.message and caught.value.hint
    changed = {file.name for file in work.iterdir() if before.pop(file.name) != file.read_bytes()}
    assert not before and changed <= {"settings.json"} - {name}
    (work / name).write_bytes(whole)
    train("medusa", MORE, is_resumed=True)


def test_a_second_training_in_a_folder_waits_for_the_first(head: Path, train: Train) -> None:
    with (
        closing(LineFile(head / "training" / "log.jsonl")),
        error_with(UserError, "Another process is writing to", hint="another --out."),
    ):
        train("medusa", is_resumed=True)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("target", "The target's outputs are NaN or infinite."),
        ("loss", "The loss of step 1 is nan"),
        ("gradient", "its gradient nan."),
        ("head", "has values that do not fit into float16"),
    ],
)
def test_nan_and_infinity_end_a_training_without_a_head(
    train: Train, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    where: str, message: str,
) -> None:  # fmt: skip
    target = Path(shutil.copytree(given["model_dir"], tmp_path / "target"))
    if where == "target":
        tensors = load_file(target / "model.safetensors")
        tensors["lm_head.weight"][0] = torch.nan
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
    plain = MedusaHeads.loss

    def loss(*given: Any) -> torch.Tensor:
        loss = plain(*given)
        if where == "gradient":
            return loss + (loss - loss.detach()).sqrt()
        return loss * torch.nan if where == "loss" else loss

    monkeypatch.setattr(MedusaHeads, "loss", loss)
    rate = 1e9 if where == "head" else OPTIONS.other_lr
    with pytest.raises(NonFiniteError) as caught:
        train("medusa", replace(OPTIONS, other_lr=rate), model_dir=target)
    assert message in caught.value.message and caught.value.hint
    assert [file.name for file in (tmp_path / "head").iterdir()] == ["training"]


def test_a_full_disk_leaves_the_head_and_checkpoint_as_they_were(
    train: Train, tmp_path: Path
) -> None:
    train("eagle3")
    files = [file for file in (tmp_path / "head").rglob("*") if file.is_file()]
    before = {file: file.read_bytes() for file in files if file.name != "settings.json"}
    with file_size_limit(20_000), error_with(UserError, "cannot be written", hint="Free space"):
        train("eagle3", MORE, is_resumed=True)
    assert {file: file.read_bytes() for file in before} == before
    assert {*files} == {file for file in (tmp_path / "head").rglob("*") if file.is_file()}
    train("eagle3", MORE, is_resumed=True)


def test_other_text_is_refused(train: Train, given: dict[str, Any], tmp_path: Path) -> None:
    text_file = Path(shutil.copy(given["data"], tmp_path))
    train("eagle3", data=text_file)
    text_file.write_bytes(text_file.read_bytes().replace(b"One.", b"Two."))
    with pytest.raises(UserError, match="other settings: data was"):
        train("eagle3", MORE, data=text_file, is_resumed=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n{", ", line 2: "),
        ("\n[1]", ", line 2: a JSON object is expected, not list"),
        ('\n{"turns": ["a"]}', ", line 2: `reference` is missing"),
        ('\n{"turns": [], "reference": []}', ", line 2: `turns` is missing"),
        ('\n{"turns": ["a"], "reference": [" "]}', ", line 2: `reference` holds something"),
        ('\n{"turns": ["a", "b"], "reference": ["c"]}', ", line 2: 2 turns, but 1 answers"),
        ('\n{"text": 5}', ", line 2: `text` is empty or not a string"),
        ('[{"text": "a"}, {"messages": "none"}]', ", entry 2: `messages` is not a list"),
        ("[1, ", ": "),
        ("", " is empty"),
    ],
)
def test_unreadable_text_is_reported_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "data.jsonl"
    first = json.dumps(CHAT) if text.startswith("\n") else ""
    path.write_text(f"{first}{text}\n")
    with error_with(UserError, f"{path}{reason}"):
        read_examples(path, Counter())


def test_a_chat_is_written_as_the_model_sees_it() -> None:
    example = Example(("Say one.", "And two?"), ("One.", "Two!"))
    (row,) = encode(CODEC, [example], 100, 0.25, Counter())
    text = CODEC.tokenizer.decode(row.ids)
    assert text == "<s><|user|>Say one.<|assistant|>One.</s><|user|>And two?<|assistant|>Two!</s>"
    answers = [i for i, weight in zip(row.ids, row.weights, strict=True) if weight == 1.0]
    assert CODEC.tokenizer.decode(answers) == "One.</s>Two!</s>"
    assert row.weights[0] == 0.0 and set(row.weights) == {0.0, 0.25, 1.0}


def test_rows_are_cut_at_the_length_and_padded_without_weight(given: dict[str, Any]) -> None:
    examples = [Example((), (text,)) for text in ("a" * 50, "bc", "")]
    left_out: Counter[str] = Counter()
    rows = list(encode(given["codec"], examples, 10, 0.3, left_out))
    assert left_out == {
        "ends of examples longer than 10 tokens": 1, "examples of fewer than three tokens": 1,
    }  # fmt: skip
    assert [len(row.ids) for row in rows] == [10, 3]
    batch = stack(rows, pad_id=2)
    assert batch.ids[1].tolist()[3:] == [2] * 7
    assert batch.weights[1].tolist() == [0.0, 1.0, 1.0] + [0.0] * 7


def chat(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in messages]}


def test_messages_and_sharegpt_give_the_same_example_as_lines_or_as_an_array(
    tmp_path: Path,
) -> None:
    spoken = (("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d"))
    rows = [
        {"turns": ["a", "c"], "reference": ["b", "d"]},
        chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")),
        {"id": "x", "conversations": [{"from": who, "value": text} for who, text in spoken]},
        chat(("user", [{"type": "text", "text": "a"}]), *spoken[1:]),
    ]
    lines, array = tmp_path / "chats.jsonl", tmp_path / "chats.json"
    lines.write_text("\n".join(json.dumps(row) for row in rows))
    array.write_text(json.dumps(rows, indent=1))
    left_out: Counter[str] = Counter()
    for path in (lines, array):
        assert read_examples(path, left_out) == [Example(("a", "c"), ("b", "d"))] * 4
    assert not +left_out


ANSWERED = Example(("a",), ("b",))


@pytest.mark.parametrize(
    ("messages", "example", "reason"),
    [
        ([("system", "s"), ("user", "a"), ("assistant", "b")], ANSWERED, "system"),
        ([("assistant", "x"), ("user", "a"), ("assistant", "b")], ANSWERED, "before the first"),
        ([("user", "a"), ("assistant", "b"), ("user", "c")], ANSWERED, "last requests"),
        ([("user", "a"), ("assistant", "b"), ("user", " ")], ANSWERED, "empty"),
        ([("user", "a"), ("user", "b")], None, "do not alternate"),
        ([("user", "a"), ("tool", "b")], None, "role 'tool'"),
        ([("user", "a")], None, "without an answer"),
        ([], None, "without an answer"),
    ],
)
def test_chats_that_cannot_be_trained_on_are_left_out_with_a_reason(
    messages: list[tuple[str, str]], example: Example | None, reason: str
) -> None:
    left_out: Counter[str] = Counter()
    assert read_chat(chat(*messages), left_out) == example
    assert reason in " ".join(+left_out)
