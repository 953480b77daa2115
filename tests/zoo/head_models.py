"""A micro target with a tokenizer, and its heads: small enough to train in a test."""

from functools import cache
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.engine.accept import Sampler
from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.target import Target
from specbench.methods._eagle import EagleDrafter
from specbench.registry import get, make_options
from specbench.types import Request, Sampling
from specbench.zoo.batches import Batches
from specbench.zoo.heads.files import write_head
from specbench.zoo.heads.head import Head, Seen
from specbench.zoo.heads.recipe import Recipe, new_head
from specbench.zoo.heads.teacher import Teacher
from specbench.zoo.tokenizer import train_tokenizer

RECIPE = Recipe(num_steps=8, other_lr=0.02, draft_vocab=600, is_mixed=False, num_unrolled=3)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(seed=3, num_dialogues=300)


def micro_model(**changes: object) -> LlamaForCausalLM:
    """Grouped heads of another size than hidden by heads, and a rotary base of its own."""
    torch.manual_seed(0)
    values: dict[str, object] = {
        "hidden_size": 32,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "vocab_size": 2048,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**values, **changes})).eval()
    with torch.no_grad():  # sharp enough that best tokens are no ties
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model


def batches(seed: int = 0) -> Batches:
    return Batches(tokenizer().backend_tokenizer, seed, 2, 128, 0.3, frozenset())


def random_head(method: str, model: LlamaForCausalLM) -> Head:
    """A head none of whose weights is zero or the target's; exact in float16."""
    head = new_head(method, model, RECIPE, batches())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_((parameter + 0.2 * noise).half().float())
    return head


def seen_by(head: Head, model: LlamaForCausalLM, ids: torch.Tensor) -> Seen:
    return Teacher(model, head.layer_ids)(ids)


def loaded(method: str, head: Head, model: LlamaForCausalLM, folder: Path) -> Drafter:
    """The head written to the folder, and read from there by the method."""
    write_head(head, folder)
    entry = get(method)
    return entry.build(make_options(entry, {}), BuildContext(Target(model), folder))


def started(drafter: Drafter, target: Target, token_ids: list[int]) -> State:
    """The drafter behind a prefill of all ids but the last, which is pending."""
    request = Request(tuple(token_ids[:-1]), 40)
    state = State(request, Sampler(Sampling(), target.device, 0), 40)
    with target.watched(drafter.needs), torch.inference_mode():
        prefill = target.prefill(request.prompt_ids, room=40)
        state.token_ids.append(token_ids[-1])
        drafter.start(state, prefill)
    return state


def fed(drafter: EagleDrafter, state: State) -> torch.Tensor:
    """The draft model's output [1, hidden] behind everything that is committed."""
    return drafter.feed(*drafter.given(state), reach=drafter.reach(state))[1]
