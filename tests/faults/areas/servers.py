"""Attacks with servers that contradict themselves, fail, or send the key back.

The run can be read and reported. No password and no key is in a file, a message, a table or the
list of processes.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from specbench.log.store import HEADER, read_run
from tests.faults.damage import change_value
from tests.faults.program import specbench
from tests.support import stub_server
from tests.support.checkpoint import write_prompts
from tests.support.stub_server import Stub, chunks_of, serving

TRIES = 200
logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the stub's log
FAULTS = ("drops", "half", "garbage", "error event", "wrong count", "html answer", "400")
VALUES: tuple[Any, ...] = (
    -1, 0, 1, 7, 10**9, 2**63, 10**30, -(10**9), 0.5, 1e308, None, "", "x", [], {}, [[]], True,
    "KEY", "a" * 10**5, [10**9], [-1] * 99, {"a": {"b": "KEY"}}, float("nan"), float("inf"),
)  # fmt: skip


def attack(random: Random, folder: Path) -> None:
    key = f"sk-{random.randbytes(8).hex()}"
    password = f"pw-{random.randbytes(8).hex()}"
    engine = random.choice(("vllm", "llamacpp", "sglang", "plain"))
    prompts = write_prompts(folder / "mine.jsonl", ["one two", "and"], ["three"])
    counters = {
        "generation_tokens_total": random.choice((0.0, -5.0, 1e300, float("nan"))),
        "spec_decode_num_drafts_total": 0.0,
        "spec_decode_num_accepted_tokens_total": 0.0,
    }
    accepted = random.choice(((2, 1), (10**9,), (-3, 1), (), (0,) * 50))

    def server(accepted_per_step: tuple[int, ...] | None) -> Stub:
        return Stub(
            engine,
            answer=lambda prompt: (40, 41, 42, 43, 44, 2),
            fault=random.choice(("", "", "", *FAULTS)),
            fault_from=random.randrange(4),
            accepted_per_step=accepted_per_step,
            counters=dict(counters) if random.random() < 0.3 else {},
        )

    without_drafts, with_drafts = server(None), server(accepted)
    command = ["run", "--backend", "server", "--prompts", prompts, "--output", "out", "--quiet"]
    mutating = patch.object(stub_server, "chunks_of", _mutated(random, key))
    with mutating, serving(without_drafts) as plain, serving(with_drafts) as draft:
        has_password = random.random() < 0.1
        user = f"me:{password}@" if has_password else ""
        for label, stub in (("vanilla", plain), ("eagle3", draft)):
            command += ["--url", stub.root.replace("//", f"//{user}"), "--label", label]
        said = specbench(*command, folder=folder, SPECBENCH_API_KEY=key)
    assert said.code == 2 or not has_password
    shown_texts = [said.out, said.err]
    if (folder / "out" / HEADER).exists():
        read_run(folder / "out")
        for options in ((), ("--format", "json"), ("--format", "csv")):
            shown = specbench("report", "out", *options, folder=folder)
            shown_texts += [shown.out, shown.err]
    files = [file for file in folder.rglob("*") if file.is_file()]
    texts = [*shown_texts, *(file.read_text(errors="replace") for file in files)]
    for secret in (key, password):
        assert not any(secret in text for text in texts), "a secret is shown"
    tracebacks = [text for text in texts if "Traceback" in text]
    assert not tracebacks, tracebacks[0][-400:]


def _mutated(random: Random, key: str) -> Any:
    """A replacement of `chunks_of` that changes values in some chunks of an answer.

    It also checks that no process shows the key.
    """
    rate = random.choice((0.0, 0.05, 0.5))
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            assert key.encode() not in process.read_bytes(), "the key is in the list of processes"

    def chunks(*given: Any, **named: Any) -> Iterator[str]:
        for chunk in chunks_of(*given, **named):
            fields = json.loads(chunk)
            if random.random() < rate:
                change_value(random, fields, VALUES)
            yield json.dumps(fields).replace("KEY", key)

    return chunks
