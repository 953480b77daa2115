"""Roles of the header's fields, and differences between the headers of two runs.

Each operation on two runs refuses some differences, and reports others.
"""

from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct, structs

from specbench.errors import UserError
from specbench.log.difference import Difference, change_lines
from specbench.log.differences import differences
from specbench.log.header import RunHeader
from specbench.log.options import Role, field_roles
from specbench.log.policies import (
    CHECK,
    COMPARE,
    MERGE,
    POOL,
    REPLAY,
    RESUME,
    Policy,
    require_same_work,
)
from specbench.log.spec import SpecHeader, SpecValues
from specbench.types import Shape
from tests.analysis.run_factory import full_run
from tests.judge.changing import with_header
from tests.support.texts import assert_in

POLICIES = (COMPARE, CHECK, POOL, MERGE)
FILES = {"model.safetensors": {"bytes": 10, "sha256": "a" * 64}}
OTHER_FILES = {"model.safetensors": {"bytes": 10, "sha256": "b" * 64}}
RUN = full_run(tasks=("gsm8k",))
SAMPLED = {"spec__values__temperatures": [0.0, 1.0]}
TEMPLATE = "model__template_sha256"


def prompts(digest: str, file: str | None = "f1") -> list[dict[str, Any]]:
    return [{"task": "gsm8k", "sha256": digest * 8, "file_sha256": file, "origin": "gsm8k.jsonl"}]


def header(**changes: Any) -> RunHeader:
    return with_header(RUN, **{"model__files": FILES, "prompts": prompts("p1"), **changes}).header


def gpu(name: str, driver: str = "550", *, first: str | None = None) -> dict[str, Any]:
    names = [name] if first is None else [first, name]
    listed = [{"name": gpu, "driver": driver, "power_limit_w": 700.0} for gpu in names]
    return {
        "spec__values__device": "cuda:0",
        "environment__gpus": listed,
        "environment__torch__devices": [name],
    }


def unhashed(size: int) -> dict[str, Any]:
    return {"model__files": {"model.safetensors": {"bytes": size, "sha256": None}}}


def commit(name: str) -> dict[str, Any]:
    return {"model__revision": name, "model__files": {}}


def served(url: str) -> dict[str, Any]:
    return {"spec__values__backend": "server", "spec__values__urls": [url]}


def drafter(files: dict[str, Any]) -> dict[str, Any]:
    return {"methods__sps__weights": {"files": files}}


def whats(found: Sequence[Difference]) -> list[str]:
    return [difference.what for difference in found]


@pytest.mark.parametrize(
    ("struct", "without_role"), [(RunHeader, ["spec"]), (SpecHeader, ["values"]), (SpecValues, [])]
)
def test_every_field_has_a_role_or_fields_with_roles(
    struct: type[Struct], without_role: list[str]
) -> None:
    roles = get_args(Role)
    fields = [role.field for role in field_roles(struct) if role.role not in roles]
    assert fields == without_role


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_run_differs_in_nothing_from_itself(is_exact: bool) -> None:
    for run_header in (header(), header(**SAMPLED, **gpu("A100"), **drafter(FILES))):
        assert differences(run_header, run_header, is_exact=is_exact) == ()


