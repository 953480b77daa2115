"""Memory across prompts: kept within a repeat, recorded, and refused where it would mislead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specbench.data.prompts import Prompt
from specbench.errors import MethodFault, RunFolderError, UserError
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.runner import Runner
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.methods.recycling import Recycling
from specbench.registry import default_entries, expand_groups, get, names, paper_methods
from specbench.types import Request
from tests.support.backend import FakeSetup, answering, backend_of, fake_plan
from tests.support.watching import Watcher

METHODS = {"vanilla": answering(1), "pld": answering(2)}
PROMPTS = {"maths": [Prompt("maths/1", "", ("1+1",)), Prompt("maths/2", "", ("2+2",))]}


def test_every_recorded_completion_is_remembered_and_a_repeat_begins_with_nothing() -> None:
    plan = fake_plan(METHODS, PROMPTS, RunSpec(repeats=2))
    with backend_of(plan) as backend:
        list(Runner(plan, backend, sink=Sink(), progress=Watcher()).run())
        told: Any = backend
    one = ["", "vanilla", "pld", "pld", "vanilla"]
    assert told.remembered == one * 2


class Sink:
    def append(self, record: object) -> None: ...


def test_the_scope_of_a_method_is_in_the_header() -> None:
    spec = RunSpec(methods=("recycling:scope=run", "recycling"), max_new_tokens=4)
    methods = make_engine_setup(spec).describe().methods
    assert methods["recycling:scope=run"].scope == "run"
    assert methods["recycling"].scope == methods["vanilla"].scope == "request"


def test_a_memory_of_answers_at_another_temperature_is_refused() -> None:
    spec = RunSpec(methods=("recycling:scope=run",), temperatures=(0.0, 1.0))
    with pytest.raises(UserError, match="draft from its own earlier answers"):
        make_engine_setup(spec)
    make_engine_setup(structs.replace(spec, methods=("recycling",)))


class Remembering(FakeSetup):
    def describe(self) -> Any:
        about = super().describe()
        pld = structs.replace(about.methods["pld"], scope="run")
        return structs.replace(about, methods={**about.methods, "pld": pld})


def test_a_run_whose_memory_is_lost_is_not_resumed(tmp_path: Path) -> None:
    plan = replace(fake_plan(METHODS, PROMPTS, None), setup=Remembering(METHODS))
    run_plan(plan, tmp_path, Watcher(), given=())
    run_plan(plan, tmp_path, Watcher(), given=())  # nothing is missing
    samples = tmp_path / "samples.jsonl"
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunFolderError, match="pld remembers earlier prompts"):
        run_plan(plan, tmp_path, Watcher(), given=())


def test_a_method_that_cannot_forget_fails_in_its_samples_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(self: Recycling) -> None:
        raise KeyError("table")

    spec = RunSpec(methods=("recycling:scope=run",), threads=1)
    request = Request((1, 5, 9), 4)
    with EngineBackend(make_engine_setup(spec)) as backend:
        monkeypatch.setattr(Recycling, "forget", forget)
        backend.forget()
        assert backend.complete("vanilla", request).token_ids
        with pytest.raises(MethodFault, match="KeyError: 'table'"):
            backend.complete("recycling:scope=run", request)


def test_the_default_run_has_every_method_that_needs_no_training_and_no_file() -> None:
    default = [one.name for one in default_entries() if one.origin == "specbench"]
    assert default == [*paper_methods(), "recycling", "sam", "suffix"]
    assert not any(get(name).weights for name in default[9:])


def test_groups_stand_for_their_methods_once() -> None:
    assert expand_groups(["papers"]) == tuple(paper_methods())
    assert expand_groups(["pld:ngram=2,pld,papers"])[:3] == ("pld:ngram=2", "pld", "vanilla")
    assert set(expand_groups(["all"])) == set(names())
    with pytest.raises(UserError, match="gives options to a group"):
        expand_groups(["papers:ngram=2"])
