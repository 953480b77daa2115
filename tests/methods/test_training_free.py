"""REST: a datastore finds every occurrence, and its most frequent continuations are drafted.

SAM-Decoding: its copies, their conditions, and the other drafter, which misses no step.
Suffix decoding: the drafts that follow from occurrences, and their lengths.
Prompt lookup: the n-grams and continuations that count.
Lookahead's window and its content.
Token Recycling's table: the rows that a step writes, and those kept from prompt to prompt.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, State, StepResult
from specbench.errors import CheckpointError, UserError
from specbench.measure.weights import find_datastore
from specbench.methods import recycling
from specbench.methods.rest import Options, Tokens
from specbench.methods.shared.datastore import Datastore
from specbench.registry import get, make_options
from specbench.types import Request, Sampling
from tests.methods.building import build_in
from tests.support.models import prompts, random_target, static_tree
from tests.support.weights import build
from tests.training.head_models import started

TEXTS = [[3, 4, 5, 6, 7], [9, 4, 5, 6, 8], [4, 5, 6, 8, 1], [2, 4, 5]]
CORPUS = [[3, 4, 5, 6, 7], [9, 3, 4, 5, 8, 8], [*range(10, 50)], [1, *range(12, 46), 5, 5]]
TARGET = random_target(layers=1)


def built(spelling: str, datastore: Path | None = None) -> Any:
    """The drafter of a method as it is spelt on the command line."""
    name, _, given = spelling.partition(":")
    options = dict(option.split("=") for option in given.split(",") if option)
    if datastore:
        options["datastore"] = str(datastore)
    method = get(name)
    return method.build(make_options(method, options), BuildContext(TARGET, datastore))


def stored(folder: Path, corpus: list[list[int]]) -> Path:
    Datastore.build(corpus).save(folder / "store.safetensors")
    return folder / "store.safetensors"


def drafted_after(drafter: Any, *text: int) -> list[tuple[int, int]]:
    """Parent and token of each draft node."""
    tree = drafter.propose(started(drafter, TARGET, list(text)))
    parents, tokens = tree.layout.parents.tolist(), tree.tokens.tolist()
    return list(zip(parents[1:], tokens[1:], strict=True))


def chain(*tokens: int) -> list[tuple[int, int]]:
    """Parent and token of each node of a chain: the node before it is the parent."""
    return [*enumerate(tokens)]


BY_FREQUENCY = [(0, 6), (1, 8), (1, 7), (2, 1)]
SEEN = (3, 4, 5, 9, 3, 4, 5)
TWICE = (5, 6, 7, 8, 6, 7, 3, 9, 7)
OFTEN = (5, 6, 5, 7, 5, 7, 5, 6, 5)
LONG = (3, 4, 5, 6, 7, 9, 3, 4, 5)
PLD = "pld:num_tokens=7"
SAM = "sam:num_tokens=3,threshold=3"
STORED = "sam:num_tokens=3,threshold=2,bias=1"


@pytest.mark.parametrize(
    ("spelling", "text", "expected"),
    [
        ("pld:num_tokens=3", TWICE, chain(8, 6, 7)),  # the earliest 7
        (PLD, TWICE, []),
        (f"{PLD},allow_shorter=true", TWICE, chain(8, 6, 7, 3, 9, 7)),
        ("pld:num_tokens=3,min_ngram=2", TWICE, []),
        ("pld:num_tokens=3,min_ngram=2", (*TWICE, 6, 7), chain(8, 6, 7)),
        ("suffix", LONG, chain(6, 7, 9)),  # as many as match
        ("suffix:factor=0.5", LONG, chain(6)),
        ("suffix:num_tokens=2", LONG, chain(6, 7)),
        ("suffix:depth=4", LONG, chain(6, 7)),
        ("suffix:depth=3", OFTEN, chain(7)),  # 7 was seen twice first
        ("suffix:min_prob=0.6", LONG, []),  # this very end counts too
        ("suffix", (3, 4, 5), []),
        ("suffix:shape=tree", (3, 5, 6, 3, 5, 7, 3, 5), [(0, 6), (0, 7)]),
        ("rest", (1, 4, 5), BY_FREQUENCY),
        ("rest", (9, 4, 5), chain(6, 8)),  # the longest context that occurs
        ("rest:length=1", (1, 4, 5), chain(6)),
        ("rest:num_tokens=3", (1, 4, 5), chain(6, 8)),
        ("rest", (2, 4, 5), BY_FREQUENCY),  # where it ends, a shorter one counts
        ("rest", (1, 5), []),
        ("rest:min_span=3", (1, 4, 5), []),
        (SAM, (3, 4, 5, 9, 8, 7, 3, 4, 5), chain(9, 8, 7)),
        (SAM, (3, 4, 5, 9, 8, 7, 6, 4, 5), None),  # two tokens match
        (SAM, (4, 5, 9, 9, 3, 4, 5, 6, 3, 4, 5), chain(6, 3, 4)),
        (SAM, (5, 9, 9, 4, 5, 3, 4, 5, 3, 4, 5), chain(3, 4, 5)),
        (SAM, (5, 9, 9, 3, 4, 5, 3, 4, 5), chain(3, 4, 5)),
        (SAM, (4, 5, 3, 3, 3, 3, 3), chain(3, 3, 3)),  # more follows a shorter match further back
        (STORED, (1, 3, 4, 5), chain(6, 7)),  # the earliest of the longest match
        (STORED, (9, 3, 4, 5), chain(8, 8)),
        (STORED, (1, 4, 5), None),  # one token longer than the bias, not two
        ("sam:num_tokens=3,threshold=1,bias=1", (1, 4, 5), chain(6, 7)),
        (STORED, SEEN, chain(9, 3, 4)),  # three match here, four less the bias there
        ("sam:num_tokens=3,threshold=2,bias=0", SEEN, chain(8, 8)),
        (STORED, (1, *range(12, 45)), chain(45, 5, 5)),
        (STORED, (2, *range(12, 45)), chain(45, 46, 47)),
        ("sam:num_tokens=3,threshold=2,bias=0", (1, 6, 7), None),  # nothing follows
    ],
)
def test_what_is_drafted_after_a_text(
    spelling: str, text: tuple[int, ...], expected: list[tuple[int, int]] | None, tmp_path: Path
) -> None:
    """None if SAM-Decoding leaves the step to the other method, which drafts a tree of 61 nodes."""
    corpus = TEXTS if "rest" in spelling else CORPUS if "bias" in spelling else []
    drafter = built(spelling, stored(tmp_path, corpus) if corpus else None)
    drafted = drafted_after(drafter, *text)
    assert drafted == expected or (expected is None and len(drafted) == 60)


def counted(text: list[int], corpus: list[list[int]], options: Options) -> Counter[Tokens]:
    """Each path's number of occurrences after the longest context that has any, by brute force."""
    counts: Counter[Tokens] = Counter()
    for span in range(options.max_span, options.min_span - 1, -1):
        for corpus_text in corpus:
            for end in range(span, len(corpus_text)):
                if corpus_text[end - span : end] == text[-span:]:
                    after = corpus_text[end : end + options.length]
                    counts.update(tuple(after[:size]) for size in range(1, len(after) + 1))
        if counts:
            break
    return counts


