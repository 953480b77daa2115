"""The papers of a report's methods and specbench itself, in BibTeX."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as package_files

from specbench.analysis.metrics import BASELINE
from specbench.report.results import Report
from specbench.types import VERSION

_ENTRY = re.compile(r"^@\w+\{(\w+),.*?^\}\n", re.MULTILINE | re.DOTALL)


def render(report: Report) -> str:
    """An entry for each method, with the method's name as its key, and one for specbench."""
    texts = [papers()["specbench"].replace("VERSION", VERSION)]
    for name, title in _methods(report).items():
        unknown = f"% specbench knows no paper of {title}; its key would be {name}.\n"
        texts.append(papers().get(name, unknown))
    return "\n".join(texts)


def files(report: Report) -> Mapping[str, str]:
    """The entries as `methods.bib`."""
    return {"methods.bib": render(report)}


@cache
def papers() -> Mapping[str, str]:
    """The entries of `papers.bib` by key."""
    text = package_files("specbench.report").joinpath("papers.bib").read_text(encoding="utf-8")
    return {entry[1]: entry[0] for entry in _ENTRY.finditer(text)}


def paper_url(name: str) -> str:
    """The address of a method's paper; empty if it is unknown."""
    address = re.search(r"url\s*= \{(.*?)\}", papers().get(name, ""))
    return address[1] if address else ""


def _methods(report: Report) -> dict[str, str]:
    """Titles by name: of the report's methods, and of other methods whose drafts they also use."""
    titles: dict[str, str] = {}
    for source in report.sources:
        for spelling in source.metrics.methods:
            label = source.info.method(spelling)
            header = source.info.methods.get(spelling)
            titles.setdefault(spelling.partition(":")[0], " ".join(label.title.split()))
            if header and (other := str(header.options.get("other", ""))):
                titles.setdefault(other.partition(":")[0], other)
    titles.pop(BASELINE, None)
    return titles
