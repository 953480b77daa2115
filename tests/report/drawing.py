"""Reports drawn at a fixed width, and the golden files that they are compared with.

`python -m tests.report.drawing` rewrites the golden files. Review the difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from specbench.log.backend import BlockHeader
from specbench.log.run import Load, Run
from specbench.report.build import make_report
from specbench.report.export import load_format
from specbench.report.export.terminal import print_report
from specbench.report.results import Report
from specbench.types import Phases, Record
from tests.analysis.run_factory import TASKS, TITLES, failed, full_run, header, make_run, record
from tests.analysis.test_serving import answer, block
from tests.analysis.test_serving import run as run_at_loads
from tests.judge.changing import with_header, with_records
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.headers import values_of
from tests.support.printing import printed

GOLDEN = Path(__file__).parent / "golden"


def drawn(run: Report | Run | Sequence[Run], width: int = 100, *, is_full: bool = True) -> str:
    """The terminal's text without colours and trailing blanks."""
    report = run if isinstance(run, Report) else make_report(run)
    text = printed(lambda console: print_report(report, console, is_full=is_full), width)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def render(run: Report | Run | Sequence[Run], form: str) -> str:
    """The text of a report in a format."""
    return load_format(form).render(run if isinstance(run, Report) else make_report(run))


@cache
def report_of(make: "Make") -> Report:
    """The report of a run, which all tests share."""
    return make_report(make())


def nine_methods() -> Run:
    return full_run(tuple(TITLES), prompts=[{"task": task} for task in TASKS])


def two_temperatures() -> Run:
    """An interrupted run with an audit, a lossy method, a method without a checkpoint, and gaps."""
    methods = ("vanilla", "pld", "lookahead", "medusa")
    tasks = ("gsm8k", "alpaca")
    prompts = [{"task": task, "num_available": 20} for task in tasks]
    run = full_run(methods, tasks, (0.0, 1.0), status="interrupted", prompts=prompts)
    header = values_of(run.header)
    header["spec"]["values"]["limit"] = 8
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
    audit = stored_audit(failed_audit("pld", 1.0, 2.0), records_sha256="ab")
    return replace(make_run(records, header), audit=audit)


def two_models() -> list[Run]:
    """Two models: one with all methods at two temperatures, another with some methods at one."""
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


def with_phases() -> Run:
    """A run that measured the phases of its steps, on a machine whose bandwidth is known.

    Vanilla's step takes 2.5 ms. Reading its weights would take 1 ms of these.
    """
    run = full_run(("vanilla", "pld", "eagle2", "eagle3"), ("mt_bench", "gsm8k"), roofline=ROOFLINE)

    def phased(record: Record) -> Record:
        draft = 0.0 if record.key.method == "vanilla" else 0.3
        shares = (draft, 0.9 - draft, 0.04, 0.05)
        return replace(
            record, phases=Phases(*(share * (record.decode_s or 0.0) for share in shares))
        )

    return with_records(run, phased)


def with_limits() -> Run:
    """A run on the same machine with the same methods, without phases. Its header describes their
    execution in full.
    """
    run = with_records(with_phases(), lambda record: replace(record, phases=None))
    modes = {name: {"mode": "graph"} for name in run.header.methods}
    run = with_header(
        run,
        cpu=USE,
        execution={**modes, "pld": {"mode": "eager", "reason": "no such kernel"}},
        kernels={"name": "triton 3.6.0"},
        model__is_stand_in=True,
        threads={"num": 1, "chosen_by": "measured", "waiting": "brief", "prefill": 2},
        threads__methods={"vanilla": 1, "eagle3": 2},
        threads__method_step_s={"eagle3": {"1": 0.004, "2": 0.002}},
    )
    return replace(run, audit=stored_audit(passed_audit("eagle2", 0.0)))


ROOFLINE = {
    "bandwidth_bytes_per_s": 3e9,
    "target_bytes": 3_000_000,
    "cache_bytes": 1_000_000,
    "kv_bytes_per_token": 1000,
    "block_bytes": 64_000_000,
    "draft_bytes": {"vanilla": 0.0, "pld": 0.0, "eagle2": 3e5, "eagle3": 4e5},
}
USE = {
    "num_samples": 60,
    "interval_s": 1.0,
    "share_of_others": {"min": 0.0, "mean": 0.008, "max": 0.05},
    "clock_mhz": {"min": 2400.0, "mean": 2550.2, "max": 2600.0},
}
LOADS = (Load(concurrency=1), Load(concurrency=8), Load(request_rate=2.5))


def served(*, num_retries: int = 0, **more: Any) -> Run:
    """EAGLE-3 is twice as fast as vanilla at one request, and slower at eight."""
    records: list[Record] = []
    blocks: list[BlockHeader] = []
    for load, ratio in zip(LOADS, (2.0, 0.8, 1.0), strict=True):
        for method, speed in (("vanilla", 1.0), ("eagle3", ratio)):
            counts: dict[str, Any] = {"num_accepted": 5, "num_drafts": 4}
            figures = {**counts, "num_retries": num_retries} if method == "eagle3" else {}
            records += [answer(method, i, load, wall_s=1 / speed, **figures) for i in range(4)]
            blocks.append(block(method, load, duration_s=4 / speed, **more))
    server = {
        "url": "http://127.0.0.1:8000",
        "software": "vLLM 0.32.0",
        "model": "tiny",
        "protocol": "completions",
    }
    run = run_at_loads(records, blocks, LOADS, goodput="ttft:60")
    busy = {**USE, "share_of_others": {"min": 0.1, "mean": 0.6, "max": 0.9}}  # by the servers
    return with_header(run, servers={"eagle3": server}, cpu=busy)


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
)  # fmt: skip

GOLDENS: Mapping[str, Callable[[], str]] = {
    "two_temperatures_100.txt": lambda: drawn(report_of(two_temperatures), 100),
    "two_models_100.txt": lambda: drawn(report_of(two_models), 100),
    "with_limits_100.txt": lambda: drawn(report_of(with_limits), 100),
    "screen_nine_methods_80.txt": lambda: drawn(report_of(nine_methods), 80, is_full=False),
    "screen_with_phases_80.txt": lambda: drawn(report_of(with_phases), 80, is_full=False),
    "two_temperatures.md": lambda: render(report_of(two_temperatures), "markdown"),
    "served.md": lambda: render(report_of(served), "markdown"),
    "two_models.tex": lambda: render(report_of(two_models), "latex"),
    "one_sample.json": lambda: render(report_of(one_sample), "json"),
}

if __name__ == "__main__":
    for name, text in GOLDENS.items():
        (GOLDEN / name).write_text(text(), encoding="utf-8")
