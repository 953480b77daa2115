"""The rows of the suite, and the order in which they are run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from benchmarks.gpu import sglang
from benchmarks.gpu.row import PASSED_TESTS, Figures, Row
from specbench.errors import unknown_name
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model

MODELS = ("vicuna-13b", "llama3-8b", "vicuna-7b")
"""Models of the suite. The first one has the most rows, and its run is recorded."""
TESTS = {
    "tests-kernels": ("tests/engine/kernels",),
    "tests-steps": (
        "tests/engine", "tests/methods/test_heads.py", "tests/benchmarks/test_on_a_gpu.py",
        "--ignore=tests/engine/kernels",
    ),
}  # fmt: skip
"""pytest's arguments for each row of tests.

They test graph captures, and races between overlapped launches.
"""
SELECTED = "(gpu or kernels) and not (compile or native)"
"""Expression of pytest's -k: tests that need a GPU, and tests of kernels that can run on one."""
TASK = ("gsm8k",)
"""The task of the runs that only explain other runs."""
RECORDED_PROMPTS = 4
"""Prompts per task of the run to record."""
METHODS = (
    "vanilla", "sps", "pld", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3",
    "recycling", "sam", "suffix",
)  # fmt: skip
"""Methods of the run to record. EAGLE-2 and EAGLE-3 have the trees of Spec-Bench (60 nodes, 6
levels)."""
TREES_OF_PAPERS = ("eagle2:total_tokens=50,depth=5", "eagle3:total_tokens=50,depth=7")
"""The trees of the papers: 50 nodes in 6 and 8 levels. `depth` counts levels below the first."""
EXPLAINED = ("vanilla", "eagle2", "eagle3")
"""Methods of the runs that explain where the time of a step goes."""
SAMPLED = ("vanilla", "sps", "eagle2", "eagle3")
"""Methods of the run at T = 1."""
METERED = ("vanilla", "sps", "pld", "eagle2", "eagle3")
"""Methods of the run that measures energy."""
OTHERS_MODEL = "llama3-8b"
"""The model for which SGLang publishes figures."""
HALF_OF_MIXTRAL = "benchmarks/gpu/shapes/half-of-mixtral-8x7b"
"""Mixtral 8x7B with half of its layers, because the 93 GB of all layers do not fit into 80 GB."""
REAL_MODEL = "smollm2-135m"
"""The model whose real weights come in a package, without the Hub."""


class Part(NamedTuple):
    """A variant of a run that explains a part of its speed."""

    kind: str
    settles: str
    usual_s: float
    changes: dict[str, Any]
    """Values of the spec that differ from the run's."""


PARTS = (
    Part("phases", "the host's part of a step", 40, {"phases": True}),
    Part("torch", "torch's operations, captured", 40, {"kernels": "torch"}),
    Part("plain", "kernels without overlap", 40, {"kernels": "plain"}),
)
EAGER = Part("eager", "steps without graphs", 60, {"execution": "eager"})


def all_rows(given: argparse.Namespace) -> list[Row]:
    """Every row, in order of importance. The first rows fit into half an hour."""
    first, *others = given.model
    rows = [
        *_preparing(given),
        *_recorded(first, given),
        *_explaining(first, given),
        *_published(first, given),
        _energy(first, given),
        *_candidates(first, given),
        *_looked_at(first, given),
    ]
    rows += [replace(row, is_required=False) for model in others for row in _of_model(model, given)]
    if given.device == "cpu":  # nothing to compile, and no test would run
        rows = [row for row in rows if row.kind not in ("kernels", "tests")]
    return rows


