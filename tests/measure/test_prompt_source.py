"""The default prompt source of a run."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from specbench.data.cache import CACHE_VARIABLE
from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.data.tasks import load_cards
from specbench.errors import UserError
from specbench.measure import plan
from specbench.measure.plan import make_plan
from specbench.measure.spec import RunSpec
from tests.support.backend import FakeSetup, answering
from tests.support.refusals import error_with


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = FakeSetup({"vanilla": answering(1)})
    monkeypatch.setattr(plan, "make_setup", lambda spec, *, is_offline: setup)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


@pytest.mark.parametrize("spec", [RunSpec(), RunSpec("vicuna-13b", weights="stand-in")])
def test_tiny_and_stand_ins_take_bundled_prompts(spec: RunSpec) -> None:
    plan = make_plan(spec, is_offline=True)
    assert plan.spec.prompts == "bundled"
    assert {prompts.source for prompts in plan.prompt_sets} == {"bundled"}


def test_a_real_model_takes_the_published_prompts() -> None:
    with error_with(
        UserError, "paper prompts of mt_bench are not in the cache", hint="--prompts bundled"
    ):
        make_plan(RunSpec("vicuna-13b"), is_offline=True)
    assert make_plan(RunSpec("vicuna-13b", prompts="bundled"), is_offline=True).prompts
    with pytest.raises(UserError) as error:
        make_plan(RunSpec("vicuna-13b", tasks=("spec_bench",)), is_offline=True)
    assert "--prompts bundled" not in error.value.hint, "there are no bundled prompts"
    assert "specbench fetch --dataset spec_bench" in error.value.hint


@pytest.mark.parametrize(
    ("spec", "num"),
    [
        (RunSpec(repeats=None), 3),
        (RunSpec("vicuna-13b", prompts="bundled", repeats=None), 2),
        (RunSpec("vicuna-13b", limit=5, repeats=None), 2),
        (RunSpec("vicuna-13b", repeats=None), 1),
        (RunSpec("vicuna-13b", limit=5, repeats=1), 1),
    ],
)
def test_two_passes_are_the_default_unless_they_take_hours(spec: RunSpec, num: int) -> None:
    assert plan.with_defaults(spec).repeats == num


def test_only_prompts_in_the_style_of_published_ones_are_imitations() -> None:
    (task,) = plan_tasks(["gsm8k"], "bundled")
    card = structs.replace(load_cards()["gsm8k"], paper=None, hub=None)
    imitated, original = load_prompt_sets([task, replace(task, card=card)], "bundled")
    assert imitated.describe().is_imitation and not original.describe().is_imitation


@pytest.mark.parametrize("engine", ["", "vllm"])
@pytest.mark.parametrize("context", [1, 9])
def test_a_prompt_that_is_too_long_is_refused_with_the_limit(context: int, engine: str) -> None:
    setup = FakeSetup({}, context=context)
    spec = RunSpec(backend="server", serving_engine=engine, tasks=("gsm8k",))
    with pytest.raises(UserError, match="has no room for 128 new tokens") as error:
        make_plan(spec, is_offline=True, setup_maker=lambda spec, is_offline: setup)
    limit = "Servers that --engine starts have a context of at most 4096 tokens."
    assert (limit in error.value.hint) is bool(engine)


@pytest.mark.parametrize(("context", "checked"), [(None, 202), (2**20, 202), (150, 150)])
def test_memory_is_checked_for_the_longest_chat_of_the_plan(
    context: int | None, checked: int
) -> None:
    """The longest chat has two turns, each with one token and 100 new ones."""
    setup = FakeSetup({}, context=context)
    setup.check_memory = mock.Mock()  # type: ignore[attr-defined]
    spec = RunSpec(tasks=("mt_bench", "gsm8k"), prompts="bundled", max_new_tokens=100)
    make_plan(spec, is_offline=True, setup_maker=lambda spec, is_offline: setup)
    setup.check_memory.assert_called_once_with(checked)  # type: ignore[attr-defined]