@pytest.mark.parametrize(("seed", "num_tokens"), [(0, 500), (1, 64), (2, 64), (3, 9), (4, 5)])
def test_drafts_are_among_those_that_the_official_rules_allow(
    seed: int, num_tokens: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    corpus = [[draw.choice([1, 1, 2, 3, 4]) for _ in range(30)] for _ in range(8)]
    options = Options(num_tokens=num_tokens)
    drafter = built(f"rest:num_tokens={num_tokens}", stored(tmp_path, corpus))
    for text in (corpus_text[:end] for corpus_text in corpus for end in (3, 11, 30)):
        text = [*text[:-1], draw.choice([1, 2, 3])]
        counts = counted(text, corpus, options)
        path_of_node: list[Tokens] = [()]
        for parent, token in drafted_after(drafter, *text):
            path_of_node.append((*path_of_node[parent], token))
        drafted = set(path_of_node[1:])
        assert drafted <= counts.keys()

        # The num_tokens most frequent paths come into question.
        least_count = sorted([0] * num_tokens + [*counts.values()])[-num_tokens]
        assert all(counts[path] >= least_count for path in drafted)

        # A path costs its distinct tokens. The dearest paths are dropped until the budget holds.
        cost = {path: len(set(path)) for path in counts}
        dropped = [path for path in counts.keys() - drafted if counts[path] > least_count]
        cheapest_dropped = min((cost[path] for path in dropped), default=None)
        total = sum(cost[path] for path in drafted)
        assert total <= num_tokens
        if cheapest_dropped is not None:
            assert total + cheapest_dropped > num_tokens
            assert all(cost[path] <= cheapest_dropped for path in drafted)


def test_what_is_no_datastore_for_the_target_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"no")
    with pytest.raises(CheckpointError, match="is not a datastore"):
        build_in(path, "rest", TARGET)
    ids = np.array([1, 2, -1], dtype=np.int32)
    for tokens, order, reason in (
        (ids, [0, 1, 1], "its order does not name each token once"),
        (ids, [0, 1, 3], "its order does not name each token once"),
        (ids, [0, 1, -1], "its order does not name each token once"),
        (ids, [2, 1, 0], "its order does not sort its tokens"),
        (ids, [0, 1], "3 tokens, 2 in order"),
        (ids.reshape(1, 3), [[0, 1, 2]], "3 tokens, 3 in order"),
        (ids - 1, [0, 1, 2], "its tokens are not token ids"),
        (ids.astype(np.float32), [0, 1, 2], "its tokens are not token ids"),
    ):
        save_file({"token_ids": tokens, "order": np.array(order, dtype=np.int32)}, path)
        with pytest.raises(CheckpointError, match=f"is not a datastore: {reason}"):
            build_in(path, "rest", TARGET)
    Datastore.build([[1, 50]]).save(path)
    with pytest.raises(CheckpointError, match="holds token 50; the target's vocabulary has 50"):
        build_in(path, "rest", TARGET)
    with pytest.raises(CheckpointError, match="is not a file"):
        find_datastore(str(tmp_path / "absent"))


