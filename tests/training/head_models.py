"""A tiny target and its heads, small enough to train in a test."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.methods._eagle import EagleDrafter
from specbench.registry import get, make_options
from specbench.training.batches import Row, ShuffledBatches
from specbench.training.head import Head, TargetOutputs
from specbench.training.head_files import write_head
from specbench.training.options import TrainingOptions
from specbench.training.recipe import new_head
from specbench.training.teacher import Teacher
from specbench.types import Request, Sampling
from tests.support.models import random_llama

OPTIONS = TrainingOptions(
    num_steps=8, other_lr=0.02, draft_vocab=600, is_mixed=False, num_unrolled=3
)
NUM_TOKENS = 2048


def micro_model(**changes: object) -> LlamaForCausalLM:
    """Grouped heads whose size is not hidden size / heads, with an unusual rotary base."""
    values: dict[str, Any] = {
        "head_dim": 16,
        "intermediate_size": 48,
        "vocab_size": NUM_TOKENS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        "pad_token_id": 2,
    }
    return random_llama(7, **{**values, **changes}).float()


def batches(seed: int = 0) -> ShuffledBatches:
    """Rows of random tokens, some of which are frequent. Requests weigh less than answers."""
    rng = random.Random(seed)
    rows = []
    for _ in range(40):
        num_requested = rng.randint(20, 40)
        ids = [1, *(min(rng.randrange(5, NUM_TOKENS) for _ in range(3)) for _ in range(119))]
        weights = [0.0] + [0.3] * num_requested + [1.0] * (119 - num_requested)
        rows.append(Row(ids, weights))
    return ShuffledBatches(rows, seed, num_rows=2, pad_id=2)


def random_head(method: str, model: LlamaForCausalLM, **changes: Any) -> Head:
    """A random head, exact in float16, without zeros and without weights of the target."""
    head = new_head(method, model, replace(OPTIONS, **changes), batches())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_((parameter + 0.2 * noise).half().float())
    return head


def target_outputs(head: Head, model: LlamaForCausalLM, ids: torch.Tensor) -> TargetOutputs:
    return Teacher(model, head.layer_ids)(ids)


def loaded(method: str, head: Head, model: LlamaForCausalLM, folder: Path) -> Drafter:
    """The drafter that the method reads after the head was written to the folder."""
    write_head(head, folder)
    entry = get(method)
    return entry.build(make_options(entry, {}), BuildContext(Target(model), folder))


def started(drafter: Drafter, target: Target, token_ids: list[int]) -> State:
    """The state of the drafter after a prefill. The last id is pending."""
    request = Request(tuple(token_ids[:-1]), 40)
    state = State(request, Sampler(Sampling(), target.device, 0), 40)
    with target.capture(drafter.needs), torch.inference_mode():
        prefill = target.prefill(request.prompt_ids, num_new=40)
        state.append(token_ids[-1])
        drafter.start(state, prefill)
    return state


def fed(drafter: EagleDrafter, state: State) -> torch.Tensor:
    """The draft model's output [1, hidden] after all committed tokens."""
    return drafter.feed(*drafter.draft_inputs(state), cache_span=drafter.cache_span(state))[1]