# compare, check, pool and merge: each refuses a difference, reports it, or does neither
WORK = "refused refused refused refused"
CELLS = "- - refused refused"
METHOD = "told - told refused"
VERSION = "told - told told"
HARDWARE = "- told refused told"
CASES = [
    ({}, {"model__dtype": "bfloat16"}, WORK, "dtype: float32 in the first, bfloat16 in the second"),
    ({}, {"model__is_stand_in": True}, WORK, "stand-in instead of the real weights: no in the fi"),
    ({}, {"spec__values__max_new_tokens": 64}, WORK, "--max-new-tokens: 128 in the first, 64 in"),
    ({}, {"spec__values__template": "none"}, WORK, "--template: auto in the first, none in the"),
    (
        {TEMPLATE: "aa"}, {TEMPLATE: "bb", "spec__values__template_args": '{"a":1}'}, WORK,
        '--template-args: none in the first, {"a":1} in the second',
    ),
    ({}, {"spec__values__history": "own"}, WORK, "--history: shared in the first, own in the"),
    ({}, {"spec__values__phases": True}, WORK, "--phases: no in the first, yes in the second"),
    ({}, {"model__files": OTHER_FILES}, WORK, "file model.safetensors: sha256 aaaaaaaaaaaa… in"),
    ({}, {"model__files": {}, "model__name": "big"}, WORK, "model: tiny in the first, big in the"),
    (unhashed(2000), {}, WORK, "file model.safetensors: 2,000 bytes in the first, 10 bytes in"),
    (commit("abc"), commit("def"), WORK, "model revision: abc in the first, def in the"),
    ({}, {"model__files": OTHER_FILES, "model__name": "big"}, WORK, "model: tiny in the first, "),
    ({}, {"prompts": prompts("p2", "f2")}, WORK, "prompts of gsm8k: sha256 p1p1p1p1p1p1… from"),
    ({TEMPLATE: "aa"}, {TEMPLATE: "bb"}, WORK, "text of the chat template: aa in the first"),
    (SAMPLED, {**SAMPLED, "spec__values__top_p": 0.9}, WORK, "--top-p: 1 in the first, 0.9 in"),
    ({}, SAMPLED, CELLS, "--temperature: 0 in the first, 0,1 in the second"),
    ({}, {"spec__values__serving_engine": "vllm"}, CELLS, "--engine: none in the first, vllm in"),
    ({}, {"spec__values__concurrency": [4]}, CELLS, "--concurrency: none in the first, 4 in the"),
    ({}, {"spec__values__methods": ["vanilla"]}, CELLS, "--method: vanilla,pld,sps,lookahead in"),
    ({"methods__pld__options": {"ngram": 3}}, {"methods__pld__options": {"ngram": 2}},
     "told refused told refused",
     "options of pld: ngram=3 in the first, ngr"),
    (drafter(FILES), drafter(OTHER_FILES), "told - refused refused", "file model.safetensors of s"),
    ({"methods__sps__tree_sha256": "aa"}, {"methods__sps__tree_sha256": "bb"},
     "told - refused refused", "tree of sps: aa in the first, bb in the"),
    (SAMPLED, {**SAMPLED, "spec__values__seed": 1}, METHOD, "--seed: 0 in the first, 1 in the"),
    ({}, {"environment__torch__version": "2.14"}, VERSION, "torch: 2.13.0 in the first, 2.14 in"),
    ({}, {"environment__variables": {"A": "1"}}, VERSION, "environment variables: none in the fi"),
    ({}, {"spec__values__execution": "graph"}, VERSION, "--execution: auto in the first, graph"),
    (
        {"kernels__name": "torch", "spec__values__kernels": "torch"},
        {"kernels__name": "triton 3.6.0"}, VERSION,
        "kernels: torch in the first, triton 3.6.0 in the second",
    ),
    (gpu("A100"), gpu("A100", "580"), VERSION, "driver: 550 in the first, 580 in the second"),
    (gpu("A100"), gpu("H100"), HARDWARE, "machine: A100 in the first, H100 in the second"),
    ({}, {"environment__cpu__model": "Other"}, HARDWARE, "machine: Example CPU 9000, threads: 2"),
    (
        served("http://a:80"), served("http://b:80"), HARDWARE,
        "machine: the servers at http://a:80 in the first, the servers at http://b:80",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("first", "other", "expected", "text"), CASES)
def test_each_operation_refuses_or_reports_its_own_differences(
    first: dict[str, Any], other: dict[str, Any], expected: str, text: str
) -> None:
    first_header, other_header = header(**first), header(**other)
    (difference,) = differences(first_header, other_header)
    assert difference.describe().startswith(text)
    (reverse,) = differences(other_header, first_header)
    assert reverse.field == difference.field
    assert reverse.first == difference.second
    assert reverse.second == difference.first

    def reaction(policy: Policy) -> str:
        if policy.conflicts(first_header, other_header):
            return "refused"
        return "told" if policy.cautions(first_header, other_header) else "-"

    assert [reaction(policy) for policy in POLICIES] == expected.split()


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({}, {"spec__values__top_p": 0.9, "spec__values__seed": 1}),
        (SAMPLED, {"spec__values__top_k": 9}),
        ({}, {"model__name": "./copy-of-tiny"}),
        ({"model__revision": "abc", "model__files": {}}, {"model__revision": "abc"}),
        ({}, {"prompts": prompts("p2", "f1")}),
        ({}, {"prompts": prompts("p1", None)}),
        ({}, {"spec__values__limit": 3, "spec__values__repeats": 2}),
        ({}, {"kernels__name": "triton 3.6.0"}),
        ({}, drafter(FILES)),
        (gpu("A100"), gpu("A100", first="T4")),
        ({}, unhashed(10)),
    ],
)
def test_an_unused_or_unknown_value_equals_any_other(
    first: dict[str, Any], other: dict[str, Any]
) -> None:
    differing = whats(differences(header(**first), header(**other)))
    assert set(differing) <= {"--temperature"}


def test_cpu_threads_are_reported_apart_from_the_machine() -> None:
    one_thread = header(environment__torch__num_threads=1)
    assert whats(differences(header(), one_thread)) == ["machine", "CPU threads"]
    assert len(CHECK.cautions(header(), one_thread)) == 1


def chosen(num: int, by: str = "measured", **changes: Any) -> RunHeader:
    return header(threads={"num": num, "chosen_by": by, "waiting": "brief"}, **changes)


