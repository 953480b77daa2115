"""Turn dialogues into the token ids of a prompt, and answers back into text.

Special tokens in the text of a prompt are encoded as text, not as control tokens. For this, a mark
replaces each of them before the template is rendered. The rendered text is then cut at the marks,
and each special token's text is encoded between the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import UserError
from specbench.log.model import ChatHeader
from specbench.log.spec import parse_template_args
from specbench.models.cards import ModelCard
from specbench.models.embedding import embedding_rows
from specbench.models.special_text import (
    ids_in_the_middle,
    mark_special,
    special_tokens,
    unused_characters,
)
from specbench.models.templates import (
    Message,
    Template,
    check_powers,
    choose_template,
    render_text,
)
from specbench.models.thinking import with_measured_thinking
from specbench.models.tokenizers import (
    TURN_ENDS,
    answer_text,
    end_tokens,
    load_tokenizer,
    vocab_size,
)
from specbench.types import Record
from specbench.types.reply import CHANNEL, is_think_mark, split_reply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OF_TEMPLATE = "chat template"
"""The key in `ChatCodec.ends` for an end token that a chat template writes."""


@dataclass(frozen=True, slots=True)
class ChatCodec:
    """Turns messages into prompt tokens and tokens into text, for one model and template."""

    tokenizer: PreTrainedTokenizerBase
    """Tokenizer of the model."""
    template: Template
    """Chat template."""
    eos_ids: frozenset[int]
    """Tokens that end an answer."""
    vocab_size: int = 0
    """The number of tokens that the model can emit, or 0 if it is unknown."""
    num_rows: int = 0
    """The number of rows in the model's embedding, or 0 if it is unknown."""
    ends_beyond: tuple[int, ...] = ()
    """End tokens that are left out because the embedding has no row for them."""
    ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The end tokens that each source names."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return sentences about the template and the end tokens that a user should know."""
        warnings = [self.template.warning] if self.template.warning else []
        if self.ends_beyond:
            ids = ", ".join(map(str, self.ends_beyond))
            warnings.append(f"These end tokens are ignored: {ids}, since {self._rows_text}.")
        return tuple(warnings)

    @property
    def _rows_text(self) -> str:
        return f"the model's embedding has the rows 0 to {self.num_rows - 1}"

    def beyond_text(self, token_ids: Sequence[int]) -> str:
        """Return a clause about the first token that has no row in the embedding, or ""."""
        beyond = [i for i in token_ids if i >= self.num_rows > 0]
        if not beyond:
            return ""
        token = self.tokenizer.convert_ids_to_tokens(beyond[0])
        return f"the token {beyond[0]} ({token!r}), and {self._rows_text}"

    @property
    def end_id(self) -> int | None:
        """Return the token that ends an answer: the one that the template writes, else the EOS."""
        added_tokens = {str(token): i for i, token in self.tokenizer.added_tokens_decoder.items()}
        jinja = self.template.jinja or ""
        candidates = [
            *self.ends.get(_OF_TEMPLATE, ()),
            *(added_tokens.get(token) for token in TURN_ENDS if token in jinja),
            self.tokenizer.eos_token_id,
            min(self.eos_ids, default=None),
        ]
        return next((token_id for token_id in candidates if token_id in self.eos_ids), None)

    def describe(self) -> ChatHeader:
        """Describe how prompts are made from chats, for the header of a run."""
        prompt_ids = self.render([{"role": "user", "content": "a"}])
        bos_ids = {*added_bos(self.tokenizer), self.tokenizer.bos_token_id} - {None}
        in_front = [*takewhile(bos_ids.__contains__, prompt_ids)]
        special = special_tokens(self.tokenizer)
        history = "content without think marks and channels"
        if self.template.reasoning_field:
            history += f", reasoning as {self.template.reasoning_field}"
        return ChatHeader(
            num_bos=max(map(in_front.count, bos_ids), default=None),
            ends=dict(self.ends),
            thinking=self.template.thinking,
            history=history,
            think_ids=tuple(i for token, i in special.items() if is_think_mark(token)),
        )

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(render(self.template, self.tokenizer, messages))

    def text(self, token_ids: Sequence[int]) -> str:
        return answer_text(self.tokenizer, token_ids)

    def reply(self, record: Record) -> Message:
        """Return an answer as a message for a later prompt, with its reasoning in a separate field.

        The template decides how much of the reasoning it keeps. An answer without think marks and
        channels stays as it is.
        """
        special = special_tokens(self.tokenizer)
        marks = [i for token, i in special.items() if token == CHANNEL or is_think_mark(token)]
        text = record.text
        if {*marks} & {*record.token_ids}:  # `record.text` lacks these marks
            text = self.tokenizer.decode(
                [*record.token_ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        reply = split_reply(text, (record.serving and record.serving.num_reasoning) or 0)
        if reply.content == record.text:
            return {"role": "assistant", "content": record.text}
        any_special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        message = {"role": "assistant", "content": any_special.sub("", reply.content)}
        if (field := self.template.reasoning_field) and reply.reasoning:
            message[field] = any_special.sub("", reply.reasoning)
        return message

    def control_tokens(self, text: str) -> tuple[str, ...]:
        """Return the special tokens in a user's text that stay control tokens in a prompt.

        With a template, these are only the tokens that the tokenizer cannot encode as text.
        """
        special = special_tokens(self.tokenizer)
        present = tuple(token for token in special if token in text)
        if self.template.jinja is None:
            return present
        return tuple(
            token
            for token in present
            if special[token] in ids_in_the_middle(self.tokenizer, token, is_plain=True)
        )

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Return the tokens of an answer's text, without special tokens around it."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def load_codec(path: Path, card: ModelCard, template: str, template_args: str = "") -> ChatCodec:
    """Load the codec of a checkpoint folder for `--template template` and `--template-args`."""
    tokenizer = load_tokenizer(path)
    chosen = choose_template(template, card, tokenizer)
    check_powers(chosen)
    chosen = replace(chosen, args=parse_template_args(template_args))
    chosen = with_measured_thinking(chosen, tokenizer, card.name)
    turn_end = turn_end_of(chosen, tokenizer)
    ends = end_tokens(path, tokenizer)
    if turn_end is not None:
        ends[_OF_TEMPLATE] = (turn_end,)
    every_end = frozenset(chain.from_iterable(ends.values()))
    num_rows = embedding_rows(path)
    ends_beyond = tuple(sorted(i for i in every_end if i >= num_rows > 0))
    return ChatCodec(
        tokenizer,
        chosen,
        eos_ids=every_end.difference(ends_beyond),
        vocab_size=vocab_size(path, tokenizer),
        num_rows=num_rows,
        ends_beyond=ends_beyond,
        ends=ends,
    )


def turn_end_of(template: Template, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the special token that a template writes after the last assistant message of a chat.

    It is None if the message is followed by other text. Only the end of a chat counts, because
    gpt-oss also ends its analysis inside a chat with such a token.
    """
    mark = next(unused_characters([]))
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    try:
        rendered = render_text(template, tokenizer, chat, is_answered=True)
    except UserError:  # the template takes no chat that ends with an answer
        return None
    text_after = rendered.partition(mark)[2].lstrip()
    special = special_tokens(tokenizer)
    tokens = [token for token in special if text_after.startswith(token)]
    return special[max(tokens, key=len)] if tokens else None


def render(
    template: Template, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> list[int]:
    """Return the prompt's token ids with exactly one BOS in front, ready for an answer.

    Special tokens in the text of a message are encoded as text. Without a template, the text is
    sent unchanged, so they are control tokens. An answer then directly follows its user turn, and a
    blank line separates later user turns.
    """
    special = () if template.jinja is None else tuple(special_tokens(tokenizer))
    marked = mark_special(messages, special)
    rendered = render_text(template, tokenizer, marked.messages)
    pieces = [rendered]
    if marked.token_of:
        pieces = re.split(f"([{''.join(marked.token_of)}])", rendered)  # marks are pieces too
    ids = _first_ids(tokenizer, pieces[0])
    for piece in pieces[1:]:
        if piece:
            token = marked.token_of.get(piece)
            is_mark = token is not None
            ids += ids_in_the_middle(tokenizer, token or piece, is_plain=is_mark)
    if not ids:
        raise UserError("A prompt has no tokens.", "Give it text, or use a chat template.")
    # A BOS that only the template writes may begin each message, as <|im_start|> of SmolLM2 does.
    for bos_id in added_bos(tokenizer):
        if ids.count(bos_id) > 1:  # two in front, or one per turn, as in LLaMA-2's template
            front = _text_before_user(template, tokenizer, marked.messages)
            num_in_front = _first_ids(tokenizer, front).count(bos_id)
            places = [i for i, token_id in enumerate(ids) if token_id == bos_id]
            for i in reversed(places[1:num_in_front]):
                del ids[i]
    return ids


def added_bos(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that the tokenizer puts in front of each text, even if it names no BOS."""
    whole_ids = tokenizer("a")["input_ids"]
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    return [*takewhile(lambda token_id: token_id not in text_ids, whole_ids)]


def _text_before_user(
    template: Template, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> str:
    """Return the text that a template writes before the user's first text."""
    mark = next(unused_characters(messages))
    roles = [message["role"] for message in messages]
    with_mark = [*map(dict, messages)]
    if "user" in roles:
        with_mark[roles.index("user")]["content"] = mark
    return render_text(template, tokenizer, with_mark).partition(mark)[0]


def _first_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the token ids of the beginning of a prompt.

    They have one BOS if the tokenizer has one, and an EOS only if the text ends with one.
    """
    eos_text, eos_id = tokenizer.eos_token, tokenizer.eos_token_id
    bos_id = tokenizer.bos_token_id
    bos_ids = [*added_bos(tokenizer), *([] if bos_id is None else [bos_id])]
    has_bos = text.startswith(tuple(tokenizer.convert_ids_to_tokens(bos_ids)))
    ids: list[int] = tokenizer(text, add_special_tokens=not has_bos)["input_ids"]
    if isinstance(eos_text, str) and not text.endswith(eos_text):
        while ids and ids[-1] == eos_id:  # some tokenizers end every text with EOS
            ids = ids[:-1]
    while bos_id is not None and ids[:2] == [bos_id, bos_id]:
        ids = ids[1:]
    return ids
