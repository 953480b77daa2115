"""Bugs that the contract's checks and the audit find, and their false alarms, on `tiny`.

    python -m benchmarks.audit_power [--quick] [--seeds N]

Plants each bug of tests/support/bugs.py in a method that drafts with the target plus noise. The
contract's checks have to find every bug, the audit every one that shows in outputs, within 200
answers. Sound variants, and every method that `tiny` has weights for with N seeds, may fail in at
most two audits. All draws are seeded. `--quick` uses a small random model and fewer seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from specbench import registry
from specbench.audit.run import audit
from specbench.audit.white_box import Effort
from specbench.contract import checks
from specbench.contract.load import load_subject
from specbench.contract.run import run_contract
from specbench.contract.subject import Subject
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from tests.support.bugs import BUGS, SOUND, Variant
from tests.support.models import prompts, random_llama
from tests.support.toy_run import ToyModel

TEMPERATURE, BUDGET, MAX_ANSWERS = 0.7, 48, 200


def main() -> None:
    """Print one line per bug and variant, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=50, help="audits of every real method")
    asked = parser.parse_args()
    if asked.quick:
        model, texts, methods = random_llama(layers=2), prompts(), dict[str, Subject]()
    else:
        subjects = {name: load_subject(name, "tiny")[0] for name in registry.PAPER_ORDER}
        model, texts = subjects["vanilla"].target.model, subjects["vanilla"].prompts
        methods = {name: one for name, one in subjects.items() if name != "vanilla"}
    effort = Effort(num_tokens=600, num_outcomes=20_000)
    missed = [bug for bug in BUGS if not _is_found(bug, model, texts, effort)]
    alarms = [one for one in SOUND if _has_alarm(one, model, texts, effort)]
    num_audits, false = _real(methods, effort, asked.seeds)
    print(f"bugs: {len(BUGS)}, missed: {', '.join(map(str, missed)) or 'none'}")
    print(f"sound variants: {len(SOUND)}, false alarms: {', '.join(map(str, alarms)) or 'none'}")
    print(f"audits of real methods: {num_audits}, false alarms: {false}")
    raise SystemExit(bool(missed) or len(alarms) + false > 2)


def _is_found(
    bug: Variant, model: object, texts: Sequence[tuple[int, ...]], effort: Effort
) -> bool:
    target = bug.target(model)
    with bug.patch():
        one = Subject(target, lambda: bug.drafter(target), texts, BUDGET)
        own = [getattr(checks, bug.check)]
        contract = run_contract(bug.name, one, checks=own).verdict == "bug"
        verdict = _audited(target, bug.drafter(target), texts, effort) if bug.is_output else None
    names = {True: "found", False: "MISSED", None: "-"}
    print(f"{bug.name:42} contract {names[contract]:8}audit {names[verdict]}", flush=True)
    return contract and verdict is not False


def _has_alarm(
    one: Variant, model: object, texts: Sequence[tuple[int, ...]], effort: Effort
) -> bool:
    target = one.target(model)
    subject = Subject(target, lambda: one.drafter(target), texts, BUDGET)
    found = run_contract(one.name, subject)
    alarm = _audited(target, one.drafter(target), texts, effort)
    print(f"{one.name:42} contract {found.verdict:16}audit {'ALARM' if alarm else '-'}", flush=True)
    return alarm or found.verdict == "bug"


def _audited(
    target: Target, drafter: Drafter, texts: Sequence[tuple[int, ...]], effort: Effort,
    first_seed: int = 0,
) -> bool:  # fmt: skip
    """True if the audit fails the method, or the run itself breaks off."""
    texts = [text for text in texts for _ in range(3)][: MAX_ANSWERS // 2]
    model = ToyModel(target, {"sps": drafter}, texts, budget=BUDGET, first_seed=first_seed)
    try:
        run = model.run(0.0, TEMPERATURE)
        found = audit(run, lambda _: model, is_recheck=False, effort=effort, say=_silent)
    except Exception as error:  # the bug may show as a fault of the contract
        print(f"  {type(error).__name__}: {error}")
        return True
    results = [one for one in found.methods if one.method == "sps"]
    return "bug" in {one.verdict for one in (*results, *found.greedy)}


def _real(methods: dict[str, Subject], effort: Effort, num_seeds: int) -> tuple[int, int]:
    """Number of audits of the real methods, and of those that failed."""
    num_audits = num_failed = 0
    small = Effort(effort.num_tokens // 4, num_outcomes=1000)
    for name, one in methods.items():
        for seed in range(num_seeds):
            failed = _audited(one.target, one.drafter, one.prompts[:2], small, 1000 * seed)
            num_audits, num_failed = num_audits + 1, num_failed + failed
        print(f"{name:42} {num_seeds} audits, {num_failed} alarms so far", flush=True)
    return num_audits, num_failed


_silent: Callable[[str], None] = lambda _: None  # noqa: E731

if __name__ == "__main__":
    main()
