"""The settings of a tune of servers are used by a run that starts an engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UserError
from specbench.measure.server.started_setup import StartedSetup
from specbench.settings.files import SettingsFile, read_settings, toml_text
from specbench.settings.load_table import OPEN_END
from tests.measure.server.setups import setup_of
from tests.measure.server.test_engine_methods import words_of

ROWS = [[1, "num_tokens=3"], [5, "num_tokens=1"], [9, ""]]
"""First load, draft tokens: 3 draft tokens at loads 1 to 4, 1 at loads 5 to 8, then none."""


def settings_file(
    folder: Path, method: str = "ngram", rows: object = ROWS, engine: str = "vllm"
) -> str:
    """Write a file with a method's sizes by load. Return its path."""
    file = SettingsFile({method: {"by_load": rows}}, model="tiny", engine=engine)
    path = folder / "settings.toml"
    path.write_text(toml_text(file))
    return str(path)


def vllm_config(setup: StartedSetup) -> dict[str, Any]:
    """The speculative configuration on the command line of a vLLM server."""
    words = words_of(setup)
    config: dict[str, Any] = json.loads(words[words.index("--speculative-config") + 1])
    return config


def test_vllm_gets_the_whole_table(tmp_path: Path) -> None:
    setup = setup_of("ngram", settings=settings_file(tmp_path), concurrency=(1, 8))

    # A row of vLLM's table is (first load, last load, draft tokens).
    config = vllm_config(setup)
    three_tokens, one_token, no_tokens = config["num_speculative_tokens_per_batch_size"]
    assert three_tokens == [1, 4, 3]
    assert one_token == [5, 8, 1]
    assert no_tokens == [9, OPEN_END, 0]
    assert config["num_speculative_tokens"] == 3  # the most at any load

    header = setup.describe().methods["ngram"]
    assert header.options["table"] == {"content": [(1, 4, 3), (5, 8, 1), (9, OPEN_END, 0)]}
    assert header.settings is not None
    assert header.settings.source == "settings.toml"
    assert header.settings.sha256


def test_a_table_may_be_an_option_of_the_method() -> None:
    config = vllm_config(setup_of("ngram:table=[[1,4,3],[5,9,0]]"))
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 4, 3], [5, 9, 0]]


@pytest.mark.parametrize(("load", "sizes"), [(4, ("3", "1", "4")), (64, ("2", "4", "8"))])
def test_sglang_gets_the_size_of_the_load(
    tmp_path: Path, load: int, sizes: tuple[str, ...]
) -> None:
    """A chain of 3 draft tokens and its root up to load 8, a tree of 8 nodes for larger loads."""
    chain = "num_tokens=3"
    tree = "num_tokens=2,eagle_topk=4,num_draft_tokens=8"
    file = settings_file(tmp_path, "eagle3", [[1, chain], [9, tree]], "sglang")
    words = words_of(setup_of("eagle3", engine="sglang", settings=file, concurrency=(load,)))
    flags = (
        "--speculative-num-steps",
        "--speculative-eagle-topk",
        "--speculative-num-draft-tokens",
    )
    assert tuple(words[words.index(flag) + 1] for flag in flags) == sizes


@pytest.mark.parametrize("rows", [ROWS, [[1, ""]]])
def test_a_size_given_by_the_user_stays(tmp_path: Path, rows: object) -> None:
    setup = setup_of("ngram:num_tokens=7", settings=settings_file(tmp_path, rows=rows))
    assert vllm_config(setup)["num_speculative_tokens"] == 7
    assert setup.describe().methods["ngram:num_tokens=7"].settings is None


@pytest.mark.parametrize(
    ("method", "has_table"), [("ngram:prompt_lookup_max=7", True), ("ngram", False)]
)
def test_settings_of_a_method_with_options_are_for_these_options(
    tmp_path: Path, method: str, *, has_table: bool
) -> None:
    file = settings_file(tmp_path, "ngram:prompt_lookup_max=7")
    config = vllm_config(setup_of(method, settings=file))
    assert ("num_speculative_tokens_per_batch_size" in config) is has_table


@pytest.mark.parametrize(
    ("engine", "rows", "loads", "message"),
    [
        ("sglang", ROWS, (1, 8), "uses one draft size at all loads"),
        ("sglang", ROWS, (16,), "plain decoding is at least as fast as ngram"),
        ("vllm", [[1, ""]], (1,), "plain decoding is at least as fast as ngram"),
        ("vllm", [[2, "num_tokens=3"]], (1,), "its loads must rise from 1"),
        ("vllm", [[1, "num_tokens=3"], [1, ""]], (1,), "its loads must rise from 1"),
        ("vllm", [[1, "num_tokens"]], (1,), "'num_tokens' is not an option with a number"),
        ("vllm", [[1, 3]], (1,), "does not list sizes of ngram by load"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, engine: str, rows: object, loads: tuple[int, ...], message: str
) -> None:
    file = settings_file(tmp_path, rows=rows, engine=engine)
    with pytest.raises(UserError, match=message):
        setup_of("ngram", engine=engine, settings=file, concurrency=loads)


def test_sglang_has_no_size_for_a_request_rate(tmp_path: Path) -> None:
    file = settings_file(tmp_path, rows=[[1, "num_tokens=3"]], engine="sglang")
    with pytest.raises(
        UserError, match="sizes of ngram for requests at once, not for a request rate"
    ):
        setup_of("ngram", engine="sglang", settings=file, concurrency=(), request_rates=(2.0,))


def test_settings_of_servers_are_for_one_engine(tmp_path: Path) -> None:
    file = settings_file(tmp_path)
    with pytest.raises(UserError, match="are for vllm, not for the engine sglang"):
        setup_of("ngram", engine="sglang", settings=file)
    with pytest.raises(UserError, match="for servers of vllm"):
        read_settings(file, "tiny")  # for the engine in this process


def test_servers_take_no_settings_of_this_process(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a file"):
        setup_of("ngram", settings="auto")
    in_process = tmp_path / "own.toml"
    in_process.write_text("[methods.pld]\nnum_tokens = 4\n")
    with pytest.raises(UserError, match="methods in this process"):
        setup_of("ngram", settings=str(in_process))
