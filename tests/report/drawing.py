"""Reports drawn at a fixed width, and the golden files to compare with.

`python -m tests.report.drawing` rewrites the golden files; review the difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from specbench.log.run import Run
from specbench.report.build import make_report
from specbench.report.export import load_format
from specbench.report.export.terminal import print_report
from specbench.report.report import Report
from specbench.types import Phases
from tests.analysis.run_factory import TASKS, TITLES, failed, full_run, header, make_run, record
from tests.judge.changing import with_records
from tests.support.headers import values_of

GOLDEN = Path(__file__).parent / "golden"


def drawn(run: Report | Run | Sequence[Run], width: int = 100, *, is_full: bool = True) -> str:
    """The terminal's text without colours and trailing blanks."""
    console = Console(
        width=width, file=StringIO(), force_terminal=True, color_system=None, highlight=False
    )
    report = run if isinstance(run, Report) else make_report(run)
    print_report(report, console, is_full=is_full)
    file = console.file
    assert isinstance(file, StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def render(run: Report | Run | Sequence[Run], form: str) -> str:
    """The text of a format."""
    return load_format(form).render(run if isinstance(run, Report) else make_report(run))


@cache
def report_of(make: "Make") -> Report:
    """The report of a run, made once for all tests of it."""
    return make_report(make())


def nine_methods() -> Run:
    return full_run(tuple(TITLES), prompts=[{"task": task} for task in TASKS])


def two_temperatures() -> Run:
    """Interrupted, with a lossy method, one without a checkpoint, a failure and a gap."""
    methods = ("vanilla", "pld", "lookahead", "medusa")
    tasks = ("gsm8k", "alpaca")
    prompts = [{"task": task, "num_available": 20} for task in tasks]
    run = full_run(methods, tasks, (0.0, 1.0), status="interrupted", prompts=prompts)
    header = values_of(run.header)
    header["no_checkpoint"] = ["eagle3"]
    header["methods"]["medusa"] = {"title": "Medusa", "is_lossless": False}
    header["methods"]["eagle3"] = {"title": "EAGLE-3"}
    header["warnings"] = ["The clock of the CPU changed during the run."]
    records = [
        r
        for r in run.records
        if not (r.key.method == "lookahead" and r.key.task == "alpaca" and r.key.temperature)
    ]
    lost = records.index(next(r for r in records if r.key.method == "pld"))
    records[lost] = failed("pld", "0", error="CUDA out of memory")
    other = records.index(next(r for r in records if r.key.method == "lookahead"))
    records[other] = replace(records[other], token_ids=(9,) * records[other].num_tokens)
    return make_run(records, header)


def two_models() -> list[Run]:
    """A model with all methods at two temperatures, and another with some at one."""
    model = {
        "name": "vicuna-13b", "label": "Vicuna 13B", "is_stand_in": False, "dtype": "float16",
        "source": "lmsys/vicuna-13b-v1.3", "revision": "6566e9cb1787585d1147dcf4f9bc48f29e1328d2",
    }  # fmt: skip
    tasks = ("mt_bench", "gsm8k")
    published = [{"task": task, "source": "paper"} for task in tasks]
    return [
        full_run(("vanilla", "pld", "eagle2"), tasks, (0.0, 1.0)),
        full_run(
            ("vanilla", "sps", "eagle3"),
            tasks,
            id="20261121-080000-vicuna-13b",
            model=model,
            prompts=published,
        ),
    ]


def two_machines() -> list[Run]:
    """The same model and methods on two GPUs, of which the second is faster."""
    runs = []
    for name, factor in (("NVIDIA A100 80GB", 1.0), ("NVIDIA H200", 0.6)):
        run = full_run(("vanilla", "pld", "eagle2"), ("mt_bench", "gsm8k"), id=f"on-{name[-4:]}")
        described = values_of(run.header)
        values = described["spec"]["values"] | {"device": "cuda"}
        described["spec"] = {"values": values, "given": []}
        gpus = [{"name": name, "memory_bytes": 80 * 2**30, "driver": "575.57.08"}]
        torch = {"version": "2.13.0", "devices": [name], "num_threads": 8}
        described["environment"] |= {"gpus": gpus, "torch": torch}
        records = [replace(r, decode_s=(r.decode_s or 0.0) * factor) for r in run.records]
        runs.append(make_run(records, described))
    return runs


def with_phases() -> Run:
    """A run that measured the phases of its steps, on a machine whose bandwidth is known."""
    run = full_run(("vanilla", "pld", "eagle2", "eagle3"), ("mt_bench", "gsm8k"))
    records = []
    for each in run.records:
        seconds = each.decode_s or 0.0
        draft = 0.0 if each.key.method == "vanilla" else 0.3
        phases = Phases(*(seconds * share for share in (draft, 0.9 - draft, 0.04, 0.05)))
        records.append(replace(each, phases=phases))
    return make_run(records, values_of(run.header) | {"roofline": ROOFLINE})


def with_limits() -> Run:
    """The same machine and methods, measured without phases."""
    return with_records(with_phases(), lambda each: replace(each, phases=None))


ROOFLINE = {
    "bandwidth_bytes_per_s": 2e11,
    "target_bytes": 26_000_000_000,
    "draft_bytes": {"vanilla": 0.0, "pld": 0.0, "eagle2": 4e9, "eagle3": 6e9},
}


def one_sample() -> Run:
    records = [record(decode_s=4.0), record("pld", decode_s=2.0, accept_lengths=[2, 1])]
    return make_run(records, header(["vanilla", "pld"], ("gsm8k",)))


def no_baseline() -> Run:
    return full_run(("pld", "sps"), ("gsm8k", "alpaca"), num_samples=5)


def all_failed() -> Run:
    records = [failed("vanilla"), failed("pld"), failed("pld", "b")]
    return make_run(records, header(["vanilla", "pld"], ("gsm8k",)))


Make: TypeAlias = Callable[[], Run | list[Run]]

EVERY_RUN: Sequence[Make] = (
    nine_methods, two_temperatures, one_sample, no_baseline, all_failed, make_run, two_models,
    two_machines,
)  # fmt: skip

GOLDENS: Mapping[str, Callable[[], str]] = {
    "two_temperatures_100.txt": lambda: drawn(report_of(two_temperatures), 100),
    "two_models_100.txt": lambda: drawn(report_of(two_models), 100),
    "screen_nine_methods_80.txt": lambda: drawn(report_of(nine_methods), 80, is_full=False),
    "screen_with_phases_80.txt": lambda: drawn(report_of(with_phases), 80, is_full=False),
    "two_temperatures.md": lambda: render(report_of(two_temperatures), "markdown"),
    "two_models.tex": lambda: render(report_of(two_models), "latex"),
    "one_sample.json": lambda: render(report_of(one_sample), "json"),
}

if __name__ == "__main__":
    for name, text in GOLDENS.items():
        (GOLDEN / name).write_text(text(), encoding="utf-8")
