"""Settings of a tune of servers, which a run that starts an engine takes."""

import json
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.settings.files import SettingsFile, read_settings, toml_text
from tests.measure.server.setups import setup_of
from tests.measure.server.test_engine_methods import words_of

ROWS = [[1, "num_tokens=3"], [5, "num_tokens=1"], [9, ""]]


def settings(folder: Path, method: str = "ngram", rows: object = ROWS, engine: str = "vllm") -> str:
    """The path of a file with the sizes of a method by load."""
    file = SettingsFile({method: {"by_load": rows}}, model="tiny", engine=engine)
    path = folder / "settings.toml"
    path.write_text(toml_text(file))
    return str(path)


def test_vllm_gets_the_whole_table(tmp_path: Path) -> None:
    setup = setup_of("ngram", settings=settings(tmp_path), concurrency=(1, 8))
    words = words_of(setup)
    config = json.loads(words[words.index("--speculative-config") + 1])
    rows = config["num_speculative_tokens_per_batch_size"]
    assert rows[:2] == [[1, 4, 3], [5, 8, 1]]
    assert rows[2][::2] == [9, 0]
    assert config["num_speculative_tokens"] == 3
    header = setup.describe().methods["ngram"]
    assert header.options["table"] == {"content": [(1, 4, 3), (5, 8, 1), (9, 65536, 0)]}
    assert header.settings is not None
    assert header.settings.source == "settings.toml"
    assert header.settings.sha256


def test_a_table_may_stand_in_the_method_itself() -> None:
    words = words_of(setup_of("ngram:table=[[1,4,3],[5,9,0]]"))
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 4, 3], [5, 9, 0]]


@pytest.mark.parametrize(("load", "sizes"), [(4, ("3", "1", "4")), (64, ("2", "4", "8"))])
def test_sglang_gets_the_size_of_the_load(
    tmp_path: Path, load: int, sizes: tuple[str, ...]
) -> None:
    tree = "num_tokens=2,eagle_topk=4,num_draft_tokens=8"
    file = settings(tmp_path, "eagle3", [[1, "num_tokens=3"], [9, tree]], "sglang")
    words = words_of(setup_of("eagle3", engine="sglang", settings=file, concurrency=(load,)))
    flags = ("num-steps", "eagle-topk", "num-draft-tokens")
    assert tuple(words[words.index(f"--speculative-{flag}") + 1] for flag in flags) == sizes


def test_a_size_that_the_user_gives_stays(tmp_path: Path) -> None:
    setup = setup_of("ngram:num_tokens=7", settings=settings(tmp_path))
    assert '"num_speculative_tokens": 7' in " ".join(words_of(setup))
    assert setup.describe().methods["ngram:num_tokens=7"].settings is None


def test_settings_of_a_method_with_weights_go_by_its_label(tmp_path: Path) -> None:
    file = settings(tmp_path, "ngram:prompt_lookup_max=7")
    for method, has_table in (("ngram:prompt_lookup_max=7", True), ("ngram", False)):
        words = " ".join(words_of(setup_of(method, settings=file)))
        assert ("per_batch_size" in words) == has_table


@pytest.mark.parametrize(
    ("engine", "rows", "loads", "message"),
    [
        ("sglang", ROWS, (1, 8), "drafts with one size at all loads"),
        ("sglang", ROWS, (16,), "plain decoding is at least as fast as ngram"),
        ("vllm", [[1, ""]], (1,), "plain decoding is at least as fast as ngram"),
        ("vllm", [[2, "num_tokens=3"]], (1,), "its loads must rise from 1"),
        ("vllm", [[1, "num_tokens=3"], [1, ""]], (1,), "its loads must rise from 1"),
        ("vllm", [[1, "num_tokens"]], (1,), "has no sizes of ngram by load"),
        ("vllm", [[1, 3]], (1,), "has no sizes of ngram by load"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, engine: str, rows: object, loads: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        setup_of(
            "ngram",
            engine=engine,
            settings=settings(tmp_path, rows=rows, engine=engine),
            concurrency=loads,
        )


def test_a_rate_is_no_load_of_settings_with_one_size(tmp_path: Path) -> None:
    file = settings(tmp_path, rows=[[1, "num_tokens=3"]], engine="sglang")
    with pytest.raises(UserError, match="sizes of ngram by requests at once, not by a rate"):
        setup_of("ngram", engine="sglang", settings=file, concurrency=(), request_rates=(2.0,))


def test_settings_of_another_engine_or_of_none_are_refused(tmp_path: Path) -> None:
    file = settings(tmp_path)
    with pytest.raises(UserError, match="for the engine vllm, not for sglang"):
        setup_of("ngram", engine="sglang", settings=file)
    with pytest.raises(UserError, match="is not a file"):
        setup_of("ngram", settings="auto")
    with pytest.raises(UserError, match="for servers of vllm"):
        read_settings(file, "tiny")
    in_process = tmp_path / "own.toml"
    in_process.write_text("[methods.pld]\nnum_tokens = 4\n")
    with pytest.raises(UserError, match="of this process"):
        setup_of("ngram", settings=str(in_process))
