"""MkDocs hooks: pages include files of the checkout, and links to files lead to their pages.

The line `<!-- include: PATH -->` includes a file in a page. In Markdown on a forge, links lead to
files. On the site, a link leads to the page of the file. If the file has no page, the link becomes
plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

ROOT = Path(__file__).parents[2]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "adding.md",
    "CHANGELOG.md": "changelog.md",
    "results/README.md": "files.md",
    "datasets/README.md": "tasks.md",
}
"""The site's page for each file. A file in `docs/` is a page by itself."""

_INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
_TITLE = re.compile(r"\A# .*\n")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **rest: Any) -> str:
    """Render a page. MkDocs calls this function for each of them."""
    return render(markdown, f"docs/{page.file.src_uri}")


def render(markdown: str, path: str) -> str:
    """Return the Markdown of the file at `path`, with its included files and the site's links."""
    folder = dirname(path.removeprefix("docs/"))  # the page's folder in `docs`
    whole = _INCLUDE.sub(
        lambda line: _included(line[1], folder), _with_links(markdown, path, folder)
    )
    return re.sub(r"^<!-- .* -->\n", "", whole, flags=re.MULTILINE)


def _included(path: str, page_folder: str) -> str:
    """Return the text of a file without its title, since the page has a title."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return _with_links(_TITLE.sub("", text), path, page_folder).strip()


def _with_links(markdown: str, path: str, page_folder: str) -> str:
    """Return a file's text with links that work on a page in this folder. Code is not changed."""

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if "://" in target or target.startswith("#"):
            return match[0]
        target, hash_sign, anchor = target.partition("#")
        folder = path.rpartition("/")[0] or "."
        file = normpath(f"{folder}/{target}")
        page = PAGES.get(file, "")
        if not page and file.startswith("docs/"):
            page = file.removeprefix("docs/")
        if not page:
            return words
        return f"[{words}]({relpath(page, page_folder or '.')}{hash_sign}{anchor})"

    return "".join(
        section if section.startswith("```") else _LINK.sub(link, section)
        for section in _FENCE.split(markdown)
    )
