"""The project's gate, its workflow, and the workflow that other projects copy."""

import re
import shlex
from typing import Any

import yaml

from specbench import registry
from specbench.cli.app import app
from specbench.judge.gate import check
from specbench.log.store import read_run
from specbench.models.cards import find_model
from specbench.models.checkpoints import identify
from specbench.models.hub import resolve_model
from tests.packaging.test_dependencies import PROJECT
from tests.support.paths import BASELINE_RUN, ROOT

COMMAND = re.compile(r"specbench (run|check) (.*?)(?=&&|$)", re.MULTILINE)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CLASSIFIER = "Programming Language :: Python :: 3."


def steps_of(file: str) -> tuple[dict[str, Any], list[str]]:
    """The jobs of a workflow, and the commands of all jobs."""
    jobs = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    return jobs, [step["run"] for step in steps if "run" in step]


def test_the_baseline_runs_the_papers_methods_on_shipped_weights() -> None:
    baseline = read_run(BASELINE_RUN)
    methods = {record.key.method for record in baseline.records}
    assert methods == set(registry.paper_methods())
    shipped = identify(resolve_model(find_model("tiny"), offline=True))
    assert baseline.header.model.files == shipped.files
    assert check(baseline, baseline).is_passed


def test_the_workflow_checks_the_run_that_it_made_with_options_that_exist() -> None:
    _, commands = steps_of("docs/github-actions.yml")
    called = COMMAND.findall("\n".join(commands))
    assert [name for name, _ in called] == ["run", "check"]
    run_words, check_words = (shlex.split(arguments) for _, arguments in called)
    for name, words in (("run", run_words), ("check", check_words)):
        command = app.get_command(None, name)
        options = {spelling for parameter in command.params for spelling in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
    made_run = run_words[run_words.index("--output") + 1]
    assert check_words[0] == made_run
    # A comment shows how to record the baseline, which has to do the same work.
    workflow = (ROOT / "docs/github-actions.yml").read_text(encoding="utf-8")
    _, recorded = COMMAND.findall(workflow)[0]
    for name in ("--limit", "--max-new-tokens"):
        argument = run_words[run_words.index(name) + 1]
        assert f"{name} {argument}" in recorded


def test_ci_tests_every_python_that_the_package_names() -> None:
    jobs, _ = steps_of(".github/workflows/ci.yml")
    entries = jobs["test"]["strategy"]["matrix"]["include"]
    tested = {entry["python"] for entry in entries}
    named = {
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if classifier.startswith(CLASSIFIER)
    }
    assert tested == named


def test_the_gate_and_ci_run_every_test_target() -> None:
    kinds = r"^(test[\w-]*|check|coverage|faults|gate):"
    targets = set(re.findall(kinds, MAKEFILE, re.MULTILINE)) - {"test-ray"}
    gate = ROOT / ".ci" / "run"
    gate_words = re.findall(r"[\w-]+", gate.read_text(encoding="utf-8"))
    assert targets <= {*gate_words}
    assert gate.stat().st_mode & 0o111, "the gate is not executable"
    jobs, runs = steps_of(".github/workflows/ci.yml")
    commands = [run.split() for run in runs]
    assert {command[0] for command in commands} == {"make"}
    matrix = jobs["more"]["strategy"]["matrix"]["target"]
    assert targets <= {*matrix, *(command[1] for command in commands)}
