"""cuDNN's attention is disabled while specbench runs, and restored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.backends import cuda

import specbench
from specbench.engine.attention import attention_kernels, without_cudnn_attention
from specbench.engine.target import Target
from specbench.measure import doctor
from specbench.measure.spec import RunSpec
from tests.support.checkpoint import save_checkpoint


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def setting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The user's setting of cuDNN's attention."""
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(request.param)
    yield request.param
    cuda.enable_cudnn_sdp(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The setting at each forward and prefill."""
    found: list[bool] = []

    def capture(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            found.append(cuda.cudnn_sdp_enabled())
            return function(*args, **named)

        return call

    for name in ("prefill", "forward"):
        monkeypatch.setattr(Target, name, capture(getattr(Target, name)))
    return found


def test_the_setting_comes_back_even_after_an_error(setting: bool) -> None:
    with pytest.raises(RuntimeError), without_cudnn_attention():
        assert "cudnn" not in attention_kernels()
        raise RuntimeError
    assert cuda.cudnn_sdp_enabled() is setting
    assert ("cudnn" in attention_kernels()) is setting


def test_specbench_load_generates_without_it_too(
    setting: bool, seen: list[bool], tmp_path: Path
) -> None:
    model = specbench.load(str(save_checkpoint(tmp_path)), "pld", template="none")
    model.generate("ab ab ab", max_new_tokens=6)
    assert len(seen) > 1 and not any(seen)
    assert cuda.cudnn_sdp_enabled() is setting


def test_doctor_measures_without_it(
    setting: bool, seen: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROMPTS", doctor.PROMPTS[:1])
    monkeypatch.setattr(doctor, "NUM_TOKENS", 4)
    diagnoses = list(doctor.examine(RunSpec(device="cpu"), is_offline=True))
    assert diagnoses and cuda.cudnn_sdp_enabled() is setting
    assert len(seen) > 1 and not any(seen)


def test_generate_is_measured_without_it(setting: bool, tmp_path: Path) -> None:
    from specbench.measure.local.engine_load import load_model
    from specbench.measure.local.engine_setup import make_engine_setup

    spec = RunSpec(str(save_checkpoint(tmp_path)), ("vanilla",), device="cpu", template="none")
    target = load_model(make_engine_setup(spec, is_offline=True))
    seen: list[bool] = []
    hook = target.model.register_forward_pre_hook(lambda *_: seen.append(cuda.cudnn_sdp_enabled()))
    with torch.inference_mode():
        assert len(doctor.generate(target, (3, 4, 5), 3)) == 3
    hook.remove()
    assert seen == [False] * 3
    assert cuda.cudnn_sdp_enabled() is setting
