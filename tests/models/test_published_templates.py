"""BOS, ends and thinking of twelve published templates, with their structure and tokens.

The templates are short. System texts, tools and checks of roles are left out.
"""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from specbench.log.model import ThinkingHeader
from specbench.models.cards import find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.templates import Message
from tests.support.checkpoint import make_tokenizer
from tests.support.replies import answer


class Published(NamedTuple):
    """A model's template and tokenizer, and the prompts and answers that follow from them."""

    template: str
    """The template's text, or the name of one of ours."""
    bos: str
    """The tokenizer's BOS, or empty if it has none."""
    eos: str
    special: str
    """Further special tokens."""
    has_bos_added: bool
    """True if the tokenizer puts BOS in front of each text."""
    prompt: str
    """The prompt of a chat of two turns."""
    end: str
    """The token that follows a last answer."""
    num_bos: int | None = None
    thinking: ThinkingHeader | None = None


CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = "<|im_start|>system\nYou help.<|im_end|>\n"
CHATML_PROMPT = (
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure.<|im_end|>\n"
    "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n"
)
QWEN_3 = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set content = m.content %}"
    "{% set reasoning = m.reasoning_content if m.reasoning_content is string else '' %}"
    "<|im_start|>assistant\n{% if loop.last %}{{ '<think>\n' + reasoning + '\n</think>\n\n' }}"
    "{% endif %}{{ content }}<|im_end|>\n{% else %}<|im_start|>{{ m.role + '\n' + m.content }}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
GPT_OSS = (
    "{# Channels: the thinking of earlier turns is dropped. #}"
    "<|start|>system<|message|>You help.\nReasoning: {{ reasoning_effort }}\n"
    "# Valid channels: analysis, commentary, final.<|end|>{% for m in messages %}"
    "{% if 'thinking' in m and m.thinking is not string %}"
    "{{ raise_exception('Cannot pass both content and thinking in this message!') }}{% endif %}"
    "{% if m.role == 'assistant' %}{% if loop.last and not add_generation_prompt %}"
    "{% if 'thinking' in m %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}"
    "<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% else %}{% set content = m.content %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
LLAMA_3 = (
    "{% for m in messages %}{{ bos_token if loop.first }}<|start_header_id|>{{ m.role }}"
    "{{ '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
GEMMA_2 = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PHI_3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}<|assistant|>{% endif %}\n{% endfor %}"
)
IM = "<|im_start|> <|im_end|>"
OFF = ThinkingHeader("switched", False, {"enable_thinking": False})
LOW = ThinkingHeader("switched", True, {"reasoning_effort": "low"})
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"

TABLE = {
    "LLaMA-2": Published(
        "llama2-chat",
        "<s>",
        "</s>",
        "",
        True,
        "Hi [/INST] Sure. </s><s>[INST] More [/INST]",
        "</s>",
        1,
    ),
    "LLaMA-3": Published(
        LLAMA_3,
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|eot_id|> <|start_header_id|> <|end_header_id|>",
        True,
        f"<|begin_of_text|>{HEADER.format('user')}Hi<|eot_id|>{HEADER.format('assistant')}Sure."
        f"<|eot_id|>{HEADER.format('user')}More<|eot_id|>{HEADER.format('assistant')}",
        "<|eot_id|>",
        1,
    ),
    "Mistral": Published(
        MISTRAL,
        "<s>",
        "</s>",
        "",
        True,
        "<s>[INST] Hi [/INST]Sure.</s>[INST] More [/INST]",
        "</s>",
        1,
    ),
    "Vicuna": Published(
        "vicuna-v1.1",
        "<s>",
        "</s>",
        "",
        True,
        "USER: Hi ASSISTANT: Sure.</s>USER: More ASSISTANT:",
        "</s>",
        1,
    ),
    "Qwen2.5": Published(CHATML, "", "<|im_end|>", IM, False, SYSTEM + CHATML_PROMPT, "<|im_end|>"),
    "Qwen3": Published(
        QWEN_3,
        "",
        "<|im_end|>",
        IM,
        False,
        CHATML_PROMPT + "<think>\n\n</think>\n\n",
        "<|im_end|>",
        None,
        OFF,
    ),
    "R1": Published(
        R1,
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜> <｜Assistant｜>",
        True,
        "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>Sure.<｜end▁of▁sentence｜>"
        "<｜User｜>More<｜Assistant｜><think>\n",
        "<｜end▁of▁sentence｜>",
        1,
        ThinkingHeader("fixed", True),
    ),
    "gpt-oss": Published(
        GPT_OSS,
        "<|startoftext|>",
        "<|return|>",
        "<|start|> <|end|> <|message|> <|channel|>",
        False,
        "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Sure.<|end|>"
        "<|start|>user<|message|>More<|end|><|start|>assistant",
        "<|return|>",
        0,
        LOW,
    ),
    "Gemma 2": Published(
        GEMMA_2,
        "<bos>",
        "<eos>",
        "<start_of_turn> <end_of_turn>",
        True,
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nSure.<end_of_turn>\n"
        "<start_of_turn>user\nMore<end_of_turn>\n<start_of_turn>model\n",
        "<end_of_turn>",
        1,
    ),
    "Phi-3": Published(
        PHI_3,
        "<s>",
        "<|endoftext|>",
        "<|user|> <|assistant|> <|end|>",
        False,
        "<|user|>\nHi<|end|>\n<|assistant|>\nSure.<|end|>\n<|user|>\nMore<|end|>\n<|assistant|>\n",
        "<|end|>",
        0,
    ),
    "Zephyr": Published(
        ZEPHYR,
        "<s>",
        "</s>",
        "",
        True,
        "<s><|user|>\nHi</s>\n<|assistant|>\nSure.</s>\n<|user|>\nMore</s>\n<|assistant|>",
        "</s>",
        1,
    ),
    "SmolLM2": Published(
        CHATML,
        "<|im_start|>",
        "<|im_end|>",
        "",
        False,
        SYSTEM + CHATML_PROMPT,
        "<|im_end|>",
        1,
    ),
}

