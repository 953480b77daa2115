"""Records of answers that spell a text, with its special tokens."""

from specbench.models.chat import ChatCodec
from specbench.types import Record, RecordKey, Serving


def answer(codec: ChatCodec, raw: str, num_reasoning: int = 0) -> Record:
    """The record of an answer whose tokens spell `raw`."""
    ids = codec.token_ids(raw)
    key = RecordKey("vanilla", 0.0, "chat", "chat/0", 0, 0)
    serving = None
    if num_reasoning:
        serving = Serving(0.0, num_reasoning=num_reasoning)
    text = codec.text(ids)
    return Record(key, "ok", prompt_tokens=5, token_ids=ids, text=text, serving=serving)
