"""Variables of chat templates that switch thinking on and off."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ModeValues(NamedTuple):
    """Values of a template's variable for the thinking mode."""

    without: bool | str
    """Value without thinking, or with as little as the model can."""
    thinking: bool | str
    """Value with thinking."""

    def of(self, *, is_thinking: bool) -> bool | str:
        """The value for a mode."""
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
_EFFORTS = (  # gpt-oss; templates without a medium effort
    ModeValues(without="low", thinking="medium"),
    ModeValues(without="low", thinking="high"),
)
_VALUES_OFF = (*(values.without for values in _MODES["thinking_mode"]), "none")
"""Values without any thinking. Of the efforts, only "none" counts: gpt-oss thinks with "low"."""

_NAME = re.compile(r"\b(?:enable_thinking|thinking_mode|\w+_effort)\b")
"""Names that have no other meaning, so that they count in a template's comments, too."""
_VARIABLE = re.compile(r"""\{[%{](?:[^}'"]|'[^']*'|"[^"]*")*?(?<![\w.])thinking(?![\w'"])""")
"""The variable `thinking` in a statement: not the word, a field of a message or a text."""


def switches_of(jinja: str) -> dict[str, Sequence[ModeValues]]:
    """The switches that a template names, with the pairs of values that each may take."""
    names = [*dict.fromkeys(_NAME.findall(jinja))]
    names += ["thinking"] if _VARIABLE.search(jinja) else []
    return {name: _MODES.get(name, _EFFORTS) for name in names}


def is_off(value: object) -> bool:
    """True for a value of a switch without any thinking."""
    return value in _VALUES_OFF
