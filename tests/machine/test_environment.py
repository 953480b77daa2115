import getpass
import json
import platform
import shutil
import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest

import specbench
from specbench.log.machine import Git, Gpu
from specbench.machine.environment import capture, git_state, gpus
from tests.machine.fake_nvml import MISSING, FakeNvml


def test_a_run_records_hardware_and_versions_as_plain_json() -> None:
    machine = json.loads(msgspec.json.encode(capture()))
    versions = (machine["specbench"], machine["python"])
    assert versions == (specbench.__version__, platform.python_version())
    assert machine["cpu"]["model"] and machine["cpu"]["memory_bytes"] > 2**28
    assert machine["torch"]["num_threads"] >= 1 and machine["transformers"]


def test_a_record_names_no_user_host_or_path() -> None:
    text = msgspec.json.encode(capture()).decode()
    assert [part for part in text.replace('"', " ").split() if part.startswith(("/", "~"))] == []
    for secret in (platform.node(), getpass.getuser(), str(Path.home())):
        assert len(secret) < 4 or secret not in text


def test_a_variable_that_changes_speed_is_recorded_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MY_SECRET", "s")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    variables = capture().variables
    assert variables["OMP_NUM_THREADS"] == "3"
    assert not {"MY_SECRET", "MKL_NUM_THREADS"} & set(variables)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like this project's checkout, with the package in it."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr("specbench.types.CHECKOUT", tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_checkout_has_a_commit_and_a_flag_for_changes(checkout: Path) -> None:
    git(checkout, "init")
    assert git_state() is None
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "first", "--allow-empty", "--no-verify")
    assert git_state() == Git(commit=git(checkout, "rev-parse", "HEAD"), is_dirty=False)
    (checkout / "new.py").write_text("")
    state = git_state()
    assert state and state.is_dirty


def test_there_is_no_commit_outside_our_repository(
    checkout: Path,
) -> None:
    assert git_state() is None
    (checkout / "pyproject.toml").unlink()
    (checkout / ".git").mkdir()
    assert git_state() is None


def test_gpus_are_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(
        nvmlSystemGetDriverVersion="570.10",
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: f"GPU {handle}",
        nvmlDeviceGetMemoryInfo=types.SimpleNamespace(total=80 * 2**30),
        nvmlDeviceGetCudaComputeCapability=(9, 0),
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: MISSING if handle else 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first, second = gpus()
    assert first == Gpu(
        name="GPU 0",
        memory_bytes=80 * 2**30,
        driver="570.10",
        compute_capability="9.0",
        power_limit_w=700.0,
    )
    assert second.power_limit_w is None


def test_a_machine_without_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(nvmlSystemGetDriverVersion="NVML_ERROR_UNINITIALIZED")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpus() == []


def test_a_busy_machine_gives_a_warning_and_an_idle_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import psutil

    from specbench.machine import environment

    monkeypatch.setattr(psutil, "getloadavg", lambda: (3.7, 0.0, 0.0))
    monkeypatch.setattr(environment, "usable_threads", lambda: 2)
    assert "load 3.7 on 2 cores" in str(environment.busy_warning())
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.4, 0.0, 0.0))
    assert environment.busy_warning() is None
