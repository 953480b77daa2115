"""Previews of runs whose files are not on this machine. Sizes come from cards."""

from pathlib import Path
from typing import Any

import pytest

from specbench.errors import CheckpointError, UserError
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.spec import RunSpec, make_spec
from specbench.measure.suite.preview import Preview, preview

GB = 10**9


@pytest.fixture(autouse=True)
def _empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("specbench.models.memory.free_bytes", lambda device: 16 * GB)


def of(*methods: str, **values: Any) -> Preview:
    spec = RunSpec(
        model="vicuna-7b", methods=methods, tasks=("gsm8k",), limit=1, dtype="float16", **values
    )
    return preview(spec, lambda device: 1e12)


@pytest.mark.parametrize("weights", ["hub", "stand-in"])
def test_the_memory_is_that_of_the_target_and_of_all_drafters(weights: str) -> None:
    target, with_one, with_two = (
        of(*names, weights=weights).memory_bytes or 0
        for names in (("pld",), ("eagle2",), ("eagle2", "medusa"))
    )
    assert 13 * GB < target < 16 * GB
    assert target + GB // 4 < with_one < target + 2 * GB
    assert with_one + GB < with_two < with_one + 4 * GB


def test_a_download_counts_the_files_of_known_size() -> None:
    whole = of("eagle2", prompts="bundled")
    with_hydra = of("eagle2", "hydra", prompts="bundled")
    with_prompts = of("eagle2", prompts="paper")
    previews = (whole, with_hydra, with_prompts)
    sizes = {planned.download_bytes for planned in previews}
    assert len(sizes) == 1 and 13 * GB < sizes.pop() < 16 * GB
    assert [planned.has_more_files for planned in previews] == [False, True, True]


def test_methods_too_many_for_the_memory_are_reported_before_the_run() -> None:
    assert not of("pld").missing
    (text,) = of("eagle2", "medusa").missing
    assert "vicuna-7b does not fit" in text and "for draft weights" in text


@pytest.mark.parametrize(
    ("model", "eagle2", "eagle3"),
    [
        ("vicuna-7b", "60 nodes, 6 levels", ""),
        ("vicuna-13b", "50 nodes, 6 levels", "50 nodes, 8 levels"),
        ("vicuna-33b", "50 nodes, 6 levels (as for 13B)", ""),
        ("llama2-70b-chat", "48 nodes, 6 levels", ""),
        ("llama3.3-70b", "", "48 nodes, 8 levels"),
        ("mixtral-8x7b", "50 nodes, 6 levels (as for 13B)", ""),
        ("gpt-oss-20b", "", "50 nodes, 8 levels (as for 13B)"),
        ("tiny", "60 nodes, 6 levels (as for 7B)", "60 nodes, 8 levels (as for 7B)"),
    ],
)
def test_trees_are_the_papers_for_the_targets_size(model: str, eagle2: str, eagle3: str) -> None:
    trees = {name: text for name, text in {"eagle2": eagle2, "eagle3": eagle3}.items() if text}
    spec = make_spec(model=model, methods=(*trees,), dtype="float16")
    trees_shown = preview(spec, lambda device: 1e9).trees
    assert trees_shown == tuple(f"{name}: paper: {text}" for name, text in trees.items())


def test_a_stand_in_has_the_tree_of_its_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specbench.models.memory.free_bytes", lambda device: 64 * GB)
    methods = ("eagle2:total_tokens=30", "eagle3")
    spec = make_spec(model="vicuna-13b", weights="stand-in", methods=methods)
    assert preview(spec, lambda device: 1e9).trees == (
        "eagle2:total_tokens=30: 30 nodes, 6 levels; paper: 50 nodes, 6 levels",
        "eagle3: paper: 50 nodes, 8 levels",
    )
    options_of = {method.label: method.options for method in make_engine_setup(spec).methods}
    assert options_of["eagle2:total_tokens=30"].total_tokens == 30
    assert (options_of["eagle3"].total_tokens, options_of["eagle3"].depth) == (50, 7)


def test_a_stand_in_with_a_method_whose_datastore_is_missing_is_refused() -> None:
    spec = make_spec(model="vicuna-13b", weights="stand-in", methods=("rest:datastore=/none",))
    with pytest.raises(CheckpointError, match="/none is not a file"):
        make_engine_setup(spec)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"turns": ["fine"]}\n\xef\xbb\xbf{"turns": ["late"]}\n', "line 2: it begins"),
        (b'{"turns": []}\n', "line 1: it needs"),
        ('{"turns": ["fine"]}\n'.encode("utf-16"), "is in UTF-16"),
    ],
)
def test_a_preview_refuses_the_prompts_that_a_run_refuses(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason):
        of("pld", prompts=str(path))


def test_a_damaged_file_of_the_user_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and no more")
    shown = preview(make_spec(model=str(path), methods=("pld",)), lambda _: 1e9)
    assert any("model.gguf" in sentence for sentence in shown.missing)
