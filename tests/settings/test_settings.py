"""Settings: what `auto` chooses, and what a file may contain."""

from collections.abc import Callable
from dataclasses import replace as replaced
from math import inf, isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from specbench.data.toml_files import read_toml
from specbench.errors import UserError
from specbench.log.policies import MERGE
from specbench.measure.resume import as_before
from specbench.measure.spec import RunSpec
from specbench.methods.shared.static_tree import StaticTree
from specbench.models.checkpoints import identify
from specbench.registry import make_options
from specbench.settings.acceptance import Acceptance, find_acceptance
from specbench.settings.files import SettingsFile, read_settings, toml_text
from specbench.settings.grids import ROWS
from specbench.settings.quick_rule import acceptance_of, choose_settings, rows_to_time
from specbench.settings.run_method import RunMethod
from specbench.settings.step_times import StepTimes
from specbench.settings.tuned_settings import TUNED, keep_settings, with_tuned
from specbench.zoo import TINY
from tests.support.headers import make_header
from tests.support.methods import parse_methods
from tests.support.own_cache import own_cache


def times(seconds: dict[int, float]) -> StepTimes:
    return StepTimes({n: {1: s} for n, s in seconds.items()})


ODD_NAMES = (
    *("tiny\N{GRINNING FACE}", 'a "b" \\ c', "a.b", "[x]", "# =", ""),
    *("\x7f\x00\r\n\t", "\u2028\x85"),
)
LINEAR = times({n: 1.0 + n / 20 for n in (1, 4, 20, 40, 60)})
PAPER = Acceptance({}, 60.0, 6.0)


def sized(nodes: int, mat: float) -> Acceptance:
    return Acceptance({"total_tokens": nodes}, float(nodes), mat)


def chosen(
    entries: list[Acceptance], spelling: str = "eagle2", drafts: float = 0.0, noise: Any = ()
) -> Any:
    """The options that EAGLE-2 gets if a step takes the target's time plus the drafts'.

    `noise` maps numbers of nodes to factors for the first trials.
    """
    (method,) = parse_methods([spelling])
    tried: list[int] = []

    def prepare(run_method: RunMethod, threads: int) -> Callable[[], float]:
        tried.append(nodes := run_method.options.total_tokens)
        factors = iter(dict(noise).get(nodes, ()))
        return lambda: (LINEAR.at(nodes) + drafts) * next(factors, 1.0)

    chosen_methods = choose_settings([method], {}, LINEAR, lambda method: entries, prepare)
    return (chosen_methods[0].describe() if chosen_methods else None), tried


@pytest.mark.parametrize(("mats", "expected"), [
    ({4: 2.0, 12: 3.0, 20: 3.2}, 12),  # 0.6, 0.533 and 0.625 of vanilla's step per token
    ({4: 1.2 / 0.56, 12: 3.0}, 12),  # 5 % slower
    ({4: 1.2 / 0.54, 12: 3.0}, 4),  # 1.3 % slower: the smallest
    ({4: 1.75, 12: 2.42}, 60),  # the paper's takes 0.667, the best 0.661
])  # fmt: skip
def test_the_papers_settings_stay_within_3_percent_else_the_smallest_do(
    mats: dict[int, float], expected: int
) -> None:
    header, _ = chosen([PAPER, *(sized(nodes, mat) for nodes, mat in mats.items())])
    assert header.options["total_tokens"] == expected
    assert header.settings.source == "auto"
    phrase = "" if expected == 60 else f"{expected} nodes; paper: 60 nodes, 6 levels"
    assert header.settings_text == phrase


def test_settings_that_cannot_win_are_not_tried() -> None:
    """Drafting takes time too. In the last case, a token with 2 nodes would take 1.01, not 1.07."""
    entries = [PAPER, sized(4, 2.2), sized(40, 3.0), sized(20, 4.5)]
    assert chosen(entries)[1] == [60, 20]
    header, tried = chosen(entries, drafts=8.0)
    assert (header.options["total_tokens"], tried) == (60, [60, 20, 4, 40])
    assert chosen([Acceptance({}, 60.0, 1.2), sized(2, 1.09), sized(12, 1.5)])[1] == [60, 12]


def test_a_slow_moment_in_a_trial_does_not_decide() -> None:
    entries = [PAPER, sized(4, 2.4), sized(12, 3.0)]  # 0.5 and 0.533 per token
    header, _ = chosen(entries, noise={4: [1.15], 12: [1.0, 0.5]})
    assert header.options["total_tokens"] == 4


