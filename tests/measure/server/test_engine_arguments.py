"""Engine arguments that would contradict a run's labels or header are refused."""

import re

import pytest

from specbench.errors import UserError
from specbench.measure.server.engine import load_engine
from specbench.measure.server.engine_arguments import check_engine_args
from tests.support.refusals import error_with

OWN_WORDS = ("serve", "m", "--max-model-len", "9", "--no-enable-prefix-caching", "--port", "1")


@pytest.mark.parametrize(
    "words",
    [
        ("--max-model-len", "10"),
        ("--max-model-len=10",),
        ("--max_model_len=10",),
        ("--max-model=10",),
        ("--enable-prefix-caching",),
        ("--tensor-parallel-size", "2", "--port=3"),
        ("--config", "flags.yaml"),
        ("--dtype", "half"),
    ],
)
def test_flags_that_specbench_sets_are_refused_in_any_spelling(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"specbench sets --.* itself"):
        check_engine_args(load_engine("vllm"), words, OWN_WORDS)


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--speculative-config={}"),
        ("vllm", "-sc"),
        ("vllm", "-s"),
        ("vllm", "-sc.method"),
        ("vllm", "--spec-method"),
        ("vllm", "--speculative_config"),
        ("vllm", "--speculative={}"),
        ("sglang", "--spec"),
        ("sglang", "--speculative-accept-threshold-single"),
        ("llamacpp", "--spec-draft-p-min"),
        ("llamacpp", "--draft-max"),
        ("llamacpp", "-md"),
        ("llamacpp", "-lcd"),
    ],
)
def test_flags_of_speculation_are_methods(engine: str, flag: str) -> None:
    with error_with(
        UserError,
        re.split("[=.]", flag)[0],
        match=r"sets the speculation of .* vanilla included",
        hint="--method",
    ):
        check_engine_args(load_engine(engine), (flag, "0.5"), OWN_WORDS)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", ("--tensor-parallel-size", "2", "-tp", "2", "--gpu-memory-utilization=0.8")),
        ("vllm", ("--seed", "-1", "--max-num-batched-tokens", "4096")),
        ("sglang", ("--tp", "2", "--mem-fraction-static", "0.8")),
        ("llamacpp", ("-ngl", "99", "--threads", "4", "-fa", "on", "-t", "4")),
    ],
)
def test_other_arguments_pass(engine: str, words: tuple[str, ...]) -> None:
    check_engine_args(load_engine(engine), words, OWN_WORDS)
    with pytest.raises(UserError, match="specbench sets --port itself"):  # after other words
        check_engine_args(load_engine(engine), (*words, "--port"), OWN_WORDS)
