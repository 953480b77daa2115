import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, file_download

from specbench.errors import CheckpointError, UserError
from specbench.models.hub import resolve
from tests.support.hub_server import COMMIT, REPO, Fault, hub_server
from tests.support.refusals import error_with

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
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        return resolve(REPO, offline=False, what="Model mine", alias="mine")


def test_a_repository_is_downloaded_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = download(monkeypatch)
    assert folder == cache / "models--org--model" / "snapshots" / COMMIT
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
    assert download(monkeypatch, "html file") == folder


@pytest.mark.usefixtures("cache")
def test_a_download_ends_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.models.hub.DOWNLOAD_LIMIT_S", 0.6)
    with error_with(
        UserError,
        match=f"the download of {REPO} took longer than 0.6 s",
        hint="the same command continues",
    ):
        download(monkeypatch, "drips")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("html", "the Hub's answer is an HTML page"),
        ("malformed", "the Hub's answer is malformed"),
        ("html file", "the Hub sent a file of the wrong size"),
        ("gated file", "requires that its licence is accepted"),
        ("stalls", "the Hub cannot be reached (ReadTimeout"),
        ("resets", "the Hub cannot be reached"),
    ],
)
def test_a_wrong_or_missing_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, reason: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1 if fault == "stalls" else 10)
    monkeypatch.setattr("specbench.models.hub.LIST_LIMIT_S", 0.5 if fault == "resets" else 30)
    without_waits = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr(file_download, "time", without_waits)
    with error_with(CheckpointError, reason):
        download(monkeypatch, fault)
