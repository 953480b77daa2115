"""The methods of a run, as parts of `run.json`, and their names in tables."""

from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Struct

from specbench.log.model import HUB_ID, WeightsHeader
from specbench.log.options import role, shown_as
from specbench.types import Scope


class SettingsHeader(Struct, frozen=True, omit_defaults=True):
    """The source of a method's options, if they do not come from the paper."""

    source: str
    """tuned: chosen by `specbench tune`; auto: the fastest here; cut: the paper's draft, cut to the
    rows that are cheap to verify; or the name of a file or a run.
    """
    paper: dict[str, Any] = {}
    """The paper's values of the options whose values differ here."""
    sha256: str = ""
    """Hash of the file. Absent if the settings were chosen here."""


_SIZE_UNITS = {"total_tokens": "nodes", "nodes": "nodes", "num_tokens": "tokens"}
"""Options that set the size of drafts -> their units. Labels show the first option that applies."""


class MethodHeader(Struct, frozen=True, omit_defaults=True):
    """A method of the run."""

    name: str
    """Registered name."""
    title: str
    """Name in tables."""
    options: Annotated[dict[str, Any], shown_as("options")]
    """Options in effect."""
    is_lossless: bool
    """True if the output has the target's distribution."""
    weights: WeightsHeader | None
    """The drafter's checkpoint. Null if none is used."""
    scope: Scope = "request"
    """run: the method remembers earlier prompts of a pass. Absent if it knows only the current
    prompt.
    """
    settings: Annotated[SettingsHeader | None, role("note")] = None
    """Source of the options. Absent if they come from the paper or the user."""
    tree_sha256: Annotated[str | None, shown_as("tree")] = None
    """Hash of the paths of its static tree. Absent if it has none, and in older runs."""
    most_nodes: Annotated[int, role("note")] = 0
    """Maximum number of nodes in a step's tree, root included. Absent if the options set none."""
    is_repeatable: Annotated[bool | None, role("note")] = None
    """True if a prompt gets the same drafts each time at temperature 0. Absent in older runs."""

    @property
    def has_trained_drafts(self) -> bool:
        """True if all drafts come from trained weights and none from a lookup."""
        return self.weights is not None and not self.options.keys() & {"datastore", "other"}

    @property
    def settings_text(self) -> str:
        """The size of the method's drafts here and in its paper, such as "6 tokens; paper: 10".

        If no size differs, it is the first option that differs, as in "ngram=2; paper: 3". Empty if
        no option differs. "6 tokens, cut; paper: 10" means that the paper's draft is cut to the
        tokens that are cheap to verify.
        """
        if not self.settings:
            return ""
        # Option with another value here -> the paper's value.
        paper_options = {
            option: paper_value
            for option, paper_value in self.settings.paper.items()
            if option in self.options  # an older version's method may have had more options
        }
        if not paper_options:
            return ""
        # The options that set the size of drafts. The first of them is shown.
        size_options = [option for option in _SIZE_UNITS if option in paper_options]
        if size_options:
            option = size_options[0]
            size = self.options[option]
            unit = _SIZE_UNITS[option]
            text_here = f"{size} {unit.removesuffix('s') if size == 1 else unit}"
            paper_text = str(paper_options[option] or "all")  # 0 stands for all nodes
            if option == "total_tokens":  # a tree, which has depth + 1 levels below the root
                paper_text = f"{paper_text} nodes"
                paper_depth = paper_options.get("depth", self.options.get("depth"))
                if isinstance(paper_depth, int):
                    paper_text += f", {paper_depth + 1} levels"
        else:
            option = next(iter(paper_options))
            full_text = str(self.options[option])  # may be the paths of a static tree: "[[0], ..."
            option_text = tree_label(full_text) if full_text.startswith("[[") else full_text
            text_here = _without_folders(f"{option}={option_text}", [])
            paper_text = str(paper_options[option])
        if self.settings.source == "cut":
            text_here += ", cut"
        return f"{text_here}; paper: {paper_text}"


class MethodLabel(NamedTuple):
    """The names of a method in tables."""

    spelling: str
    """The method's name with options as in records, such as "pld:ngram=2"."""
    title: str
    """The method's name in tables, without options."""
    is_lossless: bool = True
    """True if its output has the target's distribution."""
    threads: int = 0
    """The number of CPU threads if it differs from vanilla's number, else 0."""
    others: tuple[str, ...] = ()
    """Spellings of the method's other variants in the run."""
    settings: str = ""
    """The size of its drafts in words, if it differs from the paper's size."""

    @property
    def details(self) -> list[str]:
        """The texts that follow the title in a table: "ngram=2", "6 tokens; paper: 10", "8
        threads".

        First come the options in the method's spelling ("pld:ngram=2"), except options that all of
        the run's variants of the method share. Paths are shortened to a part that differs from the
        other variants' paths. Then come the size of drafts (`settings`), if it is not the paper's,
        and the number of CPU threads, if it is not vanilla's (`threads` is not 0).
        """
        # For each other variant, its options as texts: ["ngram=2"].
        options_of_others = [_given_options(spelling) for spelling in self.others]
        all_other_options = [*chain(*options_of_others)]
        details = []
        for option in _given_options(self.spelling):
            is_shared = self.others and all(option in options for options in options_of_others)
            if not is_shared:
                details.append(_without_folders(option, all_other_options))
        if self.settings:
            details.append(self.settings)
        if self.threads:
            details.append("1 thread" if self.threads == 1 else f"{self.threads} threads")
        return details

    @property
    def label(self) -> str:
        """The title with the details in parentheses, and a star if the method is not lossless."""
        details = self.details
        label = f"{self.title} ({', '.join(details)})" if details else self.title
        return label if self.is_lossless else f"{label}*"


def _given_options(spelling: str) -> list[str]:
    """The options in a spelling, as texts such as "ngram=2"."""
    return spelling.partition(":")[2].split(",") if ":" in spelling else []


def tree_label(paths: str) -> str:
    """A short name for a static tree that is given as paths. It has the number of rows and a hash.

    `paths` is a text in JSON, such as "[[0], [1], [0, 0]]".
    """
    num_rows = paths.count("[")  # one for each path, and the outer one for the root
    return f"{num_rows}-{sha256(paths.encode()).hexdigest()[:8]}"


def _without_folders(option: str, all_options: Sequence[str]) -> str:
    """An option with a shorter path, such as "weights=c" for "weights=/a/b/c". It is "weights=b/c"
    if another of `all_options`, such as "weights=/d/c", ends with "c".

    The option is not changed if it has no path or a Hub id ("weights=org/name"), or if no shorter
    path is unique.
    """
    name, _, path = option.partition("=")
    if "/" not in path or HUB_ID.fullmatch(path):
        return option
    path_parts = Path(path).parts  # names of folders, then of the file
    other_options = [listed_option for listed_option in all_options if listed_option != option]
    for num_kept in range(1, len(path_parts)):  # the last part, the last two, and so on
        kept_path = "/".join(path_parts[-num_kept:])
        if not any(other_option.endswith(kept_path) for other_option in other_options):
            return f"{name}={kept_path}"
    return option
