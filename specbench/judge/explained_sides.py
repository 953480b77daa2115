"""One side of an explanation: a method's answers in a run, at one temperature and load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specbench.analysis.answer_pairs import (
    AnswerPairs,
    Answers,
    Arithmetic,
    PromptTurn,
    one_per_second,
)
from specbench.analysis.bin_ratios import PlacedSteps
from specbench.analysis.records import BASELINE, PHASES, RecordTable
from specbench.analysis.roofline import Roofline, read_roofline
from specbench.analysis.stats.arrays import BoolArray, FloatArray, IntArray
from specbench.analysis.survivors import find_survivors
from specbench.analysis.tables import TabledRun
from specbench.log.backend import BlockHeader
from specbench.log.header import RunHeader
from specbench.log.imported import OUR_RULE
from specbench.log.machine import UNKNOWN
from specbench.log.run import BlockKey, Load, Run, block_key

if TYPE_CHECKING:
    from pandas import DataFrame

NODES_OF_STEP = "nodes of a step"
"""The name of a measured size: the nodes of the draft tree, as a mean over an answer's steps."""


class SideKey(NamedTuple):
    """The part of a run that is explained."""

    method: str
    """The method, spelled as in records."""
    temperature: float
    load: Load


class AnswerCounts(NamedTuple):
    """Tokens and steps of an answer. NaN stands for an unknown number."""

    turn: PromptTurn
    num_tokens: float
    num_steps: float


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedSide:
    """The answers of a method, with facts about them."""

    run: Run
    """The run, at one load."""
    key: SideKey
    pairs: AnswerPairs
    """The method's answers that count, each with vanilla's answer if `pairs.has_baseline`."""
    measured: Mapping[str, FloatArray]
    """Name in words -> measured lengths of prompts or answers, or sizes of drafts [requests]."""
    phases: Mapping[str, float]
    """The share of each phase in a step; empty if phases were not timed."""
    reading_s: float | None
    """Seconds to read the target's weights; None if unknown, or if memory is not the limit."""
    table: RecordTable
    """The records of the run."""
    rows: IntArray
    """The rows of the answers in this table [requests]."""

    @property
    def header(self) -> RunHeader:
        return self.run.header

    @property
    def turns(self) -> set[PromptTurn]:
        """The prompts and turns that count."""
        return {*self.pairs.turns}

    @property
    def counts(self) -> set[AnswerCounts]:
        """The tokens and steps of the answers in all passes, without duplicates."""
        method = self.pairs.method
        return {*map(AnswerCounts, self.pairs.turns, method.tokens.tolist(), method.steps.tolist())}

    def steps_of(self, turns: Collection[PromptTurn]) -> PlacedSteps:
        """The steps of the answers to these turns of prompts."""
        # Prompts are numbered only from `turns`, so that both sides number them alike.
        prompts = sorted({(turn.task, turn.sample_id) for turn in turns})
        number_of = {prompt: number for number, prompt in enumerate(prompts)}
        is_kept = np.array([turn in turns for turn in self.pairs.turns])  # [requests]
        kept_turns = self.pairs.where(is_kept).turns
        prompt_numbers = [number_of[turn.task, turn.sample_id] for turn in kept_turns]
        prompt_of_row = np.array(prompt_numbers, dtype=np.intp)
        return PlacedSteps.of(self.table, self.rows[is_kept], prompt_of_row)

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.header.method(self.key.method).label

    @property
    def counting(self) -> str:
        """The counting rules of the method's answers and of the baseline's, each once."""
        if self.header.imported is None:
            return OUR_RULE
        methods = [self.key.method, *([BASELINE] if self.pairs.has_baseline else [])]
        labels = [self.header.method(method).label for method in methods]
        rules = self.header.imported.counting
        return "; ".join(dict.fromkeys(rules.get(label, UNKNOWN) for label in labels))

    @property
    def temperature_text(self) -> str:
        """The temperature; "unknown" if another tool's files do not give it."""
        is_untold = "spec.temperatures" in self.header.untold_patterns
        return UNKNOWN if is_untold else f"{self.key.temperature:g}"

    @property
    def load_text(self) -> str:
        """The load in words; empty if it is unknown."""
        imported = self.header.imported
        is_known = imported is None or imported.tells_load
        return (self.key.load.text or "1 request at a time") if is_known else ""

    @property
    def no_times(self) -> str:
        """The reason why times of this side are not evidence; empty if they may be used."""
        if self.phases:
            return "the phases of steps were timed, which slows them down"
        has_times = bool(np.isfinite([self.pairs.method.wall_s, self.pairs.vanilla.wall_s]).all())
        return "" if has_times else f"the files of {self.header.id} have no times"


