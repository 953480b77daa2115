"""The ends of tokens in the text of an answer."""

from collections.abc import Sequence
from itertools import pairwise

from specbench.measure.requests import token_ends
from tests.support.backend import Words
from tests.support.tiny import CODEC


class Bytes(Words):
    """A codec of bytes, which turns each byte of an incomplete character into a sign."""

    def text(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token).decode(errors="replace")


def test_ends_cut_the_text_into_its_tokens() -> None:
    text = "Write three suggestions for cooking at home, and then one for the garden."
    text_ids = CODEC.tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = (*text_ids, min(CODEC.eos_ids))
    answer = CODEC.text(ids)
    ends = token_ends(CODEC, ids, answer)
    pieces = [answer[start:end] for start, end in pairwise((0, *ends))]
    assert "".join(pieces) == answer
    token_texts = [CODEC.text([token]) for token in ids]
    assert [piece.strip() for piece in pieces] == [piece.strip() for piece in token_texts]
    assert pieces[-1] == "", "the end token has no text"


def test_a_character_of_several_tokens_ends_with_the_last_of_them() -> None:
    answer = "aé€😀b"  # of 1, 2, 3, 4 and 1 bytes
    ends = token_ends(Bytes(), [*answer.encode(), 0], answer)
    assert ends == (1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 5, 5)
    assert token_ends(Bytes(), [], "") == ()
