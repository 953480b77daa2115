"""Text that the target writes itself: its rules, and a writer that continues after a kill."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import specbench.training.own_text as own_text
from specbench.engine.load import load_target
from specbench.errors import UserError
from specbench.models.cards import find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.training.command import train_head
from specbench.training.examples import encode, read_examples
from specbench.training.options import TrainingOptions
from specbench.training.own_requests import OwnText, task_prompts
from specbench.training.own_text import read_openings, write_own_text
from specbench.training.sampling import continued
from specbench.zoo import TINY
from tests.support.architectures import config_of, random_of
from tests.support.models import generated
from tests.support.texts import assert_in

TARGET = TINY / "target"
NUM_TOKENS = 440  # more than a chunk
SENTENCE = "one two three four five six seven eight nine ten eleven twelve thirteen"


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return load_codec(TARGET, find_model("tiny"), "auto")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {"_CHUNK": 12, "_ROUND": 7, "_ANSWER": 24}.items():
            patch.setattr(own_text, name, number)
        yield


def write(
    path: Path, codec: ChatCodec, num_tokens: int, avoided: Iterable[str] = (), **more: Any
) -> Counter[str]:
    model = load_target(TARGET, dtype=torch.float32, device=torch.device("cpu")).model
    options = TrainingOptions(num_tokens=num_tokens, seed=3, **more)
    return write_own_text(path, model, codec, options, avoided, print)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, codec: ChatCodec, small: None) -> Path:
    path = tmp_path_factory.mktemp("text") / "self.jsonl"
    write(path, codec, NUM_TOKENS)
    return path


def test_answers_equal_the_models_after_its_template(text: Path, codec: ChatCodec) -> None:
    target = load_target(TARGET, dtype=torch.float32, device=torch.device("cpu"))
    for row in rows(text):
        prompt = codec.render([{"role": "user", "content": row["request"]}])
        assert codec.tokenizer.decode(prompt) == codec.tokenizer.decode(row["prompt_ids"])
        if row["sampled"]:
            continue
        ids = torch.tensor([row["prompt_ids"] + row["answer_ids"]])
        with torch.no_grad():
            logits = target.model(ids).logits[0, len(row["prompt_ids"]) - 1 : -1]
        chosen = logits[torch.arange(len(logits)), torch.tensor(row["answer_ids"])]
        assert (logits.max(-1).values - chosen).max() < 1e-3
    num_sampled = sum(row["sampled"] for row in rows(text))
    assert 0.25 < num_sampled / len(rows(text)) < 0.5


def test_a_cut_answer_has_no_end_token(text: Path, codec: ChatCodec) -> None:
    read = list(encode(codec, read_examples(text, Counter()), 512, 0.3, Counter()))
    for row, given in zip(read, rows(text), strict=True):
        is_ended = row.ids[-1] in codec.eos_ids
        assert is_ended == (given["stop_reason"] == "eos")
        assert is_ended or len(given["answer_ids"]) == 24
        num = len(given["prompt_ids"])
        assert row.weights == [0.0, *[0.3] * (num - 1), *[1.0] * (len(row.ids) - num)]
    assert {given["stop_reason"] for given in rows(text)} == {"eos", "length"}


@pytest.mark.parametrize("kept", [1, 20])
def test_a_killed_writer_continues_to_the_same_text(
    text: Path, codec: ChatCodec, tmp_path: Path, kept: int
) -> None:
    lines = text.read_bytes().splitlines(keepends=True)
    path = tmp_path / "self.jsonl"
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][: len(lines[kept]) // 2])
    write(path, codec, NUM_TOKENS)
    assert path.read_bytes() == text.read_bytes()


def test_requests_begin_with_openings_in_turn(codec: ChatCodec, tmp_path: Path) -> None:
    (tmp_path / "openings").write_text("Who wrote\n\nAdd the numbers\\n\n")
    openings = read_openings(tmp_path / "openings")
    write(tmp_path / "self.jsonl", codec, 60, openings=openings)
    assert openings == ["Who wrote", "Add the numbers\n"]
    assert {row["request"][:7] for row in rows(tmp_path / "self.jsonl")} == {"Who wro", "Add the"}


def test_requests_are_kept_by_the_rules() -> None:
    own_text = OwnText([SENTENCE])
    openings = [f"Tell me how {i} works" for i in range(3)]
    assert [own_text.takes(text) for text in openings] == [True, True, False]
    assert not own_text.takes("tell  me HOW 1 works!")
    assert not own_text.takes("Why not?")
    assert own_text.overlaps("fine", f"So: {SENTENCE.upper()}, and more.")
    assert not own_text.overlaps(SENTENCE.removesuffix(" thirteen"), "thirteen")
    assert sum(own_text.left_out.values()) == 4
    for i in range(400):
        own_text.takes(f"Word{i} as an opening {i}")
    taken = sum(own_text.takes(f"Tell me how {i} works") for i in range(100, 200))
    assert taken + 2 == int(0.05 * (402 + taken))


def test_prompts_of_tasks_are_left_out(text: Path, codec: ChatCodec, tmp_path: Path) -> None:
    given = max(rows(text), key=lambda row: len(row["answer_ids"]))
    answer = codec.tokenizer.decode(given["answer_ids"])
    avoided = f"{given['request']} {answer} {answer}"
    left_out = write(tmp_path / "self.jsonl", codec, NUM_TOKENS, [avoided])
    assert left_out["dialogues that share 13 words with a prompt"] >= 1
    assert given["request"] not in {row["request"] for row in rows(tmp_path / "self.jsonl")}


def test_bundled_prompts_are_checked_and_missing_ones_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    texts, unchecked = task_prompts()
    assert len(texts) > 50
    assert {"gsm8k (paper)", "mt_bench (paper)"} <= set(unchecked)


def test_a_model_without_a_template_is_refused(codec: ChatCodec, tmp_path: Path) -> None:
    plain = load_codec(TARGET, find_model("tiny"), "none")
    with pytest.raises(UserError, match="needs a chat template"):
        write(tmp_path / "self.jsonl", plain, 10)


@pytest.mark.parametrize(("kind", "window"), [("mistral", 6), ("gemma2", 6), ("gpt_oss", 6)])
def test_windows_soft_caps_and_sinks_are_computed_beside_longer_rows(
    kind: str, window: int
) -> None:
    model = random_of(config_of(kind, sliding_window=window))
    prompts = [[7, 8, 9, 10, 11, 12, 13, 14], [3, 4, 5]]
    drawn, greedy = continued(model, prompts, 12, {1}, torch.Generator(), sampled_every=2)
    assert greedy == generated(model, (3, 4, 5), 12, eos_id=1)
    assert drawn
    assert len(drawn) <= 12


def test_a_head_is_trained_on_own_text_that_grows(codec: ChatCodec, tmp_path: Path) -> None:
    options = TrainingOptions(num_rows=4, num_unrolled=2, draft_vocab=256, is_mixed=False)
    said: list[str] = []
    out = tmp_path / "head"
    for tokens, steps in ((100, 2), (NUM_TOKENS, 4)):
        train_head(
            "eagle3",
            TARGET,
            Path("self"),
            out,
            codec,
            options=replace(options, num_tokens=tokens, num_steps=steps),
            is_resumed=steps > 2,
            say=said.append,
        )
    assert any(line.startswith("step 4/4") and "MAT of a single path" in line for line in said)
    text = rows(out / "training" / "self.jsonl")
    assert ["left_out" in row for row in text].count(True) == 2
    card = (out / "README.md").read_text()
    assert_in(
        card,
        "No run of 13 words occurs in any of",
        "Left out:",
    )
