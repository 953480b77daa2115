"""The list of commands, their loading, and their help."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval

import pytest

from specbench.cli.app import COMMANDS
from specbench.cli.options import Call
from specbench.log.options import options
from specbench.log.spec import SpecValues
from tests.cli.conftest import Specbench
from tests.support.texts import assert_in

LOADED = """
import sys
from specbench.cli import main
sys.argv = ["specbench", *sys.argv[1:]]
try:
    main()
except SystemExit:
    print([name.split(".")[2] for name in sys.modules if name.startswith("specbench.cli.")])
"""


def test_help_lists_every_command_in_four_groups(specbench: Specbench) -> None:
    shown = specbench("-h").out
    headings = ["Measure:", "Look:", "Judge:", "Prepare:"]
    assert [line for line in shown.splitlines() if line in headings] == headings
    for name, about in COMMANDS.items():
        heading = f"{about.group}:\n"
        assert f"  {name} " in shown.partition(heading)[2], name
    for name in ("merge", "datastore"):
        assert f"  {name} " in shown.partition("Prepare:\n")[2]
    words = " ".join(specbench("--help").out.split())
    assert_in(words, "SPECBENCH_RUN_MODEL sets run --model", "Examples: specbench run --limit 2")


@pytest.mark.parametrize(
    ("words", "headings"),
    [
        (
            "tune",
            ("Options:", "Measure:", "Model:", "Decoding:", "Server:", "Output:", "Commands:"),
        ),
        ("tune profile", ("Options:", "Measure:", "Model:", "Decoding:", "Output:")),
        ("datastore build", ("Arguments:", "Options:", "Model:", "Output:")),
    ],
)
def test_options_of_commands_with_parts_are_in_groups(
    words: str, headings: tuple[str, ...], specbench: Specbench
) -> None:
    shown = specbench(*words.split(), "-h").out
    assert "completion" not in shown  # an option of the program
    assert tuple(line for line in shown.splitlines() if line.endswith(":") and line[0] != " ") == (
        headings
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_begins_with_the_commands_line_and_has_words_instead_of_types(
    specbench: Specbench, command: str
) -> None:
    said = specbench(command, "-h")
    assert said.code == 0 and said.out == specbench(command, "--help").out
    if command not in ("datastore", "tune"):  # groups of commands
        assert COMMANDS[command].summary.removesuffix(".") in " ".join(said.out.split())
    for word in ("<", "list[", "env var", "python -m"):
        assert word not in said.out


@pytest.mark.parametrize(
    ("words", "modules"), [("-h", set()), ("run -h", {"run"}), ("list methods", {"catalog"})]
)
def test_a_command_loads_no_other_command(words: str, modules: set[str]) -> None:
    call = [sys.executable, "-c", LOADED, *words.split()]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    loaded = {*literal_eval(done.stdout.splitlines()[-1])}
    commands = {about.function.partition(".")[0] or name for name, about in COMMANDS.items()}
    assert loaded & commands == modules


def test_every_option_of_a_run_is_in_the_help_under_its_heading(specbench: Specbench) -> None:
    shown = specbench("run", "-h").out
    headings = ["Measure:", "Model:", "Decoding:", "Server:", "Output:", "Options:"]
    assert [line for line in shown.splitlines() if line in headings] == headings
    for option in (*options(SpecValues), *options(Call)):
        before, flag, _ = shown.partition(f"  {option.flag} ")
        assert flag, option.flag
        assert [h for h in headings if h in before][-1] == f"{option.group.capitalize()}:"
