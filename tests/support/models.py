"""Small random models whose greedy paths have no ties, and an engine that runs one."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.measure.local.device import EAGER, Device
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import LoadedEngine
from specbench.measure.local.memory import MemoryLedger
from specbench.measure.spec import RunSpec
from specbench.methods.shared.static_tree import StaticTree, TreeOptions

VOCAB = 50


def random_llama(layers: int = 4, seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """A random Llama in float64 with grouped heads. `changes` go to its config."""
    values = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**values, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model


def random_target(layers: int = 4, seed: int = 0, **changes: object) -> Target:
    return Target(random_llama(layers, seed, **changes))


def engine_backend(
    target: Target, drafters: Mapping[str, Drafter], *, is_metered: bool = False, **loaded: Any
) -> EngineBackend:
    """An engine with these drafters, eager, on one thread, and with the papers' settings."""
    setup = SimpleNamespace(
        spec=RunSpec(threads=1), methods=(), device=Device("cpu"), mode=EAGER, settings="paper"
    )
    ledger = MemoryLedger(target)
    ledger.hooks |= loaded.pop("hooks", {})
    engine = LoadedEngine(target, drafters, 0.0, ledger, **loaded)
    return EngineBackend(cast(Any, setup), is_metered=is_metered, loaded=engine)


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def generated(
    model: PreTrainedModel, prompt: tuple[int, ...], num_tokens: int, eos_id: int | None = None
) -> list[int]:
    """The greedy answer of transformers' own `generate`."""
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False, eos_token_id=eos_id
    )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def prompts() -> list[tuple[int, ...]]:
    """Prompts of several lengths, one of which is repetitive."""
    rng = torch.Generator().manual_seed(0)
    tensors = (torch.randint(3, VOCAB, (length,), generator=rng) for length in (5, 17, 40))
    return [*(tuple(tensor.tolist()) for tensor in tensors), (7, 8, 9, 10, 11) * 6]


def static_tree(
    name: str, vocab_size: int = 100, nodes: int = 0, max_depth: int | None = None
) -> StaticTree:
    """A static tree for a target with that vocabulary."""
    target: Any = SimpleNamespace(vocab_size=vocab_size, device=torch.device("cpu"))
    return StaticTree.load(TreeOptions(name, nodes), target, max_depth)
