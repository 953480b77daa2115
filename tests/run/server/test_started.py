"""Engines that are started: their command, their end, and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from specbench.errors import SpecbenchError, UserError
from specbench.models.cards import find_model
from specbench.run.backends.server import process as process_module
from specbench.run.backends.server.answer import RequestFailed
from specbench.run.backends.server.client import Client
from specbench.run.backends.server.engines import ENGINES
from specbench.run.backends.server.engines.base import Launch
from specbench.run.backends.server.engines.llamacpp import gguf_file
from specbench.run.backends.server.find import FoundServer, find_server
from specbench.run.backends.server.process import ServerProcess
from specbench.run.backends.server.started import Start, StartedServers
from specbench.run.backends.server.stream import ChatRequest
from specbench.types import Request

FAKE = Path(__file__).parents[2] / "support" / "fake_engine.py"
ASK = ChatRequest(Request((1, 8, 9), 16), [])


async def find(client: Client) -> FoundServer:
    return await find_server(
        client, find_model("tiny"), served_model="tiny", prompt_ids=(1,), messages=[]
    )


def started(folder: Path, *arguments: str) -> StartedServers:
    """Servers of two methods by the fake engine."""

    def start(*more: str) -> Start:
        def command(scratch: Path, port: int) -> Sequence[str]:
            return [sys.executable, str(FAKE), "--port", str(port), *more, *arguments]

        return Start(command, {})

    starts = {
        "vanilla": start(),
        "ngram": start("--speculative-config", '{"method": "ngram"}'),
    }
    return StartedServers(starts, find, folder, request_s=10)


def wait_until(is_true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not is_true() and time.monotonic() < end:
        time.sleep(0.02)
    return is_true()


def pids(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()]


def are_gone(numbers: Sequence[int]) -> bool:
    def is_gone(number: int) -> bool:
        try:
            return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(is_gone, numbers))


def test_one_server_runs_at_a_time_and_none_is_left(tmp_path: Path) -> None:
    children = tmp_path / "children"

    async def use() -> tuple[str, list[int], list[int]]:
        servers = started(tmp_path, "--children", str(children))
        try:
            first = await servers.open("vanilla")
            assert await servers.open("vanilla") is first
            before = pids(children)
            second = await servers.open("ngram")
            assert are_gone(before)
            counts = (await second.complete(ASK)).counts
            assert counts.accepted_per_step == (2, 1)
            software = servers.describe()["ngram"].software
            return software, before, pids(children)
        finally:
            await servers.close()

    software, before, after = asyncio.run(use())
    assert software == "vLLM 0.32.0"
    assert before != after and are_gone(before) and are_gone(after)
    assert "starting ngram" in (tmp_path / "ngram.log").read_text()


def test_an_engine_that_does_not_start_fails_with_its_last_lines(tmp_path: Path) -> None:
    async def use() -> list[str]:
        servers, reasons = started(tmp_path, "--fail", "ngram"), []
        for _ in range(2):
            with pytest.raises(SpecbenchError) as error:
                await servers.open("ngram")
            reasons.append(error.value.message)
        await servers.close()
        return reasons

    first, second = asyncio.run(use())
    assert "ended with status 3 while it started" in first
    assert "starting ngram | RuntimeError: no memory left" in first
    assert second == first
    assert (tmp_path / "ngram.log").read_text().count("starting") == 1, "not started again"


def test_an_engine_that_dies_says_so_and_is_started_once_more(tmp_path: Path) -> None:
    async def use() -> tuple[str, str]:
        servers = started(tmp_path, "--die-at", "3")
        death = ""
        for _ in range(2):
            server = await servers.open("vanilla")
            await server.complete(ASK)
            with pytest.raises(RequestFailed):
                await server.complete(ASK)
            while not death:
                await asyncio.sleep(0.02)
                death = server.death()
        with pytest.raises(SpecbenchError) as error:
            await servers.open("vanilla")
        await servers.close()
        return death, error.value.message

    death, refusal = asyncio.run(use())
    assert "ended with status 7" in death and "EngineCore died" in death
    assert "died 2 times" in refusal


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    process = ServerProcess(["/no/such/engine", "serve"], {}, tmp_path / "log")
    assert wait_until(lambda: process.status is not None)
    assert "/no/such/engine cannot be started" in process.last_lines()
    process.stop()


def test_a_kill_of_this_program_leaves_no_process_behind(tmp_path: Path) -> None:
    children = tmp_path / "children"
    command = [sys.executable, str(FAKE), "--port", "0", "--children", str(children)]
    source = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from specbench.run.backends.server.process import ServerProcess\n"
        "ServerProcess(sys.argv[3:], {}, Path(sys.argv[2])); time.sleep(600)"
    )
    root = Path(process_module.__file__).parents[4]
    words = [sys.executable, "-c", source, str(root), str(tmp_path / "log"), *command]
    program = subprocess.Popen(words)
    try:
        assert wait_until(lambda: children.exists() and len(children.read_text().split()) == 2)
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert wait_until(lambda: are_gone(pids(children)))
    finally:
        program.kill()


def launch(tmp_path: Path, method: str, weights: Path | None = None) -> Launch:
    return Launch(
        model=tmp_path, served_name="tiny", method=method, weights=weights, num_tokens=4,
        port=8123, context=2048, num_at_once=8, dtype="float32", is_cpu=True,
        scratch=tmp_path / "scratch",
    )  # fmt: skip


def test_vllm_gets_the_draft_as_one_value_and_no_prefix_cache(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    words = ENGINES["vllm"].arguments(launch(tmp_path, "sps", draft))
    assert words[:2] == ["serve", str(tmp_path)]
    assert "--no-enable-prefix-caching" in words and "--enforce-eager" in words
    config = words[words.index("--speculative-config") + 1]
    assert config == (
        f'{{"method": "draft_model", "model": "{draft}", "num_speculative_tokens": 4}}'
    )
    plain = ENGINES["vllm"].arguments(launch(tmp_path, "vanilla"))
    assert set(words) - set(plain) == {"--speculative-config", config}


def test_vllm_gets_medusa_heads_with_the_configuration_it_asks_for(tmp_path: Path) -> None:
    tiny = Path(find_model("tiny").repo)
    made = launch(tmp_path, "medusa", tiny.parent / "medusa")
    words = ENGINES["vllm"].arguments(
        Launch(**{**{name: getattr(made, name) for name in made.__slots__}, "model": tiny})
    )
    assert str(made.scratch) in words[words.index("--speculative-config") + 1]
    assert (made.scratch / "medusa_lm_head.pt").exists()
    assert '"architectures": ["MedusaModel"]' in (made.scratch / "config.json").read_text()


def test_sglang_drafts_a_chain(tmp_path: Path) -> None:
    words = ENGINES["sglang"].arguments(launch(tmp_path, "eagle3", tmp_path))
    assert words[words.index("--speculative-algorithm") + 1] == "EAGLE3"
    assert words[words.index("--speculative-num-draft-tokens") + 1] == "5"
    assert "--disable-radix-cache" in words


def test_llamacpp_takes_gguf_files_and_a_context_for_each_request(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no GGUF file"):
        gguf_file(tmp_path)
    (tmp_path / "model.gguf").touch()
    words = ENGINES["llamacpp"].arguments(launch(tmp_path, "sps", tmp_path))
    assert words[words.index("--ctx-size") + 1] == str(2048 * 8)
    assert words[words.index("--spec-type") + 1] == "draft-simple"
    assert "--no-cache-prompt" in words
