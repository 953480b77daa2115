"""What the documents show is what there is: files, links, commands, options."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer

import specbench
from specbench import registry
from specbench.bench.tasks import load_cards
from specbench.cli import app
from tests.packaging.shell import ROOT, python

DOCUMENTS = [
    ROOT / name
    for name in (
        "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
        "datasets/README.md", "docs/ci.md", "reports/README.md", "results/README.md",
    )
]  # fmt: skip

SHOWN = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`((?:specbench|make) [^`]+)`")

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT))
)


def text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def commands(document: Path, program: str) -> list[list[str]]:
    """The arguments of every call of a program that a document shows."""
    shown = "\n".join([*BLOCK.findall(text(document)), *INLINE.findall(text(document))])
    lines = [shlex.split(line, comments=True) for line in shown.splitlines()]
    return [line[1:] for line in lines if line and line[0] == program]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_a_file_that_a_document_shows_is_the_real_one(name: str) -> None:
    shown = SHOWN.findall(text(ROOT / name))
    assert shown
    for path, content in shown:
        assert content == text(ROOT / path), f"{name} shows another {path} than there is"


@each_document
def test_every_link_within_the_project_leads_to_a_file(document: Path) -> None:
    for target in LINK.findall(text(document)):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@each_document
def test_every_command_shown_exists_with_its_options(document: Path) -> None:
    program = typer.main.get_command(app)
    known = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in program.commands.items()  # type: ignore[attr-defined]
    }
    for name, *arguments in commands(document, "specbench"):
        assert name in known
        options = {argument for argument in arguments if argument.startswith("--")}
        assert options <= known[name], f"specbench {name} {options - known[name]}"


@each_document
def test_every_method_shown_exists_with_its_options(document: Path) -> None:
    for arguments in commands(document, "specbench"):
        for option, value in pairwise(arguments):
            for choice in registry.parse_choices([value] if option == "--method" else []):
                registry.make_options(registry.get(choice.name), choice.given)


@each_document
def test_every_make_target_shown_exists(document: Path) -> None:
    targets = set(re.findall(r"^(\w+):", text(ROOT / "Makefile"), re.MULTILINE))
    shown = {argument for line in commands(document, "make") for argument in line}
    assert {argument for argument in shown if "=" not in argument} <= targets


@pytest.mark.slow
def test_the_readmes_python_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"<!-- runs -->\n```python\n(.*?)```", text(ROOT / "README.md"), re.DOTALL)
    assert python(code, tmp_path, path=[ROOT])


def test_the_readme_tree_names_what_there_is() -> None:
    (tree,) = re.findall(r"```text\n(.*?)```", text(ROOT / "README.md"), re.DOTALL)
    folder = ROOT
    for line in tree.splitlines():
        name = line.split()[0]
        place = folder / name if line.startswith(" ") else ROOT / name
        folder = folder if line.startswith(" ") else place
        assert place.exists(), f"the README's tree has {place.relative_to(ROOT)}"


def test_the_card_that_contributing_shows_is_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributing = text(ROOT / "CONTRIBUTING.md")
    (card,) = re.findall(r"<!-- card: riddles -->\n```toml\n(.*?)```", contributing, re.DOTALL)
    (prompt,) = re.findall(r"```json\n(.*?)```", contributing, re.DOTALL)
    for path, content in {"cards/riddles.toml": card, "prompts/riddles.jsonl": prompt}.items():
        file = tmp_path / "datasets" / path
        file.parent.mkdir(parents=True)
        file.write_text(content)
    monkeypatch.setattr(specbench, "__path__", [str(tmp_path)])
    assert load_cards()["riddles"].sources == ("bundled",)


def test_the_changelog_has_this_version() -> None:
    assert f"## [{specbench.__version__}]" in text(ROOT / "CHANGELOG.md")
