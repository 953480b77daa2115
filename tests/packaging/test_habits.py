"""The project's own workflow and hooks run what a contributor runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.packaging.shell import ROOT
from tests.packaging.test_dependencies import PROJECT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CLASSIFIER = "Programming Language :: Python :: "


def load(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    found: dict[str, Any] = load(".github/workflows/ci.yml")["jobs"]
    return found


def make_commands(jobs: dict[str, Any]) -> list[list[str]]:
    """The arguments of every call of make."""
    runs = [step["run"].split() for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {command for command, *_ in runs} == {"make"}
    return [arguments for _, *arguments in runs]


def test_ci_tests_every_python_that_the_package_names(jobs: dict[str, Any]) -> None:
    tested = {entry["python"] for entry in jobs["test"]["strategy"]["matrix"]["include"]}
    named = {
        version
        for classifier in PROJECT["classifiers"]
        if "." in (version := classifier.removeprefix(CLASSIFIER))
    }
    assert tested == named


def test_ci_tests_the_lowest_the_pinned_and_the_newest_versions(jobs: dict[str, Any]) -> None:
    matrix = jobs["test"]["strategy"]["matrix"]["include"]
    assert {entry["constraints"] for entry in matrix} == {
        "constraints-lowest.txt", "constraints.txt", "/dev/null",
    }  # fmt: skip


def test_ci_runs_what_the_gate_runs(jobs: dict[str, Any]) -> None:
    one_by_one = {arguments[0] for arguments in make_commands(jobs) if arguments[0] != "${{"}
    called = one_by_one | set(jobs["more"]["strategy"]["matrix"]["target"])
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    known = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    assert called <= known
    assert {target for target in known if re.search(rf"\b{target}(?![\w-])", gate)} <= called


def test_hooks_call_the_tools_of_make_check() -> None:
    (repository,) = load(".pre-commit-config.yaml")["repos"]
    checks = set(re.findall(r"^\t\$\(BIN\)/(\w+(?: \w+)*)", MAKEFILE, re.MULTILINE))
    for hook in repository["hooks"]:
        tool = hook["entry"].removeprefix(".venv/bin/").partition(" --")[0]
        assert tool in checks, hook["id"]
