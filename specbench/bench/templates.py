"""From a dialogue to token ids: the tokenizer, the chat template, the end tokens.

Knows tokenizers and templates. Knows no model weights, and prints nothing: what a user should be
warned of is a value.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.models import ModelCard, template_tables
from specbench.errors import CheckpointError, UserError, unknown_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, str]
"""One side's words: {"role": "user" or "assistant", "content": text without special tokens}."""

_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>")
"""Tokens that end an answer where a model has them; some checkpoints do not list them as EOS."""

_DATE = "26 Jul 2024"
"""For templates that put today's date into the prompt: a prompt must not change overnight."""


@dataclass(frozen=True, slots=True)
class Template:
    """How a dialogue is written for the model. `jinja` None sends the text as it is.

    `name` is what run.json records: "none", one of ours, or "tokenizer" for the tokenizer's own.
    """

    name: str
    jinja: str | None = None
    system: str = ""
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class ChatCodec:
    """Messages to prompt tokens, and tokens back to text, for one model and template."""

    tokenizer: "PreTrainedTokenizerBase"
    template: Template
    eos_ids: frozenset[int]

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(render(self.template, self.tokenizer, messages))

    def text(self, token_ids: Sequence[int]) -> str:
        return answer_text(self.tokenizer, token_ids)


def load_codec(path: Path, card: ModelCard, template: str) -> ChatCodec:
    """The codec of a checkpoint folder for `--template template`."""
    tokenizer = load_tokenizer(path)
    chosen = choose_template(template, card, tokenizer)
    return ChatCodec(tokenizer, chosen, eos_ids(path, tokenizer))


def load_tokenizer(path: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a checkpoint folder. Raises CheckpointError if it cannot be loaded."""
    is_sentencepiece = (path / "tokenizer.model").is_file()
    if is_sentencepiece and not (path / "tokenizer.json").is_file():
        _require_sentencepiece(path)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # whatever a broken file makes of the library
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
        message = f"The tokenizer in {path} cannot be loaded ({reason})."
        hint = "The folder needs tokenizer.json, or tokenizer.model, with tokenizer_config.json."
        raise CheckpointError(message, hint) from error
    loaded: PreTrainedTokenizerBase = tokenizer
    return loaded


def choose_template(name: str, card: ModelCard, tokenizer: "PreTrainedTokenizerBase") -> Template:
    """The template for `--template name`.

    auto: the card's, else the tokenizer's own, else none with a warning. Raises UserError for a
    name that is neither auto, none nor one of ours.
    """
    ours = template_tables()
    if name == "none":
        return Template("none")
    if name != "auto":
        if name not in ours:
            raise unknown_name("template", name, ("auto", "none", *ours))
        return Template(name, ours[name]["jinja"], ours[name]["system"])
    if card.template is not None:
        return Template(card.template, ours[card.template]["jinja"], ours[card.template]["system"])
    if isinstance(own := tokenizer.chat_template, str):
        return Template("tokenizer", own)
    if isinstance(own, dict) and "default" in own:
        return Template("tokenizer", own["default"])
    return Template(
        "none",
        warning=f"The tokenizer of {card.name} has no chat template, so prompts are sent as they "
        f"are. If it is a chat model, acceptance will suffer: give `--template NAME` "
        f"({', '.join(ours)}), or `--template none` if this is meant.",
    )


def render(
    template: Template, tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message]
) -> list[int]:
    """The prompt's token ids, ready for an answer, with the tokenizer's BOS exactly once in front.

    Without a template the text is sent as it is; an answer directly follows what it answers, and a
    blank line stands before every later user turn.
    """
    text = _text(template, tokenizer, messages)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    has_bos = isinstance(tokenizer.bos_token, str) and text.startswith(tokenizer.bos_token)
    ids: list[int] = tokenizer(text, add_special_tokens=not has_bos)["input_ids"]
    if isinstance(tokenizer.eos_token, str) and not text.endswith(tokenizer.eos_token):
        while ids and ids[-1] == eos:  # a tokenizer that ends every text with EOS
            ids = ids[:-1]
    while bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    if not ids:
        raise UserError("A prompt has no tokens.", "Give it text, or use a chat template.")
    return ids


def answer_text(tokenizer: "PreTrainedTokenizerBase", token_ids: Sequence[int]) -> str:
    """An answer as it enters the history and the log: its text without special tokens."""
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text


def eos_ids(path: Path, tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Every token that ends an answer.

    The union of the checkpoint's generation_config (or, without one, config), the tokenizer's EOS
    and the known end-of-turn tokens the tokenizer has.
    """
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        if (path / name).is_file():
            found |= _eos_of(path / name)
            break
    if isinstance(tokenizer.eos_token_id, int):
        found.add(tokenizer.eos_token_id)
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    found |= {added[token] for token in _TURN_ENDS if token in added}
    return frozenset(found)


def _text(
    template: Template, tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message]
) -> str:
    if template.jinja is None:
        is_later = [i > 0 and message["role"] == "user" for i, message in enumerate(messages)]
        parts = zip(is_later, messages, strict=True)
        return "".join("\n\n" * later + message["content"] for later, message in parts)
    import jinja2

    extra: dict[str, Any] = {"system": template.system} if template.system else {}
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=template.jinja,
            tokenize=False,
            add_generation_prompt=True,
            date_string=_DATE,
            **extra,
        )
    except jinja2.TemplateError as error:
        message = f"The chat template {template.name!r} fails on this dialogue: {error}"
        raise UserError(message, "Use another `--template`, or `--template none`.") from error
    assert isinstance(text, str)
    return text


def _eos_of(file: Path) -> set[int]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read: {error}"
        raise CheckpointError(message, "Download or copy the folder again.") from error
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return {token_id for token_id in values if isinstance(token_id, int)}


def _require_sentencepiece(path: Path) -> None:
    """Without these, transformers reads tokenizer.model as another format and fails in the dark."""
    modules = {"sentencepiece": "sentencepiece", "google.protobuf": "protobuf"}
    missing = [package for module, package in modules.items() if not _is_installed(module)]
    if missing:
        raise CheckpointError(
            f"{path} has a SentencePiece tokenizer (tokenizer.model), which needs "
            f"{' and '.join(missing)}.",
            f"`pip install {' '.join(missing)}`",
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is not there either
        return False