ANSWERS = {
    "R1": "hm\n</think>\n\nSure.",
    "Qwen3": "<think>\nhm\n</think>\n\nSure.",
    "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    "<|channel|>final<|message|>Sure.<|return|>",
}
"""Answers of models that think. Only "Sure." enters the history."""


def codec_of(name: str, folder: Path) -> ChatCodec:
    """The codec of the model's template and of a tokenizer with its tokens."""
    model = TABLE[name]
    extra = dict.fromkeys([model.bos or model.eos, model.eos, *model.special.split()])
    backend = make_tokenizer(extra=tuple(extra)).backend_tokenizer
    front = f"{model.bos} $A" if model.has_bos_added else "$A"
    token_ids = [(model.bos, backend.token_to_id(model.bos))] if model.has_bos_added else []
    backend.post_processor = processors.TemplateProcessing(single=front, special_tokens=token_ids)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=model.bos or None, eos_token=model.eos
    )
    is_ours = "{" not in model.template
    tokenizer.chat_template = None if is_ours else model.template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return load_codec(folder, find_model(str(folder)), model.template if is_ours else "auto")


@pytest.mark.parametrize("name", TABLE)
def test_published_templates_have_their_bos_ends_and_thinking(name: str, tmp_path: Path) -> None:
    model, codec = TABLE[name], codec_of(name, tmp_path)
    sure: Message = {"role": "assistant", "content": "Sure."}
    chat = [{"role": "user", "content": "Hi"}, sure, {"role": "user", "content": "More"}]
    text = str(codec.tokenizer.decode(codec.render(chat)))
    assert text.endswith(model.prompt)
    assert (codec.describe().num_bos, codec.describe().thinking) == (model.num_bos, model.thinking)
    if model.num_bos:
        assert text.startswith(model.bos)
        in_front = text.partition("Hi")[0].count(model.bos)
        assert in_front == (2 if name == "SmolLM2" else 1), "SmolLM2's BOS begins each message"
    ends = {codec.tokenizer.convert_tokens_to_ids(token) for token in (model.eos, model.end)}
    assert codec.eos_ids == ends
    assert codec.end_id == codec.tokenizer.convert_tokens_to_ids(model.end)
    assert codec.template.warning is None


@pytest.mark.parametrize("name", ANSWERS)
def test_the_second_turn_has_the_answer_without_its_thoughts(name: str, tmp_path: Path) -> None:
    codec = codec_of(name, tmp_path)
    message = codec.reply(answer(codec, ANSWERS[name]))
    chat = [{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "More"}]
    assert str(codec.tokenizer.decode(codec.render(chat))).endswith(TABLE[name].prompt)
