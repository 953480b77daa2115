"""Check the user's further arguments for an engine, which must not change what specbench sets."""

import re
from collections.abc import Sequence

from specbench.errors import UserError
from specbench.measure.server.engine import Engine

_FLAG_END = re.compile("[=.]")
"""The end of a flag in a word: `--flag=value`, or vLLM's `--flag.key value`."""
_SPECULATION_BEGINNINGS = ("spec-", "speculative-", "draft")
"""In every engine, the names of flags that choose or change speculation begin with one of these."""


def check_engine_args(engine: Engine, arguments: Sequence[str], command: Sequence[str]) -> None:
    """Refuse arguments of the user that set speculation, or something that specbench sets.

    A flag may be spelt `--flag=value`, `--flag.key`, `--no-flag` or with underscores. The beginning
    of a long flag is refused too, because some engines complete it. The beginning of a flag in
    `speculation_flags`, which may be short, is refused only if the engine completes flags.

    Args:
        engine: the serving engine. `own_flags` are other spellings of the flags that specbench
            sets, and flags that set these from a file. `speculation_flags` are the flags of
            speculation that do not begin with one of _SPECULATION_BEGINNINGS.
        arguments: the words of --engine-args.
        command: the words of the server's command without speculation, as specbench makes it.

    Raises:
        UserError: an argument is a flag of speculation, or a flag that specbench sets.
    """
    # The names of the flags that specbench sets.
    taken_names = {_name(word) for word in command if word.startswith("-")}
    taken_names |= {_name(flag) for flag in engine.own_flags}
    speculation_names = {_name(flag) for flag in engine.speculation_flags}
    for word in arguments:
        if not _is_flag(word):
            continue
        flag = _FLAG_END.split(word)[0]
        name = _name(flag)
        is_long = word.startswith("--")  # `-c` is not the beginning of `--context`
        is_beginning = is_long and any(
            beginning.startswith(name) for beginning in _SPECULATION_BEGINNINGS
        )
        # Python's argparse completes short flags too: `-s` may stand for `-sc`.
        is_completed = engine.completes_flags and any(
            speculation_flag.startswith(flag) for speculation_flag in engine.speculation_flags
        )
        has_speculation_name = name in speculation_names or name.startswith(_SPECULATION_BEGINNINGS)
        if is_beginning or is_completed or has_speculation_name:
            raise UserError(
                f"--engine-args: {flag} sets the speculation of {engine.title} for all methods, "
                "vanilla included.",
                "Name it as a method: --method NAME:num_tokens=N.",
            )
        for taken_name in taken_names:
            if name == taken_name or (is_long and taken_name.startswith(name)):
                raise UserError(
                    f"--engine-args: specbench sets {flag} itself, from its own options.",
                    "Leave it out. See `specbench run --help` for the model, its dtype and the "
                    "load.",
                )


def _is_flag(word: str) -> bool:
    """True for `-x` and `--name`, false for an argument, such as a negative number."""
    return word.startswith("-") and word.lstrip("-")[:1].isalpha()


def _name(word: str) -> str:
    """The name of a flag without leading dashes and negation, with `-` in place of `_`."""
    return word.lstrip("-").replace("_", "-").removeprefix("no-")
