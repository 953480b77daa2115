"""New models in the shapes of the shipped models, and the writing of a model's folder.

The target is deep and thin, so that one token costs about as much as a small tree. The SpS draft
model has one layer of one head, a twentieth of the target's parameters: two layers of width 128
accepted four to five tokens per step, more than draft models of real targets do.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.zoo import TINY
from tools.zoo.tokenizer import BOS_ID, EOS_ID


def new_model(name: str, seed: int) -> LlamaForCausalLM:
    """A model with seeded random weights in float32, in the shape of `target` or `sps`."""
    config = LlamaConfig.from_pretrained(TINY / name)
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def load_model(folder: Path, device: str = "cpu") -> LlamaForCausalLM:
    """The model of a folder, in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)


def write_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a plain transformers folder with float16 weights; each file is replaced in one move.

    The model itself is in float16 afterwards.
    """
    model.to(torch.float16)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=EOS_ID
    )
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        for file in sorted(Path(partial).iterdir()):
            file.chmod(0o644)
            file.replace(folder / file.name)
