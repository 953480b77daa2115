"""Heads are trained in bfloat16 only where its products are fast."""

from __future__ import annotations

import platform

import pytest
import torch

from specbench.training.recipe import has_fast_bfloat16


@pytest.mark.parametrize(
    ("machine", "has_instructions", "device", "expected"),
    [
        ("x86_64", True, "cpu", True),
        ("x86_64", False, "cpu", False),
        ("AMD64", False, "cpu", False),
        ("x86_64", False, "cuda:0", True),
        ("aarch64", False, "cpu", True),
    ],
)
def test_a_cpu_without_instructions_for_bfloat16_trains_in_float32(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    has_instructions: bool,
    device: str,
    expected: bool,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(
        torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions, raising=False
    )
    assert has_fast_bfloat16(device) is expected
