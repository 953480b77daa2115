"""A damaged file gives a run or one message, and never another error."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specbench.errors import UserError
from specbench.log.exchange.convert import UserFacts, convert, parse_file
from specbench.log.header import RunHeader
from specbench.log.line_checks import RecordCheck
from specbench.log.record import ImportedLine, to_line, to_record
from specbench.log.run import Run
from specbench.log.store import header_json
from tests.log.exchange.files import answer
from tests.log.exchange.test_llama_cpp import answer as llama_answer
from tests.log.exchange.test_serving_clients import GUIDELLM, request
from tests.log.exchange.test_spec_bench import line
from tests.log.exchange.test_vllm_answers import answer as vllm_answer
from tests.log.exchange.test_vllm_bench import RESULT

NUM_DAMAGED = 60
"""The number of damaged files in each format."""
POSITIONS = {"id": "1", "prompt_token_ids": [1, 2], "acc_ngram": {"acc_len": [2, 1, 1]}}
DRAFTS = {"num_spec_steps": 3, "num_accepted_draft_tokens": 5}
FORMS: dict[str, list[Any]] = {
    "eagle": [answer(1), answer(2)],
    "spec_bench": [line(1), line(2)],
    "vllm_bench": [RESULT],
    "vllm_answers": [vllm_answer(DRAFTS), vllm_answer(DRAFTS)],
    "llama_cpp": [llama_answer(), llama_answer()],
    "aiperf": [request(0), request(1)],
    "guidellm": [GUIDELLM],
    "positions": [POSITIONS],
}


def cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def flipped(raw: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(raw))
    return raw[:position] + bytes([raw[position] ^ (1 << rng.randrange(8))]) + raw[position + 1 :]


def chosen_place(document: Any, rng: random.Random) -> tuple[Any, Any]:
    """A dictionary or list anywhere in a document, and one of its keys or indices."""
    container = document
    while True:
        keys = [*container] if isinstance(container, dict) else range(len(container))
        key = rng.choice(keys)
        inner = container[key]
        has_places = isinstance(inner, dict | list) and bool(inner)
        if not has_places or rng.random() >= 0.8:
            return container, key
        container = inner


def retyped(raw: bytes, rng: random.Random) -> bytes:
    """The lines, with some value replaced by one of another type or by a huge number."""
    lines = [json.loads(line) for line in raw.splitlines()]
    container, key = chosen_place(rng.choice(lines), rng)
    huge = [10**30, 1e308, -1, 2**31, 0]
    container[key] = rng.choice([None, "x", True, [], {}, [None], *huge])
    return "\n".join(map(json.dumps, lines)).encode()


def lost(raw: bytes, rng: random.Random) -> bytes:
    """The lines, without some key or element."""
    lines = [json.loads(line) for line in raw.splitlines()]
    container, key = chosen_place(rng.choice(lines), rng)
    del container[key]
    return "\n".join(map(json.dumps, lines)).encode()


def recoded(raw: bytes, rng: random.Random) -> bytes:
    return raw.decode().encode(rng.choice(["utf-16", "utf-32", "cp500"]))


def reread(run: Run) -> Run:
    """The run as it would be read from its files."""
    header = msgspec.json.decode(header_json(run.header), type=RunHeader)
    lines = [msgspec.json.encode(to_line(record)) for record in run.records]
    check = RecordCheck(header)
    records = []
    for number, content in enumerate(lines, 1):
        line = msgspec.json.decode(content, type=ImportedLine)
        records.append(to_record(line, {}))
        check.check(line, records[-1].key, number)
    return Run(header, tuple(records))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("damage", [cut, flipped, retyped, lost, recoded])
def test_a_damaged_file_gives_one_message_or_a_run(
    name: str, damage: Callable[[bytes, random.Random], bytes], tmp_path: Path
) -> None:
    rng = random.Random(f"{name} {damage.__name__}")
    raw = "".join(json.dumps(content) + "\n" for content in FORMS[name]).encode()
    path = tmp_path / "file.jsonl"
    path.write_bytes(raw)
    whole = convert([parse_file(str(path))], UserFacts())
    messages = []
    for _ in range(NUM_DAMAGED if damage is not recoded else 3):
        path.write_bytes(damage(raw, rng))
        try:
            run = convert([parse_file(str(path))], UserFacts())
        except UserError as error:
            messages.append(error.message)
        else:
            assert len(run.records) <= len(whole.records)
            assert reread(run) == run
    assert messages
    assert all("\n" not in message and "file.jsonl" in message for message in messages)
