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

TEXTS = [[3, 4, 5, 6, 7], [9, 4, 5, 6, 8], [4, 5, 6, 8, 1], [2, 4, 5]]
"""The datastore of REST."""
CORPUS = [[3, 4, 5, 6, 7], [9, 3, 4, 5, 8, 8], [*range(10, 50)], [1, *range(12, 46), 5, 5]]
"""The datastore of SAM-Decoding."""
BY_FREQUENCY = [(0, 6), (1, 8), (1, 7), (2, 1)]
"""What REST drafts after 4 5. In TEXTS, 6 follows three times, 6 8 twice and 6 7 once."""
TWICE = (5, 6, 7, 8, 6, 7, 3, 9, 7)
"""6 7 occurs twice, and 7 three times, the last time at the end."""
OFTEN = (5, 6, 5, 7, 5, 7, 5, 6, 5)
"""5 is followed twice by 6 and twice by 7."""
LONG = (3, 4, 5, 6, 7, 9, 3, 4, 5)
"""The last three tokens occurred before."""
SEEN = (3, 4, 5, 9, 3, 4, 5)
"""Three tokens match in the text, four in CORPUS."""
PLD_3 = "pld:num_tokens=3"
PLD_7 = "pld:num_tokens=7"
PAIRS_ONLY = "pld:num_tokens=3,min_ngram=2"
SAM = "sam:num_tokens=3,threshold=3"
STORED = "sam:num_tokens=3,threshold=2,bias=1"
UNBIASED = "sam:num_tokens=3,threshold=2,bias=0"


@pytest.mark.parametrize(
    ("spelling", "text", "expected"),
    [
        (PLD_3, TWICE, chain(8, 6, 7)),  # the earliest 7
        (PLD_7, TWICE, []),
        (f"{PLD_7},allow_shorter=true", TWICE, chain(8, 6, 7, 3, 9, 7)),
        (PAIRS_ONLY, TWICE, []),
        (PAIRS_ONLY, (*TWICE, 6, 7), chain(8, 6, 7)),
        ("suffix", LONG, chain(6, 7, 9)),  # as many as match
        ("suffix:factor=0.5", LONG, chain(6)),
        ("suffix:num_tokens=2", LONG, chain(6, 7)),
        ("suffix:depth=4", LONG, chain(6, 7)),
        ("suffix:depth=3", OFTEN, chain(7)),  # 7 was seen twice first
        ("suffix:min_prob=0.6", LONG, []),  # the text's end counts too
        ("suffix", (3, 4, 5), []),
        ("suffix:shape=tree", (3, 5, 6, 3, 5, 7, 3, 5), [(0, 6), (0, 7)]),
        ("rest", (1, 4, 5), BY_FREQUENCY),
        ("rest", (9, 4, 5), chain(6, 8)),  # the longest context that occurs
        ("rest:length=1", (1, 4, 5), chain(6)),
        ("rest:num_tokens=3", (1, 4, 5), chain(6, 8)),
        ("rest", (2, 4, 5), BY_FREQUENCY),  # 2 4 5 ends a text, so 4 5 counts
        ("rest", (1, 5), []),
        ("rest:min_span=3", (1, 4, 5), []),
        (SAM, (3, 4, 5, 9, 8, 7, 3, 4, 5), chain(9, 8, 7)),
        (SAM, (3, 4, 5, 9, 8, 7, 6, 4, 5), None),  # two tokens match
        (SAM, (4, 5, 9, 9, 3, 4, 5, 6, 3, 4, 5), chain(6, 3, 4)),
        (SAM, (5, 9, 9, 4, 5, 3, 4, 5, 3, 4, 5), chain(3, 4, 5)),
        (SAM, (5, 9, 9, 3, 4, 5, 3, 4, 5), chain(3, 4, 5)),
        (SAM, (4, 5, 3, 3, 3, 3, 3), chain(3, 3, 3)),  # more follows a shorter match further back
        (STORED, (1, 3, 4, 5), chain(6, 7)),  # after the earliest occurrence of the longest match
        (STORED, (9, 3, 4, 5), chain(8, 8)),
        (STORED, (1, 4, 5), None),  # a match of two, less the bias, is below the threshold
        ("sam:num_tokens=3,threshold=1,bias=1", (1, 4, 5), chain(6, 7)),
        (STORED, SEEN, chain(9, 3, 4)),  # three match here, four minus the bias in CORPUS
        (UNBIASED, SEEN, chain(8, 8)),
        (STORED, (1, *range(12, 45)), chain(45, 5, 5)),
        (STORED, (2, *range(12, 45)), chain(45, 46, 47)),
        (UNBIASED, (1, 6, 7), None),  # the match ends its text
    ],
)
def test_a_method_drafts_the_expected_tokens_after_a_text(
    spelling: str, text: tuple[int, ...], expected: list[tuple[int, int]] | None, tmp_path: Path
) -> None:
    """`expected` is None if SAM-Decoding leaves the step to the other method.

    That method drafts a tree of 61 nodes.
    """
    datastore = None
    if spelling.startswith("rest"):
        datastore = stored(tmp_path, TEXTS)
    elif "bias" in spelling:
        datastore = stored(tmp_path, CORPUS)
    drafted = drafted_after(built(spelling, datastore), text)
    if expected is None:
        assert len(drafted) == 60
    else:
        assert drafted == expected


