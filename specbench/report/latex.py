"""A table in LaTeX: the layout of the papers' tables, to be \\input as it is.

Knows booktabs and escaping. The intervals are in the file as arguments of one macro, which shows
nothing until the author defines it: a table of six tasks has no room for them on a page.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from string import Template

from specbench.analysis.metrics import BASELINE
from specbench.report import formats
from specbench.report.notes import Note
from specbench.report.table import Block, Cell, Group, Table

LABEL = "tab:specbench"

_PREAMBLE = r"""
% Made by specbench. In your preamble:
%   \usepackage[T1]{fontenc}
%   \usepackage{booktabs}
% In your text:
%   \input{table}
% To show the interval of each speedup (95 %, by cluster bootstrap over samples), before \input:
%   \newcommand{\specbenchinterval}[2]{\,{\tiny[#1,\,#2]}}
""".lstrip()

_DEFINITIONS = r"""
\providecommand{\specbenchinterval}[2]{}
\providecommand{\specbenchother}[1]{\ifdefined\Umathcode#1\else?\fi}% a sign that pdfLaTeX lacks
""".lstrip()

_STANDALONE = Template(
    r"""
% The table on a page of its own, with its intervals: pdflatex table_standalone.tex
\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[paperwidth=${width}mm,paperheight=${height}mm,margin=12mm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
\newcommand{\specbenchinterval}[2]{\,{\tiny[#1,\,#2]}}
\begin{document}
\input{table}
\noindent In brackets: the 95\,\% interval of the speedup, by cluster bootstrap over samples.
\end{document}
""".lstrip()
)

_APART = "\0"
_LIGATURE = re.compile(r"(?<=-)(?=-)|(?<=')(?=')")
"""Between two hyphens or apostrophes, which LaTeX would make one sign of."""
_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "±": r"\ensuremath{\pm}",
    "×": r"\ensuremath{\times}",
    "τ": r"\ensuremath{\tau}",
    "\u00a0": "~",
}


def to_latex(table: Table) -> str:
    """The text of table.tex: a `table*` environment with everything that it needs but booktabs."""
    warnings = [f"% Warning: {_comment(note.text)}\n" for note in table.notes if note.is_warning]
    columns = "l" + "r" * (2 * len(table.columns))
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{_caption(table)}}}",
        rf"\label{{{LABEL}}}",
        r"\par\medskip",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{2.5pt}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        *_header(table),
    ]
    for block in table.blocks:
        lines += _block(block, table)
    lines += [r"\bottomrule", r"\end{tabular}", *_remarks(table.notes), r"\end{table*}", ""]
    return _PREAMBLE + "".join(warnings) + _DEFINITIONS + "\n".join(lines)


def to_standalone(table: Table) -> str:
    """The text of table_standalone.tex: a document that shows table.tex, on a page of its size."""
    rows = sum(2 + len(block.groups) + len(block.rows) for block in table.blocks)
    width = 60 + max(110, 44 * len(table.columns))
    return _STANDALONE.substitute(width=width, height=75 + 6 * rows)


def escape(text: str) -> str:
    """Text that LaTeX shows as it is, on one line. What pdfLaTeX has no sign for becomes "?" there,
    and itself in the engines that have it.
    """
    line = "".join(map(_sign, _LIGATURE.sub(_APART, " ".join(text.split()))))
    return line.replace(_APART, "{}")


def _sign(sign: str) -> str:
    if sign in _SIGNS or sign == _APART:
        return _SIGNS.get(sign, sign)
    if sign.isascii():
        return sign if sign.isprintable() else ""
    is_latin = sign.isalpha() and ord(sign) < 0x180 and sign not in "ĦħĿŀŉŦŧ"
    if is_latin:
        return unicodedata.normalize("NFC", sign)
    return rf"\specbenchother{{{sign}}}"


def _comment(text: str) -> str:
    return " ".join(text.split())


def _caption(table: Table) -> str:
    """What the table is of, and what its numbers are; the intervals are explained where shown."""
    defined = {note.label: note.text for note in table.notes}
    speedup = defined.get("Speedup", "").partition(" Intervals")[0].rstrip(".")
    parts = [
        f"{escape(table.title)}.",
        f"Speedup: {escape(speedup)}.",
        r"$\tau$: mean accepted tokens, emitted per step of the target model.",
    ]
    if len(table.columns) > 1:
        parts.append("Mean: the arithmetic mean of the tasks' values.")
    best = "The best of each column" if table.is_one_run else "The best of each group and column"
    parts.append(rf"{best} is in \textbf{{bold}}.")
    return " ".join(parts)


def _header(table: Table) -> Iterable[str]:
    if not table.columns:
        yield r"Method \\"
        return
    titles = [rf"\multicolumn{{2}}{{c}}{{{escape(column.title)}}}" for column in table.columns]
    yield " & ".join(["", *titles]) + r" \\"
    places = range(2, 2 + 2 * len(table.columns), 2)
    yield " ".join(rf"\cmidrule(lr){{{place}-{place + 1}}}" for place in places)
    yield " & ".join(
        ["Method", *[r"Speedup & \multicolumn{1}{c}{$\tau$}"] * len(table.columns)]
    ) + (r" \\")


def _block(block: Block, table: Table) -> Iterable[str]:
    width = 1 + 2 * len(table.columns)
    yield r"\midrule"
    yield rf"\multicolumn{{{width}}}{{c}}{{{escape(block.heading)}}} \\"
    for group in block.groups:
        yield r"\midrule"
        if not table.is_one_run:
            yield rf"\multicolumn{{{width}}}{{@{{}}l}}{{\emph{{{escape(group.label)}}}}} \\"
        yield from _rows(group, width)


def _rows(group: Group, width: int) -> Iterable[str]:
    """A line per method. Vanilla's, 1.00 everywhere, is left out where others are faster."""
    others = [
        row
        for row in group.rows
        if row.method != BASELINE or any(cell.is_best_speedup for cell in row.cells)
    ]
    for row in others or group.rows:
        if row.reason and width > 1:
            reason = rf"\multicolumn{{{width - 1}}}{{c}}{{{escape(row.reason)}}}"
            yield rf"{escape(row.label)} & {reason} \\"
            continue
        yield " & ".join([escape(row.label), *(_cell(cell) for cell in row.cells)]) + r" \\"


def _cell(cell: Cell) -> str:
    if cell.reason:
        return rf"\multicolumn{{2}}{{c}}{{{escape(cell.reason)}}}"
    interval = formats.interval_of(cell.speedup)
    ends = rf"\specbenchinterval{{{interval.low:.2f}}}{{{interval.high:.2f}}}" if interval else ""
    speedup = _bold(formats.speedup(cell.speedup), cell.is_best_speedup)
    return f"{speedup}{ends} & {_bold(formats.mat(cell.mat), cell.is_best_mat)}"


def _bold(text: str, is_best: bool) -> str:
    return rf"\textbf{{{escape(text)}}}" if is_best else escape(text)


def _remarks(notes: Sequence[Note]) -> Iterable[str]:
    """What a reader of the table must know, below it. Warnings are comments for the author."""
    shown = [note for note in notes if note.label in ("*", "Missing")]
    if shown:
        texts = [f"*: {note.text}" if note.label == "*" else note.text for note in shown]
        yield rf"\par\smallskip {escape(' '.join(texts))}"
