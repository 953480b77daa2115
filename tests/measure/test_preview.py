"""Previews of runs whose files are not on this machine, from sizes of cards alone."""

from pathlib import Path
from typing import Any

import pytest

from specbench.measure.spec import RunSpec
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


def test_a_download_counts_the_files_of_known_size_and_says_if_there_are_more() -> None:
    whole = of("eagle2", prompts="bundled")
    with_hydra = of("eagle2", "hydra", prompts="bundled")
    with_prompts = of("eagle2", prompts="paper")
    previews = (whole, with_hydra, with_prompts)
    sizes = {planned.download_bytes for planned in previews}
    assert len(sizes) == 1 and 13 * GB < sizes.pop() < 16 * GB
    assert [planned.has_more_files for planned in previews] == [False, True, True]


def test_methods_too_many_for_the_memory_are_told_before_the_run() -> None:
    assert not of("pld").missing
    (text,) = of("eagle2", "medusa").missing
    assert "vicuna-7b does not fit" in text and "for the methods' own weights" in text
