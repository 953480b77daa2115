"""The files, links, commands and options in the documents exist."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import specbench
from specbench import registry
from specbench.cli.app import app
from specbench.data.tasks import load_cards
from specbench.engine.drafter import State
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.log.store import read_header
from specbench.measure.server.engine import load_engine
from specbench.methods import described
from specbench.registry import parse_choices
from specbench.report.export.bibtex import paper_url, papers
from specbench.types import Request, Sampling
from tests.support.paths import ROOT
from tests.support.texts import assert_in
from tools.docs.hooks import render

PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [
    *(
        ROOT / name
        for name in (
            "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
            "datasets/README.md", "reports/README.md", "results/README.md",
            "specbench/zoo/README.md", "tools/zoo/README.md",
        )
    ),
    *PAGES,
]  # fmt: skip

SHOWN = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`((?:specbench|make) [^`]+)`")
GROUPS = ["Start", "Guides", "How it works", "Measurements", "Reference"]
ABSENT = ("NAME", "METHOD", "my_idea")
"""Methods in documents that do not exist."""

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT))
)


def text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def commands(document: Path, program: str) -> list[list[str]]:
    """The arguments of every call of a program in a document."""
    shown = "\n".join([*BLOCK.findall(text(document)), *INLINE.findall(text(document))])
    lines = [shlex.split(line, comments=True) for line in shown.splitlines()]
    return [line[1:] for line in lines if line and line[0] == program]


def test_a_file_that_the_documentation_shows_is_the_real_one() -> None:
    shown = SHOWN.findall(text(ROOT / "docs/adding.md"))
    assert len(shown) == 3
    for path, content in shown:
        assert content == text(ROOT / path), f"docs/adding.md shows another {path} than there is"


@each_document
def test_every_link_within_the_project_leads_to_a_file(document: Path) -> None:
    for target in LINK.findall(text(document)):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@each_document
def test_every_command_and_target_shown_exists_with_its_options(document: Path) -> None:
    for name, *arguments in commands(document, "specbench"):
        command = app.get_command(None, name)
        assert command, name
        taking = (command, *getattr(command, "commands", {}).values())
        options_known = {
            option for command in taking for param in command.params for option in param.opts
        }
        options = {argument for argument in arguments if argument.startswith("--")}
        assert options <= options_known, f"specbench {name} {options - options_known}"
        pairs = [*pairwise(arguments)]
        engine = next((load_engine(word) for option, word in pairs if option == "--engine"), None)
        methods = [word for option, word in pairs if option == "--method"]
        for choice in parse_choices([spelling for spelling in methods if spelling not in ABSENT]):
            if engine:
                assert choice.name in engine.methods
            else:
                registry.make_options(registry.get(choice.name), choice.given)
    targets = set(re.findall(r"^([\w-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    shown = {argument for line in commands(document, "make") for argument in line}
    assert {argument for argument in shown if "=" not in argument} <= targets


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/api.md", "docs/tune.md"])
def test_the_python_that_a_document_shows_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"<!-- runs -->\n```python\n(.*?)```", text(ROOT / name), re.DOTALL)
    assert blocks
    for code in blocks:
        exec(code, {})
        assert capsys.readouterr().out


def test_the_tree_that_adding_shows_is_one_of_two_branches() -> None:
    """The tree has the paths that its comment names, and the table of `State` has all of its
    members.
    """
    page = text(ROOT / "docs/adding.md")
    (code,) = re.findall(r"<!-- tree -->\n```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"torch": torch, "TreeLayout": TreeLayout, "DraftTree": DraftTree}
    exec(code, names)
    state = State(Request((5, 6, 7), 9), Sampler(Sampling(), torch.device("cpu")), 9)
    tree = names["propose"](None, state)
    assert tree.tokens.tolist() == [7, 11, 12, 21] and tree.num_verify == 4
    assert tree.layout.depths.tolist() == [0, 1, 2, 1]
    paths = [row.nonzero().flatten().tolist() for row in tree.layout.ancestors]
    assert paths == [[0], [0, 1], [0, 1, 2], [0, 3]]
    table = page.partition("| `State` |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))
    members = {name for name in dir(state) if not name.startswith("_")} - {"append"}
    assert listed == members


def test_the_site_has_every_page() -> None:
    nav = yaml.safe_load(text(ROOT / "mkdocs.yml"))["nav"]
    pages = [page for group in nav for entries in group.values() for entry in entries
             for page in entry.values()]  # fmt: skip
    assert sorted(pages) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES)
    assert [next(iter(group)) for group in nav] == GROUPS


def test_links_of_the_site_lead_to_pages() -> None:
    shown = "[a](../serving.md#load) [b](../../results/README.md) [c](../../reports/x/table.md)"
    links = render(shown, "docs/measurements/serving.md")
    assert links == "[a](../serving.md#load) [b](../files.md) c"
    assert render("[a](measurements/cpu.md)", "docs/cpu.md") == "[a](measurements/cpu.md)"


@pytest.mark.parametrize("name", ["serving", "tune", "cpu", "gpu"])
def test_a_guide_is_short(name: str) -> None:
    """At most 1,200 words without code, tables and comments."""
    page = re.sub(r"^```.*?^```$|^\|.*?$", "", text(ROOT / f"docs/{name}.md"), flags=re.M | re.S)
    assert len(re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL).split()) <= 1200


def test_every_guide_explains_or_links_technical_terms() -> None:
    words = re.compile(r"\b(SAM|PLD|stand-ins?|heads?|nodes)\b")
    explained = text(ROOT / "docs/methods.md")
    assert_in(
        explained,
        "SAM",
        "PLD",
        "stand-in",
        "**head**",
        "**node**",
        "8 nodes; paper: all",
    )
    nav = {name: entries for group in yaml.safe_load(text(ROOT / "mkdocs.yml"))["nav"]
           for name, entries in group.items()}  # fmt: skip
    guides = [page for entry in nav["Guides"] + nav["Measurements"] for page in entry.values()]
    for name in guides:
        page = text(ROOT / "docs" / name)
        assert "methods.md)" in page or not words.search(page), name


@pytest.mark.parametrize("page", sorted((ROOT / "docs/measurements").glob("*.md")), ids=str)
def test_a_measurement_has_a_date_and_a_commit(page: Path) -> None:
    """Each section has a date, or lists recorded runs as their headers do."""
    _, *sections = re.split(r"^## ", text(page), flags=re.MULTILINE)
    assert sections
    for section in sections:
        runs = re.findall(r"^\| \[([\w-]+)\]\(\S+\) \| ([\d-]+) \| (\w+)", section, re.M)
        dated = re.match(r".*\n\n\*Written down on [\d-]{10} in commit \w{8}\.\*\n", section)
        assert bool(runs) != bool(dated), section[:60]
        for name, date, commit in runs:
            header = read_header(ROOT / "results/recorded" / name)
            assert header.created.startswith(date)
            assert header.environment.git and header.environment.git.commit.startswith(commit)


def test_the_table_of_methods_links_to_the_papers_of_the_bibliography() -> None:
    page = text(ROOT / "docs/methods.md")
    listed = dict(re.findall(r"^\| `(\w+)` \| \[.+?\]\((\S+)\)", page, re.MULTILINE))
    assert listed == {name: paper_url(name) for name in papers() if name != "specbench"}
    assert listed.keys() <= described().keys()


def test_the_card_that_adding_shows_is_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = text(ROOT / "docs/adding.md")
    (card,) = re.findall(r"<!-- card: riddles -->\n```toml\n(.*?)```", page, re.DOTALL)
    (prompt,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    for path, content in {"cards/riddles.toml": card, "prompts/riddles.jsonl": prompt}.items():
        file = tmp_path / "datasets" / path
        file.parent.mkdir(parents=True)
        file.write_text(content)
    monkeypatch.setattr("specbench.data.tasks.ROOTS", [tmp_path])
    assert load_cards()["riddles"].sources == ("bundled",)


def test_the_changelog_has_this_version() -> None:
    assert f"## [{specbench.__version__}]" in text(ROOT / "CHANGELOG.md")
