"""A checkpoint folder with a small random Llama and a byte-level tokenizer."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.support.models import random_llama

SPECIAL = ("<unk>", "<s>", "</s>")
NUM_TOKENS = len(SPECIAL) + 256


def make_tokenizer(
    extra: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    *,
    adds_bos: bool = True,
    adds_eos: bool = False,
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with `SPECIAL`, the 256 bytes, `words`, and `extra` special tokens."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = ("<s> " if adds_bos else "") + "$A" + (" </s>" if adds_eos else "")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template,
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    if extra:
        fast_tokenizer.add_special_tokens({"additional_special_tokens": list(extra)})
    fast_tokenizer.chat_template = chat_template
    return fast_tokenizer


def save_checkpoint(folder: Path, seed: int = 0, layers: int = 2, **changes: object) -> Path:
    """Save a loadable Hugging Face folder in float32. `changes` go to the model's config."""
    model = random_llama(layers, seed, vocab_size=NUM_TOKENS, **changes).float()
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def change_config(folder: Path, **fields: object) -> None:
    """Set these fields in the config of a checkpoint."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **fields}))


def write_prompts(path: Path, *turns: list[str]) -> Path:
    """Write a prompt file with one sample for each list of turns."""
    rows = [{"question_id": i, "turns": list(texts)} for i, texts in enumerate(turns)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
