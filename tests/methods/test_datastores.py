"""REST: a datastore finds every occurrence, and the most frequent continuations are drafted.

Files that are not a datastore for the target are refused.
"""

import random
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from specbench.engine.decode import decode
from specbench.errors import CheckpointError
from specbench.measure.weights import find_datastore
from specbench.methods.rest import Options, Tokens
from specbench.methods.shared.datastore import Datastore
from specbench.types import Request
from tests.methods.building import build_in
from tests.methods.text_drafters import TARGET, built, drafted_after, stored
from tests.support.models import prompts, random_target
from tests.support.weights import build


def counted(text: list[int], corpus: list[list[int]], options: Options) -> Counter[Tokens]:
    """Count by brute force the paths that follow the longest context that occurs."""
    counts: Counter[Tokens] = Counter()
    for span in range(options.max_span, options.min_span - 1, -1):
        context = text[-span:]
        for corpus_text in corpus:
            for end in range(span, len(corpus_text)):
                if corpus_text[end - span : end] != context:
                    continue
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
    for corpus_text, end in product(corpus, (3, 11, 30)):
        last_token = draw.choice([1, 2, 3])
        text = [*corpus_text[: end - 1], last_token]
        counts = counted(text, corpus, options)
        path_of_node: list[Tokens] = [()]
        for parent, token in drafted_after(drafter, text):
            path_of_node.append((*path_of_node[parent], token))
        drafted = set(path_of_node[1:])
        assert drafted <= counts.keys()

        # Only the num_tokens most frequent paths may be drafted.
        ascending_counts = sorted([0] * num_tokens + [*counts.values()])
        least_count = ascending_counts[-num_tokens]
        assert all(counts[path] >= least_count for path in drafted)

        # A path costs its distinct tokens. The costliest paths are dropped until the rest fits.
        cost = {path: len(set(path)) for path in counts}
        total = sum(cost[path] for path in drafted)
        assert total <= num_tokens
        dropped = [path for path in counts.keys() - drafted if counts[path] > least_count]
        if dropped:
            cheapest_dropped = min(cost[path] for path in dropped)
            assert total + cheapest_dropped > num_tokens
            assert all(cost[path] <= cheapest_dropped for path in drafted)


IDS = np.array([1, 2, -1], dtype=np.int32)
"""The tokens of a datastore: a text of two tokens, and its end."""
NOT_ONCE = "its order does not list each position once"
NO_IDS = "its tokens are not token ids"
WRONG_STORES: list[tuple[NDArray[Any], list[Any], str]] = [
    (IDS, [0, 1, 1], NOT_ONCE),
    (IDS, [0, 1, 3], NOT_ONCE),
    (IDS, [0, 1, -1], NOT_ONCE),
    (IDS, [2, 1, 0], "its order is not sorted"),
    (IDS, [0, 1], "3 tokens, 2 in order"),
    (IDS.reshape(1, 3), [[0, 1, 2]], "3 tokens, 3 in order"),
    (IDS - 1, [0, 1, 2], NO_IDS),
    (IDS.astype(np.float32), [0, 1, 2], NO_IDS),
]
"""The tokens and the order of a file, and the reason why it is not a datastore."""


def test_a_file_that_is_not_the_targets_datastore_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"no")
    with pytest.raises(CheckpointError, match="is not a datastore"):
        build_in(path, "rest", TARGET)
    for tokens, order, reason in WRONG_STORES:
        tensors = {"token_ids": tokens, "order": np.array(order, dtype=np.int32)}
        save_file(tensors, path)
        with pytest.raises(CheckpointError, match=f"is not a datastore: {reason}"):
            build_in(path, "rest", TARGET)
    Datastore.build([[1, 50]]).save(path)
    with pytest.raises(CheckpointError, match="holds token 50; the target's vocabulary has 50"):
        build_in(path, "rest", TARGET)
    with pytest.raises(CheckpointError, match="is not a file"):
        find_datastore(str(tmp_path / "absent"))


def test_sam_is_lossless_with_a_datastore(tmp_path: Path) -> None:
    target = random_target()
    request = Request(prompts()[3], 40)
    vanilla = decode(target, build("vanilla", target, tmp_path), request)
    start_of_answer = list(vanilla.token_ids[:30])
    path = stored(tmp_path, [start_of_answer, [1, 2, 3]])
    done = decode(target, built("sam:threshold=2,bias=0", path), request)
    assert done.token_ids == vanilla.token_ids
    assert max(done.accept_lengths) > 15