def _preparing(given: argparse.Namespace) -> list[Row]:
    """Rows that show that the code is right on this card."""
    models = [word for model in given.model for word in ("--model", model)]
    tiny = RunSpec(
        "tiny", limit=given.limit, max_new_tokens=given.max_new_tokens, device=given.device,
        dtype="float32", temperatures=(0.0, 1.0), repeats=1,
    )  # fmt: skip
    return [
        Row("kernels", "all kernels, compiled in parallel", 90, is_required=False,
            figures=Figures("log.txt", r"\b(\d+) of \1 kernels"), command=(
            "benchmarks.gpu.kernels", "--dtype", given.dtype, *models,
        )),
        Row("doctor", "the baseline, and each kind of kernels, on tiny", 40, command=(
            "specbench", "doctor", "--device", given.device, "--offline",
        )),
        *(
            Row(name, "captures, races, kernels", 120, figures=PASSED_TESTS, command=(
                "pytest", "-v", "-p", "no:cacheprovider", "-k", SELECTED, *files,
            ))
            for name, files in TESTS.items()
        ),
        *([] if "tiny" in given.model else _checked("tiny", tiny, "captures in float32", 80, 60)),
    ]  # fmt: skip


def _checked(name: str, spec: RunSpec, settles: str, run_s: float, audit_s: float) -> list[Row]:
    """A run, and the audit of its tokens."""
    run = f"run-{name}"
    return [Row(run, settles, run_s, spec), _audit(run, audit_s)]


def _audit(run: str, usual_s: float) -> Row:
    """The audit of a run's tokens. "run-tiny" is audited by "audit-tiny"."""
    kind, _, name = run.partition("-")
    named = f"audit-{name}" if kind == "run" else f"audit-{run}"
    command = ("specbench", "audit", f"{{}}/../{run}")
    return Row(named, "the audit of the run's tokens", usual_s, command=command, after=run)


def _spec(model: str, given: argparse.Namespace) -> RunSpec:
    """The spec that a model's runs start from. A model without weights here uses a stand-in."""
    has_weights = find_model(model).is_embedded or model == REAL_MODEL
    return RunSpec(
        model, limit=given.limit, max_new_tokens=given.max_new_tokens, device=given.device,
        dtype=given.dtype, repeats=1, weights="hub" if has_weights else "stand-in",
    )  # fmt: skip


def _recorded(model: str, given: argparse.Namespace) -> list[Row]:
    """The run to record, its audit and its report."""
    name = Path(model).name
    run = f"record-{name}"
    spec = structs.replace(
        _spec(model, given), limit=min(RECORDED_PROMPTS, given.limit) if name == "tiny" else
        RECORDED_PROMPTS, repeats=3, methods=(*METHODS, *TREES_OF_PAPERS),
    )  # fmt: skip
    return [
        Row(run, "the run to record: four prompts per task, three passes", 360, spec),
        _audit(run, 150),
        Row("report", "its tables and plots", 20, after=run,
            figures=Figures("report/table.md", r"\d"), command=(
            "specbench", "report", f"{{}}/../{run}", "--out", "{}/report",
        )),
    ]  # fmt: skip


def _explaining(model: str, given: argparse.Namespace) -> list[Row]:
    """Runs of a few methods that show where the time of a step goes."""
    spec = structs.replace(_spec(model, given), tasks=TASK, methods=EXPLAINED)
    return [_part(part, Path(model).name, spec) for part in PARTS]


def _part(part: Part, name: str, spec: RunSpec) -> Row:
    spec = structs.replace(spec, **part.changes)
    return Row(f"{part.kind}-{name}", part.settles, part.usual_s, spec, is_required=False)


def _published(model: str, given: argparse.Namespace) -> list[Row]:
    """Rows on published figures, T = 1, long contexts, mixtures of experts, and real weights."""
    name = Path(model).name
    one_task = structs.replace(_spec(model, given), tasks=TASK)
    sampled = structs.replace(one_task, temperatures=(1.0,), methods=SAMPLED)
    rows = [Row(f"sampling-{name}", "T = 1", 60, sampled, is_required=False)]
    if given.device == "cpu":
        return [*rows, _contexts(model, given)]
    run = f"sglang-{OTHERS_MODEL}"
    trees = structs.replace(
        _spec(OTHERS_MODEL, given), tasks=TASK, methods=("vanilla", *sglang.TREES)
    )
    experts = structs.replace(_spec(HALF_OF_MIXTRAL, given), tasks=TASK, methods=EXPLAINED)
    real = structs.replace(
        _spec(REAL_MODEL, given), methods=("vanilla", "eagle3", "sam"), temperatures=(0.0, 1.0)
    )
    checked = _checked(REAL_MODEL, real, "real weights, from a package", 70, 50)
    return [
        Row(run, "SGLang's trees, beside its published figures", 50, trees, is_required=False),
        Row("table-sglang", "the calculation", 10, is_required=False, after=run, command=(
            "benchmarks.gpu.sglang", f"{{}}/../{run}",
        )),
        *rows,
        _contexts(OTHERS_MODEL, given),
        Row("experts-half-of-mixtral", "mixtures of experts", 60, experts, is_required=False),
        *(replace(row, is_required=False) for row in checked),
    ]  # fmt: skip


