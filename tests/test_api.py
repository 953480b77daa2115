"""specbench from Python."""

import re
import subprocess
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import specbench
from specbench import api
from specbench.api import runs
from specbench.errors import UserError
from specbench.log.files import open_lines
from specbench.log.spec import SpecValues
from specbench.measure.spec import AUTO, PAPER, RunSpec
from tests.support.backend import answering
from tests.support.checkpoint import save_checkpoint, write_prompts
from tests.support.cluster import FakeRay, use_ray
from tests.support.paths import RECORDED
from tests.support.refusals import error_with


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("api") / "target")


@pytest.fixture(scope="module")
def loaded(model: Path) -> api.LoadedModel:
    return specbench.load(str(model), template="none")


def test_a_loaded_method_generates_vanillas_tokens(model: Path, loaded: api.LoadedModel) -> None:
    plain = loaded.generate("ab ab ab", max_new_tokens=60)
    method = specbench.load(str(model), "pld:ngram=2", template="none")
    quick = method.generate("ab ab ab", max_new_tokens=60)
    assert quick.token_ids == plain.token_ids
    assert quick.text == plain.text
    assert plain.mean_accepted_tokens == 1.0
    assert quick.num_steps <= plain.num_steps
    assert quick.completion.prefill_s > 0 and quick.tokens_per_s > 0
    assert re.fullmatch(r"<LoadedModel .* \(float32, cpu\): pld:ngram=2>", repr(method))
    assert "60 tokens in" in repr(quick) and len(repr(quick)) < 200 and "\n" not in repr(quick)


def test_input_ids_are_used_unchanged(loaded: api.LoadedModel) -> None:
    by_text = loaded.generate("abc", max_new_tokens=4)
    for ids in (by_text.prompt_ids, torch.tensor([by_text.prompt_ids])):
        assert loaded.generate(input_ids=ids, max_new_tokens=4).token_ids == by_text.token_ids


def test_sampling_follows_the_seed(loaded: api.LoadedModel) -> None:
    answer, repeated, of_another_seed = (
        loaded.generate("abc", temperature=0.9, top_p=0.9, top_k=50, max_new_tokens=24, seed=seed)
        for seed in (1, 1, 2)
    )
    assert answer.token_ids == repeated.token_ids != of_another_seed.token_ids


NO_CHAT = ([1, 2, 3], 5, ["a", "b"], [{"role": "user"}], b"text")
NO_IDS: tuple[Any, ...] = ("abc", 5, ["a"], [1.5], [-1], [])


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({}, "takes a prompt", "exactly one"),
        ({"prompt": "a", "input_ids": [1]}, "takes a prompt", "exactly one"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, "2 prompts", "one at a time"),
        ({"input_ids": [1, 10**6]}, "has token 1000000, and the model has", "own tokenizer"),
        *(({"prompt": prompt}, "neither a text nor a list", "ids=") for prompt in NO_CHAT),
        ({"prompt": [{"role": "user", "content": ["a"]}]}, "neither a text nor a list", "ids="),
        *(({"input_ids": ids}, "are not token ids", "[1, 2, 3]") for ids in NO_IDS),
        ({"prompt": "abc", "temperature": -1}, "temperature", "Give"),
        ({"prompt": "abc", "top_p": 0}, "top-p", "Give"),
        ({"prompt": "abc", "max_new_tokens": 0}, "max-new-tokens", "Give"),
        ({"prompt": "abc", "top_k": -1}, "top-k", "Give"),
    ],
)
def test_generate_refuses_other_inputs(
    loaded: api.LoadedModel, given: dict[str, Any], message: str, hint: str
) -> None:
    with error_with(UserError, match=message, hint=hint):
        loaded.generate(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": "pld"}, "No value 'methods'"),
        ({"method": ["pld"]}, "load takes method as a string"),
        ({"method": "pld,lookahead"}, "names 2 methods"),
    ],
)
def test_loading_an_unknown_method_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        specbench.load("tiny", **given)
    assert "method" in caught.value.hint or "Name one" in caught.value.hint


def test_options_are_parameters_and_nothing_is_written_to_stderr() -> None:
    assert {"tasks", "limit", "temperatures", "say"} <= {*signature(specbench.run).parameters}
    assert {"device", "threads"} <= {*signature(specbench.load).parameters}
    assert "limit" not in signature(specbench.load).parameters
    code = "import specbench; print(specbench.load('tiny', 'pld').generate('Hi', max_new_tokens=2))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stderr == "" and "MAT" in said.stdout


