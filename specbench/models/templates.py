"""Choose the chat template of a model, and render the text of a dialogue with it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError, memory_limit, reading, reason_of, time_limit, unknown_name
from specbench.log.model import ThinkingHeader
from specbench.models.cards import ModelCard, models_file
from specbench.models.switches import switches_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, str]
"""A message: {"role": "user" or "assistant", "content": text without special tokens}."""

RENDER_LIMIT_S = 10.0
"""Seconds that rendering a template may take."""
MOST_RENDERED = 10_000_000
"""Characters that a template may render."""
MOST_MEMORY = 2**30
"""Bytes that a template may need."""


_OLDEST = ("enable_thinking", "reasoning_effort")
"""Switches that all versions of specbench have set."""
_THINKING = "thinking"
"""The name of the model's own template when its thinking mode is on."""

_OTHER_TEMPLATE = "Use another `--template`, or `--template none`."

# A fixed date for templates that print today's date, by a variable or (gpt-oss) by a function, so
# that prompts do not change overnight.
_DATE = "26 Jul 2024"
_DATE_FUNCTION = "{% macro strftime_now(format) %}2024-07-26{% endmacro %}"


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template."""

    name: str
    """Name in run.json: "none", a name from models.toml, "tokenizer", or "thinking" for the model's
    own template with its thinking mode on.
    """
    jinja: str | None = None
    """The template's source. None sends the text unchanged."""
    system: str = ""
    """System message for dialogues that have none, or ""."""
    warning: str | None = None
    """A warning for the run if it should use another template or if the mode is unknown."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Values of the template's variables, from the user and from the measured switches."""
    thinking: ThinkingHeader | None = None
    """The effect of its thinking switches, or None if it was not measured or never thinks."""

    @property
    def is_thinking(self) -> bool:
        return self.name == _THINKING

    @property
    def modes(self) -> dict[str, Any]:
        """Return the switch values that it always gets, even if they do not change its prompts."""
        return {
            name: pairs[0].of(is_thinking=self.is_thinking)
            for name, pairs in switches_of(self.jinja or "").items()
            if name in _OLDEST
        }

    @property
    def reasoning_field(self) -> str | None:
        """Return the message field that it reads an answer's reasoning from, or None."""
        fields = re.findall(r"""[.'"](reasoning_content|thinking|reasoning)\b""", self.jinja or "")
        return fields[0] if fields else None

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of all its variables."""
        return {**self.modes, **self.args}

    @property
    def sha256(self) -> str | None:
        """Return a hash of template, system message, mode and values; None without a template."""
        if self.jinja is None:
            return None
        mode = "\nthinking" if self.is_thinking else ""
        usual_values = self.modes.items()  # the hash does not include these values
        if values := {n: v for n, v in self.values.items() if (n, v) not in usual_values}:
            mode += f"\n{json.dumps(values, sort_keys=True)}"
        return hashlib.sha256(f"{self.jinja}\n{self.system}{mode}".encode()).hexdigest()


def check_template(name: str) -> None:
    """Raise UserError unless `--template name` is one of ours, auto, thinking or none."""
    names = ("auto", "none", _THINKING, *models_file().template)
    if name not in names:
        raise unknown_name("template", name, names)


def check_own_template(name: str, card: ModelCard, folder: Path) -> None:
    """Check the template in a checkpoint folder without torch, if `--template name` uses it.

    Raises:
        UserError: the file cannot be read, or the template cannot be run.
    """
    if name not in ("auto", _THINKING) or card.template:
        return
    config_file = folder / "tokenizer_config.json"
    template_file = folder / "chat_template.jinja"
    with reading(config_file, "The chat template", "Download or copy the folder again."):
        config = json.loads(config_file.read_text("utf-8")) if config_file.is_file() else {}
        jinja = config.get("chat_template")
        if template_file.is_file():
            jinja = template_file.read_text("utf-8")
    if isinstance(jinja, str):
        check_powers(Template("tokenizer", jinja))


def choose_template(name: str, card: ModelCard, tokenizer: PreTrainedTokenizerBase) -> Template:
    """Return the template for `--template name`.

    auto means the card's template, or else the tokenizer's own, or else none with a warning.
    thinking means the same with the model's thinking mode on, which is off otherwise. An unknown
    name raises UserError.
    """
    if name == _THINKING:
        return replace(choose_template("auto", card, tokenizer), name=_THINKING)
    if name == "none":
        return Template("none")
    check_template(name)
    our_templates = models_file().template
    our_name = card.template if name == "auto" else name
    if our_name:
        return Template(our_name, our_templates[our_name].jinja, our_templates[our_name].system)
    tokenizer_template = tokenizer.chat_template
    if isinstance(tokenizer_template, dict):
        tokenizer_template = tokenizer_template.get("default")
    if isinstance(tokenizer_template, str):
        return Template("tokenizer", tokenizer_template)
    return Template(
        "none",
        warning=f"The tokenizer of {card.name} has no chat template, so prompts are sent "
        f"unchanged. This lowers the acceptance of a chat model: give `--template NAME` "
        f"({', '.join(our_templates)}), or `--template none` to omit this warning.",
    )


def check_powers(template: Template) -> None:
    """Refuse a template with powers, since a large power takes hours and cannot be interrupted."""
    from jinja2 import Environment, TemplateError

    try:
        with time_limit(RENDER_LIMIT_S, f"The chat template {template.name!r}", _OTHER_TEMPLATE):
            tokens = list(Environment(autoescape=True).lex(template.jinja or ""))
    except TemplateError as error:
        raise _template_error(template, f"cannot be read: {reason_of(error)}") from error
    if any(kind == "operator" and token == "**" for _, kind, token in tokens):
        raise _template_error(template, "computes a power, which may take hours")


def render_text(
    template: Template,
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    is_answered: bool = False,
) -> str:
    """Render the text of a dialogue, ready for an answer unless it ends with one (`is_answered`).

    Raises:
        UserError: the template fails, renders nothing or too much, takes too long, or has no
            place for the messages' roles.
    """
    if template.jinja is None:
        return _plain_text(messages)
    variables = {"date_string": _DATE, **template.values}
    if template.system:  # our templates have one place for it and need alternating roles
        system = template.system
        if messages and messages[0]["role"] == "system":
            system = messages[0]["content"]
            messages = messages[1:]
        if not messages or any(m["role"] not in ("user", "assistant") for m in messages):
            raise UserError(
                f"The chat template {template.name!r} does not accept these roles.",
                "Give alternating user and assistant messages, after at most one system message.",
            )
        if system:
            variables["system"] = system
    jinja = template.jinja
    if "strftime_now" in jinja:
        jinja = _DATE_FUNCTION + jinja
    what = f"The chat template {template.name!r}"
    with time_limit(RENDER_LIMIT_S, what, _OTHER_TEMPLATE), memory_limit(MOST_MEMORY):
        try:
            rendered = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=jinja,
                tokenize=False,
                add_generation_prompt=not is_answered,
                **variables,
            )
        except Exception as error:  # a template is a program and can raise anything
            problem = f"fails on this dialogue: {reason_of(error)}"
            if isinstance(error, MemoryError):
                problem = f"needs over {MOST_MEMORY >> 30} GiB"
            raise _template_error(template, problem) from error
    if not isinstance(rendered, str) or not rendered.strip():
        raise _template_error(template, "renders no text")
    if len(rendered) > MOST_RENDERED:
        raise _template_error(template, f"renders {len(rendered):,} characters")
    return rendered


def _plain_text(messages: Sequence[Message]) -> str:
    """Join the contents of the messages, with a blank line before later user turns."""
    pieces: list[str] = []
    for message in messages:
        if pieces and message["role"] == "user":
            pieces.append("\n\n")
        pieces.append(message["content"])
    return "".join(pieces)


def _template_error(template: Template, problem: str) -> UserError:
    message = f"The chat template {template.name!r} {problem.rstrip('.')}."
    switches = {name: pairs[0].without for name, pairs in switches_of(template.jinja or "").items()}
    given = json.dumps(template.values) if template.values else "no values"
    example = json.dumps({**switches, **template.values} or {"NAME": "value"})
    start = "Give other values" if template.values else "If it needs values"
    hint = f"{start}: --template-args '{example}'. {_OTHER_TEMPLATE}"
    return UserError(f"{message} It was given {given}.", hint)
