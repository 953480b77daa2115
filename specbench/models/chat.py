"""Dialogues as the token ids of a prompt, and answers back as text.

Special tokens in the text of a prompt are encoded as text, not as control tokens: each is
replaced by a mark before the template is rendered. The rendered text is cut at the marks, and
the special token's own text is encoded between the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
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
    eos_ids,
    load_tokenizer,
    vocab_size,
)
from specbench.types import Record
from specbench.types.reply import CHANNEL, is_think_mark, split_reply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OF_TEMPLATE = "chat template"
"""The source of an end token that a chat template writes."""


@dataclass(frozen=True, slots=True)
class ChatCodec:
    """Messages to prompt tokens, and tokens back to text, for one model and template."""

    tokenizer: PreTrainedTokenizerBase
    """Tokenizer of the model."""
    template: Template
    """Chat template."""
    eos_ids: frozenset[int]
    """Tokens that end an answer."""
    vocab_size: int = 0
    """Tokens that the model can emit; 0 if unknown."""
    num_rows: int = 0
    """Rows of the model's embedding; 0 if unknown."""
    ends_beyond: tuple[int, ...] = ()
    """End tokens that are left out because the embedding has no row for them."""
    ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The `eos_ids` by their sources."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about the template and the end tokens."""
        warnings = [self.template.warning] if self.template.warning else []
        if self.ends_beyond:
            ids = ", ".join(map(str, self.ends_beyond))
            warnings.append(f"These end tokens are ignored: {ids}, since {self._rows_text}.")
        return tuple(warnings)

    @property
    def _rows_text(self) -> str:
        return f"the model's embedding has the rows 0 to {self.num_rows - 1}"

    def beyond_text(self, token_ids: Sequence[int]) -> str:
        """A clause on the first token that has no row in the embedding; empty if all have one."""
        beyond = [i for i in token_ids if i >= self.num_rows > 0]
        if not beyond:
            return ""
        token = self.tokenizer.convert_ids_to_tokens(beyond[0])
        return f"the token {beyond[0]} ({token!r}), and {self._rows_text}"

    @property
    def end_id(self) -> int | None:
        """The token that ends an answer: what the template writes after a turn, else the EOS."""
        added_tokens = {str(token): i for i, token in self.tokenizer.added_tokens_decoder.items()}
        jinja = self.template.jinja or ""
        candidates = [added_tokens.get(token) for token in TURN_ENDS if token in jinja]
        candidates = [*self.ends.get(_OF_TEMPLATE, ()), *candidates]
        candidates += [self.tokenizer.eos_token_id, min(self.eos_ids, default=None)]
        return next((token_id for token_id in candidates if token_id in self.eos_ids), None)

    def describe(self) -> ChatHeader:
        """Facts about prompts and how they are made from chats, for the header of a run."""
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
        """The message of an answer in a later prompt: its content, and its reasoning apart.

        The template decides what is kept of the reasoning. An answer without think marks and
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
        """Special tokens in a user's text that stay control tokens in a prompt.

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
        """The tokens of an answer's text, without special tokens around it."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def load_codec(path: Path, card: ModelCard, template: str, template_args: str = "") -> ChatCodec:
    """The codec of a checkpoint folder for `--template template` and `--template-args`."""
    tokenizer = load_tokenizer(path)
    chosen = choose_template(template, card, tokenizer)
    check_powers(chosen)
    chosen = replace(chosen, args=parse_template_args(template_args))
    chosen = with_measured_thinking(chosen, tokenizer, card.name)
    turn_end = turn_end_of(chosen, tokenizer)
    num_rows = embedding_rows(path)
    every_end = eos_ids(path, tokenizer).union(() if turn_end is None else (turn_end,))
    ends_beyond = tuple(sorted(i for i in every_end if i >= num_rows > 0))
    ends = end_tokens(path, tokenizer)
    if turn_end is not None:
        ends[_OF_TEMPLATE] = (turn_end,)
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
    """The special token that a template writes after an assistant's message at the end of a chat.

    None if another text follows the message. Only the end of a chat is read: inside a chat, gpt-oss
    ends its analysis with such a token, too.
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
    """The prompt's token ids with exactly one BOS in front, ready for an answer.

    Special tokens in the text of a message are encoded as text. Without a template they are
    control tokens, since the text is sent unchanged: an answer directly follows its user turn,
    and a blank line separates later user turns.
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
    # A BOS that the template alone writes may begin each message, as <|im_start|> of SmolLM2 does.
    for bos_id in added_bos(tokenizer):
        if ids.count(bos_id) > 1:  # two in front, or one per turn, as in LLaMA-2's template
            front = _text_before_user(template, tokenizer, marked.messages)
            num_in_front = _first_ids(tokenizer, front).count(bos_id)
            places = [i for i, token_id in enumerate(ids) if token_id == bos_id]
            for i in reversed(places[1:num_in_front]):
                del ids[i]
    return ids


def added_bos(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that the tokenizer puts in front of each text, whether it names a BOS or not."""
    whole_ids = tokenizer("a")["input_ids"]
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    return [*takewhile(lambda token_id: token_id not in text_ids, whole_ids)]


def _text_before_user(
    template: Template, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> str:
    """The text that a template writes before the first text of the user."""
    mark = next(unused_characters(messages))
    roles = [message["role"] for message in messages]
    with_mark = [*map(dict, messages)]
    if "user" in roles:
        with_mark[roles.index("user")]["content"] = mark
    return render_text(template, tokenizer, with_mark).partition(mark)[0]


def _first_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of the beginning of a prompt: one BOS, if the tokenizer has one, and no EOS
    that is not in the text.
    """
    eos_text, eos_id = tokenizer.eos_token, tokenizer.eos_token_id
    bos_id = tokenizer.bos_token_id
    bos_ids = [*added_bos(tokenizer), *([] if bos_id is None else [bos_id])]
    has_bos = text.startswith(tuple(tokenizer.convert_ids_to_tokens(bos_ids)))
    ids: list[int] = tokenizer(text, add_special_tokens=not has_bos)["input_ids"]
    if isinstance(eos_text, str) and not text.endswith(eos_text):
        while ids and ids[-1] == eos_id:  # a tokenizer that ends every text with EOS
            ids = ids[:-1]
    while bos_id is not None and ids[:2] == [bos_id, bos_id]:
        ids = ids[1:]
    return ids
