import hashlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.data.cache import paper_file
from specbench.data.hub_prompts import hub_prompts
from specbench.data.prompts import load_prompt_sets, load_prompts, plan_tasks
from specbench.data.tasks import HubSource, PaperSource
from specbench.errors import UserError
from tests.support.hub_server import Fault, hub_server
from tests.support.refusals import error_with

CONTENT = b'{"question_id": 1, "turns": ["Why?"]}\n'
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a file on a local server."""
    with hub_server({"question.jsonl": CONTENT}) as address:
        yield f"{address}/question.jsonl"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECBENCH_CACHE", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


def test_a_published_file_is_downloaded_once_and_then_found(cache: Path, url: str) -> None:
    source = PaperSource(url, SHA256, "a/b/question.jsonl", 1)
    path = paper_file("demo", source, offline=False)
    assert (path, path.read_bytes()) == (cache / "a/b/question.jsonl", CONTENT)
    assert paper_file("demo", source, offline=True) == path


def test_a_download_with_another_hash_is_not_kept(cache: Path, url: str) -> None:
    source = PaperSource(url, "0" * 64, "question.jsonl", 1)
    with error_with(UserError, SHA256, "0" * 64):
        paper_file("demo", source, offline=False)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "limit", "message"),
    [
        ("drips", "DOWNLOAD_LIMIT_S", r"The download of .* took longer than 0\.2 s"),
        ("stalls", "STALL_LIMIT_S", "cannot be downloaded"),
        ("resets", "STALL_LIMIT_S", "cannot be downloaded"),
        ("html", "STALL_LIMIT_S", "the answer is an HTML page"),
    ],
)
def test_a_failed_download_gives_one_message_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, limit: str, message: str
) -> None:
    monkeypatch.setattr(f"specbench.data.cache.{limit}", 0.2)
    with hub_server({"a": bytes(9 * 2**20)}, fault) as address:
        source = PaperSource(f"{address}/a", SHA256, "question.jsonl", 1)
        with pytest.raises(UserError, match=message) as caught:
            paper_file("demo", source, offline=False)
    assert source.url in caught.value.message + caught.value.hint
    assert list(cache.iterdir()) == []


def test_a_changed_cached_file_is_refused_and_stays(cache: Path) -> None:
    cache.mkdir()
    (cache / "question.jsonl").write_bytes(b"mine")
    with error_with(UserError, SHA256, hashlib.sha256(b"mine").hexdigest()):
        paper_file("demo", PaperSource("http://x", SHA256, "question.jsonl", 1), offline=False)
    assert (cache / "question.jsonl").read_bytes() == b"mine"


def test_a_file_in_a_read_only_cache_is_only_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "question.jsonl").write_bytes(CONTENT)
    before = cache.stat().st_mtime_ns
    cache.chmod(0o555)
    monkeypatch.setitem(sys.modules, "pooch", None)
    source = PaperSource("http://x", SHA256, "question.jsonl", 1)
    assert paper_file("demo", source, offline=False) == cache / "question.jsonl"
    assert cache.stat().st_mtime_ns == before


def test_a_missing_file_offline_is_named_with_its_source_and_its_place(cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_prompts("gsm8k", "paper", offline=True)
    place = str(cache / "eagle/gsm8k/question.jsonl")
    assert "gsm8k" in caught.value.message
    assert place in caught.value.message
    for part in ("https://raw.githubusercontent.com/", place, "specbench fetch"):
        assert part in caught.value.hint


def test_a_read_only_cache_folder_gives_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "file"))
    with error_with(UserError, "Cannot write the prompts of demo", hint="SPECBENCH_CACHE"):
        paper_file("demo", PaperSource(url, SHA256, "a/question.jsonl", 1), offline=False)


@pytest.mark.skipif(
    not Path(os.environ.get("SPECBENCH_CACHE", ""), "eagle").is_dir(),
    reason="SPECBENCH_CACHE is not a cache folder that holds the papers' prompts",
)
def test_every_papers_file_has_the_number_of_prompts_its_card_says() -> None:
    tasks = plan_tasks([], "paper") + plan_tasks(["spec_bench"], "paper")
    sets = load_prompt_sets(tasks, "paper", offline=True)
    assert [len(prompt_set.prompts) for prompt_set in sets] == [80] * 12
    assert {len(prompt.turns) for prompt in sets[0].prompts} == {2}
    for card in (prompt_set.task.card for prompt_set in sets):
        assert card and card.paper and card.paper.num_prompts == 80 * len(card.tasks)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A fake `datasets` library with one data set, which records its calls."""
    module = types.ModuleType("datasets")
    module.config = types.SimpleNamespace(HF_HUB_OFFLINE=False)  # type: ignore[attr-defined]
    module.calls = []  # type: ignore[attr-defined]

    def load_dataset(*args: object, **options: object) -> list[dict[str, object]]:
        module.calls.append((args, options, module.config.HF_HUB_OFFLINE))
        return [{"id": f"n{i}", "text": f"Question {i}"} for i in range(5)]

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("specbench.data.hub_prompts.unreachable", lambda _: None)
    return module


@pytest.mark.usefixtures("library")
def test_without_a_limit_the_cards_own_applies() -> None:
    source = HubSource("a/b", "test", turns=("{text}",), default_limit=3)
    prompts = hub_prompts("demo", source, num_prompts=None, offline=False)
    assert [prompt.sample_id for prompt in prompts.prompts] == ["demo/0", "demo/1", "demo/2"]
    assert len(hub_prompts("demo", source, num_prompts=4, offline=False).prompts) == 4


@pytest.mark.usefixtures("library")
def test_a_column_the_hub_does_not_have_is_named_with_those_it_has() -> None:
    source = HubSource("a/b", "test", turns=("{question}",))
    with pytest.raises(UserError, match=r"a/b has no column 'question'; it has: id, text"):
        hub_prompts("demo", source, num_prompts=None, offline=False)


def test_the_library_is_offline_during_the_call_only(library: types.ModuleType) -> None:
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    hub_prompts("demo", HubSource("a/b", "t", turns=("{text}",)), num_prompts=1, offline=True)
    assert library.calls[0][2] is True
    assert library.config.HF_HUB_OFFLINE is False
    assert before == constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("offline", [True, False])
def test_a_data_set_that_cannot_be_loaded_gives_one_message(
    library: types.ModuleType, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto the host")

    monkeypatch.setattr(library, "load_dataset", fail)
    with error_with(
        UserError,
        "a/b@main, split t",
        "the run is offline" if offline else "no route",
        hint="`--prompts paper`",
    ):
        hub_prompts("gsm8k", HubSource("a/b", "t", turns=("{x}",)), num_prompts=1, offline=offline)
