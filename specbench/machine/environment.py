"""Describe the machine and the versions of a run, for `run.json`.

No path and no name of a user or host is ever recorded.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from specbench import types
from specbench.log.machine import Cpu, Environment, Git, Gpu, Torch
from specbench.machine.nvml import Card, driver
from specbench.machine.threads import usable_threads

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_LIBRARY",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Environment variables that change speed or numerics."""
BUSY = 0.5
"""The largest number of runnable processes per usable core before a run. With more, times are
noisy.
"""
BUSY_AT_START = "The machine was busy when the run began"


def capture() -> Environment:
    """The machine, the versions, and the settings of this process.

    `gpus` are all GPUs of the machine, `torch.devices` the GPUs that this process may use.
    """
    return Environment(
        specbench=types.VERSION,
        git=git_state(),
        python=platform.python_version(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu(),
        gpus=tuple(gpus()),
        torch=_torch(),
        transformers=metadata.version("transformers"),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def busy_warning() -> str | None:
    """A warning if other work keeps the processor busy, or None on a quiet machine."""
    import psutil

    load = psutil.getloadavg()[0]
    num_cores = usable_threads() or 1
    if load <= BUSY * num_cores:
        return None
    return f"{BUSY_AT_START} (load {load:.1f} on {num_cores} cores): times and speedups are noisy."


def with_one_start(warnings: Iterable[str]) -> list[str]:
    """The warnings, with consecutive ones of `busy_warning` joined into one.

    A run gets such a warning at its start, and at each resumption.
    """
    # The groups are the load in parentheses, and the end of the sentence.
    busy_start = re.compile(rf"{BUSY_AT_START} (\(.*?\))(: .*)")
    joined: list[str] = []
    for warning in warnings:
        earlier = busy_start.fullmatch(joined[-1]) if joined else None
        later = busy_start.fullmatch(warning)
        if earlier and later:
            joined[-1] = f"{BUSY_AT_START} {earlier[1]} and again later {later[1]}{earlier[2]}"
        else:
            joined.append(warning)
    return joined


def cpu() -> Cpu:
    """The processor and the machine's memory."""
    import psutil

    return Cpu(
        model=_cpu_model(),
        num_cores=psutil.cpu_count(logical=False),
        num_threads=psutil.cpu_count(),
        num_usable_threads=usable_threads(),
        memory_bytes=psutil.virtual_memory().total,
    )


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs of this machine as the driver lists them, or none if there is no driver."""
    with driver() as nvml:
        if nvml is None:
            return []
        try:
            version = nvml.nvmlSystemGetDriverVersion()
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return [_gpu(nvml, handle, version) for handle in handles]
        except nvml.NVMLError:
            return []


def git_state() -> Git | None:
    """The commit and dirty flag of the checkout that the package runs from, or None outside one.

    An installed package that happens to lie in somebody else's repository has no commit.
    """
    root = types.CHECKOUT
    if not ((root / ".git").exists() and (root / "pyproject.toml").is_file()):
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _output("git", "-C", str(root), "status", "--porcelain")
    return Git(commit=commit, is_dirty=changes is None or changes != "")


def _output(*command: str) -> str | None:
    """The output of a program, or None if it fails, is not installed, or takes too long."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def _gpu(nvml: Any, handle: Any, version: str) -> Gpu:
    query = Card(nvml, handle).query  # None for a query that the card does not answer
    capability = query("nvmlDeviceGetCudaComputeCapability")
    milliwatts = query("nvmlDeviceGetEnforcedPowerLimit")
    return Gpu(
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=version,
        compute_capability=capability and "{}.{}".format(*capability),
        power_limit_w=None if milliwatts is None else milliwatts / 1000,
    )


def _torch() -> Torch:
    import torch

    from specbench.engine.layers.torch_attention import attention_kernels, without_cudnn_attention

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with without_cudnn_attention():  # as in runs
        kernels = tuple(attention_kernels())
    return Torch(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        devices=tuple(torch.cuda.get_device_name(i) for i in range(num_gpus)),
        num_threads=torch.get_num_threads(),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        attention_kernels=kernels,
    )


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, model = line.partition(":")
            if key.strip() in {"model name", "Model", "cpu model"} and model.strip():
                return model.strip()
    if sys.platform == "darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
        if name is not None:
            return name
    return platform.processor() or platform.machine()
