"""Compare the tokens of two runs of the same methods: graphs and eager.

Knows stored runs and a loaded target. The verdict is that of `specbench audit`, with each method's
eager completions instead of vanilla's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from specbench.analysis.cells import BASELINE
from specbench.analysis.stats.bootstrap import FloatArray
from specbench.audit.model import RunModel
from specbench.audit.run import audit
from specbench.audit.white_box import Effort
from specbench.engine.attention import without_cudnn_attention
from specbench.engine.target import Target
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.measure.base import Plan
from specbench.measure.requests import make_chat
from specbench.types import Record, Request, Sampling

OWN = "graph"
"""Method name of the graphs' completions in the audit."""


def compare(graph: Run, eager: Run, plan: Plan, target: Target) -> dict[str, dict[str, Any]]:
    """Method -> number of first turns with the same tokens in both runs.

    `verdict` is that of the audit: "identical", "numerics" or "bug".
    """
    found, bench = {}, _Bench(plan, target)
    for method in dict.fromkeys(record.key.method for record in eager.records):
        records = [*_called(eager, method, BASELINE), *_called(graph, method, OWN)]
        (one,) = audit(
            _Records(graph.header, records), lambda _: cast(RunModel, bench), is_recheck=False,
            effort=Effort(num_tokens=0), say=print,
        ).greedy  # fmt: skip
        agreement = one.agreement
        found[method] = {
            "same": agreement.num_identical, "of": agreement.num_compared,
            "verdict": one.verdict, "largest_gap": one.largest_gap,
        }  # fmt: skip
    return found


def _called(run: Run, method: str, name: str) -> list[Record]:
    """A method's first turns, renamed to method `name`."""
    return [
        replace(record, key=replace(record.key, method=name))
        for record in run.records
        if record.key.method == method and record.key.turn == 0
    ]


@dataclass(frozen=True, slots=True)
class _Records:
    """A run with the fields that the audit reads."""

    header: RunHeader
    records: Sequence[Record]


class _Bench:
    """The model of both runs. It gives the audit logits, and completes nothing."""

    device = ""

    def __init__(self, plan: Plan, target: Target) -> None:
        self._codec, self._target, self.dtype = (
            plan.setup.codec,
            target,
            str(target.dtype).removeprefix("torch."),
        )
        self._prompts = {p.sample_id: p for prompts in plan.prompts.values() for p in prompts}

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        turns = self._prompts[record.key.sample_id].turns
        return self._codec.render(make_chat(turns[:1], ()))

    @torch.inference_mode()
    @without_cudnn_attention()
    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        return self._target.prefill(token_ids).logits[0].double().cpu().numpy()

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        raise NotImplementedError("only for repeated steps")

    def sampling(self, temperature: float) -> Sampling:
        raise NotImplementedError("only for completions above temperature 0")
