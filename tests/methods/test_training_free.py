"""Methods without weights: what they draft after a text, and what they keep of it.

Prompt lookup: the n-grams and continuations that count.
Suffix decoding: the drafts that follow from occurrences, and their lengths.
REST and SAM-Decoding: their copies, the conditions, and SAM's other drafter, which misses no step.
Lookahead's window and its content.
Token Recycling's table: the rows that a step writes, and those kept from prompt to prompt.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import State, StepResult
from specbench.errors import UserError
from specbench.methods import recycling
from specbench.registry import get, make_options
from specbench.types import Request, Sampling
from tests.methods.text_drafters import TARGET, built, chain, drafted_after, stored
from tests.support.models import prompts, random_target, static_tree
from tests.support.weights import build
from tests.training.head_models import started

REST_TEXTS = [[3, 4, 5, 6, 7], [9, 4, 5, 6, 8], [4, 5, 6, 8, 1], [2, 4, 5]]
"""The datastore of REST."""
SAM_TEXTS = [[3, 4, 5, 6, 7], [9, 3, 4, 5, 8, 8], [*range(10, 50)], [1, *range(12, 46), 5, 5]]
"""The datastore of SAM-Decoding."""
MATCH_AT_END = "3 4 5 6 7 9 3 4 5"
"""The last three tokens occurred before."""
MATCH_IN_BOTH = "3 4 5 9 3 4 5"
"""Three tokens match in the text, and four match in SAM_TEXTS."""
REPEATED_7 = "5 6 7 8 6 7 3 9 7"
"""7 occurs three times, the last time at the end."""
FROM_12_TO_44 = " ".join(map(str, range(12, 45)))
"""Tokens that two of SAM_TEXTS have."""
SAM = "sam:num_tokens=3,threshold=3"
SAM_BIAS_0 = "sam:num_tokens=3,threshold=2,bias=0"
SAM_BIAS_1 = "sam:num_tokens=3,threshold=2,bias=1"
"""The bias is subtracted from the length of a match in the datastore."""


def ids(text: str) -> list[int]:
    """The token ids of a text such as "3 4 5"."""
    return [int(word) for word in text.split()]


@pytest.mark.parametrize(
    ("options", "text", "copied"),
    [
        ("num_tokens=3", REPEATED_7, "8 6 7"),
        ("num_tokens=6", REPEATED_7, "8 6 7 3 9 7"),
        ("num_tokens=7", REPEATED_7, ""),  # six tokens follow
        ("num_tokens=7,allow_shorter=true", REPEATED_7, "8 6 7 3 9 7"),
        ("num_tokens=3,min_ngram=2", REPEATED_7, ""),  # 9 7 is new
        ("num_tokens=3,min_ngram=2", f"{REPEATED_7} 6 7", "8 6 7"),
    ],
)
def test_pld_copies_after_the_earliest_match(options: str, text: str, copied: str) -> None:
    drafter = built(f"pld:{options}")
    assert drafted_after(drafter, ids(text)) == chain(*ids(copied))


@pytest.mark.parametrize(
    ("options", "text", "frequent"),
    [
        ("", MATCH_AT_END, "6 7 9"),  # as many as match
        ("factor=0.5", MATCH_AT_END, "6"),
        ("num_tokens=2", MATCH_AT_END, "6 7"),
        ("depth=4", MATCH_AT_END, "6 7"),
        ("depth=3", "5 6 5 7 5 7 5 6 5", "7"),  # 6 and 7 follow twice, and 7 was first to do so
        ("min_prob=0.6", MATCH_AT_END, ""),  # the text's end counts too
        ("", "3 4 5", ""),
    ],
)
def test_suffix_decoding_drafts_frequent_tokens(options: str, text: str, frequent: str) -> None:
    drafter = built(f"suffix:{options}")
    assert drafted_after(drafter, ids(text)) == chain(*ids(frequent))


def test_a_tree_of_suffix_decoding_has_all_tokens_that_followed() -> None:
    drafter = built("suffix:shape=tree")
    assert drafted_after(drafter, ids("3 5 6 3 5 7 3 5")) == [(0, 6), (0, 7)]


@pytest.mark.parametrize(
    ("options", "text", "copied"),
    [
        ("", "9 4 5", "6 8"),  # the longest context that occurs
        ("length=1", "1 4 5", "6"),
        ("num_tokens=3", "1 4 5", "6 8"),
        ("", "1 5", ""),
        ("min_span=3", "1 4 5", ""),
    ],
)
def test_rest_copies_after_the_longest_context(
    options: str, text: str, copied: str, tmp_path: Path
) -> None:
    drafter = built(f"rest:{options}", stored(tmp_path, REST_TEXTS))
    assert drafted_after(drafter, ids(text)) == chain(*ids(copied))


@pytest.mark.parametrize("text", ["1 4 5", "2 4 5"])  # 2 4 5 ends a stored text, so 4 5 counts
def test_rest_drafts_first_what_followed_most_often(text: str, tmp_path: Path) -> None:
    """In the datastore, 4 5 is followed by 6 three times, by 6 8 twice and by 6 7 once."""
    drafter = built("rest", stored(tmp_path, REST_TEXTS))
    assert drafted_after(drafter, ids(text)) == [(0, 6), (1, 8), (1, 7), (2, 1)]


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("3 4 5 9 8 7 3 4 5", "9 8 7"),
        ("4 5 9 9 3 4 5 6 3 4 5", "6 3 4"),
        ("5 9 9 4 5 3 4 5 3 4 5", "3 4 5"),
        ("5 9 9 3 4 5 3 4 5", "3 4 5"),
        ("4 5 3 3 3 3 3", "3 3 3"),  # more follows a shorter match further back
    ],
)
def test_sam_copies_after_a_long_match_in_the_text(text: str, copied: str) -> None:
    assert drafted_after(built(SAM), ids(text)) == chain(*ids(copied))


@pytest.mark.parametrize(
    ("spelling", "text", "copied"),
    [
        (SAM_BIAS_1, "1 3 4 5", "6 7"),  # the earliest occurrence of the longest match
        (SAM_BIAS_1, "9 3 4 5", "8 8"),
        ("sam:num_tokens=3,threshold=1,bias=1", "1 4 5", "6 7"),
        (SAM_BIAS_1, MATCH_IN_BOTH, "9 3 4"),  # three in the text, four less the bias in SAM_TEXTS
        (SAM_BIAS_0, MATCH_IN_BOTH, "8 8"),
        (SAM_BIAS_1, f"1 {FROM_12_TO_44}", "45 5 5"),  # 1 comes before them in the last text
        (SAM_BIAS_1, f"2 {FROM_12_TO_44}", "45 46 47"),  # both texts match, and the earlier counts
    ],
)
def test_sam_copies_after_the_longest_match_in_its_datastore_or_the_text(
    spelling: str, text: str, copied: str, tmp_path: Path
) -> None:
    drafter = built(spelling, stored(tmp_path, SAM_TEXTS))
    assert drafted_after(drafter, ids(text)) == chain(*ids(copied))


@pytest.mark.parametrize(
    ("spelling", "text"),
    [
        (SAM, "3 4 5 9 8 7 6 4 5"),  # two tokens match
        (SAM_BIAS_1, "1 4 5"),  # a match of two, less the bias, is below the threshold
        (SAM_BIAS_0, "1 6 7"),  # the match ends its stored text
    ],
)
def test_sam_leaves_steps_without_a_long_match_to_the_other_method(
    spelling: str, text: str, tmp_path: Path
) -> None:
    datastore = stored(tmp_path, SAM_TEXTS) if "bias" in spelling else None
    drafted = drafted_after(built(spelling, datastore), ids(text))
    assert len(drafted) == 60  # Token Recycling's tree without its root


@pytest.mark.parametrize("other", ["recycling", "eagle2"])
def test_sam_is_lossless_if_both_parts_propose(other: str, tmp_path: Path) -> None:
    target = random_target()
    request = Request(prompts()[3], 60)
    drafter = build("sam", target, tmp_path, other=other, num_tokens="5", threshold="3")
    completion = decode(target, drafter, request, is_checked=True)
    vanilla_completion = decode(target, build("vanilla", target, tmp_path), request)
    assert completion.token_ids == vanilla_completion.token_ids
    most_of_a_copy = 5 + 1  # num_tokens and the root
    assert min(completion.num_nodes) <= most_of_a_copy
    assert max(completion.num_nodes) > most_of_a_copy


def test_outputs_of_earlier_prompts_are_read_if_remembered() -> None:
    drafter = built("suffix:scope=run")
    started(drafter, TARGET, [3, 4, 5]).append(8)  # the output 5 8, which is not remembered
    assert drafted_after(drafter, [4, 5]) == []
    state = started(drafter, TARGET, [3, 4, 5])
    state.append(8)
    state.append(9)
    drafter.remember()  # the output 5 8 9
    assert drafted_after(drafter, [4, 5, 8]) == [(0, 9)]
    drafter.forget()
    assert drafted_after(drafter, [4, 5, 8]) == []


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("pld", {"min_ngram": "4"}, "n-grams of 4 to 3 tokens"),
        ("rest", {"min_span": "5", "max_span": "4"}, "contexts of 5 to 4 tokens"),
        ("sam", {"datastore": "x", "other": "eagle2"}, "datastore and eagle2's weights"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    name: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        make_options(get(name), options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_window_holds_the_best_tokens_at_every_temperature(
    temperature: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = random_target()
    drafter: Any = build("lookahead", target, tmp_path)
    observe = drafter.observe
    num_steps = 0

    def observe_and_check(state: State, result: StepResult) -> None:
        nonlocal num_steps
        best_tokens = result.forward.logits.argmax(-1)  # [rows], with padding after the nodes
        best_of_nodes = best_tokens[: drafter._num_nodes].tolist()
        observe(state, result)
        num_steps += 1
        # The window is the end of the tree. The tokens after its last level are the next level.
        next_level = drafter._levels[-1]
        assert next_level == best_of_nodes[-len(next_level) :]

    monkeypatch.setattr(drafter, "observe", observe_and_check)
    decode(target, drafter, Request(prompts()[3], 30, Sampling(temperature)))
    assert num_steps > 5


@pytest.mark.parametrize("make", [recycling.Table, recycling.HostTable])
def test_a_row_holds_the_best_tokens_of_the_last_node_with_its_token(
    make: type[recycling.Table],
) -> None:
    table = make(static_tree("2x1", vocab_size=50), random_target())
    nodes = torch.arange(3)
    best_tokens = torch.tensor([7, 8, 9])  # [nodes]
    second_best = torch.tensor([3, 4, 5])  # [nodes]
    logits = torch.zeros(3, 50)  # [nodes, vocab]
    logits[nodes, best_tokens] = 1.0
    logits[nodes, second_best] = 0.5
    # The last row is padding.
    padded_tokens = torch.tensor([11, 12, 11, 0])  # [rows]
    padded_logits = torch.cat([logits, logits[:1]])  # [rows, vocab]
    table.learn(padded_tokens, padded_logits, num_nodes=torch.tensor([3]))

    def best_after(token: int) -> list[int]:
        (tokens,) = table.fill(torch.tensor([token]))
        return tokens[1:3].tolist()  # the root's children

    assert best_after(11) == [9, 5]  # of node 2, the last one with token 11
    assert best_after(12) == [8, 4]
    assert best_after(0) == [0, 1]  # the padding's token has learned nothing


def test_a_remembered_table_serves_the_next_prompt_until_it_is_forgotten() -> None:
    target = random_target()
    drafter = built("recycling")
    request = Request(prompts()[2], 40)
    first = decode(target, drafter, request)
    assert decode(target, drafter, request).steps == first.steps
    drafter.remember()
    remembering = decode(target, drafter, request)
    assert remembering.token_ids == first.token_ids
    assert len(remembering.steps) < len(first.steps)
    drafter.forget()
    assert decode(target, drafter, request).steps == first.steps
