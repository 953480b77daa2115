"""Write BibTeX entries for the papers of a report's methods, and for specbench."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as package_files

from specbench.analysis.metrics import BASELINE
from specbench.report.results import Report
from specbench.types import VERSION

_ENTRY = re.compile(r"^@\w+\{(\w+),.*?^\}\n", re.MULTILINE | re.DOTALL)


def render(report: Report) -> str:
    """Return an entry for specbench, and one for each method, with the method's name as its key."""
    texts = [papers()["specbench"].replace("VERSION", VERSION)]
    for name, title in _methods(report).items():
        unknown = f"% No paper is known for {title}; its key would be {name}.\n"
        texts.append(papers().get(name, unknown))
    return "\n".join(texts)


def files(report: Report) -> Mapping[str, str]:
    """Return the entries as `methods.bib`."""
    return {"methods.bib": render(report)}


@cache
def papers() -> Mapping[str, str]:
    """Return the entries of `papers.bib` by key."""
    text = package_files("specbench.report").joinpath("papers.bib").read_text(encoding="utf-8")
    return {entry[1]: entry[0] for entry in _ENTRY.finditer(text)}


def paper_url(name: str) -> str:
    """Return the address of a method's paper, or "" if it is unknown."""
    address = re.search(r"url\s*= \{(.*?)\}", papers().get(name, ""))
    return address[1] if address else ""


def _methods(report: Report) -> dict[str, str]:
    """Return the titles of the methods that need a paper, by name without options.

    These are all methods of the report except vanilla. For example, "eagle2" has the title
    "EAGLE-2". A method's option `other`, such as "eagle2", names a second method that drafts for it
    and also needs its paper. The title of the second method is the text of the option.
    """
    title_by_name: dict[str, str] = {}  # has the first title of each name
    for source in report.sources:  # a source is a run with its numbers
        for spelling in source.metrics.methods:
            title = source.info.method(spelling).title
            title_on_one_line = " ".join(title.split())
            title_by_name.setdefault(spelling.partition(":")[0], title_on_one_line)
            # the method's options, or None if the run's header does not list the method
            header = source.info.methods.get(spelling)
            if header and (other_method := str(header.options.get("other", ""))):
                title_by_name.setdefault(other_method.partition(":")[0], other_method)
    title_by_name.pop(BASELINE, None)
    return title_by_name