def _contexts(model: str, given: argparse.Namespace) -> Row:
    contexts = ["64"] if find_model(model).is_embedded else map(str, given.contexts)
    return Row(f"contexts-{Path(model).name}", "steps far into a long context", 60,
        figures=Figures("contexts.jsonl", "step_ms"), command=(
        "benchmarks.gpu.contexts", *_where(model, given), "--out", "{}/contexts.jsonl",
        "--contexts", *contexts,
    ), is_required=False)  # fmt: skip


def _where(model: str, given: argparse.Namespace) -> tuple[str, ...]:
    """The arguments of a command that name its device, dtype and model."""
    return ("--device", given.device, "--dtype", given.dtype, "--model", model)


def _energy(model: str, given: argparse.Namespace) -> Row:
    spec = structs.replace(_spec(model, given), tasks=TASK, methods=METERED, energy=True)
    return Row(f"energy-{Path(model).name}", "energy of five methods", 90, spec, is_required=False)


def _candidates(model: str, given: argparse.Namespace) -> list[Row]:
    """The row of kernels that wait for a measurement. On a CPU it needs Triton's interpreter."""
    sizes = ("--rows", "2", "--cached", "16") if given.device == "cpu" else ()
    if sizes and find_spec("triton") is None:
        return []
    return [Row(f"products-{Path(model).name}", "a candidate for products of 16 to 64 rows", 90,
        figures=Figures("products.jsonl", "stages.*gain"), command=(
        "benchmarks.gpu.candidates", *_where(model, given), *sizes, "--out", "{}/products.jsonl",
    ), is_required=False)]  # fmt: skip


def _looked_at(model: str, given: argparse.Namespace) -> list[Row]:
    """Rows about the first model that do not fit into the first half hour."""
    name = Path(model).name
    one_task = structs.replace(_spec(model, given), tasks=TASK, methods=EXPLAINED)
    compared = [part for part in (*PARTS, EAGER) if "phases" not in part.changes]  # has no speedup
    runs = [f"{part.kind}-{name}" for part in compared]
    rows = [
        _part(EAGER, name, one_task),
        Row(f"compare-{name}", "kinds of kernels side by side", 30, is_required=False,
            after=runs[-1],
            command=("specbench", "compare", *(f"{{}}/../{run}" for run in runs))),
    ]  # fmt: skip
    return [*rows, *_layers(model, given)]


def _layers(model: str, given: argparse.Namespace) -> list[Row]:
    if find_model(model).shape is None:
        return []
    return [Row(f"layers-{Path(model).name}", "speed of each operation of a layer", 60,
        figures=Figures("layers.jsonl", r"\S"), command=(
        "benchmarks.layer_time", *_where(model, given), "--out", "{}/layers.jsonl",
    ), is_required=False)]  # fmt: skip


def _of_model(model: str, given: argparse.Namespace) -> list[Row]:
    """The rows of a further model: every method, its audit, its layers."""
    spec = _spec(model, given)
    checked = _checked(Path(model).name, spec, "every method against its bandwidth bound", 200, 100)
    return [*checked, *_layers(model, given)]


def select(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """The rows whose name or kind is in `only`, or all rows if `only` is empty.

    Raises:
        UserError: no row has such a name.
    """
    for name in only:
        if not any(name in (row.name, row.kind) for row in rows):
            raise unknown_name("row", name, [row.name for row in rows])
    return [row for row in rows if not only or {row.name, row.kind} & {*only}]
