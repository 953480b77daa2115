"""The parts of the suite, with their purpose, command, estimated time and time limit.

Knows commands. Runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.gpu import readers
from specbench.errors import UserError, unknown_name
from specbench.log.store import HEADER
from specbench.models.cards import find_model

MODELS = ("vicuna-13b", "llama3-8b", "vicuna-7b")
"""Models of the suite; the first one is measured most closely."""
TESTS = ("tests/engine", "tests/methods/test_heads.py", "tests/benchmarks/test_on_a_gpu.py")
"""Tests that run on a GPU."""
Command: TypeAlias = Callable[[Path, float], Sequence[str]]
"""Makes a command from a folder and the available seconds."""


@dataclass(frozen=True, slots=True)
class Part:
    """A process with its own folder.

    `estimate_s` is the approximate time on an H200; the process is killed after `limit_s`. `read`
    makes figures from the folder, however the process ended. A part with an `unavailable_reason`
    cannot run.
    """

    name: str
    settles: str
    estimate_s: float
    limit_s: float
    command: Command
    read: Callable[[Path], Mapping[str, Any]]
    unavailable_reason: str | None = None
    is_in_plan: bool = True
    is_in_suite: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all parts."""

    device: str = "cuda"
    dtype: str = "bfloat16"
    models: tuple[str, ...] = MODELS
    limit: int = 2
    max_new_tokens: int = 128
    contexts: tuple[int, ...] = (8192, 32768)

    def describe(self) -> dict[str, Any]:
        """Settings that figures depend on and that are not in a part's name."""
        return {
            "device": self.device, "dtype": self.dtype, "limit": self.limit,
            "max_new_tokens": self.max_new_tokens,
        }  # fmt: skip


def all_parts(settings: Settings) -> list[Part]:
    """Every part, the most important first."""
    first = settings.models[0]
    return [
        Part(
            "doctor", "trees and the baseline, on tiny", 40, 180,
            _module("specbench", "doctor", "--device", settings.device, "--offline"),
            readers.read_doctor, is_in_plan=False, is_in_suite=True,
        ),
        Part(
            "checks", "captures, attention's plans, products, overlapping launches", 120, 300,
            _in_folder(
                "benchmarks.gpu.checks", *_where(settings), "--model", first,
                "--max-new-tokens", str(settings.max_new_tokens),
                "--prompts", "1" if settings.device == "cpu" else "6",
            ),
            readers.read_figures, is_in_suite=True,
        ),
        Part("tests", "graphs and kernels", 120, 300, _tests(settings), readers.read_tests),
        *(_layers(settings, model) for model in settings.models),
        *(_suite(settings, model) for model in settings.models),
        Part(
            f"sampling-{_name(first)}", "every method at T = 1", 180, 400,
            _in_folder("benchmarks.gpu.suite", *_sizes(settings, first), "--temperature", "1"),
            readers.read_suite,
        ),
        *(
            Part(
                f"contexts-{_name(model)}", "steps far into a long context", 70, 200,
                _in_folder(
                    "benchmarks.gpu.contexts", *_where(settings), "--model", model,
                    "--contexts", *map(str, settings.contexts),
                ),
                readers.read_figures,
            )
            for model in settings.models[:2]
        ),
        Part(
            "report", "the tables and plots of all runs", 30, 180, _report, readers.read_nothing,
            is_in_plan=False, is_in_suite=True,
        ),
    ]  # fmt: skip


def select(
    parts: Sequence[Part], *, is_plan: bool, only: Sequence[str], first: str | None
) -> list[Part]:
    """The selected parts, in their order.

    Raises:
        UserError: no part has such a name.
    """
    for name in (*only, *([first] if first else [])):
        if not any(_is_called(part, name) for part in parts):
            raise unknown_name("part", name, [part.name for part in parts])
    if only:
        meant = [part for part in parts if any(_is_called(part, name) for name in only)]
    else:
        meant = [part for part in parts if (part.is_in_plan if is_plan else part.is_in_suite)]
    if first is None:
        return meant
    begin = next(i for i, part in enumerate(parts) if _is_called(part, first))
    later = [part for part in meant if parts.index(part) >= begin]
    if not later:
        raise UserError(f"No selected part comes after {first}.", "See --list.")
    return later


def _is_called(part: Part, name: str) -> bool:
    """True if `name` is the part's name or its kind."""
    return part.name == name or part.name.startswith(f"{name}-")


def _name(model: str) -> str:
    return Path(model).name


def _where(settings: Settings) -> tuple[str, ...]:
    return "--device", settings.device, "--dtype", settings.dtype


def _sizes(settings: Settings, model: str) -> tuple[str, ...]:
    limit, budget = str(settings.limit), str(settings.max_new_tokens)
    return (*_where(settings), "--model", model, "--limit", limit, "--max-new-tokens", budget)


def _module(module: str, *arguments: str) -> Command:
    return lambda folder, _: (sys.executable, "-m", module, *arguments)


def _in_folder(module: str, *arguments: str) -> Command:
    return lambda folder, _: (sys.executable, "-m", module, *arguments, "--folder", str(folder))


def _tests(settings: Settings) -> Command:
    """Run tests marked `gpu` and, with a GPU, those of the kernels, which then run on it."""
    wanted = ("-m", "gpu")
    if settings.device != "cpu":
        wanted = ("-k", "(gpu or kernels) and not compile")
    return _module("pytest", "-v", "-p", "no:cacheprovider", *wanted, *TESTS)


def _layers(settings: Settings, model: str) -> Part:
    unavailable_reason = None if find_model(model).shape else f"the shape of {model} is not known"
    return Part(
        f"layers-{_name(model)}", "speed of each operation of a layer", 50, 150,
        _module("benchmarks.layer_time", *_where(settings), "--model", model),
        readers.read_layers, unavailable_reason,
    )  # fmt: skip


def _suite(settings: Settings, model: str) -> Part:
    is_large = "13b" in model
    return Part(
        f"suite-{_name(model)}", "every method against its limit; graphs against eager",
        230 if is_large else 180, 450 if is_large else 360,
        _in_folder("benchmarks.gpu.suite", *_sizes(settings, model)), readers.read_suite,
        is_in_suite=True,
    )  # fmt: skip


def _report(folder: Path, seconds: float) -> Sequence[str]:
    """Report on the first run of every model so far."""
    runs = sorted(str(path.parent) for path in folder.parent.glob(f"suite-*/all/{HEADER}"))
    return (sys.executable, "-m", "specbench", "report", *runs, "--out", str(folder / "report"))
