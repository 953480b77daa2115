"""A method as it is entered in a run: its options, its weights, and its name in records.

A run's methods are texts in its spec and in run.json, and the spec parses them. A `RunMethod`
imports its method only when it is needed. Names and values are checked before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from specbench import registry
from specbench.errors import SpecbenchError, printable
from specbench.log.methods import MethodHeader, SettingsHeader, tree_label
from specbench.log.model import WeightsHeader
from specbench.models.checkpoints import hash_of, identify
from specbench.registry import MethodChoice
from specbench.types import Scope

if TYPE_CHECKING:
    from specbench.engine.drafter import Method, MethodOptions
    from specbench.zoo.stand_in.blueprint import Blueprint


class LoadedMethod(NamedTuple):
    """An imported method with its options."""

    method: Method
    options: MethodOptions


@dataclass(frozen=True)
class RunMethod:
    """A method entered in a run. Reading `method` or `options` imports the method and torch."""

    asked: MethodChoice
    """The name, and the options that the user gave as texts."""
    weights: Path | Blueprint | None = None
    """The checkpoint, once it is found."""
    settings: SettingsHeader | None = None
    """The source of the options that were chosen for the user."""
    loaded: LoadedMethod | None = None
    """The method with its options, if the options in effect are not those of `asked`."""
    has_hash: bool = False
    """True if the label has a hash of the method's files, because another method has files of the
    same names.
    """

    @cached_property
    def _loaded(self) -> LoadedMethod:
        if self.loaded:
            return self.loaded
        method = registry.get(self.asked.name)
        return LoadedMethod(method, registry.make_options(method, self.asked.given))

    @property
    def method(self) -> Method:
        return self._loaded.method

    @property
    def options(self) -> Any:
        """The options in effect. Each method has its own type of options."""
        return self._loaded.options

    def load(self) -> RunMethod:
        """Import the method and make its options.

        Raises:
            UserError: an unknown name or option, a wrong value, or a broken method.
        """
        return replace(self, loaded=self._loaded)

    def with_options(self, options: MethodOptions) -> RunMethod:
        """Return the method with these options in place of its own."""
        return replace(self, loaded=LoadedMethod(self.method, options))

    def for_target(self, num_parameters: float) -> RunMethod:
        """Return the method with its paper's options for a target of this size.

        Options that the user gave stay as they are.
        """
        given = {name: getattr(self.options, name) for name in self.asked.given}
        options = self.options.for_target(num_parameters).replaced(**given)
        return self if options == self.options else self.with_options(options)

    def tuned(self, options: Mapping[str, Any], source: str, sha256: str = "") -> RunMethod:
        """Return the method with these options. Options that the user gave stay as they are."""
        paper = self.options.as_dict()
        chosen = {
            name: value
            for name, value in options.items()
            if name in paper and name not in self.asked.given
        }
        replaced = {name: paper[name] for name, value in chosen.items() if value != paper[name]}
        method = self.with_options(self.options.replaced(**chosen))
        return replace(method, settings=SettingsHeader(source, replaced, sha256))

    def as_before(self, before: MethodHeader | None) -> RunMethod:
        """Return the method with the settings that it has in the run to continue."""
        if before is None:
            return self
        kept = kept_options(before, self.settings)
        return replace(self.tuned(kept, ""), settings=before.settings)

    @cached_property
    def label(self) -> str:
        """The name in records and tables."""
        return label_of(self.asked, has_hash=self.has_hash)

    def describe(self) -> MethodHeader:
        """Describe the method for the header of a run."""
        return MethodHeader(
            name=self.method.name,
            title=self.method.title,
            options=self.options.as_dict(),
            is_lossless=self.method.is_lossless_with(self.options),
            weights=self._weights_header(),
            scope=self.scope,
            settings=self.settings,
            tree_sha256=self.method.tree_sha256_with(self.options),
            is_repeatable=self.method.is_repeatable_with(self.options),
            most_nodes=self.method.most_nodes_with(self.options),
        )

    @property
    def decided_by_user(self) -> frozenset[str]:
        """The options that the user gave, and those that follow from them.

        A given tree, for example, also decides the number of nodes.
        """
        given = frozenset(self.asked.given)
        alternatives = self.method.alternatives_with(self.options)
        return given | alternatives if given & alternatives else given

    @property
    def checkpoint(self) -> str | None:
        """The name of the needed checkpoint on a model card; None if the method needs none."""
        return self.method.weights_with(self.options)

    @property
    def scope(self) -> Scope:
        """The lifetime of the method's memory: "request" or "run"."""
        return self.method.scope_with(self.options)

    def _weights_header(self) -> WeightsHeader | None:
        if self.weights is None:
            return None
        if isinstance(self.weights, Path):
            return identify(self.weights, self.checkpoint or "")
        return structs.replace(identify(self.weights.folder), **self.weights.describe())


def kept_options(before: MethodHeader, now: SettingsHeader | None) -> dict[str, Any]:
    """Return all options that old or new settings have changed, with the earlier run's values."""
    headers = [header for header in (before.settings, now) if header]
    changed = {name for header in headers for name in header.paper}
    return {name: before.options[name] for name in changed if name in before.options}


PATHS = ("weights", "datastore", "tree", "file", "table")
"""The options that name a file or a folder."""


def label_of(asked: MethodChoice, *, has_hash: bool = False) -> str:
    """Make a method's name for records and tables.

    A file is named by the last part of its path. A tree that is given as paths has a short name.
    With `has_hash`, the name of a file is followed by the beginning of the hash of its content.
    """
    given = dict(asked.given)
    for name in given.keys() & {*PATHS}:
        value = given[name]
        given[name] = tree_label(value) if value.startswith("[[") else Path(value).name
        if has_hash:
            given[name] += f"-{_content_hash(Path(value).expanduser())[:8]}"
    return printable(str(MethodChoice(asked.name, given)))


def _content_hash(path: Path) -> str:
    """Hash the content of a file or a folder, or its name if it does not exist."""
    with suppress(OSError, SpecbenchError):
        if path.exists():
            return hash_of(identify(path).files)
    return sha256(str(path).encode()).hexdigest()
