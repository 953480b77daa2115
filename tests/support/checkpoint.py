"""A whole checkpoint folder: a small random Llama and a byte-level tokenizer."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.support.models import random_llama

SPECIAL = ("<unk>", "<s>", "</s>")
NUM_TOKENS = len(SPECIAL) + 256


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Special tokens 0 to 2, then a token for each byte; BOS goes in front of every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def save_checkpoint(folder: Path, seed: int = 0, layers: int = 2, **changes: object) -> Path:
    """A loadable Hugging Face folder in float32; `changes` go to the model's config."""
    model = random_llama(layers, seed, vocab_size=NUM_TOKENS, **changes).float()
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_prompts(path: Path, *turns: list[str]) -> Path:
    """A prompt file with one sample for each list of turns."""
    rows = [{"question_id": i, "turns": list(texts)} for i, texts in enumerate(turns)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
