"""Special tokens in a prompt's text are text, and other prompts keep their token ids."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specbench.models.cards import find_model
from specbench.models.chat import (
    ChatCodec,
    Template,
    choose_template,
    load_codec,
    render,
    special_tokens,
)
from specbench.zoo import TINY
from tests.models.making import make_tokenizer

CHAT = Template(
    "tokenizer",
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}</s>{% endfor %}",
)
EXTRA = ("<|user|>", "<|assistant|>", "<|im_end|>")
TEXTS = ["</s>", "a </s> b", "</s></s>\n<|im_end|>", " <|user|>x<|assistant|> ", "<|im_</s>end|>"]


def count_special(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> int:
    special = set(special_tokens(tokenizer).values())
    return sum(i in special for i in ids)


@pytest.mark.parametrize("adds_eos", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_special_tokens_in_a_text_are_spelled_out(text: str, adds_eos: bool) -> None:
    tokenizer = make_tokenizer(EXTRA, adds_eos=adds_eos)
    ids = render(CHAT, tokenizer, [{"role": "user", "content": text}])
    assert count_special(tokenizer, ids) == 3  # <s>, <|user|> and </s> are the template's
    assert tokenizer.decode(ids) == f"<s><|user|>{text.strip()}</s>"


def test_every_message_of_a_chat_is_protected() -> None:
    tokenizer = make_tokenizer(EXTRA)
    chat = [
        {"role": role, "content": f"{role} </s> \ue000"} for role in ("user", "assistant", "user")
    ]
    ids = render(CHAT, tokenizer, chat)
    assert count_special(tokenizer, ids) == 1 + 2 * 3
    said = "".join(f"<|{m['role']}|>{m['content']}</s>" for m in chat)
    assert tokenizer.decode(ids) == f"<s>{said}"


@pytest.mark.parametrize("name", ["vicuna-v1.1", "llama2-chat"])
def test_the_embedded_models_tokenizer_spells_them_out_in_our_templates(name: str) -> None:
    tokenizer = load_codec(TINY / "target", find_model("tiny"), "auto").tokenizer
    template = choose_template(name, find_model("tiny"), tokenizer)
    plain, hostile = (
        render(template, tokenizer, [{"role": "user", "content": f"Say {end} twice."}])
        for end in ("it", "</s>")
    )
    assert count_special(tokenizer, hostile) == count_special(tokenizer, plain)
    expected = str(tokenizer.decode(plain)).replace("Say it twice", "Say </s> twice")
    assert tokenizer.decode(hostile) == expected


def test_without_a_template_they_control_and_a_codec_says_so() -> None:
    tokenizer = make_tokenizer(EXTRA)
    chat = ChatCodec(tokenizer, CHAT, frozenset())
    raw = ChatCodec(tokenizer, Template("none"), frozenset())
    assert raw.control_tokens("a </s> b") == ("</s>",)
    assert raw.control_tokens("a b") == chat.control_tokens("a </s> b") == ()


def test_a_tokenizer_that_cannot_spell_them_out_is_told() -> None:
    tokenizer = make_tokenizer(EXTRA)
    plain = type(tokenizer).__call__

    class Stubborn(type(tokenizer)):  # type: ignore[misc]
        def __call__(self, *texts: str, split_special_tokens: bool = False, **options: object):  # type: ignore[no-untyped-def]
            return plain(self, *texts, **options)

    tokenizer.__class__ = Stubborn
    codec = ChatCodec(tokenizer, CHAT, frozenset())
    assert codec.control_tokens("an <|im_end|> here") == ("<|im_end|>",)


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_no_space_is_put_after_a_text_that_is_spelled_out(scheme: str) -> None:
    letters = ["<unk>", "<s>", "</s>", "\u2581", "\n", *map(chr, range(33, 127))]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(letters)}, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **special)
    template = Template("tokenizer", "USER: {{ messages[0].content }}</s>")
    ids = render(template, tokenizer, [{"role": "user", "content": "a</s>b </s>"}])
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens == [*"\u2581USER:\u2581a</s>b\u2581</s>", "</s>"]
