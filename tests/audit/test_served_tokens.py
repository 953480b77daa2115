"""Sampled answers of servers are tested as they are, if they come as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specbench.analysis.records import make_table
from specbench.audit.white_box import audit_servers, usable_records
from specbench.engine.target import Target
from specbench.log.audit import MethodAudit
from specbench.types import Record
from tests.support.headers import make_header
from tests.support.models import random_llama
from tests.support.toy_run import Plain, ToyModel

PROMPTS = [tuple(range(3, 9 + i)) for i in range(8)]
MODEL = ToyModel(Target(random_llama(layers=2)), {"sps": Plain()}, PROMPTS, budget=40)
RUN = MODEL.run(1.0)


def audited(
    records: Sequence[Record], *, sends_token_ids: bool = True
) -> tuple[dict[str, MethodAudit], list[str]]:
    server = {
        "url": "http://host", "software": "vllm 1", "model": "m", "protocol": "completions",
        "sends_token_ids": sends_token_ids,
    }  # fmt: skip
    header = make_header({"methods": {"sps": {}}, "servers": {"vanilla": server, "sps": server}})
    said: list[str] = []
    # Servers report no single steps.
    bare = [replace(record, accept_lengths=(), num_nodes=()) for record in records]
    found = audit_servers(usable_records(make_table(bare)), header, MODEL, said.append)
    return {one.method: one for one in found}, said


def test_tokens_of_the_model_itself_pass() -> None:
    found, _ = audited(RUN.records)
    assert {name: one.status for name, one in found.items()} == {
        "vanilla": "no difference", "sps": "no difference",
    }  # fmt: skip
    assert {test.subject for one in found.values() for test in one.tests} == {"tokens"}
    assert found["sps"].num_tokens == 320


def test_a_server_that_draws_at_another_temperature_is_found() -> None:
    other = replace_temperature(0.5)
    found, _ = audited(
        [other[record.key.sample_id] if record.key.method == "sps" else record
         for record in RUN.records]
    )  # fmt: skip
    assert found["vanilla"].status == "no difference"
    assert found["sps"].status == "bug"


def replace_temperature(temperature: float) -> dict[str, Record]:
    """Records of the method drawn at another temperature than they say, by sample."""
    drawn = [record for record in MODEL.run(temperature).records if record.key.method == "sps"]
    return {
        record.key.sample_id: replace(record, key=replace(record.key, temperature=1.0))
        for record in drawn
    }


def test_answers_that_come_as_text_are_left_out_and_named() -> None:
    found, said = audited(RUN.records, sends_token_ids=False)
    assert found == {}
    assert len(said) == 2 and "sends no token ids" in said[0]