@pytest.mark.parametrize("given", ["eagle2:total_tokens=30", "eagle2:total_tokens=60"])
def test_an_option_that_is_given_is_never_tuned(given: str) -> None:
    header, tried = chosen([PAPER, sized(4, 4.0)], given)
    assert (header, tried) == (None, [])


@pytest.mark.parametrize(("spelling", "sizes", "expected"), [
    ("medusa", (64,), {"nodes": 4}),
    ("sps", (1, 2, 8, 16), {"num_tokens": 3}),
    ("eagle2", (60,), {"total_tokens": 4, "depth": 2, "top_k": 2}),
    ("pld:num_tokens=20", (1, 2, 8, 16), None),  # the user's
    ("medusa", (3,), None),  # small enough
])  # fmt: skip
def test_without_known_acceptance_a_draft_is_cut_to_cheap_rows(
    spelling: str, sizes: tuple[int, ...], expected: dict[str, int] | None
) -> None:
    steep = times({1: 1.0, 4: 1.4, 20: 2.0, 40: 3.0, 60: 9.0})
    (method,) = parse_methods([spelling])
    drafters: Any = {method.label: SimpleNamespace(tree_sizes=sizes)}
    cut = choose_settings(
        [method], drafters, steep, lambda method: (), lambda method, threads: lambda: 0.0
    )
    if expected is None:
        assert cut == []
        return
    header = cut[0].describe()
    assert header.options == method.describe().options | expected
    assert ", cut; paper: " in header.settings_text


@pytest.mark.parametrize(("nodes", "expected"), [
    ((4, 6), (1, 2, 4, 6)), ((4, 7), (1, 2, 4, 6, 8)), ((80,), ROWS), ((), (1, 2, 4)),
])  # fmt: skip
def test_steps_are_timed_up_to_the_rows_of_the_largest_draft(
    nodes: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """The rows are those of the known settings, or else of the paper's draft."""
    methods = parse_methods(["vanilla", "eagle2"])
    drafters: Any = {method.label: SimpleNamespace(tree_sizes=(1, 3)) for method in methods}
    entries = [sized(size, 2.0) for size in nodes]
    assert rows_to_time(methods, drafters, lambda method: entries) == expected


def test_times_are_interpolated_and_extrapolated_linearly() -> None:
    assert [LINEAR.at(n) for n in (1, 2.5, 30, 60, 80)] == pytest.approx([1.05, 1.125, 2.5, 4, 5])


def test_the_shipped_acceptance_is_for_shipped_weights_and_real_options() -> None:
    files = identify(TINY / "target").files
    accepted = find_acceptance("tiny", files)
    assert accepted and not find_acceptance("tiny", identify(TINY / "sps").files)
    for name, entries in accepted.methods.items():
        (method,) = parse_methods([name])
        kind = method.checkpoint
        weights = identify(TINY / kind).files if kind else {}
        assert accepted.of(name, kind, weights) == entries
        assert not kind or not accepted.of(name, kind, files)
        assert entries[0].options == {} and len(entries) > 4
        for entry in entries:
            make_options(method.method, {key: str(option) for key, option in entry.options.items()})
            assert 1 <= entry.mat <= entry.rows


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sam", "sam"),
        ("sam:other=eagle3", "sam:other=eagle3"),
        ("sam:other=eagle2", None),
        ("sam:other=eagle3,scope=run", None),
    ],
)
def test_sams_acceptance_depends_on_its_other_method(text: str, name: str | None) -> None:
    file = find_acceptance("tiny", identify(TINY / "target").files)
    assert file
    method = parse_methods([text])[0]
    entered = replaced(method, weights=TINY / method.checkpoint if method.checkpoint else None)
    assert acceptance_of(file, entered) == (file.methods[name] if name else ())


@pytest.mark.parametrize(("text", "message"), [
    ('model = "vicuna-7b"\n[methods.pld]\nnum_tokens = 2', "are for vicuna-7b"),
    ("[methods.pld]\nnum_token = 2", "num_token"),
    ("[methods.pld]\nnum_tokens = 0", "too small"),
    ("[methods.pdl]\nnum_tokens = 2", "pld"),
    ("methods = 3", "cannot be read"),
    ('[methods.medusa]\nweights = "mine"', "sets weights for medusa, but weights are not settings"),
    ("[methods.medusa]\nalpha = inf", "alpha=inf of method 'medusa' is not a finite number"),
])  # fmt: skip
def test_a_wrong_file_of_settings_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_settings(str(path), "tiny")


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[methods.pld]\nnum_tokens = 3", encoding="utf-8-sig")
    assert dict(read_settings(str(path), "tiny").methods["pld"]) == {"num_tokens": 3}


