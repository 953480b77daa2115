"""`specbench init`: write a package with a method to start from."""

import re
import shlex
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

import typer

from specbench.errors import UserError, os_errors, unknown_name

TEMPLATE = Path(__file__).with_name("plugin")
EXAMPLE = "bigram"
"""The method of the template. The new name replaces this name."""


def init(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="method.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name on the command line, such as my_idea.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder [default: specbench-NAME]")
    ] = None,
) -> None:
    """Write a package with a working method, for you to change."""
    from specbench import registry

    if not name:
        chosen_name = "my_idea" if kind == "method" else kind
        hint = f"Write `specbench init method {chosen_name}`."
        raise UserError("The kind of package or its name is missing.", hint)
    if kind != "method":
        raise unknown_name("kind of package", kind, ["method"])
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name):
        hint = "Use lower-case letters, digits and underscores, such as my_idea."
        raise UserError(f"{name!r} cannot be the name of a method.", hint)
    if name in registry.names():
        hint = "See `specbench list methods`, and choose another name."
        raise UserError(f"There is a method {name!r} already.", hint)
    folder = out or Path(f"specbench-{name.replace('_', '-')}")
    if folder.exists():
        raise UserError(f"{folder} exists already.", "Give another folder with --out.")
    with os_errors(f"{folder} cannot be written", "Give --out."):
        folder.mkdir(parents=True)
        for template in sorted(TEMPLATE.glob("*.txt")):
            file = folder / _renamed(template.name.removesuffix(".txt"), name)
            file.write_text(_renamed(template.read_text("utf-8"), name), encoding="utf-8")
    typer.echo(f"Package: {folder}")
    typer.echo(f"Install it: pip install --editable {shlex.quote(str(folder))}")
    typer.echo(f"Check it: specbench audit --method {name}")
    typer.echo(f"Run it: specbench run --method {name}")


def _renamed(source: str, name: str) -> str:
    """Replace the example's names in the text or the name of a template file."""
    title = name.replace("_", " ").title()
    class_name = title.replace(" ", "")
    example_title = EXAMPLE.title()
    renamed = source.replace(f"class {example_title}", f"class {class_name}")
    renamed = renamed.replace(f"build={example_title}", f"build={class_name}")
    renamed = renamed.replace(f"specbench-{EXAMPLE}", f"specbench-{name.replace('_', '-')}")
    return renamed.replace(example_title, title).replace(EXAMPLE, name)