def test_it_is_lossless_with_a_datastore(tmp_path: Path) -> None:
    target = random_target()
    request = Request(prompts()[3], 40)
    vanilla = decode(target, build("vanilla", target, tmp_path), request)
    path = stored(tmp_path, [list(vanilla.token_ids[:30]), [1, 2, 3]])
    drafter = built("sam:threshold=2,bias=0", path)
    done = decode(target, drafter, request)
    assert done.token_ids == vanilla.token_ids
    assert max(done.accept_lengths) > 15


@pytest.mark.parametrize("other", ["recycling", "eagle2"])
def test_it_is_lossless_where_both_parts_propose(other: str, tmp_path: Path) -> None:
    target = random_target()
    request = Request(prompts()[3], 60)
    drafter = build("sam", target, tmp_path, other=other, num_tokens="5", threshold="3")
    done = decode(target, drafter, request, is_checked=True)
    vanilla = decode(target, build("vanilla", target, tmp_path), request)
    assert done.token_ids == vanilla.token_ids
    most_of_a_copy = 5 + 1  # num_tokens and the root
    assert min(done.num_nodes) <= most_of_a_copy < max(done.num_nodes)


def test_outputs_of_earlier_prompts_are_read_if_remembered() -> None:
    drafter = built("suffix:scope=run")
    started(drafter, TARGET, [3, 4, 5]).append(8)
    assert drafted_after(drafter, 4, 5) == []
    state = started(drafter, TARGET, [3, 4, 5])
    state.append(8)
    state.append(9)
    drafter.remember()  # the output 5 8 9
    assert drafted_after(drafter, 4, 5, 8) == [(0, 9)]
    drafter.forget()
    assert drafted_after(drafter, 4, 5, 8) == []


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
    observe, num_seen = drafter.observe, 0

    def check(state: State, result: StepResult) -> None:
        nonlocal num_seen
        best = result.forward.logits.argmax(-1)[: drafter._num_nodes].tolist()
        observe(state, result)
        num_seen += 1
        assert drafter._levels[-1] == best[-len(drafter._levels[-1]) :]

    monkeypatch.setattr(drafter, "observe", check)
    decode(target, drafter, Request(prompts()[3], 30, Sampling(temperature)))
    assert num_seen > 5


@pytest.mark.parametrize("make", [recycling.Table, recycling.HostTable])
def test_a_row_holds_the_best_tokens_of_the_last_node_with_its_token(
    make: type[recycling.Table],
) -> None:
    table = make(static_tree("2x1", vocab_size=50), random_target())
    logits = torch.zeros(3, 50)
    logits[0, 7] = logits[1, 8] = logits[2, 9] = 1.0
    logits[0, 3] = logits[1, 4] = logits[2, 5] = 0.5
    padded_tokens = torch.tensor([11, 12, 11, 0])
    padded_logits = torch.cat([logits, logits[:1]])
    num_nodes = torch.tensor([3])
    table.learn(padded_tokens, padded_logits, num_nodes)

    def best_after(token: int) -> list[int]:
        (tokens,) = table.fill(torch.tensor([token]))
        return tokens[1:3].tolist()

    assert [best_after(token) for token in (11, 12, 0)] == [[9, 5], [8, 4], [0, 1]]


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