def test_a_file_changes_the_methods_it_names_but_no_option_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[methods.pld]\nnum_tokens = 2\nallow_shorter = true")
    methods = parse_methods(["pld", "pld:num_tokens=5", "suffix"])
    headers = [method.describe() for method in read_settings(str(path), "tiny").of(methods)]
    assert [header.options["num_tokens"] for header in headers] == [2, 5, 24]
    assert headers[0].settings and headers[0].settings.source == "settings.toml"
    assert len(headers[0].settings.sha256) == 64
    assert [header.settings_text for header in headers] == [
        "2 tokens; paper: 10",
        "allow_shorter=True; paper: False",
        "",
    ]


@pytest.mark.parametrize("then", [None, {}, {"total_tokens": 12}])
@pytest.mark.parametrize("since", [None, {"total_tokens": 7, "depth": 2}])
def test_a_resumed_run_keeps_its_settings_after_a_new_tune(
    then: dict[str, int] | None, since: dict[str, int] | None
) -> None:
    (paper,) = parse_methods(["eagle2"])
    before = (paper if then is None else paper.tuned(then, "auto")).describe()
    now = paper if since is None else paper.tuned(since, TUNED)
    assert now.as_before(before).describe() == before
    assert as_before(now.describe(), before) == before


def test_tuned_settings_name_a_tree_by_its_paths_or_its_name_and_not_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(monkeypatch, tmp_path)
    file, fits = tmp_path / "tree.json", {"temperature": "0"}
    file.write_text("[[0], [0, 0]]")

    def chosen(tree: Any) -> Any:
        keep_settings(SettingsFile({"medusa": {"tree": tree}}, model="tiny", fits=fits))
        methods, temperatures = parse_methods(["medusa"]), RunSpec().samplings_text()
        (method,) = with_tuned(methods, "tiny", temperatures, lambda: fits)
        return method.options.tree if method.settings else None

    assert chosen([[0], [0, 0]]) == "[[0], [0, 0]]"
    assert chosen("4x2") == "4x2"
    assert chosen(str(file)) is None


def test_the_settings_of_a_run_are_refused_if_its_tree_has_changed(tmp_path: Path) -> None:
    tree = tmp_path / "tree.json"
    tree.write_text("[[0], [0, 0]]")
    (method,) = parse_methods([f"medusa:tree={tree}"])
    (tmp_path / "run.json").write_bytes(
        msgspec.json.encode(replace(make_header({}), methods={"medusa": method.describe()}))
    )
    assert read_settings(str(tmp_path), "tiny").methods["medusa"]["tree"] == str(tree)
    tree.write_text("[[0], [0, 0], [1]]")
    with pytest.raises(UserError, match="which is gone or has changed"):
        read_settings(str(tmp_path), "tiny")
    tree.unlink()
    with pytest.raises(UserError, match="which is gone or has changed"):
        read_settings(str(tmp_path), "tiny")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_settings_of_any_name_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
    values = {"text": name, name: [name, 1.5, True], "low": -inf, "high": inf, "small": 1e-320}
    file = SettingsFile(
        methods={name: values}, title=name, model=name, fits={name: name}, weights={name: name}
    )
    path = tmp_path / "settings.toml"
    path.write_bytes(toml_text(file).encode())
    assert read_toml(path, SettingsFile, what="Settings", hint="") == file
    path.write_bytes(toml_text(SettingsFile({name: {"alpha": nan}})).encode())
    alpha = read_toml(path, SettingsFile, what="Settings", hint="").methods[name]["alpha"]
    assert isnan(alpha)


def test_a_name_that_is_not_unicode_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"udcff.*UTF-8"):
        toml_text(SettingsFile({}, model="tiny\udcff"))


def test_merge_refuses_different_options_that_both_runs_have() -> None:
    older, small, large = (
        make_header({"methods": {"eagle2": {"options": options}}})
        for options in ({}, {"total_tokens": 12}, {"total_tokens": 60})
    )
    assert MERGE.conflicts(small, large) and not MERGE.conflicts(older, large)


