"""Attacks with names that are commands to a terminal, page, spreadsheet or CI system.

The names are in a run's files, as a run on hostile models, plug-ins and prompts would leave them.
"""

import csv
import json
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from specbench.errors import printable
from specbench.judge.comparison import compare_runs
from specbench.judge.comparison_formats import render_comparison
from specbench.log.store import HEADER, read_run
from specbench.types import Record
from tests.analysis.run_factory import full_run
from tests.faults.program import specbench, without_plots
from tests.support.headers import make_header, values_of
from tests.support.records import store

TRIES = 200
FRAGMENTS = (
    "\x1b[31m", "\x1b]0;title\x07", "\x1b]8;;http://a.b\x1b\\", "\x9b2J", "\b\b\b", "\r", "\n",
    "\x7f", "\n::error::made up", "::error file=a::b", "##[error]made up", "%0A::warning::a",
    "\x00", "\t", "\u202egnp", "\u2066", "\u2028", "\ufeff", "$x$", "$\\frac{", "${a}$",
    "\\$", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'><svg onload=a>",
    "&lt;b&gt;", "]]>", "<!--", "{{ 1/0 }}", "[a](javascript:b)", "![a](http://a.b/c.png)",
    "<http://a.b>", "|", "http://a.b", "www.a.b", "@someone", "`", "**", "=1+1", "+1", "-1",
    "@SUM(A1)", "\t=1", "[/red]", "[link=http://a.b]", "[bold]", ":smile:", "\\write18{a}",
    "\\input{made-up}", "%", "_a", "a" * 300, "", "漢字", "e\u0301" * 9, "../../a", ",", ":", "=",
    ";=1+1", "|@a", ';"=1+1', "＝1+1", "\\def\\a{", "\\end{tabular}", "}", "{", "^^5cinput{a}", "&",
    "#1", "~", "\\\\", "\\csname a\\endcsname", "--", ",,", "\\",
)  # fmt: skip


def attack(random: Random, folder: Path) -> None:
    payload = "".join(random.sample(FRAGMENTS, random.randint(1, 4)))
    runs = folder / "results" / "runs"
    name = payload.encode(errors="ignore")[:99].replace(b"/", b"").replace(b"\0", b"")
    listed = runs / f"c{name.decode(errors='ignore')}"
    listed.mkdir(parents=True)
    (listed / HEADER).write_text("{}")
    shown = printable(name.decode(errors="ignore"))[:30]  # an argument has no control characters
    a, b = (f"results/runs/{shown}{letter}" for letter in "ab")
    write_run(folder / a, payload, slowness=1.0)
    write_run(folder / b, payload, slowness=1.6)

    def call(*arguments: str) -> str:
        said = specbench(*arguments, folder=folder, GITHUB_ACTIONS="true")
        assert said.code != 2, said.err
        check_plain(said.err)
        return said.out

    check_plain(call("list", "runs") + call("show", a))
    with nullcontext() if random.random() < 0.03 else without_plots():
        check_plain(call("report", a))
        check_folder(folder / "out", call("report", a, "--out", "out"))
    compared = compare_runs([read_run(folder / name) for name in (a, b)])
    for form in ("markdown", "csv", "json"):
        check_format(form, render_comparison(compared, form))
    if random.random() < 0.5:
        check_plain(call("compare", a, b))
    else:
        check_plain(call("check", b, "--baseline", a, "--junit", "gate.xml"))
        check_xml((folder / "gate.xml").read_text())


def write_run(path: Path, payload: str, slowness: float) -> None:
    """Write a run that has the payload in every text."""
    run = full_run(("vanilla", "pld"), ("gsm8k",), num_samples=6)
    method, task = f"pld:{payload}", payload or "gsm8k"
    header = values_of(run.header)
    about = header["methods"].pop("pld")
    header["methods"][method] = {**about, "title": payload}
    header.update(id=payload, warnings=[payload], columns={task: payload}, no_checkpoint=[payload])
    header["command"] = [payload]
    header["model"] = {**header["model"], "name": payload, "label": payload, "source": payload}
    header["environment"].update(specbench=payload, transformers=payload, os=payload)
    header["environment"]["cpu"]["model"] = payload
    header["spec"]["values"].update(methods=["vanilla", method], tasks=[task], model=payload)
    records = []
    for record in run.records:
        key = replace(record.key, task=task, sample_id=f"{record.key.sample_id}{payload}")
        record = replace(record, key=key, text=payload)
        if key.method != "vanilla":
            key, decode_s = replace(key, method=method), (record.decode_s or 0.0) * slowness
            record = replace(record, key=key, decode_s=decode_s)
        records.append(record)
    key = replace(key, sample_id="failed")
    store(path, make_header(header), [*records, Record(key, "error", 3, error=payload)])


