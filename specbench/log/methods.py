"""The methods of a run: their part of `run.json`, and their names in tables."""

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
    """The source of a method's options that are not its paper's."""

    source: str
    """tuned: by `specbench tune`; auto: the fastest here; cut: the paper's draft, cut to the rows
    that are cheap to verify; or the name of a file or a run.
    """
    paper: dict[str, Any] = {}
    """The paper's values of the options that have other values here."""
    sha256: str = ""
    """Hash of the file; absent if the settings were chosen here."""


_SIZE_UNITS = {"total_tokens": "nodes", "nodes": "nodes", "num_tokens": "tokens"}
"""Options that say how large a draft is, the first one for labels, with their units."""


class MethodHeader(Struct, frozen=True, omit_defaults=True):
    """A method of the run."""

    name: str
    """Registered name."""
    title: str
    """Name in tables."""
    options: Annotated[dict[str, Any], shown_as("options")]
    """Options in effect."""
    is_lossless: bool
    """Output distribution is the target's."""
    weights: WeightsHeader | None
    """Drafter's checkpoint; null if none is used."""
    scope: Scope = "request"
    """run: it remembers earlier prompts of a pass; absent: it knows only the current prompt."""
    settings: Annotated[SettingsHeader | None, role("note")] = None
    """Source of the options; absent for the paper's and the user's."""
    tree_sha256: Annotated[str | None, shown_as("tree")] = None
    """Hash of the paths of its static tree; absent without one, and in older runs."""
    most_nodes: Annotated[int, role("note")] = 0
    """Most nodes of a step's tree, its root included; absent if the options do not say."""
    is_repeatable: Annotated[bool | None, role("note")] = None
    """A prompt gets the same drafts each time at temperature 0; absent in older runs."""

    @property
    def has_trained_drafts(self) -> bool:
        """True if all of its drafts come from trained weights, and none from a look-up."""
        return self.weights is not None and not self.options.keys() & {"datastore", "other"}

    @property
    def settings_text(self) -> str:
        """The size of its drafts beside the paper's size: "6 tokens; paper: 10".

        If the size is the paper's but another option differs, that option: "ngram=2; paper: 3".
        Empty if no option differs. `settings.paper` has the paper's values of the options that
        differ. "6 tokens, cut" is the paper's draft, cut to as many tokens as are cheap to verify.
        """
        if not self.settings:
            return ""
        paper_options = {
            option: value
            for option, value in self.settings.paper.items()
            if option in self.options  # another version's method may have had more
        }
        if not paper_options:
            return ""
        # Options that say how large a draft is. If none of them differs, the first option that
        # differs takes the place of the size.
        size_options = [option for option in _SIZE_UNITS if option in paper_options]
        if size_options:
            option = size_options[0]  # the first one is for labels
            size = self.options[option]
            unit = _SIZE_UNITS[option]
            size_in_effect = f"{size} {unit.removesuffix('s') if size == 1 else unit}"
            size_in_paper = paper_options[option] or "all"  # 0 stands for all nodes
            if option == "total_tokens":  # a tree, which has depth + 1 levels below the root
                size_in_paper = f"{size_in_paper} nodes"
                paper_depth = paper_options.get("depth", self.options.get("depth"))
                if isinstance(paper_depth, int):
                    size_in_paper += f", {paper_depth + 1} levels"
        else:
            option = next(iter(paper_options))
            text = str(self.options[option])  # of a static tree, its paths
            option_text = tree_label(text) if text.startswith("[[") else text
            size_in_effect = _without_folders(f"{option}={option_text}", [])
            size_in_paper = paper_options[option]
        if self.settings.source == "cut":
            size_in_effect += ", cut"
        return f"{size_in_effect}; paper: {size_in_paper}"


class MethodLabel(NamedTuple):
    """The names of a method in tables."""

    spelling: str
    """Its key in records: "pld:ngram=2"."""
    title: str
    """Its name without options."""
    is_lossless: bool = True
    """Its output distribution is the target's."""
    threads: int = 0
    """Its CPU threads if vanilla has another number; else 0."""
    others: tuple[str, ...] = ()
    """Spellings of the run's other variants of the method."""
    settings: str = ""
    """The size of its drafts in words, if it is not the paper's size."""

    @property
    def details(self) -> list[str]:
        """The options that were given, settings that were chosen and threads of its own.

        Options that all variants share are left out, and folders of the machine before the part
        that distinguishes a path from the others'.

        `spelling` is the method's name with its options, "pld:ngram=2"; `others` are the spellings
        of the run's other variants of the method. `settings` is the size of its drafts in words,
        "" if it is the paper's; `threads` the number of its CPU threads, 0 if it is vanilla's.
        """
        options_of_others = [_given_options(other) for other in self.others]  # ["ngram=2"] each
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
        """The title with the details in parentheses, and a star if the output may differ."""
        details = self.details
        label = f"{self.title} ({', '.join(details)})" if details else self.title
        return label if self.is_lossless else f"{label}*"


def _given_options(spelling: str) -> list[str]:
    """The options of a spelling: "ngram=2"."""
    return spelling.partition(":")[2].split(",") if ":" in spelling else []


def tree_label(paths: str) -> str:
    """A short name of a static tree that is given as paths: its rows, and a part of their hash.

    `paths` are JSON, "[[0], [1], [0, 0]]".
    """
    num_rows = paths.count("[")  # one for each path, and the outer one for the root
    return f"{num_rows}-{sha256(paths.encode()).hexdigest()[:8]}"


def _without_folders(option: str, others: Sequence[str]) -> str:
    """Shorten the path of an option: "weights=/a/b/c" becomes "weights=c", or "weights=b/c" if
    another option ends with "c". `others` are the options of all variants of the method in the run.
    An option without a path, or with a Hub id ("weights=org/name"), stays as it is.
    """
    name, _, path = option.partition("=")
    if "/" not in path or HUB_ID.fullmatch(path):  # HUB_ID: a pattern for "org/name"
        return option
    path_parts = Path(path).parts  # names of folders, then of the file
    other_options = [other for other in others if other != option]
    for num_kept in range(1, len(path_parts)):
        kept_path = "/".join(path_parts[-num_kept:])
        if not any(other_option.endswith(kept_path) for other_option in other_options):
            return f"{name}={kept_path}"
    return option
