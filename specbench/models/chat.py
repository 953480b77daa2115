"""Chat templates: a dialogue to token ids, and answers back to text.

Special tokens in the text of a prompt are encoded as text, not as control tokens: each is
replaced by a mark before the template is rendered. The rendered text is cut at the marks, and
the special token's own text is encoded between the pieces.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError, memory_limit, reading, reason_of, time_limit, unknown_name
from specbench.models.cards import ModelCard, models_file
from specbench.models.tokenizers import TURN_ENDS, answer_text, eos_ids, load_tokenizer, vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Message = Mapping[str, str]
"""A message: {"role": "user" or "assistant", "content": text without special tokens}."""

_PRIVATE_USE = range(0xE000, 0xF8FF)
_ANCHORS = ("\n", ".", "a")
RENDER_LIMIT_S, MOST_RENDERED, MOST_MEMORY = 10.0, 10_000_000, 2**30
"""Seconds that a template may take, characters that it may render, and bytes that it may need."""
_THINKING = "thinking"
_MODES: Mapping[str, tuple[bool | str, bool | str]] = {
    "enable_thinking": (False, True),  # Qwen3, GLM-4.5
    "reasoning_effort": ("low", "medium"),  # gpt-oss, which cannot go without
}
"""Variables of chat templates for the thinking mode: their value without it, and with it."""
_OTHER = "Use another `--template`, or `--template none`."
_DATE = "26 Jul 2024"
_ISO_DATE = "{% macro strftime_now(format) %}2024-07-26{% endmacro %}"
"""Fixed date for templates that print today's date, by a variable or (gpt-oss) by a function, so
that prompts do not change overnight.
"""


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Texts that the tokenizer reads as control tokens wherever they stand, with their ids."""
    added = tokenizer.added_tokens_decoder.items()
    return {str(token): i for i, token in added if token.special and str(token)}


def _marked(
    messages: Sequence[Message], special: Sequence[str]
) -> tuple[Sequence[Message], Mapping[str, str]]:
    """The messages with a character that none has in the place of each special token.

    Also the special token that each of these marks stands for.
    """
    text = "".join(message["content"] for message in messages)
    found = sorted({token for token in special if token in text}, key=len, reverse=True)
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in text)
    marks = dict(zip(found, free, strict=False))
    if not marks:
        return messages, {}
    pattern = re.compile("|".join(map(re.escape, marks)))
    marked = [
        {**message, "content": pattern.sub(lambda match: marks[match[0]], message["content"])}
        for message in messages
    ]
    return marked, {mark: token for token, mark in marks.items()}


