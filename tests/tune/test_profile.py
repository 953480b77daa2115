"""The parts of a profile, its files, and the reasons for refusing it."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.log.methods import MethodHeader
from specbench.methods.shared.stored_pool import HostPool, StoredPool, smaller_tree
from specbench.registry import get
from specbench.tune import Profile, profile, profile_file, read_profile, replay
from specbench.tune.profile_file import ProfiledMethod, ProfileHeader
from specbench.tune.recording import recorded_answer
from specbench.types import Request
from tests.methods import test_mtp, test_peagle
from tests.methods.building import build_in
from tests.methods.head_layouts import write_layout
from tests.support.models import prompts, random_llama
from tests.support.refusals import error_with
from tests.support.tracing import TraceRecorder
from tests.support.weights import build
from tests.tune import WORK

VALUES = WORK | {"max_new_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "made"
    profile("tiny", "eagle2:depth=2,top_k=3,medusa,sps", output=path, **VALUES)
    return path


@pytest.fixture(scope="module")
def profiled(folder: Path) -> Profile:
    return read_profile(folder)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("eagle2:total_tokens=8,depth=3,top_k=2", "depth is 3, but the profile allows at most 2"),
        ("eagle2:depth=2,top_k=4", "top_k is 4, but the profile allows at most 3"),
        ("eagle2:depth=1,top_k=2,weights=mine", "weights is 'mine', but the profile has ''"),
        ("eagle3", "eagle3 is not in the profile, which has vanilla, eagle2:depth=2,top_k=3"),
        ("recycling", "recycling is not in the profile"),
        ("suffix:scope=run", "is not in the profile"),
        ("medusa:tree=70", "needs depth 1 and 70 ranks, but the profile has depth 4 and 64 ranks"),
        ("pld:ngrams=3", "ngrams"),
        ("pld,sps", "'pld,sps' is not a single method: it names pld, sps"),
        ("", "'' is not a single method: it names none"),
    ],
)
def test_a_setting_outside_of_the_profile_is_refused_with_both_values(
    setting: str, reason: str, profiled: Profile
) -> None:
    with pytest.raises(UserError, match=reason):
        replay(profiled, setting)


@pytest.mark.parametrize(
    ("method", "values", "reason"),
    [
        ("recycling", {}, "recycling has no acceptance profile"),
        ("lookahead", {}, "lookahead has no acceptance profile"),
        ("suffix:scope=run", {}, "suffix:scope=run has no acceptance profile"),
        ("eagle", {"temperatures": 1.0}, "draws siblings, and an answer shows only one"),
        ("medusa:acceptance=typical", {"temperatures": 1.0}, "its rule gives different answers"),
        ("eagle2:top_k=24", {"limit": 1}, r"bytes per position, more than 4,096"),
    ],
)
def test_a_method_that_cannot_be_profiled_is_refused(
    method: str, values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=reason):
        profile("tiny", method, output=tmp_path / "made", **VALUES | values)
    assert not (tmp_path / "made").exists()


def test_a_profile_that_becomes_too_large_ends_after_its_first_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profile_file, "MOST_BYTES", 10_000)
    lines: list[str] = []
    with pytest.raises(UserError, match=r"about \d{3},\d{3} bytes, more than 10,000"):
        profile("tiny", "eagle2", **VALUES | {"limit": 8}, say=lines.append)
    assert 1 <= len(lines) < 8


def test_a_profile_of_another_model_or_other_weights_is_refused(profiled: Profile) -> None:
    model, label = profiled.header.model, "eagle2:depth=2,top_k=3"
    eagle = profiled.header.methods[label].about
    profiled.check(model, {label: eagle})
    changed, weights = msgspec.structs.replace, eagle.weights
    name, file = next(iter(model.files.items()))
    files = {**model.files, name: changed(file, sha256="0" * 64)}
    with error_with(
        UserError,
        'dtype: "float32" in the profile, "bfloat16" here',
        match=rf"model.files.{name}.sha256: .*0000",
    ):
        profiled.check(changed(model, dtype="bfloat16", files=files), {})
    assert weights
    name, file = next(iter(weights.files.items()))
    files = {**weights.files, name: changed(file, sha256="0" * 64)}
    with pytest.raises(UserError, match=rf"methods.{label}.weights.files.{name}.*0000"):
        profiled.check(model, {label: changed(eagle, weights=changed(weights, files=files))})


def test_the_files_of_a_profile_belong_together(
    folder: Path, profiled: Profile, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="holds a profile"):
        read_profile(folder).write(folder)
    read_profile(folder).write(tmp_path / "copy")
    stored, copied = (np.load(path / "profile.npz") for path in (folder, tmp_path / "copy"))
    names = {"prompt_ids", "token_ids"}
    drafts = profiled.answers[0].drafts.items()
    names |= {f"{label}/{part}" for label, parts in drafts for part in parts}
    assert {*stored} == {*copied} == names
    assert all(np.array_equal(copied[name], stored[name]) for name in names)
    (tmp_path / "copy" / "profile.npz").write_bytes(b"other")
    with pytest.raises(UserError, match=r"has sha256 d9298a10d1b0…, and profile.json names"):
        read_profile(tmp_path / "copy")
    (tmp_path / "copy" / "profile.npz").write_bytes((folder / "profile.npz").read_bytes())
    for number, key, changed, message in (
        (-1, None, None, "token_ids has|prompt_ids has"),  # without its last answer
        (0, "num_tokens", 1, "rows, but the answers need"),
        (0, "sha256", "0" * 64, "do not match their hash"),
    ):
        header = json.loads((tmp_path / "copy" / "profile.json").read_text())
        whole = json.dumps(header)
        if key is None:
            header["answers"].pop(number)
        else:
            header["answers"][number][key] = changed
        (tmp_path / "copy" / "profile.json").write_text(json.dumps(header))
        with pytest.raises(UserError, match=message):
            read_profile(tmp_path / "copy")
        (tmp_path / "copy" / "profile.json").write_text(whole)
    header = json.loads((folder / "profile.json").read_text())
    (tmp_path / "copy" / "profile.json").write_text(json.dumps({**header, "schema": 2}))
    with pytest.raises(UserError, match="schema 2, newer than 1"):
        read_profile(tmp_path / "copy")
    with pytest.raises(UserError, match="holds no profile"):
        read_profile(tmp_path)


@pytest.mark.parametrize("kind", ["ranks", "text", "of nothing"])
def test_arrays_of_another_kind_are_refused_with_the_file(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    read_profile(folder).write(tmp_path)
    header_path = tmp_path / "profile.json"
    header = json.loads(header_path.read_text())
    header["methods"]["sps"]["kind"] = kind
    header_path.write_text(json.dumps(header))
    message = f"{header_path} does not fit its arrays: sps is not of the kind '{kind}'."
    with pytest.raises(UserError, match=re.escape(message)):
        read_profile(tmp_path)


def test_an_unprofiled_expansion_of_a_narrower_beam_is_a_miss() -> None:
    """A beam of two takes both children of 6, and not 1 below 5. A beam of one takes 1."""
    token_ids = np.array([[5, 6], [1, 2], [3, 4], [8, 9], [10, 11]], dtype=np.int32)
    probs = np.array([[5, 4], [3, 1], [9, 8], [5, 5], [5, 5]], dtype=np.float32) / 10
    nodes = np.array([0, 1, 4, 5], dtype=np.uint16)  # 5 and 6; then 6's children 3 and 4
    stored = StoredPool(token_ids, np.log(probs), nodes)
    wide = smaller_tree(stored, HostPool(8, 2, 2), 2)
    assert (wide.num_expanded, wide.num_missed) == (5, 0)
    narrow = smaller_tree(stored, HostPool(4, 2, 1), 2)  # expands 5, then its child 1
    assert (narrow.num_expanded, narrow.num_missed) == (3, 1)
    assert narrow.tokens[1:] == [5, 1, -1] and narrow.parents == [0, 0, 1, 2]


def chain(name: str, folder: Path, num_tokens: int) -> tuple[Target, Drafter]:
    """`mtp` or `peagle`, and its target. The weights are written into an empty folder."""
    target = test_mtp.target_of("deepseek") if name == "mtp" else test_peagle.target()
    if not any(folder.iterdir()):
        if name == "mtp":
            test_mtp.publish("deepseek", folder)
        else:
            layout = test_peagle.LAYOUTS["vLLM"]
            write_layout(target, layout, test_peagle.with_mask(layout), folder)
    return target, build_in(folder, name, target, num_tokens=num_tokens)


def chains(
    name: str, target: Target, drafter: Drafter, requests: list[Request], like: ProfileHeader
) -> Profile:
    """The profile of a drafter of chains."""
    answers = []
    vanilla = get("vanilla").build(None, BuildContext(target))
    for number, request in enumerate(requests):
        given, done = (str(number), target, {name: drafter}), decode(target, vanilla, request)
        answer = recorded_answer(*given, request, done)
        assert answer is not None
        other = replace(done, token_ids=done.token_ids[:-1])
        assert recorded_answer(*given, request, other) is None
        answers.append(answer)
    about = MethodHeader(name, "", {"num_tokens": 7}, is_lossless=True, weights=None)
    methods = {name: ProfiledMethod("path", drafter.has_fixed_size, about)}
    return Profile(msgspec.structs.replace(like, methods=methods), tuple(answers))


@pytest.mark.parametrize("name", [pytest.param("mtp", marks=pytest.mark.slow), "peagle"])
def test_the_longest_chain_contains_the_shorter_ones(
    name: str, profiled: Profile, tmp_path: Path
) -> None:
    """Random heads over eight tokens, some of whose drafts are right by chance."""
    target, drafter = chain(name, tmp_path, 7)
    requests = [Request(prompt, 30) for prompt in test_peagle.PROMPTS]
    profile = chains(name, target, drafter, requests, profiled.header)
    assert max(answer.drafts[name]["path"].max() for answer in profile.answers) > 1
    for num_tokens in (1, 2, 3, 5, 7):
        drafter = chain(name, tmp_path, num_tokens)[1]
        walks = replay(profile, f"{name}:num_tokens={num_tokens}")
        for walk, request in zip(walks, requests, strict=True):
            done = decode(target, drafter, request)
            assert (walk.accepts, walk.nodes) == (done.accept_lengths, done.num_nodes)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("eagle2", "total_tokens=37,depth=2,top_k=4"),
        *((name, "tree=1x1x1x1") for name in ("medusa", "hydra", "eagle")),
        ("sps", "num_tokens=1,schedule=constant"),
        ("pard", "num_tokens=4"),
    ],
)
def test_replayed_graphs_draft_what_eager_steps_draft(
    method: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.engine.buckets.BUCKET", 16)
    model = random_llama()
    graphs = Graphs(TraceRecorder())
    given = dict(option.split("=") for option in options.split(","))
    for prompt in prompts()[:2]:
        request, drafts = Request(prompt, 30), []
        for target in (Target(deepcopy(model)), Target(deepcopy(model), graphs)):
            done = decode(target, build("vanilla", target, tmp_path), request)
            drafters = {method: build(method, target, tmp_path, **given)}
            answer = recorded_answer("a prompt", target, drafters, request, done)
            assert answer is not None
            drafts.append(answer.drafts[method])
        assert drafts[0].keys() == drafts[1].keys()
        for name, eager in drafts[0].items():
            assert len(eager) == 29
            assert np.allclose(eager, drafts[1][name], atol=1e-5)
    assert graphs.failures == set()
