"""Token ids must fit the embedding. Those that do not are refused before weights are loaded."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specbench.errors import UserError
from specbench.measure.base import Plan
from specbench.measure.plan import make_plan
from specbench.measure.session import run_plan
from specbench.measure.spec import make_spec
from specbench.models.embedding import embedding_rows
from tests.support.architectures import FULL, LIMITED, config_of, random_of
from tests.support.checkpoint import NUM_TOKENS, make_tokenizer, save_checkpoint, write_prompts
from tests.support.refusals import error_with
from tests.support.watching import Watcher

LATE = "<|late|>"
"""A special token whose id is one beyond the last row of the embedding."""
TEMPLATE = "{% for message in messages %}MARK{{ message['content'] }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose tokenizer has one token more than the embedding has rows."""
    return with_tokens(save_checkpoint(tmp_path / "model"), LATE)


def with_tokens(folder: Path, *tokens: str, mark: str = "") -> Path:
    template = TEMPLATE.replace("MARK", mark)
    make_tokenizer(extra=tokens, chat_template=template).save_pretrained(folder)
    return folder


def plan_of(folder: Path, *turns: list[str], template: str = "auto") -> Plan:
    prompts = write_prompts(folder.parent / "asked.jsonl", *turns)
    about = {"prompts": str(prompts), "template": template, "settings": "paper"}
    spec = make_spec(model=str(folder), methods=("pld",), device="cpu", max_new_tokens=4, **about)
    return make_plan(spec)


@pytest.mark.parametrize("name", [*FULL, *LIMITED])
def test_the_rows_match_the_loaded_embedding(name: str, tmp_path: Path) -> None:
    model = random_of(config_of(name))
    model.save_pretrained(tmp_path)
    assert embedding_rows(tmp_path) == model.get_input_embeddings().weight.shape[0]


def test_rows_of_pickles_come_from_the_config(folder: Path) -> None:
    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()
    assert embedding_rows(folder) == NUM_TOKENS
    (folder / "pytorch_model.bin").unlink()
    assert embedding_rows(folder) == 0


def test_a_template_that_writes_an_id_beyond_the_rows_is_refused(folder: Path) -> None:
    with_tokens(folder, LATE, mark=LATE)
    with error_with(
        UserError,
        "The chat template 'tokenizer' writes the token 259 ('<|late|>')",
        "has the rows 0 to 258",
    ):
        plan_of(folder, ["ab"], ["cd"])


def test_prompts_that_all_have_such_an_id_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(UserError, match=r"asked/0 has the token 259 .*The other prompts have such"):
        plan_of(folder, [LATE], ["a", f"b {LATE}"], template="none")
    plan_of(folder, [LATE])  # as text, with a template


def test_only_samples_with_such_an_id_fail(folder: Path, tmp_path: Path) -> None:
    plan = plan_of(folder, [f"first {LATE}"], ["ab ab ab"], ["a", LATE], template="none")
    records = run_plan(plan, tmp_path / "run", Watcher(), given=()).records
    failed = {(record.key.sample_id, record.key.turn): record.error for record in records}
    assert {key for key, error in failed.items() if error} == {("asked/0", 0), ("asked/2", 1)}
    for (sample_id, _), error in failed.items():
        assert error is None or f"Prompt {sample_id} has the token 259" in error


def test_only_ends_beyond_the_rows_are_reported(folder: Path) -> None:
    """A <pad> beyond the rows is usual. An end token there can end no answer."""
    plan = plan_of(with_tokens(folder, "<pad>", "<|more|>"), ["ab"])
    assert plan.setup.codec.eos_ids == {2}
    assert not any("end tokens are ignored" in text for text in plan.about.warnings)
    generation = folder / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [2, 7, 259, 700]}))
    plan = plan_of(folder, ["ab"])
    assert plan.setup.codec.eos_ids == {2, 7}
    (text,) = (text for text in plan.about.warnings if "end tokens are ignored" in text)
    assert "259, 700" in text and "rows 0 to 258" in text