def _following(tokenizer: PreTrainedTokenizerBase, text: str, *, is_plain: bool) -> list[int]:
    """Token ids of a text in the middle of another: no space is put in front of it."""
    encode = partial(tokenizer, add_special_tokens=False, split_special_tokens=is_plain)
    for anchor in _ANCHORS:  # one that does not merge with the text
        before, both = (encode(one)["input_ids"] for one in (anchor, anchor + text))
        if both[: len(before)] == before:
            return list(both[len(before) :])
    return list(encode(text)["input_ids"])


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template. `jinja` None sends the text unchanged.

    `name` is recorded in run.json: "none", a name from models.toml, "tokenizer", or "thinking"
    for the model's own template with its thinking mode on.
    """

    name: str
    jinja: str | None = None
    system: str = ""
    warning: str | None = None

    @property
    def is_thinking(self) -> bool:
        return self.name == _THINKING

    @property
    def modes(self) -> Mapping[str, bool | str]:
        """The variables that the template reads to turn the thinking mode on or off."""
        text = self.jinja or ""
        return {name: values[self.is_thinking] for name, values in _MODES.items() if name in text}

    @property
    def sha256(self) -> str | None:
        """Hash of the template, its system message and thinking mode; None without a template."""
        if self.jinja is None:
            return None
        mode = "\nthinking" * self.is_thinking
        return hashlib.sha256(f"{self.jinja}\n{self.system}{mode}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ChatCodec:
    """Messages to prompt tokens, and tokens back to text, for one model and template.

    `vocab_size` counts the tokens that the model can emit; 0 if unknown.
    """

    tokenizer: PreTrainedTokenizerBase
    template: Template
    eos_ids: frozenset[int]
    vocab_size: int = 0

    @property
    def end_id(self) -> int | None:
        """The token that ends an answer: the one after the template's turns, else the EOS."""
        added = {str(token): i for i, token in self.tokenizer.added_tokens_decoder.items()}
        jinja = self.template.jinja or ""
        of_turns = (added.get(token) for token in TURN_ENDS if token in jinja)
        usual = (*of_turns, self.tokenizer.eos_token_id, min(self.eos_ids, default=None))
        return next((i for i in usual if i in self.eos_ids), None)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(render(self.template, self.tokenizer, messages))

    def text(self, token_ids: Sequence[int]) -> str:
        return answer_text(self.tokenizer, token_ids)

    def control_tokens(self, text: str) -> tuple[str, ...]:
        """Special tokens in a user's text, which a prompt would have as control tokens.

        With a template they are spelled out, unless the tokenizer cannot do so.
        """
        special = special_tokens(self.tokenizer)
        found = tuple(token for token in special if token in text)
        if self.template.jinja is None:
            return found
        spelled = {one: _following(self.tokenizer, one, is_plain=True) for one in found}
        return tuple(token for token in found if special[token] in spelled[token])

    def token_ids(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer's text, without special tokens around it."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def load_codec(path: Path, card: ModelCard, template: str) -> ChatCodec:
    """The codec of a checkpoint folder for `--template template`."""
    tokenizer = load_tokenizer(path)
    chosen = choose_template(template, card, tokenizer)
    _check_powers(chosen)
    return ChatCodec(tokenizer, chosen, eos_ids(path, tokenizer), vocab_size(path, tokenizer))


def check_template(name: str) -> None:
    """Raise UserError unless `--template name` is one of ours, auto, thinking or none."""
    words = ("auto", "none", _THINKING, *models_file().template)
    if name not in words:
        raise unknown_name("template", name, words)


def check_own_template(name: str, card: ModelCard, folder: Path) -> None:
    """Check the template in a checkpoint folder, if `--template name` takes it, without torch.

    Raises:
        UserError: the file cannot be read, or the template not run.
    """
    if name not in ("auto", _THINKING) or card.template:
        return
    config, own = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    with reading(config, "The chat template", "Download or copy the folder again."):
        found = json.loads(config.read_text("utf-8")) if config.is_file() else {}
        jinja = own.read_text("utf-8") if own.is_file() else found.get("chat_template")
    if isinstance(jinja, str):
        _check_powers(Template("tokenizer", jinja))


def choose_template(name: str, card: ModelCard, tokenizer: PreTrainedTokenizerBase) -> Template:
    """The template for `--template name`.

    auto: the card's, else the tokenizer's own, else none with a warning. thinking: the same with
    the model's thinking mode on, which is off otherwise. Raises UserError for an unknown name,
    and for a template without a thinking mode.
    """
    ours = models_file().template
    if name == _THINKING:
        usual = choose_template("auto", card, tokenizer)
        if not usual.modes:
            raise UserError(
                f"The chat template of {card.name} has no thinking mode.", "Use `--template auto`."
            )
        return replace(usual, name=_THINKING)
    if name == "none":
        return Template("none")
    check_template(name)
    if chosen := card.template if name == "auto" else name:
        return Template(chosen, ours[chosen].jinja, ours[chosen].system)
    if isinstance(own := tokenizer.chat_template, str):
        return Template("tokenizer", own)
    if isinstance(own, dict) and "default" in own:
        return Template("tokenizer", own["default"])
    return Template(
        "none",
        warning=f"The tokenizer of {card.name} has no chat template, so prompts are sent "
        f"unchanged. This lowers the acceptance of a chat model: give `--template NAME` "
        f"({', '.join(ours)}), or `--template none` to silence this.",
    )


def render(
    template: Template, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> list[int]:
    """The prompt's token ids with exactly one BOS in front, ready for an answer.

    Special tokens in the text of a message are encoded as text. Without a template they are
    control tokens, since the text is sent unchanged: an answer directly follows its user turn,
    and a blank line separates later user turns.
    """
    special = () if template.jinja is None else tuple(special_tokens(tokenizer))
    messages, tokens = _marked(messages, special)
    rendered = _text(template, tokenizer, messages)
    text, *rest = re.split(f"([{''.join(tokens)}])", rendered) if tokens else [rendered]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    has_bos = isinstance(tokenizer.bos_token, str) and text.startswith(tokenizer.bos_token)
    ids: list[int] = tokenizer(text, add_special_tokens=not has_bos)["input_ids"]
    if isinstance(tokenizer.eos_token, str) and not text.endswith(tokenizer.eos_token):
        while ids and ids[-1] == eos:  # a tokenizer that ends every text with EOS
            ids = ids[:-1]
    while bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    for piece in filter(None, rest):  # a mark becomes the text of its special token
        token = tokens.get(piece)
        ids += _following(tokenizer, token or piece, is_plain=token is not None)
    if not ids:
        raise UserError("A prompt has no tokens.", "Give it text, or use a chat template.")
    return ids


def _text(
    template: Template, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> str:
    if template.jinja is None:
        is_later = [i > 0 and message["role"] == "user" for i, message in enumerate(messages)]
        parts = zip(is_later, messages, strict=True)
        return "".join("\n\n" * later + message["content"] for later, message in parts)
    system = template.system
    if system:  # ours have one place for it, and roles in turn
        if messages and messages[0]["role"] == "system":
            system, messages = messages[0]["content"], messages[1:]
        if not messages or any(one["role"] not in ("user", "assistant") for one in messages):
            raise UserError(
                f"The chat template {template.name!r} has no place for these roles.",
                "Give messages of user and assistant in turn, after one of system at most.",
            )
    extra: dict[str, Any] = {"system": system} if system else {}
    what = f"The chat template {template.name!r}"
    with time_limit(RENDER_LIMIT_S, what, _OTHER), memory_limit(MOST_MEMORY):
        try:
            text = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=_ISO_DATE * ("strftime_now" in template.jinja) + template.jinja,
                tokenize=False,
                add_generation_prompt=True,
                date_string=_DATE,
                **template.modes,
                **extra,
            )
        except Exception as error:  # a template is a program
            told = f"fails on this dialogue: {reason_of(error)}"
            if isinstance(error, MemoryError):
                told = f"needs over {MOST_MEMORY >> 30} GiB"
            raise _template_error(template, told) from error
    if not isinstance(text, str) or not text.strip():
        raise _template_error(template, "renders no text")
    if len(text) > MOST_RENDERED:
        raise _template_error(template, f"renders {len(text):,} characters")
    return text


def _check_powers(template: Template) -> None:
    """Refuse a template with powers: a large one takes hours, and cannot be interrupted."""
    from jinja2 import Environment, TemplateError

    try:
        with time_limit(RENDER_LIMIT_S, f"The chat template {template.name!r}", _OTHER):
            tokens = list(Environment(autoescape=True).lex(template.jinja or ""))
    except TemplateError as error:
        raise _template_error(template, f"cannot be read: {reason_of(error)}") from error
    if any(kind == "operator" and text == "**" for _, kind, text in tokens):
        raise _template_error(template, "computes a power, which may take hours")


def _template_error(template: Template, what: str) -> UserError:
    return UserError(f"The chat template {template.name!r} {what}.", _OTHER)
