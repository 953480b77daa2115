"""Broken methods are reported with the cause, and the other methods run.

A swept option stands for a method with each of its values.
"""

import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from specbench import registry
from specbench.engine.drafter import BuildContext, Drafter, Method, State
from specbench.engine.target import Target
from specbench.errors import MethodFault, SpecbenchError, UserError, containing, time_limit
from specbench.measure.local.engine_load import build_drafters
from specbench.measure.local.memory import MemoryLedger
from specbench.measure.spec import RunSpec
from specbench.registry import MethodChoice, lookup
from specbench.settings.run_method import LoadedMethod, RunMethod
from specbench.types import Request
from tests.packaging.shell import python
from tests.support.methods import parse_methods
from tests.support.models import random_llama
from tests.support.paths import ROOT
from tests.support.texts import assert_in

SOURCES = {
    "exits": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "hangs": ("while True: pass", "took longer than 0.2 s"),
    "clings": (
        "while True:\n  try:\n    while True: pass\n  except Exception: pass", "took longer"
    ),
    "raises": ("raise KeyError('x')", "KeyError: 'x'"),
    "none": ("METHOD = None", "it is a NoneType, not a specbench"),
    "renamed": ("from specbench.methods.pld import METHOD", "its name is 'pld'"),
}  # fmt: skip


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (source, _) in SOURCES.items():
        (tmp_path / f"a_{name}.py").write_text(source)
    points = [EntryPoint(name, f"a_{name}:METHOD", registry.GROUP) for name in SOURCES]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lookup, "_plugins", lambda: points)
    monkeypatch.setattr(lookup, "IMPORT_LIMIT_S", 0.2)


@pytest.mark.usefixtures("plugins")
def test_every_broken_import_is_listed_with_its_cause() -> None:
    listed = {entry.name: entry.error for entry in registry.entries()}
    assert listed["pld"] == ""
    for name, (_, cause) in SOURCES.items():
        assert_in(listed[name], f"Method '{name}' is broken", cause)


def failing_to_build(error: BaseException) -> RunMethod:
    def build(options: object, context: BuildContext) -> Drafter:
        raise error

    method = Method("mine", "Mine", "", "", registry.get("vanilla").options, build)
    return RunMethod(MethodChoice("mine"), loaded=LoadedMethod(method, method.options()))


@pytest.mark.parametrize("error", [KeyError("layers"), MemoryError(), SystemExit(1)])
def test_a_method_that_cannot_be_built_fails_in_its_samples_and_the_others_are_built(
    error: BaseException,
) -> None:
    target = Target(random_llama(layers=1))
    methods = [failing_to_build(error), *parse_methods(["pld"])]
    drafters = build_drafters(target, methods, MemoryLedger(target))
    assert type(drafters["pld"]).__name__ == "PromptLookup"
    with pytest.raises(SpecbenchError, match=f"'mine' is broken: {type(error).__name__}"):
        assert drafters["mine"].needs


def test_a_refused_checkpoint_is_still_a_users_error() -> None:
    target = Target(random_llama(layers=1))
    refusal = UserError("mine has no checkpoint.")
    with pytest.raises(UserError, match="no checkpoint"):
        build_drafters(target, [failing_to_build(refusal)], MemoryLedger(target))


def test_a_block_over_its_time_limit_is_interrupted() -> None:
    with (
        pytest.raises(UserError, match=r"the nap took longer than 0\.05 s"),
        time_limit(0.05, "the nap"),
    ):
        time.sleep(5)
    time.sleep(0.06)  # no alarm is left


def test_a_nested_time_limit_keeps_the_outer_one() -> None:
    with pytest.raises(UserError, match="the whole took"), time_limit(0.2, "the whole"):
        with time_limit(5, "a part"):
            pass
        time.sleep(5)


def test_ctrl_c_in_a_method_is_not_its_fault() -> None:
    with pytest.raises(KeyboardInterrupt), containing("a"):
        raise KeyboardInterrupt
    with pytest.raises(MethodFault, match="a: GeneratorExit"), containing("a"):
        raise GeneratorExit


@pytest.mark.slow
def test_a_methods_time_limit_leaves_out_the_import_of_torch() -> None:
    code = """
from specbench import registry
registry.lookup.IMPORT_LIMIT_S = 1.0
print(registry.get("pld").name)
"""
    assert python(code, ROOT) == "pld"


IDEA = """
def propose(state):
    return state.token_idz
def chain(state):
    return state.chain(["no", "ids"])
"""


@pytest.mark.parametrize(("function", "line"), [("propose", 3), ("chain", 5)])
def test_a_fault_is_named_with_the_last_line_of_the_methods_own_code(
    function: str, line: int
) -> None:
    space = {"__name__": "my_idea"}
    exec(compile(IDEA, "/somewhere/my_idea.py", "exec"), space)
    with pytest.raises(MethodFault) as caught, containing("A draft"):
        space[function](State(Request((1, 2), 8), None, 8))  # type: ignore[operator, arg-type]
    assert caught.value.message.endswith(f"(my_idea.py:{line} in {function})")


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("eagle2:depth=3|5", ("eagle2:depth=3", "eagle2:depth=5")),
        ("eagle2:depth=[3, 5],pld", ("eagle2:depth=3", "eagle2:depth=5", "pld")),
        (
            "eagle2:depth=3|5,total_tokens=[40,60]",
            tuple(f"eagle2:depth={d},total_tokens={t}" for d in (3, 5) for t in (40, 60)),
        ),
        ("pld:num_tokens=5|5,pld:num_tokens=5", ("pld:num_tokens=5",)),
        ("sps:weights=a[1]", ("sps:weights=a[1]",)),
    ],
)
def test_a_sweep_is_a_method_for_each_combination(text: str, methods: tuple[str, ...]) -> None:
    assert [str(method.asked) for method in RunSpec(methods=(text,)).run_methods] == [*methods]


@pytest.mark.parametrize("text", ["eagle2:depth=3|", "eagle2:depth=[3,,5]"])
def test_an_empty_value_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="has an empty value"):
        _ = RunSpec(methods=(text,)).run_methods
