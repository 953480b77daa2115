"""Comparison of CUDA graphs with eager steps: same tokens, near-ties or errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.gpu.agreement import compare
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.target import Target
from specbench.log.run import Run
from specbench.registry import get
from specbench.types import Record, RecordKey, Request
from tests.support.headers import make_header
from tests.support.models import prompts, random_llama

PROMPT = prompts()[1]


def stored(method: str, *token_ids: tuple[int, ...]) -> Run:
    records = [
        Record(
            RecordKey(method, 0.0, "t", "t/1", turn, 0), "ok", len(PROMPT), ids,
            prefill_s=0.1, decode_s=0.1, accept_lengths=(1,) * (len(ids) - 1),
        )
        for turn, ids in enumerate(token_ids)
    ]  # fmt: skip
    return Run(make_header({"model": {"dtype": "bfloat16"}}), (*records,))


def test_another_token_is_wrong_unless_it_was_nearly_the_best() -> None:
    target = Target(random_llama().float())
    method = get("vanilla")
    drafter = method.build(method.options(), BuildContext(target))
    tokens = decode(target, drafter, Request(PROMPT, 6)).token_ids
    with torch.inference_mode():
        ranked = target.prefill((*PROMPT, *tokens[:3])).logits[0].argsort(descending=True).tolist()
    assert tokens[3] == ranked[0]
    plan: Any = SimpleNamespace(
        setup=SimpleNamespace(
            codec=SimpleNamespace(render=lambda messages: PROMPT), dtype="bfloat16"
        ),
        prompts={"t": [SimpleNamespace(sample_id="t/1", turns=("x", "y"))]},
    )
    eager = stored("pld", tokens, tokens[::-1])  # a second turn answers another prompt, maybe
    found = {}
    for name, other in {"same": ranked[0], "second": ranked[1], "last": ranked[-1]}.items():
        graph = stored("pld", (*tokens[:3], other, *tokens[4:]), tokens)
        found[name] = compare(graph, eager, plan, target)["pld"]
    assert found["same"] == {"same": 1, "of": 1, "verdict": "identical", "largest_gap": None}
    assert (found["last"]["same"], found["last"]["verdict"]) == (0, "bug")
    assert found["last"]["largest_gap"] > found["second"]["largest_gap"] >= 0
    target.model.get_output_embeddings().weight.data[ranked[1]] = (
        target.model.get_output_embeddings().weight.data[ranked[0]] * 0.999
    )
    graph = stored("pld", (*tokens[:3], ranked[1], *tokens[4:]))
    assert compare(graph, eager, plan, target)["pld"]["verdict"] == "numerics"
