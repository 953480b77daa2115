"""The contract of one method on a model: all checks, judged together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain

from msgspec.structs import replace

from specbench.audit.contract_checks import CHECKS, Check
from specbench.audit.results import ALPHA
from specbench.audit.subject import Subject
from specbench.audit.token_tests import smallest_tv
from specbench.audit.white_box import corrected
from specbench.engine.drafter import BuildContext, Drafter
from specbench.errors import SpecbenchError, UserError, containing
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit
from specbench.measure.local.engine_load import load_model
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.requests import user
from specbench.measure.spec import RunSpec

NUM_PROMPTS, NUM_KNOWN = 4, 2
"""Prompts of the checks, and prompts of each task that new ones are made of."""


def load_subject(name: str, model: str, *, is_offline: bool = False) -> tuple[Subject, bool]:
    """The subject on a model in float32 on the CPU; true if the method claims to be lossless.

    Its prompts are made of halves of the tasks' own, drawn anew each time: a method cannot
    have answers to them before it is asked.

    Raises:
        UserError: there is no such method or model, or the model has no weights for the method.
    """
    spec = RunSpec(
        model=model,
        methods=(name,),
        limit=NUM_KNOWN,
        device="cpu",
        dtype="float32",
        is_baseline_run=False,
    )
    plan = make_plan(spec, is_offline=is_offline)
    setup = plan.setup
    assert isinstance(setup, EngineSetup)
    if setup.missing:
        raise UserError(
            f"{model} has no draft weights for {name}.",
            f"Give them, such as {name}:weights=DIR, or another --model.",
        )
    (own,) = setup.methods
    target = load_model(setup)
    tasks = [[prompt.turns[0] for prompt in prompts] for prompts in plan.prompts.values()]
    known, unknown = (
        [setup.codec.render([user(text)]) for text in texts]
        for texts in (chain(*tasks), chain(*map(new_texts, tasks)))
    )

    def build() -> Drafter:
        return own.method.build(own.options, BuildContext(target, own.weights))

    shortest = sorted(unknown, key=len)[:NUM_PROMPTS]
    subject = Subject(target, build, shortest, known=known, unknown=unknown)
    return subject, own.method.is_lossless_with(own.options)


def new_texts(texts: Sequence[str]) -> list[str]:
    """As many texts as these, each the first words of one and the last words of another."""
    draw = random.SystemRandom()
    halves = [text.split() for text in texts]
    made = []
    for number, words in enumerate(halves):
        others = halves[(number + 1) % len(halves)]
        cut = draw.uniform(0.3, 0.7)
        made.append(" ".join(words[: 1 + int(len(words) * cut)] + others[int(len(others) * cut) :]))
    return made


def run_contract(
    name: str,
    subject: Subject,
    *,
    checks: Sequence[Check] = CHECKS,
    is_lossless: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> MethodAudit:
    """The result of the checks of a method. What the method raises ends a check and fails it."""
    tests: list[AuditTest] = []
    faults = []
    for check in checks:
        say(f"{name}: {(check.__doc__ or '').partition(':')[0].lower()} …")
        try:
            with containing(f"{check.__name__}"):
                tests += check(subject)
        except SpecbenchError as error:
            faults.append(error.message)
    (result,) = corrected([MethodAudit(name, 0.0, 0.0, tests=tuple(tests))])
    status: AuditStatus = "no difference"
    if faults or result.failures:
        status = "bug" if faults or not _is_allowed(result, is_lossless) else "lossy"
    found = subject.sampled
    num_tests = sum(test.p_value is not None for test in tests)
    return replace(
        result,
        status=status,
        fault="; ".join(faults),
        num_tokens=len(found) if found else 0,
        smallest_tv=smallest_tv(found, ALPHA / num_tests) if found else None,
    )


def _is_allowed(result: MethodAudit, is_lossless: bool) -> bool:
    """A method that does not claim to be lossless may only fail as a sampler."""
    return not is_lossless and {test.subject for test in result.failures} <= {"tokens", "rule"}
