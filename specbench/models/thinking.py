"""Measure the effect of a template's thinking switches on the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError
from specbench.log.model import ThinkingHeader
from specbench.models.switches import is_off, switches_of
from specbench.models.templates import Message, Template, render_text
from specbench.types.reply import is_thinking_open

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DIALOGUE: Sequence[Message] = ({"role": "user", "content": "a"},)
"""The dialogue that is rendered in each mode to compare the prompts."""


def with_measured_thinking(
    template: Template, tokenizer: PreTrainedTokenizerBase, model: str
) -> Template:
    """Return the template with values for the switches that change a prompt, and with their effect.

    Raises:
        UserError: the template refuses its values, does not read one of them, or has no switch for
            a mode that is wanted. The message names the `model`.
    """
    jinja = template.jinja or ""
    if unread := [argument for argument in template.args if argument not in jinja]:
        raise UserError(
            f"The chat template of {model} does not read {', '.join(unread)}.",
            "Give --template-args values that it reads, or leave them out.",
        )
    switches = switches_of(jinja)
    working: dict[str, Any] = {}
    for switch, pairs in switches.items():
        for pair in pairs:
            if _is_working(switch, pair, template, tokenizer):
                working[switch] = pair.of(is_thinking=template.is_thinking)
                break
    template = replace(template, args={**working, **template.args})
    is_open = is_thinking_open(render_text(template, tokenizer, _DIALOGUE))
    values = {name: value for name, value in template.values.items() if name in switches}
    if working:
        is_on = is_open or not all(is_off(values[switch]) for switch in working)
        return replace(template, thinking=ThinkingHeader("switched", is_on, values))
    if switches:
        names = ", ".join(switches)
        problem = f"The chat template of {model} names {names}, but no value of it changes a prompt"
        if template.is_thinking:
            raise UserError(f"{problem}: it has no thinking mode.", "Use `--template auto`.")
        warning = f"Thinking: mode unknown. {problem}."
        thinking = ThinkingHeader("unknown", is_open or None, values)
        return replace(template, thinking=thinking, warning=warning)
    if template.is_thinking and not is_open:
        raise UserError(
            f"The chat template of {model} has no thinking mode.", "Use `--template auto`."
        )
    return replace(template, thinking=ThinkingHeader("fixed", is_on=True) if is_open else None)


def _is_working(
    switch: str, pair: Sequence[Any], template: Template, tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Return True if the two values of a switch lead to different prompt tokens.

    If the template refuses a value, the switch counts as working if the user set it.
    """
    prompts = []
    for value in pair:
        try:
            other = replace(template, args={**template.args, switch: value})
            prompts.append(tokenizer(render_text(other, tokenizer, _DIALOGUE))["input_ids"])
        except UserError:
            return switch in template.args
    return bool(prompts[0] != prompts[1])
