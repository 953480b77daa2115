"""A prompt begins with one BOS, even if both tokenizer and template write it."""

import json
from pathlib import Path

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specbench.models.cards import find_model
from specbench.models.chat import load_codec, render
from specbench.models.templates import Message, Template, choose_template
from tests.models.making import TURNS
from tests.support.checkpoint import make_tokenizer

CHAT: list[Message] = [
    {"role": "user", "content": "Name a river."},
    {"role": "assistant", "content": "The Elbe."},
    {"role": "user", "content": "Another."},
]


def adding(*front: str, names_bos: bool = False) -> PreTrainedTokenizerBase:
    """A tokenizer that puts tokens in front of each text."""
    backend = make_tokenizer(extra=front).backend_tokenizer
    ids = [(token, backend.token_to_id(token)) for token in front]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join([*front, "$A"]), special_tokens=ids
    )
    bos = front[0] if names_bos else None
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token="</s>")


@pytest.mark.parametrize("names_bos", [True, False])
@pytest.mark.parametrize(
    "start", ["", "<|go|>", "<|go|><|go|>", "  <|go|>", "\n<|go|>", "Be brief.\n\n<|go|>"]
)
def test_a_prompt_has_one_bos_whatever_writes_it(start: str, names_bos: bool) -> None:
    tokenizer = adding("<|go|>", names_bos=names_bos)
    bos_id = tokenizer.convert_tokens_to_ids("<|go|>")
    ids = render(Template("own", f"{{{{ {start!r} }}}}{TURNS}"), tokenizer, CHAT)
    assert ids[0] == bos_id
    assert ids.count(bos_id) == 1
    text = "[user]Name a river.[assistant]The Elbe.[user]Another."
    assert tokenizer.decode(ids).endswith(start.replace("<|go|>", "") + text)


def test_leading_tokens_occur_once() -> None:
    tokenizer = adding("[gMASK]", "<sop>")
    for start in ("", "[gMASK]<sop>", " [gMASK]<sop>"):
        ids = render(Template("own", f"{{{{ {start!r} }}}}{TURNS}"), tokenizer, CHAT[:1])
        tokens = [token for token in tokenizer.convert_ids_to_tokens(ids) if len(token) > 1]
        assert tokens == ["[gMASK]", "<sop>"]


@pytest.mark.parametrize("names_bos", [True, False])
def test_a_bos_of_a_later_turn_stays(names_bos: bool) -> None:
    tokenizer = adding("<s>", names_bos=names_bos)
    llama_2 = choose_template("llama2-chat", find_model("org/unknown"), tokenizer)
    assert tokenizer.decode(render(llama_2, tokenizer, CHAT)).count("<s>") == 2
    doubled = Template("own", "{% for m in messages %}<s>[{{ m.role }}]{{ m.content }}{% endfor %}")
    assert tokenizer.decode(render(doubled, tokenizer, CHAT)).count("<s>") == 3


def test_a_bos_that_begins_each_message_stays_if_the_tokenizer_adds_none() -> None:
    tokenizer = make_tokenizer(extra=("<|im_start|>",), adds_bos=False)
    tokenizer.bos_token = "<|im_start|>"
    chatml = (
        "<|im_start|>system\nHi\n{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    )
    assert tokenizer.decode(render(Template("own", chatml), tokenizer, CHAT)).count("<|im") == 4


def test_a_bos_in_the_users_text_is_text() -> None:
    tokenizer = adding("<s>")
    bos_id = tokenizer.convert_tokens_to_ids("<s>")
    chat: list[Message] = [{"role": "user", "content": "<s> and <s>"}]
    ids = render(Template("own", " <s>" + TURNS), tokenizer, chat)
    assert ids.count(bos_id) == 1
    assert tokenizer.decode(ids).endswith(" [user]<s> and <s>")


@pytest.mark.parametrize(("adds_bos", "start", "number"), [(True, "<s>", 1), (False, "", 0)])
def test_a_codec_counts_bos_tokens_for_the_header(
    adds_bos: bool, start: str, number: int, tmp_path: Path
) -> None:
    make_tokenizer(adds_bos=adds_bos, chat_template=start + TURNS).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert load_codec(tmp_path, find_model(str(tmp_path)), "auto").describe().num_bos == number
