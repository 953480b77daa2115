"""Times that no honest clock gives are found, and no recorded run is accused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as replace_part

from specbench.log.faults import find_faults
from specbench.log.machine import Threads
from specbench.log.store import read_run
from specbench.log.time_faults import LEAST_ANSWERS, LEAST_COPIES, LEAST_TIMES, find_time_faults
from specbench.types import Record
from tests.support.paths import BASELINE_RUN, RECORDED_RUNS
from tests.support.records import record

RUNS = [*RECORDED_RUNS, BASELINE_RUN]


TOKENS = tuple(range(10))


def honest(num_prompts: int = 6, num_passes: int = 3) -> list[Record]:
    """Passes over prompts, with times that differ by a few percent as on a real machine."""
    generator = np.random.default_rng(0)
    records = []
    for pass_number in range(num_passes):
        for number in range(num_prompts):
            answer = record(number, token_ids=TOKENS, accept_lengths=(3, 3, 3), num_nodes=(4,) * 3)
            records.append(
                replace(
                    answer,
                    key=replace(answer.key, repeat=pass_number),
                    prefill_s=float(generator.normal(0.02, 0.001)),
                    decode_s=float(generator.normal(0.5, 0.02)),
                )
            )
    return records


def copied(records: Sequence[Record], jitter: float = 0.0, num: int = 6) -> list[Record]:
    """The records. The first `num` answers of the second pass have the times of the first pass."""
    first = [answer for answer in records if answer.key.repeat == 0][:num]
    keys = {replace(answer.key, repeat=1): answer for answer in first}
    factor = 1 + jitter
    return [
        replace(
            answer,
            prefill_s=(keys[answer.key].prefill_s or 0) * factor,
            decode_s=(keys[answer.key].decode_s or 0) * factor,
        )
        if answer.key in keys
        else answer
        for answer in records
    ]


def rounded(records: Sequence[Record], tick_s: float) -> list[Record]:
    def multiple(seconds: float | None) -> float:
        return max(1, round((seconds or 0.0) / tick_s)) * tick_s

    return [
        replace(answer, prefill_s=multiple(answer.prefill_s), decode_s=multiple(answer.decode_s))
        for answer in records
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda records: records, ""),
        (copied, "pld:ngram=2: passes 1 and 2 have the same times in 6 requests"),
        (lambda records: copied(records, jitter=1e-6), "same times in 6 requests"),
        (lambda records: copied(records, jitter=1.6e-3), ""),
        (lambda records: copied(records, num=LEAST_COPIES), "same times in 2 requests"),
        (lambda records: copied(records, num=LEAST_COPIES - 1), ""),
        (
            lambda records: [replace(answer, token_ids=(1, 2)) for answer in copied(records)],
            "",  # so short that times may be equal by chance
        ),
        (lambda records: rounded(records, 1e-6), ""),  # as the times of servers are stored
        (lambda records: rounded(records, 1e-3), "multiples of 1 ms"),
        (lambda records: rounded(records, 0.015625), "multiples of 15.625 ms"),
        (lambda records: rounded(records[: LEAST_TIMES // 2 - 1], 1e-3), ""),
        (
            lambda records: [replace(answer, prefill_s=0.5, decode_s=0.5) for answer in records],
            "multiples of 500 ms",
        ),
        (lambda records: [replace(answer, outer_s=0.9) for answer in records], ""),
        (
            lambda records: [*records[:-1], replace(records[-1], outer_s=0.01)],
            "outer_s is less than prefill_s + decode_s in 1 records, first in pld:ngram=2",
        ),
    ],
)
def test_times_that_no_honest_clock_gives_are_found(
    change: Callable[[Sequence[Record]], list[Record]], fault: str
) -> None:
    faults = "\n".join(find_time_faults(change(honest())))
    assert fault in faults
    assert bool(faults) == bool(fault)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_no_recorded_run_is_accused(path: Path) -> None:
    """A run whose requests are drawn anew, without repetition, is not accused either."""
    run = read_run(path)
    assert [*find_faults(run.header, run.records)] == []
    requests = sorted({answer.key.request for answer in run.records}, key=str)
    generator = np.random.default_rng(1)
    for _ in range(20):
        drawn = {requests[index] for index in generator.integers(len(requests), size=len(requests))}
        kept = [answer for answer in run.records if answer.key.request in drawn]
        assert [*find_time_faults(kept)] == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"limit": None}, "gsm8k has 12 of 16 prompts, but the run has no limit."),
        ({"limit": 12}, ""),
        ({"sample": 12}, ""),
        ({"limit": 12, "repeats": 5}, "The run has 5 passes, but records for 3."),
        ({"limit": 12, "repeats": 5, "until_ci": 0.02}, ""),
    ],
)
def test_prompts_and_passes_that_are_left_out_are_found(
    changes: dict[str, object], fault: str
) -> None:
    run = read_run(RUNS[-1])
    spec = run.header.spec
    values = {"limit": None, "sample": None, "repeats": 3, "until_ci": None, **changes}
    prompts = [
        replace_part(prompts_header, num_prompts=12, num_available=16)
        if prompts_header.task == "gsm8k"
        else prompts_header
        for prompts_header in run.header.prompts
    ]
    header = replace_part(
        run.header,
        spec=replace_part(spec, values=replace_part(spec.values, **values)),
        prompts=tuple(prompts),
    )
    records = [
        replace(answer, key=replace(answer.key, repeat=pass_number))
        for answer in run.records
        for pass_number in range(3)
        if answer.key.repeat == 0
    ]
    faults = [
        fault for fault in find_faults(header, records) if "limit" in fault or "passes" in fault
    ]
    assert (
        (fault in faults) if fault else not [fault for fault in faults if "same times" not in fault]
    )


@pytest.mark.parametrize(
    ("most_nodes", "options", "is_found"),
    [(8, {}, True), (64, {}, False), (0, {}, False), (0, {"total_tokens": 8}, True)],
)
def test_trees_that_are_larger_than_the_options_allow_are_found(
    most_nodes: int, options: dict[str, int], *, is_found: bool
) -> None:
    """Headers of older versions do not have the largest number of nodes."""
    run = read_run(RUNS[-1])
    method = replace_part(run.header.methods["pld"], most_nodes=most_nodes, options=options)
    header = replace_part(run.header, methods={**run.header.methods, "pld": method})
    answer = next(answer for answer in run.records if answer.key.method == "pld")
    large = replace(answer, num_nodes=(64,) * len(answer.accept_lengths))
    faults = [fault for fault in find_faults(header, [large]) if "a tree has 64 nodes" in fault]
    assert bool(faults) == is_found
    assert all(f"{answer.key.sample_id}, turn 1, pass 1 at T=" in fault for fault in faults)


@pytest.mark.parametrize(
    ("factor", "vanilla_factor", "is_found"),
    [(1.0, 1.0, False), (3.5, 1.0, True), (3.5, 2.0, False)],
)
def test_steps_that_are_far_slower_than_in_their_trial_are_found(
    factor: float, vanilla_factor: float, *, is_found: bool
) -> None:
    """If vanilla's steps are slower too, the machine is slower, and the times have no fault."""
    trials = {"vanilla": 0.01, "pld": 0.015}
    factors = {"vanilla": vanilla_factor, "pld": factor}
    threads = Threads(
        2, "measured", "brief", step_s={"2": 0.01}, method_step_s={"pld": {"2": 0.015}}
    )
    answers = [
        replace(
            record(number),
            key=replace(record(number).key, method=method),
            decode_s=trials[method] * factors[method] * 2 * (1 + number / 1000),
            accept_lengths=(1, 1),
            num_nodes=(3, 3),
        )
        for number in range(LEAST_ANSWERS)
        for method in trials
    ]
    faults = [*find_time_faults(answers, threads)]
    assert bool(faults) == is_found
    if is_found:
        assert (
            "pld: a step took 52.7 ms; relative to vanilla's step, it took 3.5 times as long"
            in faults[0]
        )
    assert not [*find_time_faults(answers[: 2 * LEAST_ANSWERS - 2], threads)]
    several_sizes = [replace(answers[1], num_nodes=(3, 9)), *answers]
    assert not [*find_time_faults(several_sizes, threads)]
    trial = {"2": 0.015}  # for both methods: their trees are equally large
    shared = replace_part(threads, method_step_s={"pld": trial, "sps": trial})
    assert not [*find_time_faults(answers, shared)]


def test_prompts_of_the_hub_may_be_fewer_than_its_rows() -> None:
    """A card takes the first 80 prompts of a data set, without any option."""
    run = read_run(RUNS[-1])
    prompts = [
        replace_part(prompts_header, source="hub", num_available=1319)
        for prompts_header in run.header.prompts
    ]
    values = replace_part(run.header.spec.values, limit=None)
    spec = replace_part(run.header.spec, values=values)
    header = replace_part(run.header, prompts=tuple(prompts), spec=spec)
    assert not [fault for fault in find_faults(header, run.records) if "no limit" in fault]


def test_a_time_of_any_size_has_a_tick() -> None:
    endless = [replace(record, decode_s=1e300) for record in honest()]
    assert not [fault for fault in find_time_faults(endless) if "too coarse" in fault]
