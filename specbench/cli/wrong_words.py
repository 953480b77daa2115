"""Recognise words of other programs' command lines, and name specbench's words for them."""

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from specbench.errors import UserError

_OTHER_OPTIONS = {
    "-m": "--model",
    "-n": "--limit",
    "-o": "--output",
    "-t": "--temperature",
    "--batch-size": "--concurrency",
    "--max-concurrency": "--concurrency",
    "--max-length": "--max-new-tokens",
    "--max-tokens": "--max-new-tokens",
    "--methods": "--method",
    "--models": "--model",
    "--num-prompts": "--limit",
    "--num-samples": "--limit",
    "--output-dir": "--output",
    "--tasks": "--dataset",
    "--datasets": "--dataset",
    "--temp": "--temperature",
}
"""Options of other programs -> our options."""


def refuse_other_options(command: str, options: Collection[str], words: Sequence[str]) -> None:
    """Raise UserError for an option that the command has under another name."""
    for word in words:
        flag = word.partition("=")[0]
        our_name = _OTHER_OPTIONS.get(flag)
        if our_name in options and flag not in options:
            raise UserError(
                f"`specbench {command}` has no option {flag}.", f"Its name here is {our_name}."
            )


def extra_argument(command: str, options: Collection[str], words: Sequence[str]) -> UserError:
    """Return the error for words of a command that are neither options nor their values."""
    text = shlex.join(words)
    is_are = "is not an option" if len(words) == 1 else "are not options"
    hint = f"See `specbench {command} -h`."
    if option := _option_of(words[0], options):
        hint = f"Write {option} {words[0]}."
    return UserError(f"{text} {is_are} of `specbench {command}`.", hint)


def _option_of(word: str, options: Collection[str]) -> str:
    """Return the option to which a word probably belongs, or "" if it is not known."""
    from specbench import registry
    from specbench.data.tasks import load_cards
    from specbench.models.cards import known_models

    values = {"--model": known_models(), "--dataset": load_cards(), "--method": registry.names()}
    matching = [option for option, names in values.items() if word.lower() in names]
    return next((option for option in matching if option in options), "")


def refuse_early_options(
    commands: Collection[str], options: Collection[str], words: Sequence[str]
) -> None:
    """Raise UserError for a command's option that was written before the command."""
    # the index of the command in `words`, or None
    position = next((i for i, word in enumerate(words) if word in commands), None)
    if position is None or not words[0].startswith("-") or words[0] in options:
        return
    in_order = [words[position], *words[:position], *words[position + 1 :]]
    raise UserError(
        f"{words[0]} comes before the command.", f"Write: {shlex.join(['specbench', *in_order])}"
    )


def refuse_file(param: Any, value: Any) -> None:
    """Raise UserError if an option takes a folder, and its value is a file."""
    if param.metavar == "DIR" and value is not None and Path(value).is_file():
        raise UserError(f"{param.opts[0]} {value} is a file.", "Name a folder.")


def unknown_variables(prefix: str, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each environment variable that has the prefix, but names no option.

    `names` are the names of the command's parameters.
    """
    known = [f"{prefix}_{name.upper()}" for name in names]
    for variable in sorted(os.environ):
        if variable.startswith(f"{prefix}_") and variable not in known:
            closest = get_close_matches(variable, known, n=1)
            question = f" Did you mean {closest[0]}?" if closest else ""
            yield f"The variable {variable} is not an option, and is ignored.{question}"


def with_variables(error: UserError, context: Any) -> UserError:
    """Return the error, with the names of the environment variables that hold its wrong values."""
    for param in context.command.params:
        source = context.get_parameter_source(param.name)
        if not source or source.name != "ENVIRONMENT":
            continue
        variable = f"{context.auto_envvar_prefix}_{param.name.upper()}"
        value = os.environ.get(variable, "")
        is_named = any(flag in error.message.split() for flag in param.opts)
        if is_named or repr(value) in error.message:
            error.message += f" The value is from the variable {variable}."
            error.args = (error.message,)
    return error
