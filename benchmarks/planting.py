"""Run planted bugs, sound variants and real methods through the contract's checks and the audit.

Each of the functions `audit_*` returns the figures of one case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench.audit import contract as checks
from specbench.audit.contract import run_contract
from specbench.audit.results import ALPHA, GreedyAudit
from specbench.audit.subject import LONG, Subject
from specbench.audit.white_box import Effort
from specbench.engine.drafter import Drafter
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.log.audit import MethodAudit
from specbench.measure.local.engine_load import load_engine
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.requests import user
from specbench.measure.spec import RunSpec
from tests.support.bugs import Variant
from tests.support.models import prompts, random_llama
from tests.support.toy_run import ToyModel
from tests.support.weights import build

TEMPERATURE = 0.7
"""Temperature of sampled answers."""
BUDGET = 48
"""Number of tokens of an answer."""
SHORT = 24
"""Number of tokens of a real method's answer."""
PLANTED = "sps"
"""Name under which a planted method runs."""
EFFORT = Effort(num_tokens=8 * BUDGET, num_outcomes=20_000)
SMALL = Effort(num_tokens=2 * BUDGET, num_outcomes=500)
REPEATED = Effort(num_tokens=2 * SHORT, num_outcomes=500)
"""Effort of the audit of real methods, which is repeated with many seeds on short answers."""
NUM_CHECKS = 100
"""Approximate number of tests in a contract. P-values are corrected for this number."""

Texts = Sequence[tuple[int, ...]]
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Ground:
    """A model to plant bugs in, its draft model, its prompts, and the drafters of real methods."""

    target: Target
    draft: Target
    prompts: Texts
    drafters: Mapping[str, Drafter]


def tiny_ground() -> Ground:
    """`tiny` with its draft model, its methods, and the prompts of its tasks, shortest first."""
    spec = RunSpec(model="tiny", limit=3, device="cpu", dtype="float32")
    plan = make_plan(spec)
    setup = plan.setup
    assert isinstance(setup, EngineSetup)
    engine = load_engine(setup)
    (sps,) = (run_method for run_method in setup.methods if run_method.method.name == "sps")
    assert isinstance(sps.weights, Path)
    target = engine.target
    draft = load_target(
        sps.weights, dtype=target.dtype, device=target.device, execution=target.execution
    )
    turns = [prompt.turns[0] for prompts in plan.prompts.values() for prompt in prompts]
    texts = sorted((setup.codec.render([user(text)]) for text in turns), key=len)
    drafters = {name: d for name, d in engine.drafters.items() if name != "vanilla"}
    return Ground(target, draft, texts, drafters)


def random_ground(methods: Iterable[str], layers: int = 8) -> Ground:
    """A small random model that is its own draft model, and methods with random weights."""
    model = random_llama(layers=layers)
    target = Target(model)
    with TemporaryDirectory() as folder:
        drafters = {name: build(name, target, Path(folder)) for name in methods}
    return Ground(target, Target(model), prompts(), drafters)


def audit_bug(bug: Variant, ground: Ground, effort: Effort = EFFORT) -> Figures:
    """Say if a planted bug is found by its check and, if it shows in outputs, by the audit.

    P-values are corrected for NUM_CHECKS tests.
    """
    target = bug.target(ground.target.model, ground.target.execution)
    with bug.patch():
        subject = _subject(bug, ground, target)
        contract_audit = run_contract(bug.name, subject, contract=[getattr(checks, bug.check)])
        figures: dict[str, Any] = {"contract": _is_clear(contract_audit), "audit": None}
        if bug.is_output:
            figures |= _audit_figures(target, bug.drafter(ground.draft), ground, effort)
    return figures


def _subject(variant: Variant, ground: Ground, target: Target) -> Subject:
    return Subject(
        target,
        lambda: variant.drafter(ground.draft),
        prompts=ground.prompts[:4],
        long_prompts=[prompt for prompt in ground.prompts if len(prompt) >= LONG][:1],
        budget=BUDGET,
    )