def test_a_static_tree_is_identified_by_its_paths(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"

    def digest(text: str) -> str | None:
        path.write_text(text)
        return parse_methods([f"medusa:tree={path}"])[0].describe().tree_sha256

    first = digest("[[0], [1], [0, 0]]")
    assert first and len(first) == 64
    assert digest("[[0],\n [0, 0], [1]]") == first
    assert digest("[[0], [1], [0, 1]]") != first
    assert digest("no tree") is None  # building the drafter reports it
    names = ("medusa", "hydra", "pld", "eagle2")
    hashes = [parse_methods([name])[0].describe().tree_sha256 for name in names]
    assert hashes[0] and hashes[0] == hashes[1] and hashes[2:] == [None, None]


def test_a_tree_that_is_given_as_paths_has_a_short_name(tmp_path: Path) -> None:
    texts = ["medusa:tree=[[0], [0, 0], [1]],nodes=3,pld", "medusa:tree=mc_sim_7b_63|4x2"]
    inline, pld, *swept = parse_methods(texts)
    assert pld.label == "pld" and [method.options.tree for method in swept] == [
        "mc_sim_7b_63",
        "4x2",
    ]
    assert inline.options.tree == "[[0], [0, 0], [1]]" and inline.options.nodes == 3
    digest = inline.describe().tree_sha256
    assert digest and inline.label == f"medusa:tree=4-{digest[:8]},nodes=3"
    tuned = parse_methods(["medusa"])[0].tuned({"tree": "[[0], [0, 0], [1]]"}, TUNED).describe()
    assert tuned.settings_text == f"tree=4-{digest[:8]}; paper: mc_sim_7b_63"
    for wrong in ("[[0], [0, 0", "[[0], [5, 5]]", "[[0], 1]"):
        (method,) = parse_methods([f"medusa:tree={wrong}"])
        with pytest.raises(UserError, match="is not a tree"):
            StaticTree.load(method.options, SimpleNamespace(vocab_size=9, device="cpu"))


def test_files_that_share_a_name_have_a_hash_in_their_label(tmp_path: Path) -> None:
    for folder, paths in (("a", "[[0]]"), ("b", "[[0], [1]]"), ("c", "[[0]]")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tree.json").write_text(paths)
    texts = [f"medusa:tree={tmp_path / name / 'tree.json'}" for name in ("a", "b", "c")]
    alone, other, same = (parse_methods([text])[0].label for text in texts)
    assert alone == other == same == "medusa:tree=tree.json"
    first, second = (method.label for method in parse_methods(texts[:2]))
    assert first != second and first.startswith("medusa:tree=tree.json-")
    first, copy = (method.label for method in parse_methods([texts[0], texts[2]]))
    assert first == copy  # a run refuses them: they are one method
    weights = [f"sps:weights={tmp_path / name}" for name in ("x/head", "y/head")]
    first, second = (method.label for method in parse_methods(weights))  # not there
    assert first != second and first.startswith("sps:weights=head-")


def test_a_label_has_no_folder_of_the_machine(tmp_path: Path) -> None:
    (method,) = parse_methods(["medusa"])
    tree = tmp_path / "trees" / "medusa-32.json"
    header = method.tuned({"tree": str(tree)}, TUNED).describe()
    assert "medusa-32.json" in header.settings_text
    assert str(tmp_path) not in header.settings_text


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [("medusa", False), ("medusa:nodes=8", True), ("medusa:tree=4x2x1", True)],
)
def test_a_given_tree_or_number_of_nodes_decides_both(text: str, *, is_kept: bool) -> None:
    """Neither shipped acceptance nor a tune changes the options of the other method."""
    (method,) = parse_methods([text])
    nodes = [Acceptance({}, 64.0, 3.0), *(Acceptance({"nodes": n}, n, 2.5) for n in (4, 8))]
    drafters: Any = {method.label: SimpleNamespace(tree_sizes=(64,))}
    steep = times({1: 1.0, 4: 1.1, 8: 1.2, 60: 9.0})
    chosen = choose_settings(
        [method], drafters, steep, lambda method: nodes, lambda method, threads: lambda: 1.0
    )
    assert bool(chosen) != is_kept


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("pld:num_tokens=5", 6),
        ("eagle2:total_tokens=12", 12),
        ("medusa", 64),
        ("medusa:nodes=8", 8),
        ("medusa:tree=4x2", 13),
        ("sam:nodes=6,num_tokens=8", 9),
        ("sps:num_tokens=4,schedule=constant", 5),
        ("sps", 0),  # the heuristic schedule drafts more and more
        ("lookahead", 0),
    ],
)
def test_the_options_determine_the_most_nodes_of_a_step(text: str, most: int) -> None:
    assert parse_methods([text])[0].describe().most_nodes == most