def check_plain(text: str) -> None:
    """Check that a text has no control character and no command of a CI system."""
    for line in text.split("\n"):
        assert printable(line) == line, f"control characters in {line!r}"
        assert not line.strip().startswith("::"), f"a command: {line!r}"


def check_format(form: str, text: str) -> None:
    check_plain(text.replace("\t", " ") if form == "html" else text)
    if form == "csv":
        for separator in ",;|\t":  # a spreadsheet may use any of them
            for row in csv.reader(StringIO(text), delimiter=separator):
                for cell in row:
                    is_formula = cell.strip(' "').startswith(tuple("=+-@＝＋－＠"))
                    assert not is_formula or re.fullmatch(r"-?[\d.e-]+", cell), f"formula {cell!r}"
    elif form == "json":
        json.loads(text)
    elif form == "html":
        Page().feed(text)
    elif form == "latex":
        check_latex(text)
    elif form == "markdown":
        active = text.replace("\\\\", "").replace("\n![", "")
        markup = re.search(r"(?<!\\)<[a-z/!]|(?<!\\)\]\(\w+:|://|www\.", active)
        assert not markup, f"active Markdown: {active[markup.start() :][:80]!r}"


def check_latex(text: str) -> None:
    """Check that LaTeX does nothing that it would not do for harmless names."""
    counts, usual = active_latex(text), harmless_latex()
    commands = [command for command in counts - usual if len(command) > 1 and command not in usual]
    assert not commands, f"LaTeX would run {commands}"
    for sign in "$#^%&":
        assert counts[sign] == usual[sign], f"{counts[sign]} bare {sign}, not {usual[sign]}"
    assert counts["{"] == counts["}"], "braces are not balanced"


def active_latex(text: str) -> Counter[str]:
    """The commands and unescaped signs that LaTeX would act on."""
    lines = [line for line in text.split("\n") if not line.startswith("%")]
    shown = r"\\[{}$&#%_]|\\(text\w+|ldots)\{\}|\\ensuremath\{\\\w+\}|\\specbenchother\{[^\\]\}"
    return Counter(re.findall(r"\\(?:[A-Za-z]+|.)|[$#^%&{}]", re.sub(shown, "", "\n".join(lines))))


@cache
def harmless_latex() -> Counter[str]:
    """The commands and unescaped signs of reports with harmless names, short and long."""
    with TemporaryDirectory() as folder:
        texts = []
        for name in ("abc", "a" * 300):
            write_run(Path(folder) / name[:3] / name[:99], name, slowness=1.0)
            path = f"{name[:3]}/{name[:99]}"
            said = specbench("report", path, "--format", "latex", folder=Path(folder))
            texts.append(active_latex(said.out))
        return texts[0] | texts[1]


class Page(HTMLParser):
    """A parser that refuses elements that fetch or run anything, except the page's own scripts."""

    num_scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("iframe", "object", "svg"), tag
        self.num_scripts += tag == "script"
        assert self.num_scripts <= 4
        for name, address in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert (address or "").startswith(("data:", "https://", "#")), (tag, address)


def check_folder(folder: Path, said: str) -> None:
    check_plain(said)
    forms = {".md": "markdown", ".csv": "csv", ".html": "html", ".json": "json", ".tex": "latex"}
    for file in folder.iterdir():
        if file.suffix == ".svg":
            check_xml(file.read_text())
        elif file.suffix in forms:
            check_format(forms[file.suffix], file.read_text())


def check_xml(text: str) -> None:
    for element in ElementTree.fromstring(text.encode()).iter():
        assert "script" not in str(element.tag)
        assert all(printable(line) == line for line in (element.text or "").split("\n"))