@dataclass(frozen=True, slots=True, eq=False)
class CountedRun:
    """A run with its table, and the rows that its report counts."""

    tabled: TabledRun
    is_counted: BoolArray
    """True for answers to requests that every ranked method finished without a pause [records]."""

    @classmethod
    def of(cls, tabled: TabledRun) -> CountedRun:
        return cls(tabled, find_survivors(tabled.table.frame).is_shared)

    def rows(self, key: SideKey) -> IntArray:
        """The numbers of the rows that count for a method at a temperature."""
        frame = self.tabled.table.frame  # a row per record, all at one load
        is_side = (frame["method"] == key.method) & (frame["temperature"] == key.temperature)
        return np.flatnonzero(is_side.to_numpy() & self.is_counted)

    def has_baseline(self, key: SideKey) -> bool:
        """True if vanilla answered any request that the method answered."""
        (baseline_rows,) = self.tabled.table.values(self.rows(key), "baseline_row")
        return bool((baseline_rows >= 0).any())


def make_side(
    counted_run: CountedRun, key: SideKey, *, is_over_baseline: bool, is_throughput: bool
) -> ExplainedSide:
    """One side of an explanation: the answers of a method that count, with facts about them.

    Args:
        counted_run: a run at one load, with the rows that count.
        key: the method, the temperature and the load.
        is_over_baseline: True if the explained number compares the method with vanilla, as a
            speedup does. Then answers without vanilla's to the same request are left out. False if
            the number is a rate.
        is_throughput: True if the number divides by the seconds of blocks (the requests that a
            server completes together); False if it divides by the seconds of single requests.
    """
    tabled = counted_run.tabled
    run, table = tabled.run, tabled.table
    rows = counted_run.rows(key)  # numbers of the method's rows in the table: [requests]
    # Row of vanilla's answer (-1 without one), and number of the pass or run: [requests] each.
    baseline_rows, units = table.values(rows, "baseline_row", "unit")
    if is_over_baseline:
        has_baseline = baseline_rows >= 0
        rows, baseline_rows, units = (
            column[has_baseline] for column in (rows, baseline_rows, units)
        )
    # Only a throughput is made from the seconds of blocks.
    blocks = {block_key(block): block for block in run.header.blocks if is_throughput}
    pairs = AnswerPairs(
        requests=[table.records[row].key.request for row in rows],
        method=_answers(tabled, rows, blocks),
        # In place of vanilla, answers of 1 token/s make the speedup the rate in tokens/s.
        vanilla=_answers(tabled, baseline_rows, blocks)
        if is_over_baseline
        else one_per_second(len(rows)),
        units=units,
        has_baseline=is_over_baseline,
        arithmetic=_arithmetic(run.header, is_throughput=is_throughput),
    )
    roofline = read_roofline(run.header.roofline, run.records, run.header.threads)
    reading_s = None  # seconds in which the machine reads the target's weights
    if isinstance(roofline, Roofline) and not roofline.no_bound:  # memory limits the speed
        reading_s = roofline.target_bytes / roofline.bandwidth
    return ExplainedSide(
        run=run,
        key=key,
        pairs=pairs,
        measured=_measured(tabled, rows),
        phases=_phases(table.frame.iloc[rows]),
        reading_s=reading_s,
        table=table,
        rows=rows,
    )


