"""Prompts that are replayed as graphs are padded, and give what eager prefills give."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.decode import decode
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.layers import experts
from specbench.engine.target import Needs, Target
from specbench.engine.tree import PROMPT_SIZES
from specbench.measure.local.warm_up import warm_up
from specbench.registry import names
from specbench.types import Completion, Request, Sampling
from tests.engine.test_target import random_model
from tests.support.architectures import config_of, random_of
from tests.support.models import random_llama
from tests.support.products import each_once
from tests.support.tracing import TraceRecorder
from tests.support.weights import build

LENGTHS = (1, 16, 17, 64, 65, 160, 161, 256, 257)
SIZES = (16, 16, 32, 64, 96, 160, 192, 256, None)
BUDGET = 6
SAMPLINGS = [Sampling(), Sampling(1.0)]
PARTS = [LENGTHS[::3], LENGTHS[1::3], LENGTHS[2::3]]
ALL_ROWS = Needs(hidden=True, layer_inputs=(0, 2), all_prompt_positions=True)
LAST_ROW = Needs(hidden=True, layer_inputs=(1,))


def prompt_of(length: int) -> tuple[int, ...]:
    """Random tokens other than 0, the token of the padding."""
    generator = torch.Generator().manual_seed(length)
    return tuple(torch.randint(3, 50, (length,), generator=generator).tolist())


def answers(
    target: Target, name: str, folder: Path, lengths: Sequence[int], sampling: Sampling
) -> list[tuple[object, ...]]:
    """The tokens and steps of two turns for each prompt.

    The second turn follows the first answer.
    """
    drafter = build(name, target, folder)
    turns: list[tuple[object, ...]] = []
    for length in lengths:
        prompt = prompt_of(length)
        for seed in (0, 1):
            completion = decode(target, drafter, Request(prompt, BUDGET, sampling, seed=seed))
            turns.append((completion.token_ids, completion.steps))
            prompt += (*completion.token_ids, *prompt_of(5))
    return turns


def test_prompts_are_padded_to_a_listed_size() -> None:
    graphs = Graphs(TraceRecorder())
    assert tuple(map(graphs.prompt_size, LENGTHS)) == SIZES
    with graphs.paused():
        assert graphs.prompt_size(16) is None
    assert Target(random_llama()).cache.capacity >= max(PROMPT_SIZES)


@pytest.mark.parametrize(
    ("name", "sampling", "lengths"), each_once(names(), SAMPLINGS, PARTS), ids=str
)
def test_replayed_prompts_give_the_tokens_of_eager_ones(
    name: str, sampling: Sampling, lengths: Sequence[int], tmp_path: Path
) -> None:
    graphs = Graphs(TraceRecorder())
    targets = Target(random_llama()), Target(random_llama(), graphs)
    plain, replayed = (answers(target, name, tmp_path, lengths, sampling) for target in targets)
    assert replayed == plain
    assert graphs.failures == set()


@pytest.mark.parametrize("name", ["hydra", "eagle", "eagle2", "eagle3", "peagle", "dflash"])
def test_recordings_of_a_draft_layer_read_the_targets_memory(name: str, tmp_path: Path) -> None:
    graphs = Graphs(TraceRecorder())
    target = Target(random_llama(layers=8), graphs)
    drafter = build(name, target, tmp_path, {"arch": "prefix-mlp"} if name == "hydra" else {})
    for length in (20, 31, 257):  # the first reserves memory, the last is read eagerly
        decode(target, drafter, Request(prompt_of(length), BUDGET))
        decode(target, drafter, Request(prompt_of(length), BUDGET))
    by_name = {captured.function.__name__: captured for captured in graphs._captured.values()}
    reading: Any = by_name["read" if name == "hydra" else "_read"]
    assert graphs.failures == set()
    assert {key[0] for key in reading.entries} == {((32,), torch.int64, None)}
    (entry,) = reading.entries.values()
    assert [buffer is None for buffer in entry.inputs[1:]] == [True] * (len(entry.inputs) - 1)


FUSED = ("mistral, window", "qwen3, windows", "gemma2", "gemma3", "mixtral", "gpt-oss")
"""Models with limited attention, capped scores and experts."""
UNFUSED = ("glm4", "cohere2", "gpt2", "glm4_moe")
"""Models that run transformers' own forward."""


