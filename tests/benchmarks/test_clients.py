"""specbench and a server whose counts and prompts are known. Times are not tested."""

import sys

import pytest

from benchmarks import clients
from specbench.models.chat import ChatCodec
from tests.support.timed_server import TimedServer


def test_our_own_run_has_the_servers_prompts_tokens_and_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fast_server(codec: ChatCodec) -> TimedServer:
        return TimedServer(codec.text, first_s=0.01, step_s=0.001)

    monkeypatch.setattr(clients, "server_of", fast_server)
    monkeypatch.setattr(sys, "argv", ["clients"])
    clients.main()
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "specbench" in line]
    name, answers, prompts, tokens, mat = row.split(" | ")[:5]
    assert (name, answers, prompts, tokens) == (
        "| specbench",
        "8 of 8",
        "8 of 8 exact",
        "192 of 192",
    )
    measured, _, sent = mat.partition(" of ")
    assert measured == sent and float(sent) > 1
