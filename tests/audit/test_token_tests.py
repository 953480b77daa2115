"""Tests of tokens, draft tokens and rules have the right error rates and find bugs.

Sampled answers of servers are tested as they are, if they come as token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from specbench.analysis.records import make_table
from specbench.audit import white_box
from specbench.audit.drafters import Plain, draft_numbers
from specbench.audit.evidence import token_numbers
from specbench.audit.levels import num_cells
from specbench.audit.numbers import DraftNumbers, TokenNumbers
from specbench.audit.parts import Parts
from specbench.audit.recorded import usable_records
from specbench.audit.results import ALPHA
from specbench.audit.rule_cases import CASES, rule_outcomes
from specbench.audit.token_tests import draft_tests, rule_test, smallest_tv, sum_test, token_tests
from specbench.audit.white_box import TESTS_PER_CELL, Effort, audit_methods
from specbench.engine.accept import lossless
from specbench.engine.target import Target
from specbench.log.audit import AuditTest, MethodAudit
from specbench.types import Record, Sampling, Serving
from tests.support.headers import make_header
from tests.support.models import random_llama
from tests.support.toy_run import ToyModel

VOCAB = 30
NUM_TOKENS = 400
DRAWS = torch.Generator().manual_seed(7)


def logits_of(seed: int, spread: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(NUM_TOKENS, VOCAB, generator=generator).double()


def drawn(seed: int, logits: torch.Tensor, share: float = 0.0) -> TokenNumbers:
    """Draws from the logits. The likeliest token replaces a share of them."""
    draw = np.random.default_rng(seed)
    p = logits.softmax(-1).numpy()
    tokens = (p.cumsum(1) < draw.random((NUM_TOKENS, 1))).sum(1)
    is_replaced = draw.random(NUM_TOKENS) < share
    tokens = np.where(is_replaced, p.argmax(1), tokens)
    return token_numbers(logits, tokens.tolist(), Sampling(1.0))


def p_values(tokens: TokenNumbers) -> dict[str, float]:
    return {test.name: test.p_value for test in token_tests(tokens) if test.p_value is not None}


def test_p_values_of_true_draws_are_uniform() -> None:
    every_draw = [p_values(drawn(seed, logits_of(seed))) for seed in range(80)]
    for name in ("surprise", "rank", "likeliest token", "correlation of tokens"):
        values = np.array([p[name] for p in every_draw])
        assert 0.4 < values.mean() < 0.6, name
        assert (values < 0.05).mean() < 0.13, name
    assert np.mean([p["least likely token"] < 0.05 for p in every_draw]) < 0.13


def test_the_smallest_difference_is_found_in_four_of_five_audits() -> None:
    error_rate = 1e-4
    hits = []
    for seed in range(50):
        logits = logits_of(seed)
        smallest = smallest_tv(drawn(seed, logits), error_rate)
        best = logits.softmax(-1).amax(-1).numpy()
        share = smallest / float((1 - best).mean())
        p = p_values(drawn(seed, logits, share))
        hits.append(p["likeliest token"] < error_rate)
    assert 0.65 <= np.mean(hits) <= 0.93


def test_a_token_that_top_p_excludes_is_impossible() -> None:
    logits = logits_of(2)
    tokens = logits.argmax(-1).tolist()
    tokens[7] = int(logits[7].argmin())
    p = p_values(token_numbers(logits, tokens, Sampling(1.0, top_p=0.9)))
    assert p["impossible tokens"] == 0.0
    assert "impossible tokens" not in p_values(drawn(2, logits))


def test_random_numbers_that_repeat_are_a_correlation() -> None:
    u = 0.3
    logits = logits_of(3)
    tokens = [int(np.searchsorted(row.cumsum(), u)) for row in logits.softmax(-1).numpy()]
    p = p_values(token_numbers(logits, tokens, Sampling(1.0)))
    assert p["correlation of tokens"] < 1e-6


def short_answers(seed: int) -> TokenNumbers:
    """The numbers of 400 answers of two tokens. Many are equal, as there are only four tokens."""
    logits = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)).double()
    pairs = logits.softmax(-1).multinomial(NUM_TOKENS, replacement=True, generator=DRAWS).T
    numbers = [token_numbers(logits, pair, Sampling(1.0)) for pair in pairs.tolist()]
    return TokenNumbers.join([replace(pair, depth=np.array([0, 1])) for pair in numbers])


def test_short_answers_of_which_many_are_equal_do_not_correlate() -> None:
    p = np.array([p_values(short_answers(seed))["correlation of tokens"] for seed in range(30)])
    assert (p < 0.05).mean() < 0.15


# Such ties are frequent if logits are in bfloat16.
def test_two_equally_likely_best_tokens_are_drawn_as_often_as_expected() -> None:
    logits = torch.tensor([[2.0, 2.0, 1.0, 0.0]]).double().repeat(NUM_TOKENS, 1)
    tokens = logits.softmax(-1).multinomial(1, generator=DRAWS)[:, 0].tolist()
    assert p_values(token_numbers(logits, tokens, Sampling(1.0)))["likeliest token"] > 0.01


def test_sums_with_too_few_uncertain_terms_are_not_tested() -> None:
    sure = np.full(100, 1e-4)
    assert sum_test(np.zeros(100), sure, sure) is None
    assert sum_test(np.zeros(0), np.zeros(0), np.zeros(0)) is None


def drafts(q: torch.Tensor, claimed: torch.Tensor) -> DraftNumbers:
    """Draft tokens drawn from `q` that claim to be drawn from `claimed`."""
    tokens = q.multinomial(1, generator=torch.Generator().manual_seed(4))[:, 0]
    return draft_numbers(tokens, claimed, torch.Generator().manual_seed(5))


def normed(q: torch.Tensor) -> torch.Tensor:
    return q / q.sum(-1, keepdim=True)


def upper_half(q: torch.Tensor) -> torch.Tensor:
    """The rows of q, without the less likely half of the tokens."""
    median = q.quantile(0.5, -1, keepdim=True)
    return normed(q * (q > median))


def is_failed(test: AuditTest) -> bool:
    if test.p_value is None:
        return test.effect > (test.limit or 0)
    return test.p_value < 1e-3


@pytest.mark.parametrize(
    ("claim", "failed"),
    [
        (lambda q: q, set()),
        (lambda q: normed(q**1.6), {"rank"}),
        (lambda q: 0.9 * q, {"mass of q"}),
        (upper_half, {"impossible draft tokens"}),
    ],
)
def test_drafts_are_tested_against_the_q_that_they_claim(
    claim: Callable[[torch.Tensor], torch.Tensor], failed: set[str]
) -> None:
    q = logits_of(6).softmax(-1)
    tests = draft_tests(drafts(q, claim(q)))
    failures = {test.name for test in tests if is_failed(test)}
    assert failed <= failures
    assert failed or not failures


def test_the_lossless_rule_passes_on_every_tree() -> None:
    tests = [rule_test(outcomes) for outcomes in rule_outcomes(lossless, 5000)]
    assert len(tests) == len(CASES)
    assert all(test.p_value is not None and test.p_value > 1e-3 for test in tests)


PROMPTS = [tuple(range(3, 9 + i)) for i in range(8)]
MODEL = ToyModel(Target(random_llama(layers=2)), {"sps": Plain()}, PROMPTS, budget=40)
RUN = MODEL.run(1.0)


def audited(
    records: Sequence[Record], *, sends_token_ids: bool = True
) -> tuple[dict[str, MethodAudit], list[str]]:
    server = {
        "url": "http://host",
        "software": "vllm 1",
        "model": "m",
        "protocol": "completions",
        "sends_token_ids": sends_token_ids,
    }
    header = make_header({"methods": {"sps": {}}, "servers": {"vanilla": server, "sps": server}})
    said: list[str] = []
    # Servers do not report single steps.
    bare = [replace(record, accept_lengths=(), num_nodes=()) for record in records]
    usable = usable_records(make_table(bare))
    parts = Parts(num_cells(usable, header), said.append)
    results = audit_methods(usable, header, MODEL, Effort(), parts)
    return {result.method: result for result in results}, said


def test_tokens_of_the_model_itself_pass() -> None:
    results, _ = audited(RUN.records)
    assert results.keys() == {"vanilla", "sps"}
    for result in results.values():
        assert result.status == "no difference"
        assert {test.subject for test in result.tests} == {"tokens"}
    assert results["sps"].num_tokens == 320


def test_answers_with_the_same_prompt_and_seed_are_tested_once() -> None:
    """A merge of runs with one seed has such answers. A server may give them the same tokens."""
    second_pass = [replace(record, key=replace(record.key, repeat=1)) for record in RUN.records]
    results, _ = audited([*RUN.records, *second_pass])
    assert results["sps"].num_tokens == 320


def test_an_answer_without_known_tokens_is_left_out() -> None:
    hidden = replace(RUN.records[1], token_ids=(), serving=Serving(0.0, (), reported_tokens=9))
    results, _ = audited([*RUN.records[2:], hidden])
    assert results["sps"].num_tokens == 280


def test_the_smallest_error_of_servers_counts_only_their_tests() -> None:
    """There are two methods at one temperature, and no tests at a raised one."""
    with patch.object(white_box, "smallest_tv", return_value=0.1) as smallest:
        audited(RUN.records)
    assert smallest.call_args.args[1] == pytest.approx(ALPHA / (TESTS_PER_CELL * 2))


def test_a_server_that_draws_at_another_temperature_is_found() -> None:
    cold = MODEL.run(0.5)
    pairs = zip(RUN.records, cold.records, strict=True)
    records = [replace(a, token_ids=b.token_ids) if a.key.method == "sps" else a for a, b in pairs]
    results, _ = audited(records)
    assert results["vanilla"].status == "no difference"
    assert results["sps"].status == "bug"
    assert {"surprise", "rank"} <= {test.name for test in results["sps"].failures}


def test_answers_that_come_as_text_are_left_out_and_named() -> None:
    results, said = audited(RUN.records, sends_token_ids=False)
    assert results == {}
    assert len(said) == 2
    assert "sends no token ids" in said[0]