def test_a_run_shows_a_table_that_fits_a_screen() -> None:
    run = specbench.read_run(RECORDED_RUN)
    assert "SpS has the highest speedup, 1.04x" in repr(run)
    assert max(map(len, str(run).splitlines()[1:])) <= 120
    assert next(iter(run.table.index))[0] == "sps" and "<table" in run._repr_html_()
    assert len(run.table.columns) == 6 and run.table["speedup"].is_monotonic_decreasing


def test_an_answer_in_a_notebook_is_text_with_a_table(loaded: api.LoadedModel) -> None:
    answer = replace(loaded.generate("ab", max_new_tokens=4), text="<b>")
    assert "&lt;b&gt;" in answer._repr_html_() and "<td>4</td>" in answer._repr_html_()


def test_a_notebook_shows_the_last_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    module = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(
        sys.modules, "IPython.display", SimpleNamespace(display=lambda *_, **__: handle)
    )
    runs._notebook_line()("one")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    runs._notebook_line()("two")
    assert shown == ["one"]


RECORDED_RUN = RECORDED / "amd-epyc-2-cores"


def test_a_stored_run_is_read_as_frames() -> None:
    run = specbench.read_run(RECORDED_RUN)
    with open_lines(RECORDED_RUN / "samples.jsonl") as lines:
        num_lines = sum(1 for _ in lines)
    assert len(run.samples) == len(run.records) == num_lines
    assert "amd-epyc-2-cores" in repr(run) or run.header.id in repr(run)
    mean = run.summary.query("task == 'mean'").set_index("method")
    assert set(mean.index) == set(run.header.spec.values.methods)
    assert mean.loc["vanilla", "speedup"] == 1.0
    eagle2 = mean.loc["eagle2"]
    assert 0 < eagle2["speedup_low"] < eagle2["speedup"] < eagle2["speedup_high"]


def test_the_public_names_are_listed() -> None:
    assert dir(specbench) == ["__version__", "load", "read_run", "run"]


def test_a_run_from_python_equals_its_folder(model: Path, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "cats.jsonl", ["ab ab ab"])
    values: dict[str, Any] = {"prompts": prompts, "max_new_tokens": 8, "template": "none"}
    lines: list[str] = []
    folder = tmp_path / "run"
    run = specbench.run(str(model), "pld", output=folder, say=lines.append, **values)
    assert {(record.key.method, record.key.task) for record in run.records} == {
        ("vanilla", "cats"), ("pld", "cats"),
    }  # fmt: skip
    assert run.samples.equals(specbench.read_run(folder).samples)
    assert any(line.startswith("[2/2] ") for line in lines)
    with pytest.raises(UserError, match="holds a run already"):
        specbench.run(str(model), "pld", output=folder, **values)
    assert specbench.run(output=folder, resume=True).records == run.records


def test_a_run_from_python_has_the_commands_default_settings(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert signature(specbench.run).parameters["settings"].default == AUTO
    assert SpecValues().settings == PAPER  # the default of recipes
    specs: list[RunSpec] = []

    def stop(spec: RunSpec, **_: Any) -> None:
        specs.append(spec)
        raise UserError("planned", "")

    monkeypatch.setattr("specbench.measure.plan.make_plan", stop)
    server = {"backend": "server", "urls": "http://127.0.0.1:1", "labels": "vanilla"}
    calls: list[dict[str, Any]] = [{}, {"settings": "paper"}, server]
    for values in calls:
        with pytest.raises(UserError, match="planned"):
            specbench.run(str(model), output=tmp_path / "run", **values)
    assert [spec.settings for spec in specs] == [AUTO, PAPER, PAPER]


def test_a_run_from_python_on_a_cluster_equals_the_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = use_ray(monkeypatch, FakeRay({"vanilla": answering(1), "pld": answering(2)}, 2))
    run = specbench.run("tiny", "pld", tasks="gsm8k", limit=3, output=tmp_path / "run", ray="local")
    assert ray.addresses == ["local"]
    assert set(run.samples["worker"]) == {"worker-1", "worker-2"}
    with pytest.raises(UserError, match="at two cannot be reached: it is not an address"):
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "ray", object())
        specbench.run("tiny", ray="two", output=tmp_path / "none")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"limit": 0}, "^--limit 0 is too small"),
        ({"limit": "three"}, "limit='three' has the wrong type"),
        ({"temperatures": -1}, "^--temperature -1 is too small"),
        ({"temprature": 1}, "Did you mean 'temperatures'"),
        ({"tasks": "gsm9k"}, "gsm9k"),
        ({"methods": ["pld", "eagel"]}, "eagel"),
    ],
)
def test_a_wrong_value_is_named_before_anything_runs(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        specbench.run("tiny", output=tmp_path / "run", **values)
    assert not (tmp_path / "run").exists()


def test_loading_draws_no_progress_bar(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()
    specbench.load(str(model), template="none")
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()