def _is_clear(audit: MethodAudit) -> bool:
    """True if the method would still fail if there were NUM_CHECKS tests."""
    num_tests = sum(test.p_value is not None for test in audit.tests)
    factor = NUM_CHECKS / max(num_tests, 1)
    return bool(audit.fault) or any(
        test.p_value is None or test.p_value * factor < ALPHA for test in audit.failures
    )


def _audit_figures(target: Target, drafter: Drafter, ground: Ground, effort: Effort) -> Figures:
    """The figures of two audits: of a run at TEMPERATURE, and of a small run at temperature 0."""
    audits: list[MethodAudit] = []
    greedy: list[GreedyAudit] = []
    for temperature, size in ((TEMPERATURE, effort), (0.0, SMALL)):
        num_texts = -(-size.num_tokens // BUDGET)
        texts = [ground.prompts[i % len(ground.prompts)] for i in range(num_texts)]
        model = ToyModel(target, {PLANTED: drafter}, texts, budget=BUDGET)
        try:
            run = model.run(temperature, has_vanilla=temperature == 0)
            audit = model.audited(run, size)
        except Exception as error:  # the bug may break the run itself, which shows it too
            return {"audit": True, "answers": 0, "by": f"{type(error).__name__}: {error}"}
        audits += [method_audit for method_audit in audit.methods if method_audit.method == PLANTED]
        greedy += audit.greedy
    tests = sorted(_failures(audits), key=lambda test: test[1])
    is_found = "bug" in {*(a.status for a in audits), *(a.status for a in greedy)}
    return {
        "audit": is_found,
        "answers": sum(audit.num_answers for audit in audits),
        "by": tests[0][0] if tests else "greedy answers" if is_found else "",
        "p": tests[0][1] if tests else None,
    }


def _failures(audits: Sequence[MethodAudit]) -> Iterator[tuple[str, float]]:
    """Yield the failed tests with their p-values. An exceeded limit has the p-value 0."""
    for audit in audits:
        if audit.fault:
            yield audit.fault, 0.0
        for test in audit.failures:
            yield f"{test.subject}, {test.name}, T={audit.level:g}", test.p_value or 0.0


def audit_sound(variant: Variant, ground: Ground, effort: Effort = EFFORT) -> Figures:
    """The false alarms that the whole contract and the audit give on a sound variant."""
    target = variant.target(ground.target.model, ground.target.execution)
    contract_audit = run_contract(variant.name, _subject(variant, ground, target))
    figures = _audit_figures(target, variant.drafter(ground.draft), ground, effort)
    failed = [name for name, _ in _failures([contract_audit])]
    return {"contract": failed, "audit": [figures["by"]] if figures["audit"] else []}


def audit_real(ground: Ground, seeds: Iterable[int], effort: Effort = REPEATED) -> Figures:
    """The false alarms in audited runs of all real methods. Each seed's run has other prompts.

    Only the first run also has temperature 0, because seeds change nothing there.
    """
    num_audits, alarms = 0, []
    for i, seed in enumerate(seeds):
        count = -(-effort.num_tokens // SHORT)
        start = seed * count % len(ground.prompts)
        texts = [*islice([*ground.prompts, *ground.prompts][start:], count)]
        model = ToyModel(
            ground.target, ground.drafters, texts, budget=SHORT, first_seed=1000 * seed
        )
        temperatures = (TEMPERATURE,) if i else (0.0, TEMPERATURE)
        audit = model.audited(model.run(*temperatures), effort)
        failed = {
            method_audit.method for method_audit in audit.methods if method_audit.status == "bug"
        }
        failed |= {greedy.agreement.method for greedy in audit.greedy if greedy.status == "bug"}
        alarms += [f"{name}, seed {seed}" for name in sorted(failed)]
        num_audits += len(ground.drafters)
    return {"audits": num_audits, "alarms": alarms}