def test_measured_thread_counts_may_differ_and_are_reported() -> None:
    first = chosen(1, threads__methods={"pld": 1, "medusa": 2}, threads__prefill=2)
    second = chosen(2)
    assert CHECK.cautions(first, second) == ()
    assert POOL.conflicts(first, second) == ()
    (caution,) = COMPARE.cautions(first, second)
    assert caution.describe() == (
        "CPU threads: 1, 2 for prefills, 2 for medusa in the first, 2 in the second"
    )
    assert MERGE.cautions(first, second) == (caution,)
    others = (
        chosen(2, "option"),
        chosen(2, "environment"),
        chosen(2, environment__cpu__model="Other"),
    )
    for other in others:
        assert whats(CHECK.cautions(first, other)) == ["machine"]


def test_every_difference_is_named_at_once() -> None:
    other = header(model__dtype="float16", spec__values__max_new_tokens=64, id="other")
    with pytest.raises(UserError) as refused:
        require_same_work(header(), other)
    first_line, *lines = refused.value.message.split("\n")
    model = "tiny (embedded, trained by specbench)"
    assert first_line.startswith(f"The run {RUN.header.id} of {model} and the run other of {model}")
    assert_in(
        first_line,
        "Repeat one of them with the other's options",
        "--force",
    )
    assert lines == ["  --max-new-tokens: 128 -> 64", "  dtype: float32 -> float16"]


def test_changes_of_options_share_a_line() -> None:
    first = {"ngram": 3, "num_tokens": 5, "scope": "request"}
    changed = {**first, "ngram": 2, "num_tokens": 3}

    def run(mode: str, pld: dict[str, Any], sps: dict[str, Any]) -> RunHeader:
        executions = {method: {"mode": mode} for method in RUN.header.methods}
        return header(execution=executions, methods__pld__options=pld, methods__sps__options=sps)

    differing = differences(run("eager", first, first), run("graph", changed, {"num_tokens": 3}))
    assert change_lines(differing) == [
        "pld: ngram 3 -> 2, num_tokens 5 -> 3",
        "sps: num_tokens 5 -> 3",
        "execution of 4 methods: eager -> graph",
    ]
    differing = differences(run("eager", first, first), run("eager", changed, changed))
    assert change_lines(differing) == ["2 methods: ngram 3 -> 2, num_tokens 5 -> 3"]


def test_stand_ins_of_different_shapes_are_different_models() -> None:
    """All stand-ins have the files of the same small model. Only shapes distinguish them."""

    hints = get_type_hints(Shape)
    numbers = {field: 64 for field, kind in hints.items() if kind in (int, float)}

    def stand_in(name: str, layers: int) -> RunHeader:
        shape = {**numbers, "architecture": "llama", "num_layers": layers}
        return header(model__name=name, model__is_stand_in=True, model__shape=shape)

    large = stand_in("vicuna-13b", 40)
    assert COMPARE.conflicts(large, stand_in("copy-of-vicuna-13b", 40)) == ()
    of_sizes = COMPARE.conflicts(stand_in("vicuna-7b", 32), large)
    assert change_lines(of_sizes) == ["model: vicuna-7b -> vicuna-13b"]
    of_models = COMPARE.conflicts(header(), large)
    assert change_lines(of_models)[0] == "model: tiny -> vicuna-13b"


def test_a_resumed_run_may_differ_only_in_machine_and_notes() -> None:
    now = header(spec__values__seed=1, model__label="x", prompts=prompts("p2", "f1"))
    assert [conflict.field for conflict in RESUME.conflicts(header(), now)] == [
        "spec.seed", "model.label", "prompts.gsm8k.sha256",
    ]  # fmt: skip
    moved = header(environment__python="3.14", command=["run"], environment__cpu__num_cores=8)
    assert RESUME.conflicts(header(), moved) == ()
    cautions = RESUME.cautions(header(), moved)
    assert [(caution.field, caution.first, caution.second) for caution in cautions] == [
        ("environment.python", '"3.11.9"', '"3.14"'),
        ("environment.cpu.num_cores", "2", "8"),
    ]


def test_a_replay_needs_the_files_and_the_prompts_of_the_run() -> None:
    assert REPLAY.conflicts(header(), header(model__dtype="float16", spec__values__seed=2)) == ()
    for changes in ({"model__files": OTHER_FILES}, {"prompts": prompts("p2", "f1")}):
        assert len(REPLAY.conflicts(header(), header(**changes))) == 1
    assert REPLAY.conflicts(header(**unhashed(10)), header()) == ()
    merged = structs.replace(header(), prompts=())
    assert REPLAY.conflicts(header(), merged) == ()


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "is_different"),
    [("a" * 64, "b" * 64, True), ("a" * 64, "a" * 64, False), (None, "b" * 64, False)],
)
def test_methods_with_different_static_trees_are_different_methods(
    first: str | None, second: str | None, *, is_different: bool, is_exact: bool
) -> None:
    """An older run has no hash of its tree, and a missing hash equals any other."""
    first_header = header(methods__sps__tree_sha256=first)
    second_header = header(methods__sps__tree_sha256=second)
    differing = differences(first_header, second_header, is_exact=is_exact)
    roles = [difference.role for difference in differing]
    assert roles == (["method"] if is_different else [])
    if is_different and not is_exact:
        assert whats(differing) == ["tree of sps"]