def check_prefills(model: PreTrainedModel, lengths: Sequence[int]) -> Graphs:
    """Assert that replayed prefills give the logits, states and cache of eager ones."""
    graphs = Graphs(TraceRecorder())
    plain, replaying = Target(deepcopy(model)), Target(model, graphs)
    for needs in (Needs(), LAST_ROW, ALL_ROWS):
        for length in lengths:
            outputs: list[Any] = []
            for target in (plain, replaying):
                with target.capture(needs), torch.inference_mode():
                    prefill = target.prefill(prompt_of(length))
                    rows = target.cache.rows(1).all[:length]
                    states = [prefill.hidden, *prefill.layer_inputs.values()]
                    unpadded = [rows_of[:length] for rows_of in states if rows_of is not None]
                    outputs.append((prefill.logits, unpadded, rows))
                    assert target.cache.length == length
            torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    assert graphs.failures == set()
    return graphs


@pytest.mark.parametrize("name", [*FUSED, *UNFUSED])
def test_a_replayed_prefill_gives_the_logits_states_and_cache_of_an_eager_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "_one_by_one", experts._gathered)  # as on a GPU
    model = random_model(name) if name in FUSED else random_of(config_of(name))
    graphs = check_prefills(model, (1, 16, 17, 65, 100))
    assert graphs.num_recordings == 4 * 3  # sizes and needs


def test_a_last_row_that_is_taken_from_the_padding_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Target._tree_step

    def faulty(target: Target, tokens: Tensor, *inputs: Tensor, **named: Any) -> tuple[Tensor, ...]:
        *others, last = inputs
        return step(target, tokens, *others, torch.full_like(last, len(tokens) - 1), **named)

    monkeypatch.setattr(Target, "_tree_step", faulty)
    check_prefills(random_llama(), [16])  # there is no padding
    with pytest.raises(AssertionError, match="not close"):
        check_prefills(random_llama(), [17])


def test_a_prompt_that_cannot_be_captured_is_read_eagerly() -> None:
    def refusing(*_: object) -> Any:
        raise RuntimeError("operation not permitted")

    graphs = Graphs(refusing)
    plain, refused = Target(random_llama()), Target(random_llama(), graphs)
    with torch.inference_mode():
        logits = [target.prefill(prompt_of(17)).logits for target in (plain, refused)]
    torch.testing.assert_close(*logits)
    assert graphs.num_recordings == 0 and "_tree_step" in str(graphs.failures)


@pytest.mark.slow
def test_prompts_are_captured_once_per_size_and_needs_before_anything_is_timed(
    tmp_path: Path,
) -> None:
    recorded = Graphs(TraceRecorder())
    target = Target(random_llama(layers=8), recorded)
    methods = ("vanilla", "sps", "medusa", "eagle", "eagle3")
    drafters = {name: build(name, target, tmp_path) for name in methods}

    def complete(label: str, request: Request) -> Completion:
        return decode(target, drafters[label], request)

    requests = [
        Request(prompt_of(length), BUDGET, sampling)
        for sampling in SAMPLINGS
        for length in (20, 257)
    ]
    assert warm_up(target, drafters, complete, requests) == (dict.fromkeys(methods), {})
    keys: Any = recorded._captured[target._tree_step].entries.keys()
    num_prompts = sum(len(key) == 5 + 2 for key in keys)  # 5 inputs (one is the last row), 2 names
    assert num_prompts == 4 * len(PROMPT_SIZES)  # nothing, the last row, all rows, three layers
    for length in LENGTHS:
        for label in methods:
            complete(label, Request(prompt_of(length), BUDGET))
    assert recorded.num_late == 0


def test_the_memory_of_a_captured_prompt_is_counted() -> None:
    graphs = Graphs(TraceRecorder())
    target = Target(random_llama(), graphs)
    with target.capture(ALL_ROWS), torch.inference_mode():
        for length in (17, 30):
            target.prefill(prompt_of(length))
    tokens, depths, bias, indices = 32 * 8, 32 * 8, 32 * 32 * 8, 8 + 8
    states, logits = 3 * 32 * 32 * 8, 50 * 8  # 32 rows of 32 numbers
    assert graphs.buffer_bytes == tokens + depths + bias + indices + states + logits
    assert graphs.used_bytes() == graphs.buffer_bytes
