"""The declared dependencies equal the imported ones, and the pins are in their ranges."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging import rooms
from tests.support.paths import ROOT

NEVER_IMPORTED = {"sentencepiece", "protobuf"}
"""transformers needs these to read a tokenizer.model."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(texts: list[str]) -> dict[str, Requirement]:
    requirements = [Requirement(text) for text in texts]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def imported() -> set[str]:
    """The distributions that the package imports, and folders that are only in the checkout."""
    distributions = {
        name.removeprefix("specbench.").partition(".")[0]
        for module, source in rooms.read_sources().items()
        for name in rooms.imported(ast.parse(source), module)
    }
    installed = packages_distributions()
    foreign = distributions - set(sys.stdlib_module_names) - {"specbench", *rooms.FLOORS}
    return {canonicalize_name(installed.get(name, [name])[0]) for name in foreign}


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in pairs}


def test_the_imports_are_the_declared_dependencies() -> None:
    optional = PROJECT["optional-dependencies"]
    extras = [package for name in ("kernels", "llamacpp", "ray") for package in optional[name]]
    needed = declared(PROJECT["dependencies"]).keys()
    used = imported()
    assert used - needed - declared(extras).keys() == set()
    assert needed - used == NEVER_IMPORTED


def test_every_dependency_is_pinned_to_a_version_in_its_range() -> None:
    everything = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    tested = pins()
    for name, requirement in declared(everything).items():
        assert name in tested, f"constraints.txt does not pin {name}"
        assert requirement.specifier.contains(tested[name]), f"{name} {tested[name]}"
    # No package index has local versions such as 2.13.0+cpu.
    local = [name for name, version in tested.items() if not re.fullmatch(r"[\d.]+", version)]
    assert local == []


def test_the_lowest_pins_are_the_lower_bounds() -> None:
    extras = PROJECT["optional-dependencies"]
    lowest = pins("constraints-lowest.txt")
    bounded = declared([*PROJECT["dependencies"], *extras["dev"], *extras["kernels"]])
    del bounded["tokenizers"]  # transformers bounds it
    assert set(lowest) == set(bounded)
    for name, requirement in bounded.items():
        (bound,) = [part for part in requirement.specifier if part.operator == ">="]
        assert Version(lowest[name]) == Version(bound.version), name
