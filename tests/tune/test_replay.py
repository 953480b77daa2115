"""A profile's replay of smaller settings has exactly the steps of a real run with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path

import pytest
import torch

from specbench import run
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter, State, StepResult
from specbench.engine.load import load_target
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.registry import get
from specbench.tune import Profile, best_tree, mat, oracle, profile, read_profile, replay
from specbench.types import Record, Request
from specbench.zoo import TINY
from tests.support.checkpoint import change_config
from tests.support.methods import parse_methods
from tests.tune import WORK

VALUES = WORK | {"tasks": "mt_bench,gsm8k", "limit": 1, "max_new_tokens": 48}
DYNAMIC = (
    "total_tokens=60,depth=5,top_k=10",
    "total_tokens=8,depth=4,top_k=1",
    "total_tokens=12,depth=3,top_k=4",
    "total_tokens=5,depth=1,top_k=2",
    "total_tokens=60,depth=7,top_k=10",
    "total_tokens=33,depth=5,top_k=6",
)
TREES = ("nodes=0", "tree=1x1x1x1x1x1", "nodes=4", "tree=4x2x1x1", "tree=eagle_25,nodes=12")
CHAINS = (
    "num_tokens=1,schedule=constant",
    "num_tokens=20,schedule=constant",
    "num_tokens=5,schedule=heuristic",
    "num_tokens=8,schedule=constant",
)
SETTINGS = {
    "eagle2": DYNAMIC[:3],
    "eagle3": DYNAMIC[2:],
    "medusa": TREES[:3],
    "hydra": TREES[1:4],
    "eagle": TREES[2:],
    "sps": CHAINS[:3],
    "layerskip": CHAINS[1:],
    "pard": tuple(f"num_tokens={n}" for n in (1, 4, 12)),
    "pld": ("num_tokens=1", "num_tokens=20", "allow_shorter=true", "ngram=1"),
    "suffix": ("num_tokens=4", "shape=tree", "depth=6", "min_prob=0.5"),
}
"""Methods whose drafts are recorded in the same way share settings."""


@pytest.fixture(scope="module")
def pard(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PARD with tiny's draft model, which is given a mask token."""
    folder = shutil.copytree(TINY / "sps", tmp_path_factory.mktemp("made") / "pard")
    change_config(folder, pard_token=3)
    return f"pard:weights={folder}"


@pytest.fixture(scope="module")
def profiled(pard: str, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A profile as it is read from its files."""
    folder = tmp_path_factory.mktemp("made") / "profile"
    profile("tiny", [*({*SETTINGS} - {"pard"}), pard], output=folder, **VALUES)
    return read_profile(folder)


Runs = dict[str, dict[str, list[Record]]]
"""The records of each requested setting, by method."""


@pytest.fixture(scope="module")
def real(pard: str, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """An ordinary run of all settings."""
    starts = {method: f"{method}:" for method in SETTINGS} | {"pard": f"{pard},"}
    asked = {k: [starts[k] + options for options in SETTINGS[k]] for k in SETTINGS}
    every = [setting for some in asked.values() for setting in some]
    folder = tmp_path_factory.mktemp("run")
    measured = run("tiny", every, output=folder, settings="paper", repeats=1, **VALUES)
    labels = {setting: parse_methods([setting])[0].label for setting in every}
    return {
        method: {
            setting: [r for r in measured.records if r.key.method == labels[setting]]
            for setting in some
        }
        for method, some in asked.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("method", SETTINGS)
def test_a_replay_has_the_steps_of_a_real_run(method: str, profiled: Profile, real: Runs) -> None:
    for spelling, records in real[method].items():
        walks = {walk.prompt: walk for walk in replay(profiled, spelling)}
        assert len(walks) == len(records) == 3
        for record in records:
            walk = walks[f"{record.key.task}/{record.key.sample_id}/{record.key.turn}"]
            assert walk.accepts == record.accept_lengths, spelling
            assert walk.nodes == record.num_nodes, spelling
            assert walk.prompt_tokens == record.prompt_tokens
    every = [record for records in real[method].values() for record in records]
    assert len({record.accept_lengths for record in every}) >= 3


class Either(Drafter):
    """A drafter that drafts like the first one, and like the second if the first has no draft."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.needs = second.needs

    def start(self, state: State, prefill: Forward) -> None:
        self.first.start(state, prefill)
        self.second.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree = self.first.propose(state)
        if tree.num_nodes == 1:
            return self.second.propose(state)
        self.second.skip(state)
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        self.second.observe(state, result)


def test_a_combination_drafts_with_the_second_method_if_the_first_has_no_draft(
    profiled: Profile,
) -> None:
    target = load_target(TINY / "target", dtype=torch.float32, device=torch.device("cpu"))
    pld, eagle = get("pld"), get("eagle2")
    options = eagle.options(total_tokens=6, depth=2, top_k=2)
    either = Either(
        pld.build(pld.options(min_ngram=2), BuildContext(target)),
        eagle.build(options, BuildContext(target, TINY / "eagle", skipped_depth=10)),
    )
    second = "eagle2:total_tokens=6,depth=2,top_k=2"
    walks = replay(profiled, "pld:min_ngram=2", otherwise=second)
    assert {6, 11} == {*walks[0].nodes}
    for answer, walk in zip(profiled.answers, walks, strict=True):
        eos = frozenset({answer.token_ids[-1]} if answer.about.stop_reason == "eos" else ())
        done = decode(target, either, Request(answer.prompt_ids, 48, eos_ids=eos))
        assert done.token_ids == answer.token_ids
        assert (walk.accepts, walk.nodes) == (done.accept_lengths, done.num_nodes)


@pytest.mark.parametrize("method", ["eagle2", "eagle3", "medusa", "eagle"])
def test_no_setting_exceeds_the_oracle(method: str, profiled: Profile) -> None:
    bound = mat(oracle(profiled, method))
    mats = [mat(replay(profiled, f"{method}:{options}")) for options in SETTINGS[method]]
    assert max(mats) <= bound
    assert bound > 1.1 * sorted(mats)[1]


def test_no_tree_of_its_size_beats_the_best_tree(tmp_path: Path) -> None:
    # Enough positions for the most frequent ranks to be those of the best tree.
    values = {**VALUES, "tasks": "mt_bench,gsm8k,humaneval,alpaca", "limit": 2}
    profiled = profile("tiny", "medusa", **values)

    def mat_of(paths: Iterable[tuple[int, ...]]) -> float:
        (tmp_path / "tree.json").write_text(json.dumps([*paths]))
        return mat(replay(profiled, f"medusa:tree={tmp_path / 'tree.json'}"))

    def is_tree(paths: Iterable[tuple[int, ...]]) -> bool:
        return all(path[:-1] in {(), *paths} for path in paths)

    every = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    trees = filter(is_tree, combinations(every, 3))
    assert mat_of(best_tree(profiled, "medusa", 4)) >= 0.99 * max(map(mat_of, trees))
    larger = best_tree(profiled, "medusa", 20)
    assert len(larger) == 19 and is_tree(larger)
    assert mat_of(larger) > mat(replay(profiled, "medusa:nodes=20"))
