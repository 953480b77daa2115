"""A method as it is entered in a run: its options, its weights, and its name in records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from specbench import registry
from specbench.errors import printable
from specbench.log.methods import MethodHeader, SettingsHeader
from specbench.log.model import WeightsHeader
from specbench.models.checkpoints import identify
from specbench.registry import MethodChoice, parse_choices
from specbench.types import Scope

if TYPE_CHECKING:
    from specbench.engine.drafter import Method
    from specbench.zoo.stand_in.blueprint import Blueprint


@dataclass(frozen=True, slots=True)
class RunMethod:
    """A method entered in a run, with its options and, once resolved, its weights."""

    asked: MethodChoice
    method: Method
    options: Any
    weights: Path | Blueprint | None = None
    settings: SettingsHeader | None = None

    def tuned(self, options: Mapping[str, Any], source: str, sha256: str = "") -> RunMethod:
        """The method with these options. Those that the user gave stay."""
        paper = asdict(self.options)
        ours = {
            name: value
            for name, value in options.items()
            if name in paper and name not in self.asked.given
        }
        made = replace(self.options, **ours)
        changed = {name: paper[name] for name, value in ours.items() if value != paper[name]}
        return replace(self, options=made, settings=SettingsHeader(source, changed, sha256))

    def as_before(self, before: MethodHeader | None) -> RunMethod:
        """The method with the settings of a run that goes on."""
        if before is None:
            return self
        kept = kept_options(before, self.settings)
        return replace(self.tuned(kept, ""), settings=before.settings)

    @property
    def label(self) -> str:
        return label_of(self.asked)

    def describe(self) -> MethodHeader:
        """The method's part of the header."""
        return MethodHeader(
            name=self.method.name,
            title=self.method.title,
            options=asdict(self.options),
            is_lossless=self.method.is_lossless_with(self.options),
            weights=self._weights(),
            scope=self.scope,
            settings=self.settings,
        )

    @property
    def scope(self) -> Scope:
        """Lifetime of its memory."""
        return self.method.scope_with(self.options)

    def _weights(self) -> WeightsHeader | None:
        if self.weights is None or isinstance(self.weights, Path):
            return identify(self.weights) if self.weights else None
        return structs.replace(identify(self.weights.folder), **self.weights.describe())


def kept_options(before: MethodHeader, now: SettingsHeader | None) -> dict[str, Any]:
    """A run's own values of the options that its settings change, or those of `now`."""
    names = {name for one in (before.settings, now) if one for name in one.paper}
    return {name: before.options[name] for name in names if name in before.options}


def parse_methods(spellings: Sequence[str]) -> list[RunMethod]:
    """The methods that the user named, groups included, with their options.

    Raises:
        UserError: an unknown method or option, or a wrong value.
    """
    return [
        RunMethod(asked, method, registry.make_options(method, asked.given))
        for asked in parse_choices(registry.expand_groups(spellings))
        for method in [registry.get(asked.name)]
    ]


PATHS = "weights", "datastore", "tree"
"""Options that name a file or folder."""


def label_of(asked: MethodChoice) -> str:
    """A method's name in records and tables. A file goes by its last name, not its path."""
    given = {k: Path(v).name if k in PATHS else v for k, v in asked.given.items()}
    return printable(str(MethodChoice(asked.name, given)))
