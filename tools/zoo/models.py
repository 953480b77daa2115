"""Make new models in the shapes of the shipped ones, and write a model's folder.

The target is deep and thin, so that one token costs about as much as a small tree. The SpS draft
model has one layer with one head, and a twentieth of the target's parameters. With two layers of
width 128, a step accepted four to five tokens, more than draft models of real targets reach.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.zoo import TINY
from tools.zoo.tokenizer import BOS_ID, EOS_ID


def new_model(name: str, seed: int) -> LlamaForCausalLM:
    """Make a model in the shape of `target` or `sps`, with seeded random weights in float32."""
    config = LlamaConfig.from_pretrained(TINY / name)
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def load_model(folder: Path, device: str = "cpu") -> LlamaForCausalLM:
    """Load the model of a folder in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)


def write_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a plain transformers folder with float16 weights. Each file is replaced in one move.

    The model in memory also becomes float16.
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
