"""The project's own gate, and the workflow that others copy.

The project's own workflow and hooks run what a contributor runs.
"""

import re
import shlex
from typing import Any

import pytest
import yaml

from specbench import registry
from specbench.cli.app import app
from specbench.judge.gate import check
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.models.cards import find_model
from specbench.models.checkpoints import identify
from specbench.models.hub import resolve_model
from tests.packaging.shell import ROOT
from tests.packaging.test_dependencies import PROJECT

COMMAND = re.compile(r"specbench (run|check) (.*?)(?=&&|$)", re.MULTILINE)


@pytest.fixture(scope="module")
def baseline() -> Run:
    return read_run(ROOT / ".ci" / "baseline")


def option(arguments: str, name: str) -> str:
    words = shlex.split(arguments)
    return words[words.index(name) + 1]


def test_the_baseline_is_complete_and_passes_against_itself(baseline: Run) -> None:
    assert baseline.header.status == "complete"
    assert {r.key.method for r in baseline.records} == set(registry.paper_methods())
    assert all(record.is_ok for record in baseline.records)
    assert check(baseline, baseline).is_passed


def test_the_baseline_is_of_the_weights_that_ship(baseline: Run) -> None:
    shipped = identify(resolve_model(find_model("tiny"), offline=True))
    assert baseline.header.model.files == shipped.files


def test_the_workflow_checks_the_run_that_it_made_with_options_that_exist() -> None:
    jobs = load("docs/github-actions.yml")["jobs"]
    scripts = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    called = [match for script in scripts for match in COMMAND.findall(script)]
    assert [name for name, _ in called] == ["run", "check"]
    for name, arguments in called:
        command = app.get_command(None, name)
        known = {spelling for parameter in command.params for spelling in parameter.opts}
        assert {word for word in shlex.split(arguments) if word.startswith("--")} <= known
    (_, made), (_, judged) = called
    assert option(made, "--output") == shlex.split(judged)[0]
    recorded = COMMAND.search((ROOT / "docs/github-actions.yml").read_text(encoding="utf-8"))
    assert recorded is not None
    for name in ("--limit", "--max-new-tokens"):
        assert option(made, name) == option(recorded[2], name)


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


def test_ci_runs_what_the_gate_runs(jobs: dict[str, Any]) -> None:
    one_by_one = {arguments[0] for arguments in make_commands(jobs) if arguments[0] != "${{"}
    called = one_by_one | set(jobs["more"]["strategy"]["matrix"]["target"])
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    known = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    assert called <= known
    assert {
        target for target in known if re.search(rf"(?<![\w-]){target}(?![\w-])", gate)
    } <= called


def test_hooks_call_the_tools_of_make_check() -> None:
    (repository,) = load(".pre-commit-config.yaml")["repos"]
    checks = set(re.findall(r"^\t\$\(BIN\)/(\w+(?: \w+)*)", MAKEFILE, re.MULTILINE))
    for hook in repository["hooks"]:
        tool = hook["entry"].removeprefix(".venv/bin/").partition(" --")[0]
        assert tool in checks, hook["id"]
