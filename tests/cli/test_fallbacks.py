"""A run reports kernels that failed during the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from specbench.engine.kernels import pick_ops
from specbench.engine.layers.ops import Ops
from specbench.log.backend import Kernels
from specbench.log.store import read_run
from tests.cli.conftest import Specbench


class Falling(Ops):
    """Operations whose attention falls back at its first call."""

    def attend(self, *args: Any, **named: Any) -> Tensor:
        self.fallbacks["attention"] = "run by torch, since out of resource: shared memory"
        return super().attend(*args, **named)


def test_fallbacks_during_samples_are_in_the_run_and_in_the_report(
    specbench: Specbench, model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pick_ops, "pick_native_ops", lambda dtype, folder: Falling())
    said = specbench(
        "run", "--model", model, "--prompts", prompt_file, "--method", "vanilla", "--output", "run",
        "--full", "--max-new-tokens", 4, "--device", "cpu", "--execution", "eager",
    )  # fmt: skip
    assert said.code == 0, said.err
    reason = "attention: run by torch, since out of resource: shared memory"
    header = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    assert header["kernels"] == {"name": "torch", "reason": reason}
    report = specbench("report", "run", "--format", "csv", "--out", "shown")
    assert report.code == 0, report.err
    assert f"layers by torch ({reason})" in " ".join(said.out.split())


def test_kernels_that_are_asked_for_are_stored_and_told_by_compare(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    for kind in ("torch", "plain"):
        said = specbench(
            "run", "--model", model, "--prompts", prompt_file, "--method", "pld", "--output", kind,
            "--max-new-tokens", 4, "--device", "cpu", "--kernels", kind,
        )  # fmt: skip
        assert said.code == 0, said.err
    headers = [read_run(Path(kind)).header for kind in ("torch", "plain")]
    assert [one.spec.values.kernels for one in headers] == ["torch", "plain"]
    first, second = (one.kernels for one in headers)
    assert first and second and first == Kernels("torch", None)
    assert second.name.startswith("native code")
    compared = specbench("compare", "torch", "plain")
    assert compared.code == 0, compared.err
    told = " ".join(compared.out.split())
    assert f"May explain a difference: kernels: torch in A, {second.name} in B" in told
    assert "--kernels" not in told and "not comparable" not in told
