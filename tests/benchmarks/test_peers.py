"""The comparison with other programs: same answers, fair turns, and shares of the idle machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import requests

from benchmarks import peers


def test_programs_take_turns_on_each_prompt_and_the_first_round_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, order = [0.0], list[tuple[str, int]]()

    def complete(name: str, seconds: float, ids: Sequence[int]) -> int:
        order.append((name, ids[0]))
        clock[0] += seconds if len(order) > 4 else 100.0
        return 10

    monkeypatch.setattr("benchmarks.peers.time.perf_counter", lambda: clock[0])
    found = {"a": partial(complete, "a", 0.5), "b": partial(complete, "b", 2.0)}
    assert peers.rates(found, [(1,), (2,)], rounds=3) == {"a": 20.0, "b": 5.0}
    assert order == [("a", 1), ("b", 1), ("a", 2), ("b", 2)] * 3


def test_the_table_has_the_share_that_a_busy_neighbour_leaves() -> None:
    cells = {(1, False): {"a": 200.0}, (1, True): {"a": 150.0}}
    head, _, row = peers.table(cells)
    assert head == "| tokens/s | 1 thread, idle | 1 thread, busy |"
    assert row == "| a | 200 | 150 (75%) |"


@pytest.mark.slow
def test_all_programs_complete_the_same_number_of_tokens() -> None:
    given = peers.parse(["--num-tokens", "8"])
    with peers.peers(given, 1) as found:
        assert {complete(peers.prompt_ids("Hello")) for complete in found.values()} == {8}
    assert len(found) == 6


def test_a_busy_neighbour_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(peers, "SETTLE_S", 0.0)
    monkeypatch.setattr(peers, "BUSY", "import time; time.sleep(60)")
    started = subprocess.Popen

    def start(*words: object, **options: object) -> object:
        ended.append(started(*words, **options))  # type: ignore[call-overload]
        return ended[0]

    monkeypatch.setattr("benchmarks.peers.subprocess.Popen", start)
    with peers.neighbour(True):
        assert ended[0].poll() is None
    assert ended[0].poll() is not None


SERVER = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self): self.send_response(200); self.end_headers()
    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert ask["prompt"] == [1, 5] and ask["ignore_eos"] and ask["temperature"] == 0
        answer = json.dumps({answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

assert {expected}
port = sys.argv[sys.argv.index("--port") + 1]
HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
LLAMA = {
    "answer": """{"tokens_predicted": ask["n_predict"] + ask["cache_prompt"]}""",
    "expected": """sys.argv[1:7] == ["-m", "tiny.gguf", "-t", "3", "-tb", "3"]""",
}
VLLM = {
    "answer": """{"usage": {"completion_tokens": ask["max_tokens"] + (ask["model"] != "tiny")}}""",
    "expected": """os.environ["OMP_NUM_THREADS"] == "3" and sys.argv[1] == "serve" """,
}


@pytest.mark.parametrize(("start", "texts"), [(peers.llama_cpp, LLAMA), (peers.vllm, VLLM)])
def test_a_server_is_asked_with_token_ids_and_ends_with_the_block(
    start: Callable[[ExitStack, peers.Given, int], peers.Complete],
    texts: Mapping[str, str],
    tmp_path: Path,
) -> None:
    program = tmp_path / "server"
    program.write_text(SERVER.format(python=sys.executable, **texts))
    program.chmod(0o755)
    given = peers.Given(7, 2, program, Path("tiny.gguf"), program)
    with ExitStack() as stack:
        complete = start(stack, given, 3)
        assert complete([1, 5]) == 7
    with pytest.raises(requests.ConnectionError):
        complete([1, 5])


def test_a_server_that_does_not_start_is_one_message() -> None:
    given = peers.Given(7, 2, Path("/bin/false"), Path("tiny.gguf"), None)
    with ExitStack() as stack, pytest.raises(SystemExit, match="does not answer"):
        peers.llama_cpp(stack, given, 1)
