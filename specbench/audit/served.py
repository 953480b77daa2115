"""The baseline of a run on servers against vanilla in this process, on the same prompts.

A server that is wrong without speculation is no measure for its methods.
"""

from __future__ import annotations

from itertools import zip_longest

from specbench.analysis.columns import BASELINE
from specbench.analysis.divergence import Agreement, Divergence
from specbench.analysis.records import RecordTable
from specbench.audit.model import RunModel
from specbench.log.header import RunHeader
from specbench.log.loads import loads_of
from specbench.types import Request


def agreement_with_ours(table: RecordTable, info: RunHeader, model: RunModel) -> Agreement:
    """The greedy answers of the server without speculation against ours, each prompt once.

    Ours has as many tokens as the server's: an answer that ends too early is not noticed.
    """
    load = loads_of(info.spec.values)[0]
    records = [
        record
        for record in table.records
        if record.is_ok
        and (record.key.method, record.key.temperature) == (BASELINE, 0.0)
        and (record.key.repeat, record.key.concurrency) == (0, load.concurrency)
        and record.key.request_rate == load.request_rate
    ]
    divergences = []
    for record in records:
        request = Request(model.prompt_ids(record), len(record.token_ids))
        ours = model.complete(BASELINE, request)
        pairs = enumerate(zip_longest(ours, record.token_ids))
        for position, (expected, token) in pairs:
            if expected != token:
                divergences.append(Divergence(record.key, position, expected, token))
                break
    return Agreement(BASELINE, len(records), tuple(divergences))
