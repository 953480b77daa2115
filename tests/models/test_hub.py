import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from msgspec import structs

from specbench.errors import CheckpointError
from specbench.measure.fetch import downloads, size_of
from specbench.models.cards import find_model
from specbench.models.hub import (
    resolve,
    resolve_model,
    resolve_tokenizer,
    resolve_weights,
    wanted_files,
)
from tests.models.making import make_checkpoint
from tests.support.hub_server import COMMIT, REPO


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache. Any request to the Hub fails, unless a test sets its answer."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub_says(monkeypatch, ConnectionError("name or service not known"))
    return tmp_path / "hub"


def hub_says(monkeypatch: pytest.MonkeyPatch, answer: Exception | list[str]) -> list[Any]:
    """Let the Hub list these files, or fail. Return the requested downloads."""
    downloads: list[Any] = []

    def model_info(*_: object, **__: object) -> SimpleNamespace:
        if isinstance(answer, Exception):
            raise answer
        files = [SimpleNamespace(rfilename=name) for name in answer]
        return SimpleNamespace(sha=COMMIT, siblings=files)

    def download(repo: str, name: str, *, revision: str) -> str:
        downloads.append((repo, revision, name))
        return f"{constants.HF_HUB_CACHE}/{name}"

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return downloads


def in_cache(cache: Path, repo: str = REPO) -> Path:
    """A snapshot of a repository, stored as the Hub's client does."""
    stored = cache / f"models--{repo.replace('/', '--')}"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text(COMMIT)
    return make_checkpoint(stored / "snapshots" / COMMIT)


