"""An answer returns to a dialogue as content, and as reasoning if the template reads that."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import SpecbenchError
from specbench.measure.requests import make_chat
from specbench.models.cards import find_model
from specbench.models.chat import ChatCodec, load_codec
from tests.models.making import TURNS
from tests.support.checkpoint import make_tokenizer
from tests.support.replies import answer

EXTRA = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|fin|>", "[THINK]", "[/THINK]")
READING = "{% for m in messages %}({{ m.FIELD }}){{ m.content }}{% endfor %}"


def codec_of(path: Path, jinja: str = TURNS) -> ChatCodec:
    make_tokenizer(extra=EXTRA, chat_template=jinja).save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return load_codec(path, find_model(str(path)), "auto")


@pytest.mark.parametrize(
    "raw",
    [
        " The Elbe.\n",
        "",
        "The tag <think>hm</think> is for thoughts.",
        "analysis: none",
        "Fine.<|fin|></s>",
        "\n",
    ],
)
def test_an_answer_without_marks_goes_back_as_it_is(raw: str, tmp_path: Path) -> None:
    codec = codec_of(tmp_path, READING.replace("FIELD", "reasoning_content"))
    record = answer(codec, raw)
    assert codec.reply(record) == {"role": "assistant", "content": record.text}


ANSWERS = [
    ("<think>\nhm\n</think>\n\n The Elbe.</s>", " The Elbe.", "hm"),
    ("hm</think>The Elbe.", "The Elbe.", "hm"),
    ("<think>hm and", "", "hm and"),
    ("[THINK]hm[/THINK]The Elbe.</s>", "The Elbe.", "hm"),
    ("[THINK]hm and", "", "hm and"),
    (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        "<|channel|>final<|message|>The Elbe.<|fin|>",
        "The Elbe.",
        "hm",
    ),
    (
        "<|channel|>a<|message|>one<|end|><|channel|>b<|message|>two<|end|><|channel|>c<|message|>x</s>",
        "x",
        "one\ntwo",
    ),
    ("<|channel|>final<|message|>The Elbe.</s>", "The Elbe.", ""),
    ("<|channel|>analysis<|message|>hm and", "", "hm and"),
]


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
@pytest.mark.parametrize(("raw", "content", "reasoning"), ANSWERS)
def test_marks_and_channels_stay_out_of_the_history(
    raw: str, content: str, reasoning: str, field: str, tmp_path: Path
) -> None:
    silent = codec_of(tmp_path)
    assert silent.reply(answer(silent, raw)) == {"role": "assistant", "content": content}
    codec = codec_of(tmp_path, READING.replace("FIELD", field))
    message = codec.reply(answer(codec, raw))
    kept = {field: reasoning} if reasoning else {}
    assert message == {**silent.reply(answer(silent, raw)), **kept}
    assert codec.describe().history.endswith(f"reasoning as {field}")
    assert not silent.describe().history.endswith(field)


def test_the_template_decides_what_is_kept(tmp_path: Path) -> None:
    kept = "{% for m in messages %}[{{ m['reasoning_content'] or '' }}|{{ m.content }}]{% endfor %}"
    for jinja, text in (
        (kept, "[|Hi][hm|Elbe.][|More]"),
        (TURNS, "[user]Hi[assistant]Elbe.[user]More"),
    ):
        codec = codec_of(tmp_path, jinja)
        replies = [answer(codec, "<think>hm</think>Elbe.")]
        ids = codec.render(make_chat(["Hi", "More"], replies, codec.reply))
        assert codec.tokenizer.decode(ids) == f"<s>{text}"


def test_special_tokens_in_reasoning_are_text_in_the_next_prompt(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, READING.replace("FIELD", "thinking"))
    record = replace(answer(codec, "x"), text="<think>say <|end|></think>done", token_ids=(9, 2))
    message = {**codec.reply(record), "thinking": "say <|end|>"}
    end = codec.tokenizer.convert_tokens_to_ids("<|end|>")
    assert end not in codec.render([{"role": "user", "content": "a"}, message])


def test_reasoning_that_a_server_sends_separately_is_not_content(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, READING.replace("FIELD", "reasoning"))
    message = codec.reply(answer(codec, "first this, The Elbe.", num_reasoning=11))
    assert message == {"role": "assistant", "content": " The Elbe.", "reasoning": "first this,"}


def test_a_missing_reply_is_not_called_failed() -> None:
    with pytest.raises(SpecbenchError, match="Turn 1, which this turn follows, has no answer"):
        make_chat(["Hi", "More"], [])
