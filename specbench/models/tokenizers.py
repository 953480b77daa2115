"""Load the tokenizers of checkpoints, find their end tokens, and decode answers."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.engine.quiet import quiet_transformers
from specbench.errors import CheckpointError, describe_error, reading
from specbench.models.checkpoints import read_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>")
"""Tokens that end an answer. Some checkpoints have them but do not list them as EOS."""

_MOST_IDS = 2**31
_AGAIN = "Download or copy the folder again."


def load_tokenizer(path: Path) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a checkpoint folder. Raise CheckpointError if this fails."""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                str(path), local_files_only=True, trust_remote_code=False
            )
        answer_text(tokenizer, tokenizer("a")["input_ids"])  # wrong settings show at first use
    except Exception as error:  # a broken file can raise anything
        message = f"The tokenizer in {path} cannot be loaded ({describe_error(error)})."
        hint = "The folder needs tokenizer.json, or tokenizer.model, with tokenizer_config.json."
        raise CheckpointError(message, hint) from error
    return tokenizer


def answer_text(tokenizer: "PreTrainedTokenizerBase", token_ids: Sequence[int]) -> str:
    """Return the text of an answer without special tokens, for the history and the log."""
    return tokenizer.decode(
        list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


def end_tokens(path: Path, tokenizer: "PreTrainedTokenizerBase") -> dict[str, tuple[int, ...]]:
    """Return the tokens that end an answer, by the source that names them.

    The sources are the EOS of generation_config.json, or of config.json if the former has none, the
    EOS of the tokenizer, and the known end-of-turn tokens in the tokenizer.
    """
    ends: dict[str, tuple[int, ...]] = {}
    for name in ("generation_config.json", "config.json"):
        listed_ids = _eos_of(path / name) if (path / name).is_file() else ()
        if listed_ids:
            ends[name] = listed_ids
            break
    if isinstance(tokenizer.eos_token_id, int):
        ends["tokenizer"] = (tokenizer.eos_token_id,)
    added_tokens = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    if known_ids := [added_tokens[token] for token in TURN_ENDS if token in added_tokens]:
        ends["known names"] = tuple(known_ids)
    return ends


def _eos_of(file: Path) -> tuple[int, ...]:
    """Return the end tokens that a config, or else its `text_config`, lists. There may be none."""
    with reading(file, "The end tokens", _AGAIN):
        config = json.loads(file.read_text(encoding="utf-8"))
        eos = config.get("eos_token_id")
        if eos is None:
            eos = (config.get("text_config") or {}).get("eos_token_id")
        token_ids = tuple(_ids_in(eos))
    for token_id in token_ids:
        if not 0 <= token_id < _MOST_IDS:
            raise CheckpointError(f"{file}: eos_token_id {token_id} is not a token.", _AGAIN)
    return token_ids


def _ids_in(listed: Any) -> Iterator[int]:
    """Yield the token ids in a number, a string or nested lists. Null and the like are not ids."""
    if isinstance(listed, list):
        for entry in listed:
            yield from _ids_in(entry)
    elif type(listed) is int or (isinstance(listed, str) and listed.lstrip("-").isdecimal()):
        yield int(listed)


def vocab_size(path: Path, tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the number of tokens that a checkpoint's model can emit, including unused ones."""
    config = read_config(path, "The vocabulary") if (path / "config.json").is_file() else {}
    size = (config.get("text_config") or config).get("vocab_size")
    return max(len(tokenizer), size or 0)
