"""Every way in which an engine drafts is a method with the engine's options, checked by name."""

import hashlib
import json
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from specbench.errors import UserError
from specbench.measure.server import llama_server
from specbench.measure.server.engine import WHOLE, load_engine
from specbench.measure.server.started_setup import StartedSetup
from tests.measure.server.setups import setup_of
from tests.support.gguf_files import write_gguf


def words_of(setup: StartedSetup) -> list[str]:
    """The command line of the method's server."""
    (label,) = [label for label in setup.servers if label != "vanilla"]
    return setup.command_line(setup.servers[label])


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("mtp:num_tokens=3", {"method": "mtp", "num_speculative_tokens": 3}),
        ("ngram_gpu", {"prompt_lookup_max": 3, "prompt_lookup_min": 1}),
        ("ngram:prompt_lookup_max=7", {"prompt_lookup_max": 7, "prompt_lookup_min": 1}),
        ("eagle3:parallel_drafting=true", {"method": "eagle3", "parallel_drafting": True}),
        ("custom_class:model=pkg.Class", {"method": "custom_class", "model": "pkg.Class"}),
        (
            "suffix:suffix_decoding_max_spec_factor=0.5",
            {"method": "suffix", "suffix_decoding_max_spec_factor": 0.5},
        ),
        ("sps:rejection_sample_method=block", {"method": "draft_model"}),
    ],
)
def test_vllm_gets_kind_and_options_in_its_configuration(
    method: str, config: dict[str, Any]
) -> None:
    words = words_of(setup_of(method))
    assert config.items() <= json.loads(words[words.index("--speculative-config") + 1]).items()


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        (
            "eagle3:num_tokens=7,eagle_topk=8,num_draft_tokens=64",
            "--speculative-eagle-topk 8 --speculative-num-draft-tokens 64",
        ),
        ("eagle3:num_tokens=2", "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3"),
        ("mtp:adaptive=true", "--speculative-adaptive"),
        ("mtp", "--speculative-algorithm NEXTN --speculative-num-steps 3"),
        ("ngram:accept_threshold_acc=0", "--speculative-accept-threshold-acc 0.0"),
    ],
)
def test_sglang_gets_trees_and_thresholds_as_flags(method: str, flags: str) -> None:
    assert flags in " ".join(words_of(setup_of(method, engine="sglang")))


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        ("ngram_mod:ngram_mod_n_match=12", "--spec-type ngram-mod --spec-ngram-mod-n-match 12"),
        ("ngram_map_k", "--spec-type ngram-map-k"),
        ("mtp:draft_p_min=0.75", "--spec-draft-n-max 3 --spec-draft-p-min 0.75"),
        ("ngram:ngram_simple_size_n=12", "--spec-ngram-simple-size-n 12"),
    ],
)
def test_llamacpp_gets_kind_and_options_as_flags(method: str, flags: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    words = words_of(setup_of(method, engine="llamacpp", model=str(tmp_path / "small.gguf")))
    assert flags in " ".join(words)
    assert len([word for word in words if word == flags.split()[-2]]) == 1, (
        "each flag is given once"
    )


def test_the_wheel_takes_every_option_of_llamacpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's own parser refuses what it does not know."""
    options = {
        f"--spec-{option.replace('_', '-')}"
        for name, method in load_engine("llamacpp").methods.items()
        for option in method.options
        if name != WHOLE
    }
    wheel = mock.Mock()
    monkeypatch.setitem(sys.modules, "xllamacpp", wheel)
    monkeypatch.setattr(signal, "pause", lambda: None)
    words = [word for option in sorted(options) for word in (option, "1")]
    monkeypatch.setattr(sys, "argv", ["llama_server.py", *words])
    llama_server.main()
    (params,) = wheel.Server.call_args.args
    assert params.speculative.ngram_mod.n_match == params.speculative.draft.p_split == 1


def test_a_dry_run_has_the_commands_of_all_methods_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = setup_of("medusa,eagle3:num_tokens=3").commands
    assert [*commands] == ["vanilla", "medusa", "eagle3:num_tokens=3"]
    assert '"num_speculative_tokens": 3' in " ".join(commands["eagle3:num_tokens=3"])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("engine", "method", "message"),
    [
        ("vllm", "ngram:weights=somewhere", "No option 'weights' of vLLM's ngram"),
        ("vllm", "eagle3:topk=8", "No option 'topk' of vLLM's eagle3"),
        ("vllm", "eagle3:parallel_drafting=yes", "'yes' is not true or false"),
        ("vllm", "ngram:prompt_lookup_max=many", "'many' is not a whole number"),
        ("sglang", "eagle3:accept_threshold_acc=nan", "'nan' is not a number"),
        ("sglang", "medusa", "No method 'medusa' of SGLang"),
        ("vllm", "papers", "The group papers holds .*pld.* vLLM runs its own: .*ngram"),
        ("sglang", "all", "The group all holds .*pld.* SGLang runs its own: .*ngram"),
    ],
)
def test_options_are_checked_by_name_and_type(engine: str, method: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        setup_of(method, engine=engine)


@pytest.mark.parametrize(
    ("engine", "method", "is_lossless"),
    [
        ("vllm", "sps:rejection_sample_method=block", True),
        ("vllm", "sps:rejection_sample_method=fly,fly_window_size=4", False),
        ("vllm", "eagle3:rejection_sample_method=synthetic", False),
        ("sglang", "eagle3:accept_threshold_single=1", True),
        ("sglang", "eagle3:accept_threshold_single=0.9", False),
    ],
)
def test_a_method_with_a_lossy_rule_is_not_called_lossless(
    engine: str, method: str, is_lossless: bool
) -> None:
    headers = setup_of(method, engine=engine).describe().methods
    assert headers["vanilla"].is_lossless
    assert headers[method].is_lossless == is_lossless


def test_a_table_that_all_requests_share_is_reported(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    setup = setup_of("ngram_mod", engine="llamacpp", model=str(tmp_path / "small.gguf"))
    warning = (
        "ngram_mod learns from earlier requests, "
        "so it looks faster in later passes and at later loads."
    )
    assert warning in setup.describe().warnings


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_new_kinds_run_only_if_they_are_named(engine: str) -> None:
    defaults = {name for name, method in load_engine(engine).methods.items() if method.is_default}
    assert defaults <= {"vanilla", "ngram", "sps", "eagle", "eagle3", "medusa"}


TABLE = [[1, 8, 4], [9, 64, 0]]


def test_a_table_of_drafts_by_load_goes_to_vllm_and_into_the_header(tmp_path: Path) -> None:
    file = tmp_path / "by_load.json"
    file.write_text(json.dumps(TABLE))
    setup = setup_of(f"eagle3:table={file}")
    words = words_of(setup)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["num_speculative_tokens_per_batch_size"] == TABLE
    assert config["num_speculative_tokens"] == 4, "this is the largest number of the table"
    header = setup.describe().methods["eagle3:table=by_load.json"]
    table = header.options["table"]
    assert (table["file"], [list(row) for row in table["content"]]) == ("by_load.json", TABLE)
    assert table["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1, 8, 4], [8, 64, 0]]", r"\[8, 64, 0\] begins within \[1, 8, 4\]"),
        ("[[8, 1, 4]]", r"\[8, 1, 4\] is not a range"),
        ("[[1, 8, -1]]", r"\[1, 8, -1\] is not a range"),
        ("[]", "it has no row"),
        ("[[1, 8]]", "is not a table of draft tokens by load"),
        ('{"a": 1}', "is not a table of draft tokens by load"),
        ("[[1", "is not JSON"),
    ],
)
def test_a_wrong_table_is_refused_with_its_row(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "by_load.json"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        setup_of(f"ngram:table={file}")


@pytest.mark.parametrize(
    ("engine", "settings", "flags"),
    [
        (
            "vllm",
            {"method": "eagle3", "model": "org/head", "rejection_sample_method": "fly"},
            "--speculative-config",
        ),
        (
            "sglang",
            {"algorithm": "EAGLE3", "num_steps": 3, "accept_threshold_acc": 0.9},
            "--speculative-algorithm EAGLE3 --speculative-num-steps 3",
        ),
    ],
)
def test_a_whole_configuration_is_a_separate_method(
    engine: str, settings: dict[str, Any], flags: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(settings))
    setup = setup_of(f"spec:file={file},name=My head", engine=engine)
    words = words_of(setup)
    assert flags in " ".join(words)
    if engine == "vllm":
        assert json.loads(words[words.index(flags) + 1]) == settings
    (label,) = [label for label in setup.servers if label != "vanilla"]
    assert str(tmp_path) not in label, "a label has no folder"
    header = setup.describe().methods[label]
    assert (header.title, header.is_lossless) == ("My head", False)
    assert header.options["content"] == settings


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("[]", "has no speculation settings"), ("{", "is not JSON")],
)
def test_a_whole_configuration_that_cannot_be_read_is_refused(
    content: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        setup_of(f"spec:file={file}")
    with pytest.raises(UserError, match="has no file"):
        setup_of("spec:name=mine")
