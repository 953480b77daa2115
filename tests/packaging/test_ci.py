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
from tests.support.paths import ROOT

COMMAND = re.compile(r"specbench (run|check) (.*?)(?=&&|$)", re.MULTILINE)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CLASSIFIER = "Programming Language :: Python :: 3."


def steps_of(file: str) -> tuple[dict[str, Any], list[str]]:
    """The jobs of a workflow, and the commands of all jobs."""
    workflow = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    return jobs, [step["run"] for step in steps if "run" in step]


def test_the_baseline_is_of_the_papers_methods_on_the_weights_that_ship() -> None:
    baseline = read_run(ROOT / ".ci" / "baseline")
    assert {r.key.method for r in baseline.records} == set(registry.paper_methods())
    shipped = identify(resolve_model(find_model("tiny"), offline=True))
    assert baseline.header.model.files == shipped.files
    assert check(baseline, baseline).is_passed


def test_the_workflow_checks_the_run_that_it_made_with_options_that_exist() -> None:
    _, commands = steps_of("docs/github-actions.yml")
    called = COMMAND.findall("\n".join(commands))
    assert [name for name, _ in called] == ["run", "check"]
    for name, arguments in called:
        command = app.get_command(None, name)
        options = {spelling for parameter in command.params for spelling in parameter.opts}
        assert {word for word in shlex.split(arguments) if word.startswith("--")} <= options
    run_words, judged = (shlex.split(arguments) for _, arguments in called)
    assert run_words[run_words.index("--output") + 1] == judged[0]
    # A comment shows how to record the baseline, which has to do the same work.
    workflow = (ROOT / "docs/github-actions.yml").read_text(encoding="utf-8")
    _, recorded = COMMAND.findall(workflow)[0]
    for name in ("--limit", "--max-new-tokens"):
        argument = run_words[run_words.index(name) + 1]
        assert f"{name} {argument}" in recorded


def test_ci_tests_every_python_that_the_package_names() -> None:
    jobs, _ = steps_of(".github/workflows/ci.yml")
    tested = {entry["python"] for entry in jobs["test"]["strategy"]["matrix"]["include"]}
    named = {name for name in PROJECT["classifiers"] if name.startswith(CLASSIFIER)}
    assert tested == {name.rpartition(" ")[2] for name in named}


def test_the_gate_and_ci_run_every_target_that_tests() -> None:
    kinds = r"^(test[\w-]*|check|coverage|faults|gate):"
    targets = set(re.findall(kinds, MAKEFILE, re.MULTILINE)) - {"test-ray"}
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert not {
        target for target in targets if not re.search(rf"(?<![\w-]){target}(?![\w-])", gate)
    }
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    jobs, runs = steps_of(".github/workflows/ci.yml")
    assert {run.split()[0] for run in runs} == {"make"}
    matrix = jobs["more"]["strategy"]["matrix"]["target"]
    assert targets <= {*matrix, *(run.split()[1] for run in runs)}