@pytest.mark.parametrize("other", ["recycling", "eagle2"])
def test_sam_is_lossless_if_both_parts_propose(other: str, tmp_path: Path) -> None:
    target = random_target()
    request = Request(prompts()[3], 60)
    drafter = build("sam", target, tmp_path, other=other, num_tokens="5", threshold="3")
    done = decode(target, drafter, request, is_checked=True)
    vanilla = decode(target, build("vanilla", target, tmp_path), request)
    assert done.token_ids == vanilla.token_ids
    most_of_a_copy = 5 + 1  # num_tokens and the root
    assert min(done.num_nodes) <= most_of_a_copy
    assert max(done.num_nodes) > most_of_a_copy


def test_outputs_of_earlier_prompts_are_read_if_remembered() -> None:
    drafter = built("suffix:scope=run")
    started(drafter, TARGET, [3, 4, 5]).append(8)
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

    def check(state: State, result: StepResult) -> None:
        nonlocal num_steps
        best_tokens = result.forward.logits.argmax(-1)
        best_of_nodes = best_tokens[: drafter._num_nodes].tolist()
        observe(state, result)
        num_steps += 1
        newest_level = drafter._levels[-1]
        assert newest_level == best_of_nodes[-len(newest_level) :]

    monkeypatch.setattr(drafter, "observe", check)
    decode(target, drafter, Request(prompts()[3], 30, Sampling(temperature)))
    assert num_steps > 5


@pytest.mark.parametrize("make", [recycling.Table, recycling.HostTable])
def test_a_row_holds_the_best_tokens_of_the_last_node_with_its_token(
    make: type[recycling.Table],
) -> None:
    table = make(static_tree("2x1", vocab_size=50), random_target())
    logits = torch.zeros(3, 50)
    nodes = torch.arange(3)
    best_tokens = torch.tensor([7, 8, 9])
    second_best = torch.tensor([3, 4, 5])
    logits[nodes, best_tokens] = 1.0
    logits[nodes, second_best] = 0.5
    padded_tokens = torch.tensor([11, 12, 11, 0])
    padded_logits = torch.cat([logits, logits[:1]])
    num_nodes = torch.tensor([3])
    table.learn(padded_tokens, padded_logits, num_nodes)

    def best_after(token: int) -> list[int]:
        (tokens,) = table.fill(torch.tensor([token]))
        return tokens[1:3].tolist()

    assert best_after(11) == [9, 5]  # of node 2, the last one with token 11
    assert best_after(12) == [8, 4]
    assert best_after(0) == [0, 1]  # the padding's token has learned nothing


def test_a_remembered_table_serves_the_next_prompt_until_it_is_forgotten() -> None:
    target = random_target()
    drafter = built("recycling")
    request = Request(prompts()[2], 40)
    fresh = decode(target, drafter, request)
    assert decode(target, drafter, request).steps == fresh.steps
    drafter.remember()
    remembering = decode(target, drafter, request)
    assert remembering.token_ids == fresh.token_ids
    assert len(remembering.steps) < len(fresh.steps)
    drafter.forget()
    assert decode(target, drafter, request).steps == fresh.steps
