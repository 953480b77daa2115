"""The shapes of the tiny models, and how their folders are written."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.zoo.tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE

MAX_LENGTH = 2048


def target_config() -> LlamaConfig:
    """The target: deep and thin, so that one token costs about as much as a small tree."""
    return _config(hidden_size=192, num_layers=12, num_heads=3, intermediate_size=512)


def sps_config() -> LlamaConfig:
    """The SpS draft model: one layer of one head, a twentieth of the target's parameters.

    Two layers of width 128 accepted four to five tokens a step, more than draft models of real
    targets do.
    """
    return _config(hidden_size=64, num_layers=1, num_heads=1, intermediate_size=128)


def _config(
    hidden_size: int, num_layers: int, num_heads: int, intermediate_size: int
) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=64,
        intermediate_size=intermediate_size,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=EOS_ID,
    )


def new_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """A model with seeded random weights, in float32."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def load_model(folder: Path, device: str = "cpu") -> LlamaForCausalLM:
    """The model of a folder, in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)


def write_model(
    state: dict[str, torch.Tensor],
    config: LlamaConfig,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
) -> None:
    """Write a plain transformers folder with float16 weights, each file replaced in one move."""
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
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