def _arithmetic(header: RunHeader, *, is_throughput: bool) -> Arithmetic:
    """The average that gives the number in the run's report or, if imported, its publisher's."""
    if is_throughput:
        return "totals"
    return header.imported.average if header.imported else "tasks"


def _answers(tabled: TabledRun, rows: IntArray, blocks: Mapping[BlockKey, BlockHeader]) -> Answers:
    """The counts and seconds of the answers in these rows. Unknown steps and decode times are NaN.

    `blocks` are the blocks whose seconds count. They are empty unless a throughput is explained.
    """
    names = ("num_tokens", "wall_s", "decode_s", "mat_steps", "mat_emitted")
    # [requests] each; `emitted` are the tokens of an answer that steps emitted
    tokens, wall_s, decode_s, steps, emitted = (
        column.astype(np.float64) for column in tabled.table.values(rows, *names)
    )
    has_steps = emitted > 0
    # the counts in another tool's file; None if the run is specbench's
    counts = [tabled.table.records[row].imported for row in rows]
    # tokens by the source's counting rule; None (NaN in the array) if that is specbench's rule
    source_tokens = [count and count.counted_tokens for count in counts]
    return Answers(
        tokens=tokens,
        wall_s=wall_s,
        decode_s=decode_s,
        # An answer of one token has no step. If a longer answer has none, its steps are unknown.
        steps=np.where(has_steps | (tokens < 2), steps, np.nan),
        first_tokens=np.where(has_steps, tokens - emitted, 1.0),  # the prefill's; 1 if unknown
        source_tokens=np.array(source_tokens, dtype=np.float64),
        block_s=_block_seconds(tabled, rows, wall_s, blocks),
    )


def _block_seconds(
    tabled: TabledRun, rows: IntArray, wall_s: FloatArray, blocks: Mapping[BlockKey, BlockHeader]
) -> FloatArray:
    """Each answer's part of the seconds of its block [rows], in proportion to its own seconds.

    A block has the requests that a server completes together. The part is NaN if the block is
    unknown or was interrupted, or if not all of its answers are among the rows.

    Args:
        tabled: the run with its table.
        rows: the numbers of the answers' rows in the table.
        wall_s: the answers' own seconds [rows].
        blocks: the blocks whose seconds count, by key.
    """
    positions_of_block: dict[BlockKey, list[int]] = defaultdict(list)  # of its answers in `rows`
    for position, row in enumerate(rows.tolist()):
        positions_of_block[block_key(tabled.table.records[row].key)].append(position)
    block_s = np.full(len(rows), np.nan)
    for key, positions in positions_of_block.items():
        block = blocks.get(key)
        if block is None or block.num_before:  # unknown, or interrupted after some requests
            continue
        if len(positions) == block.num_requests - block.num_failed:  # all answers are in `rows`
            shares = wall_s[positions] / wall_s[positions].sum()
            block_s[positions] = block.duration_s * shares
    return block_s


def _measured(tabled: TabledRun, rows: IntArray) -> Mapping[str, FloatArray]:
    """Lengths of prompts and answers, and sizes of drafts [requests]. NaN is an unknown size."""
    prompt_tokens, num_tokens = tabled.table.values(rows, "prompt_tokens", "num_tokens")
    num_nodes = [tabled.table.records[row].num_nodes for row in rows]  # of each step
    mean_nodes = [sum(counts) / len(counts) if counts else np.nan for counts in num_nodes]
    return {
        "tokens of a prompt": prompt_tokens.astype(np.float64),
        "tokens of an answer": num_tokens.astype(np.float64),
        NODES_OF_STEP: np.array(mean_nodes),
    }


def _phases(frame: DataFrame) -> Mapping[str, float]:
    """The share of each phase in the decode time. The rest is a phase, too: shares add up to 1.

    `frame` has a row per answer with the seconds of each phase, which are NaN if not timed.
    """
    timed = frame[frame["draft_s"].notna()]
    decode_s = timed["decode_s"].sum()
    if not decode_s:
        return {}
    shares = {name.removesuffix("_s"): float(timed[name].sum() / decode_s) for name in PHASES}
    return {**shares, "rest": 1 - sum(shares.values())}
