"""The text generator writes the text that the shipped models learned.

The bundled prompts: held out, in the published format, and regenerable.
Files of the language models, and the tokenizer of the tiny models as transformers loads it.
`python -m tools.zoo`: the README's commands, and jobs run to their end.
The shipped models: their shape, their size, and their answers to the bundled prompts.
"""

import hashlib
import random
import re
import shlex
import sys
from itertools import islice
from pathlib import Path
from statistics import mean

import pytest
import torch

from specbench.api import load
from specbench.log.store import read_run
from specbench.zoo import TINY
from tests.support.models import random_llama
from tests.support.paths import ROOT
from tools.zoo.__main__ import JOBS, PROMPTS, main, parser
from tools.zoo.evaluate import answers, has_form, is_ended
from tools.zoo.held_out import bundled_requests, held_out_dialogues, prompt_lines
from tools.zoo.language_models import TARGET
from tools.zoo.models import load_model, write_model
from tools.zoo.text import FAMILIES, sample, stream
from tools.zoo.tokenizer import BOS_ID, EOS_ID, encode_dialogue, load_tokenizer, train_tokenizer

SHA256 = {
    "mt_bench": "c1b0ec6ead0069fe32a93845b8f44c5a8005f2d8ca77dfdf1a842d7d0b617853",
    "humaneval": "dd3b693ff70e072c00746c44ef17fcbfc0d8dc400c48be5412a5833d0fec7863",
    "gsm8k": "abdb787819173a478f4dfc08f0f6fa5ace683531ad3154e1affeffd925b12d58",
    "alpaca": "a0b42a1581a3ec6df6b3796eed799e8f8b525788f2363b9fff42524534a52204",
    "cnn_dm": "8a348862faa41a93d9028a0031a62e80779a4e886ae9852a2335e3251a87f238",
    "natural_questions": "eb06fb4efcb38eb509336e185cc0bb2df7f9ea715a0c9b4dd0e77e1f3e2a78f4",
}
"""Hashes of the first 2000 dialogues of every family with seed 0."""


@pytest.mark.parametrize(("family", "expected"), SHA256.items())
def test_every_family_equals_what_the_shipped_models_learned(family: str, expected: str) -> None:
    digest, rng = hashlib.sha256(), random.Random(0)
    for _ in range(2000):
        dialogue = sample(family, rng)
        texts = [text for turn in dialogue.turns for text in (turn.user, turn.assistant)]
        digest.update("\0".join([dialogue.family, dialogue.category, *texts, ""]).encode())
    assert digest.hexdigest() == expected


def test_the_mixed_stream_equals_what_the_shipped_models_learned() -> None:
    digest = hashlib.sha256()
    for dialogue in islice(stream(seed=1), 300):
        digest.update(repr(dialogue).encode())
    assert digest.hexdigest()[:16] == "034104f30e0d6b07"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bundled_prompts_regenerate_byte_for_byte(family: str) -> None:
    assert (PROMPTS / f"{family}.jsonl").read_bytes() == prompt_lines(family).encode()


def test_no_bundled_prompt_is_in_the_training_stream() -> None:
    requests = bundled_requests()
    whole, without = (stream(TARGET.seed, held_out=out) for out in ((), requests))
    assert any(dialogue.turns[0].user in requests for dialogue in islice(whole, 5000))
    assert not any(dialogue.turns[0].user in requests for dialogue in islice(without, 5000))


TOKENIZER = train_tokenizer(seed=3, num_dialogues=300)


def test_a_written_model_loads_with_its_tokenizer(tmp_path: Path) -> None:
    model = random_llama(layers=1, vocab_size=2048).float()
    weight = model.lm_head.weight.clone()
    write_model(model, TOKENIZER, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert torch.allclose(loaded.lm_head.weight, weight, atol=1e-3)
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_training_again_gives_the_shipped_kind_of_tokenizer() -> None:
    assert TOKENIZER.get_vocab() == train_tokenizer(3, 300).get_vocab()
    assert TOKENIZER.convert_tokens_to_ids(["<unk>", "<s>", "</s>"]) == [0, 1, 2]


def test_a_chat_is_rendered_as_it_was_learned() -> None:
    tokenizer, dialogue = load_tokenizer(TINY / "target"), sample("mt_bench", random.Random(2))
    messages = [
        {"role": role, "content": text}
        for turn in dialogue.turns
        for role, text in (("user", turn.user), ("assistant", turn.assistant))
    ]
    ids, is_answer = encode_dialogue(tokenizer.backend_tokenizer, dialogue)
    assert tokenizer.apply_chat_template(messages).input_ids == ids
    assert len(ids) == len(is_answer) and is_answer[-1] and ids[-1] == EOS_ID
    assert ids[0] == BOS_ID and ids.count(BOS_ID) == 1
    prompt = tokenizer.apply_chat_template(messages[:3], add_generation_prompt=True).input_ids
    assert ids[: len(prompt)] == prompt and not is_answer[len(prompt) - 1]


def test_the_readme_has_a_command_for_every_job_and_no_other() -> None:
    text = (ROOT / "tools" / "zoo" / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"python -m tools\.zoo ([^`]+)`", text)
    jobs = {parser().parse_args(shlex.split(command)).job for command in commands}
    assert jobs | {"hydra", "eagle", "eagle3"} == set(JOBS)
    assert {"hydra", "eagle", "eagle3"} <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "weights", "log"),
    [
        ("sps", "model.safetensors", "distilled/log.jsonl"),
        ("medusa", "medusa_lm_head.pt", "log.jsonl"),
    ],
)
def test_a_training_job_writes_weights_and_a_log(
    job: str, weights: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    words = [job, "--out", out, "--work", work, "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["zoo", *map(str, words)])
    main()
    assert (out / weights).is_file() and (work / job / log).is_file()


def test_all_weights_together_stay_under_32_megabytes() -> None:
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 32_000_000


def test_every_answer_ends_and_has_its_familys_form() -> None:
    """The target's greedy answers to the first bundled prompts of every family."""
    target = load("tiny", device="cpu", dtype="float32")
    for family in FAMILIES:
        for dialogue in held_out_dialogues(family, 2):
            for answer in answers(target, dialogue):
                assert is_ended(answer) and has_form(family, answer.text), family


def test_the_heads_accept_in_the_papers_order() -> None:
    """The means of the gate's baseline; `make gate` fails if one falls."""
    run = read_run(ROOT / ".ci" / "baseline")
    accepted = {
        name: mean(
            [
                n
                for record in run.records
                if record.key.method == name
                for n in record.accept_lengths
            ]
        )
        for name in run.header.spec.values.methods
    }
    order = ["eagle3", "eagle2", "eagle", "hydra", "medusa"]
    assert sorted(order, key=lambda name: -accepted[name]) == order
