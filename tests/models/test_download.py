import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from huggingface_hub import constants

from specbench.errors import CheckpointError, UserError
from specbench.models.hub import resolve
from tests.support.hub_server import COMMIT, REPO, Fault, hub_server

MEGABYTE = 2**20
FILES = {
    "config.json": json.dumps({"model_type": "llama"}).encode(),
    "model.safetensors": bytes(40 * MEGABYTE),
    "tokenizer.json": b"{}",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    yield tmp_path / "hub"
    assert list(tmp_path.rglob("*.incomplete")) == []


def download(monkeypatch: pytest.MonkeyPatch, fault: Fault = "none") -> Path:
    with ExitStack() as stack:
        address = stack.enter_context(hub_server(FILES, fault))
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setenv("HF_ENDPOINT", address)
        return resolve(REPO, offline=False, what="Model mine", alias="mine")


def refusal(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        download(monkeypatch, fault)
    return caught.value


def test_a_repository_is_downloaded_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = download(monkeypatch)
    assert folder == cache / "models--org--model" / "snapshots" / COMMIT
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
    assert download(monkeypatch, "html file") == folder


@pytest.mark.parametrize(
    ("fault", "variable", "reason"),
    [
        ("stalls", "SPECBENCH_STALL_LIMIT_S", "received nothing for 0.6 s"),
        ("drips", "SPECBENCH_DOWNLOAD_LIMIT_S", "took longer than 0.6 s"),
    ],
)
def test_a_download_that_reaches_a_limit_is_one_message_with_the_bytes_and_the_way_to_raise_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, variable: str, reason: str
) -> None:
    monkeypatch.setenv(variable, "0.6")
    error = refusal(monkeypatch, fault)
    assert error.message.startswith(f"Model mine: the download of {REPO} {reason} (")
    assert error.message.endswith(" of 41.9 MB so far).")
    assert f"{variable}=6 raises the limit" in error.hint


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("html", "the Hub's answer is an HTML page"),
        ("malformed", "the Hub's answer is malformed"),
        ("html file", "the Hub sent a file of another size than it announced"),
        ("gated file", "asks for its licence to be accepted"),
    ],
)
def test_an_answer_that_is_no_file_is_called_what_it_is(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, reason: str
) -> None:
    assert reason in refusal(monkeypatch, fault).message


@pytest.mark.usefixtures("cache")
def test_a_hub_that_resets_connections_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.models.hub.LIST_LIMIT_S", 0.5)
    assert "the Hub cannot be reached" in refusal(monkeypatch, "resets").message


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SPECBENCH_STALL_LIMIT_S", value)
    with pytest.raises(UserError, match=f"SPECBENCH_STALL_LIMIT_S={value} is not a time"):
        download(monkeypatch)
