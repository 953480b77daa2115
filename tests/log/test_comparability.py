"""Differences that make two runs incomparable, and differences that are only reported."""

from typing import Any

import pytest

from specbench.errors import UserError
from specbench.log.comparability import (
    circumstances,
    machine_difference,
    require_same_work,
    work_differences,
)
from specbench.log.run import Run
from tests.analysis.run_factory import full_run
from tests.judge.changing import with_header

FILES = {"model.safetensors": {"bytes": 10, "sha256": "a" * 64}}
OTHER_FILES = {"model.safetensors": {"bytes": 10, "sha256": "b" * 64}}


def prompts(digest: str, file: str | None = "f1") -> list[dict[str, Any]]:
    return [{"task": "gsm8k", "sha256": digest * 8, "file_sha256": file, "origin": "gsm8k.jsonl"}]


def run(**changes: Any) -> Run:
    return with_header(
        full_run(tasks=("gsm8k",)), **{"model__files": FILES, "prompts": prompts("p1"), **changes}
    )


def differences(first: Run, second: Run) -> list[str]:
    return [difference.describe() for difference in work_differences(first.header, second.header)]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model__dtype": "bfloat16"}, "dtype: float32 in the first, bfloat16 in the second"),
        ({"model__is_stand_in": True}, "stand-in instead of the real weights: no in the first"),
        ({"spec__values__max_new_tokens": 64}, "budget (--max-new-tokens): 128 in the first, 64"),
        ({"spec__values__template": "none"}, "chat template: auto in the first, none"),
        ({"spec__values__history": "own"}, "history of later turns: shared in the first, own"),
        ({"spec__values__phases": True}, "--phases: no in the first, yes in the second"),
        ({"model__files": OTHER_FILES}, "file model.safetensors: sha256 aaaaaaaaaaaa… in"),
        ({"model__files": {}, "model__name": "big"}, "model: tiny in the first, big in the second"),
        ({"prompts": prompts("p2", "f2")}, "prompts of gsm8k: sha256 p1p1p1p1p1p1… from"),
    ],
)  # fmt: skip
def test_different_work_is_refused_with_both_values(changes: dict[str, Any], told: str) -> None:
    (found,) = differences(run(), run(**changes))
    assert found.startswith(told)
    with pytest.raises(UserError, match="did not do the same work"):
        require_same_work(run().header, run(**changes).header)


def test_the_machine_of_servers_is_their_address() -> None:
    values = {"spec__values__backend": "server", "spec__values__urls": ["http://a:80"]}
    here, same = run(**values), run(**values, environment__cpu__model="Another client")
    assert machine_difference(here.header, same.header) is None
    other = run(**{**values, "spec__values__urls": ["http://b:80"]})
    difference = machine_difference(here.header, other.header)
    assert difference and difference.second == "the servers at http://b:80"


def test_every_difference_is_named_at_once() -> None:
    other = run(model__dtype="float16", spec__values__max_new_tokens=64, id="other")
    with pytest.raises(UserError) as refused:
        require_same_work(run().header, other.header)
    assert "float16 in other" in refused.value.message
    assert "64 in other" in refused.value.message
    assert "--force" in refused.value.hint


def test_top_p_matters_where_tokens_are_drawn() -> None:
    sampled = {"spec__values__temperatures": [0.0, 1.0]}
    assert differences(run(), run(spec__values__top_p=0.9)) == []
    assert differences(run(**sampled), run(spec__values__top_p=0.9)) == []
    (found,) = differences(run(**sampled), run(**sampled, spec__values__top_p=0.9))
    assert found.startswith("--top-p: 1.0")


def test_another_limit_on_the_same_prompts_is_comparable() -> None:
    assert differences(run(), run(prompts=prompts("p2", "f1"))) == []
    assert differences(run(), run(prompts=prompts("p1", None))) == []
    assert len(differences(run(prompts=prompts("p2", None)), run(prompts=prompts("p1", None)))) == 1


def test_one_model_under_two_names_is_the_same_model() -> None:
    assert differences(run(), run(model__name="./copy-of-tiny")) == []


def test_a_commit_of_the_hub_decides_before_its_files() -> None:
    one = run(model__revision="abc", model__files={})
    assert differences(one, run(model__revision="abc", model__files=FILES)) == []
    (found,) = differences(one, run(model__revision="def", model__files={}))
    assert found == "model revision: abc in the first, def in the second"


def test_large_files_without_a_hash_are_told_apart_by_size() -> None:
    def sized(size: int) -> Run:
        return run(model__files={"model.safetensors": {"bytes": size, "sha256": None}})

    assert differences(sized(10), run()) == []
    (found,) = differences(sized(2000), run())
    assert found == "file model.safetensors: 2,000 bytes in the first, 10 bytes in the second"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"environment__torch__version": "2.14"}, "torch: 2.13.0 in the first, 2.14 in the second"),
        ({"environment__torch__num_threads": 1}, "CPU threads: 2 in the first, 1 in the second"),
        ({"environment__variables": {"OMP_NUM_THREADS": "1"}}, "environment variables: none in"),
        ({"spec__values__execution": "graph"}, "--execution: auto in the first, graph in"),
        (
            {"kernels__name": "triton 3.6.0"},
            "kernels: torch in the first, triton 3.6.0 in the second",
        ),
        ({"methods__pld__options": {"ngram": 2}}, "options of pld: none in the first, ngram=2 in"),
    ],
)
def test_circumstances_that_may_explain_a_difference_are_reported(
    changes: dict[str, Any], told: str
) -> None:
    assert differences(run(), run(**changes)) == []
    (found,) = circumstances(run().header, run(**changes).header)
    assert found.describe().startswith(told)


def test_a_drafter_with_other_weights_is_a_circumstance() -> None:
    one, other = (
        run(methods__sps__weights={"files": files}) for files in (FILES, OTHER_FILES)
    )  # fmt: skip
    (found,) = circumstances(one.header, other.header)
    assert found.what == "sps's file model.safetensors"


def gpu(name: str, driver: str = "550", *, first: str | None = None) -> Run:
    listed = [{"name": n, "driver": driver, "power_limit_w": 700.0} for n in (first, name) if n]
    return run(
        spec__values__device="cuda:0",
        environment__gpus=listed,
        environment__torch__devices=[name],
    )


def test_another_driver_is_reported_and_another_gpu_is_another_machine() -> None:
    (found,) = circumstances(gpu("A100").header, gpu("A100", "580").header)
    assert found.describe() == "driver: 550 in the first, 580 in the second"
    assert machine_difference(gpu("A100").header, gpu("A100", "580").header) is None
    assert machine_difference(gpu("A100").header, gpu("A100", first="T4").header) is None
    difference = machine_difference(gpu("A100").header, gpu("H100").header)
    assert difference is not None
    assert difference.describe() == "machine: A100 in the first, H100 in the second"


def test_the_cpu_and_its_threads_make_the_machine_of_a_run_without_gpu() -> None:
    assert machine_difference(run().header, run().header) is None
    for changes in ({"environment__cpu__model": "Other"}, {"environment__torch__num_threads": 4}):
        assert machine_difference(run().header, run(**changes).header) is not None
    assert machine_difference(run().header, gpu("A100").header) is not None
