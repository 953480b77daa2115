"""Prompts of a given length are cut from any text file."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.data.long_prompts import INSTRUCTION, MOST_PROMPTS, long_prompt_sets, read_text
from specbench.errors import UserError
from specbench.measure.plan import make_plan
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from specbench.zoo import TINY
from tests.packaging.shell import ROOT

WORDS = [f"word{i}" for i in range(1000)]


def written(path: Path, words: list[str]) -> str:
    path.write_text("\n".join(words), encoding="utf-8")
    return str(path)


def count_words(text: str) -> int:
    """A template of three tokens, and a token for each word."""
    return 3 + len(text.split())


def test_parts_of_the_text_follow_each_other_and_fill_their_number_of_tokens(
    tmp_path: Path,
) -> None:
    file = read_text(written(tmp_path / "book.txt", WORDS))
    short, long = long_prompt_sets(file, (20, 400), count_words, None)
    assert [one.task.name for one in (short, long)] == ["book/20", "book/400"]
    assert long.task.title == "book, 400 tokens"
    assert len(short.prompts) == MOST_PROMPTS and len(long.prompts) == 2
    for one, size in ((short, 20), (long, 400)):
        texts = [prompt.turns[0] for prompt in one.prompts]
        assert [count_words(text) for text in texts] == [size] * len(texts)
        words = [word for text in texts for word in text.removeprefix(INSTRUCTION).split()]
        assert words == WORDS[: len(words)]
    assert short.prompts[2].sample_id == "book/20/3"
    (limited,) = long_prompt_sets(file, (20,), count_words, 3)
    assert limited.prompts == short.prompts[:3]


@pytest.mark.parametrize("size", [3, 4, 1005, 5000])
def test_a_text_or_a_size_that_gives_no_prompt_is_refused(tmp_path: Path, size: int) -> None:
    file = read_text(written(tmp_path / "book.txt", WORDS))
    with pytest.raises(UserError, match=f"No prompt of {size} tokens .* gives 1004"):
        long_prompt_sets(file, (size,), count_words, None)


@pytest.mark.parametrize("source", ["bundled", "paper", "hub", "mine.jsonl"])
def test_prompts_of_other_sources_are_not_cut(source: str) -> None:
    with pytest.raises(UserError, match=f"--prompts {source} has prompts of its own"):
        read_text(source)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"not UTF-8 \(byte 4\)"):
        read_text(str(tmp_path / "book.txt"))
    with pytest.raises(UserError, match="does not exist"):
        read_text(str(tmp_path / "gone.txt"))


def test_a_plan_counts_the_tokens_of_the_models_own_prompt() -> None:
    """Any text file will do, such as one of this project."""
    spec = RunSpec(methods=("pld",), prompts=str(ROOT / "CONTRIBUTING.md"), pad_to=(128, 700))
    plan = make_plan(spec)
    codec = load_codec(TINY / "target", find_model("tiny"), "auto")
    for size, prompts in zip((128, 700), plan.prompts.values(), strict=True):
        lengths = [
            len(codec.render([{"role": "user", "content": prompt.turns[0]}])) for prompt in prompts
        ]
        assert len(lengths) == min(MOST_PROMPTS, len(lengths)) > 1
        assert all(size - 30 < length <= size for length in lengths)
    assert list(plan.prompts) == ["CONTRIBUTING/128", "CONTRIBUTING/700"]
    described = plan.prompt_sets[0].describe()
    assert (described.source, described.origin) == ("file", "CONTRIBUTING.md, 128 tokens")
    assert described.file_sha256 is not None


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="--pad-to 0 is too small"):
        RunSpec(pad_to=(5, 0))
