"""The variables of chat templates that switch thinking on and off."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ModeValues(NamedTuple):
    """The two values of a template's variable, one for each thinking mode."""

    without: bool | str
    """The value for no thinking, or for as little as the model can do."""
    thinking: bool | str
    """The value for thinking."""

    def of(self, *, is_thinking: bool) -> bool | str:
        """Return the value for a mode."""
        return self.thinking if is_thinking else self.without


_YES_NO = ModeValues(without=False, thinking=True)
_MODES: Mapping[str, Sequence[ModeValues]] = {
    "enable_thinking": (_YES_NO,),  # Qwen3, GLM-4.5
    "thinking": (_YES_NO,),  # DeepSeek-V3.1, Granite
    "thinking_mode": (
        ModeValues(without="off", thinking="on"),  # Baichuan-M2
        ModeValues(without="chat", thinking="thinking"),  # DeepSeek-V3.2
        ModeValues(without="disabled", thinking="enabled"),
        _YES_NO,
    ),
}
_EFFORTS = (  # the first is gpt-oss's, the second is for templates without a medium effort
    ModeValues(without="low", thinking="medium"),
    ModeValues(without="low", thinking="high"),
)
_VALUES_OFF = (*(values.without for values in _MODES["thinking_mode"]), "none")
"""Values that turn thinking off. Of the efforts, only "none" does: gpt-oss thinks with "low"."""

_NAME = re.compile(r"\b(?:enable_thinking|thinking_mode|\w+_effort)\b")
"""Names that have only this meaning, so they count even in a template's comments."""
_VARIABLE = re.compile(r"""\{[%{](?:[^}'"]|'[^']*'|"[^"]*")*?(?<![\w.])thinking(?![\w'"])""")
"""The variable `thinking` in a statement, as opposed to the word in a text or a message's field."""


def switches_of(jinja: str) -> dict[str, Sequence[ModeValues]]:
    """Return the switches that a template names, each with the pairs of values that it may take."""
    names = [*dict.fromkeys(_NAME.findall(jinja))]
    names += ["thinking"] if _VARIABLE.search(jinja) else []
    return {name: _MODES.get(name, _EFFORTS) for name in names}


def is_off(value: object) -> bool:
    """Return True if this value of a switch turns thinking off."""
    return value in _VALUES_OFF