def refusal(**options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        resolve(REPO, **{"offline": False, "what": "Model mine", "alias": "mine", **options})
    return caught.value


def test_only_one_format_of_the_weights_is_wanted_and_nothing_in_subfolders() -> None:
    common = ["config.json", "tokenizer.model", "tokenizer_config.json"]
    safe = ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"]
    pickles = ["pytorch_model.bin", "pytorch_model.bin.index.json"]
    other = ["README.md", "original/params.json", "consolidated.00.pth", "model.gguf"]
    other += ["consolidated.safetensors", "onnx/model.safetensors", "training_args.bin"]
    assert set(wanted_files(common + safe + pickles + other)) == set(common + safe)
    assert set(wanted_files(common + pickles + other)) - set(other) == set(common + pickles)
    head = ["config.json", "medusa_lm_head.pt"]
    assert wanted_files([*head, "README.md"]) == head


def test_only_the_needed_files_are_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = hub_says(monkeypatch, ["config.json", "model.safetensors", "README.md"])
    assert resolve(REPO, "v2", offline=False, what="x") == cache
    assert downloads == [(REPO, "v2", "config.json"), (REPO, "v2", "model.safetensors")]


def test_without_the_hub_models_come_from_the_cache(cache: Path) -> None:
    card = structs.replace(find_model("tiny"), name="mine", repo=REPO, revision="main")
    with pytest.raises(CheckpointError, match=r"tokenizer.*, and the Hub cannot be reached"):
        resolve_tokenizer(card, offline=False)
    snapshot = in_cache(cache)
    assert resolve_tokenizer(card, offline=False) == snapshot
    assert resolve(REPO, offline=False, what="x") == snapshot
    (snapshot / "tokenizer.json").rename(snapshot / "other.json")
    with pytest.raises(CheckpointError, match="without a tokenizer"):
        resolve_tokenizer(card, offline=True)
    (snapshot / "other.json").rename(snapshot / "tekken.json")
    (snapshot / "model.safetensors").unlink()
    assert resolve_tokenizer(card, offline=True) == snapshot


def test_a_revision_that_is_in_the_cache_is_not_downloaded_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = in_cache(cache)
    downloads = hub_says(monkeypatch, ["config.json", "model.safetensors"])
    assert resolve(REPO, offline=False, what="x") == snapshot and downloads == []


@pytest.mark.usefixtures("cache")
def test_offline_the_hub_is_not_asked_and_the_message_says_how_to_get_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub_says(monkeypatch, AssertionError("asked"))
    for variable in ("", "1"):
        monkeypatch.setenv("HF_HUB_OFFLINE", variable)
        error = refusal(offline=variable == "")
        assert "org/model is not in the Hugging Face cache" in error.message
        assert "config.json, weights, tokenizer" in error.message
        assert "the run is offline" in error.message
        for part in ("specbench fetch --model mine", "hf download org/model", "HF_HOME"):
            assert part in error.hint


def test_a_half_downloaded_model_names_the_files_it_lacks(cache: Path) -> None:
    snapshot = in_cache(cache)
    (snapshot / "model.safetensors").unlink()
    index = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    (snapshot / "model.safetensors.index.json").write_text(index)
    error = refusal()
    assert "without model-1.safetensors, model-2.safetensors" in error.message
    assert "ConnectionError: name or service not known" in error.message


def answer(kind: type[Exception], status: int) -> Exception:
    """An HTTP answer of the Hub, for any client library."""
    error = kind.__new__(kind)
    Exception.__init__(error, "401 Client Error.\n\nlong text")
    response = SimpleNamespace(status_code=status, headers={})
    error.response = response  # type: ignore[attr-defined]
    return error


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("failure", "message", "hint"),
    [
        (answer(errors.GatedRepoError, 403), "licence", "hf auth login"),
        (answer(errors.HfHubHTTPError, 403), "licence", "https://huggingface.co/org/model"),
        (answer(errors.RepositoryNotFoundError, 401), "there is no org/", "hf auth login"),
        (answer(errors.RevisionNotFoundError, 404), "no revision 'main'", "lists the revisions"),
        (answer(errors.HfHubHTTPError, 500), "cannot be reached", "hf download org/model"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full", "HF_HOME moves"),
    ],
)
def test_every_error_of_the_hub_or_the_disk_gives_one_message(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, message: str, hint: str
) -> None:
    hub_says(monkeypatch, failure)
    error = refusal()
    assert message in error.message and "\n" not in error.message
    assert hint in error.hint


def test_a_models_files_are_checked_when_they_are_found(cache: Path) -> None:
    snapshot = in_cache(cache, "lmsys/vicuna-7b-v1.3")
    card = find_model("vicuna-7b")
    assert resolve_model(card, offline=True) == snapshot
    (snapshot / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"Model vicuna-7b: .*not a whole safetensors"):
        resolve_model(card, offline=True)


@pytest.mark.parametrize(("method", "is_found"), [("sps", False), ("eagle2", True)])
def test_only_a_draft_model_needs_a_tokenizer_of_its_own(
    cache: Path, method: str, is_found: bool
) -> None:
    card = find_model("vicuna-7b")
    drafter = card.weights_of(method)
    assert drafter is not None
    (in_cache(cache, drafter.repo) / "tokenizer.json").unlink()
    if is_found:
        assert resolve_weights(card, drafter, offline=True).is_dir()
    else:
        with pytest.raises(CheckpointError, match="without a tokenizer"):
            resolve_weights(card, drafter, offline=True)


def test_fetch_gets_a_model_with_its_drafters_and_names_the_missing_ones(cache: Path) -> None:
    in_cache(cache, "lmsys/vicuna-7b-v1.3")
    in_cache(cache, "yuhuili/EAGLE-Vicuna-7B-v1.3")
    download_of = dict(downloads((), "vicuna-7b"))
    assert size_of(download_of["model vicuna-7b"](offline=True)) > 0
    assert download_of["eagle drafter of vicuna-7b"](offline=True).is_dir()
    with pytest.raises(CheckpointError, match="sps drafter of vicuna-7b"):
        download_of["sps drafter of vicuna-7b"](offline=True)
