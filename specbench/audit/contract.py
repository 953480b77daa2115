"""The contract of one method on a model: checks that are judged together, as an audit's tests.

They run the method's own drafter on a target, with its own drafts and with right guesses
planted in its trees.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from typing import Any

import numpy as np
from msgspec.structs import replace
from scipy.stats import binom

from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.significance import slower
from specbench.analysis.stats.variance import EXACT
from specbench.audit.evidence import (
    Evidence,
    GuessNumbers,
    LogitNumbers,
    Plain,
    Planted,
    TokenNumbers,
    WatchedDrafter,
    is_wrong,
    watched_evidence,
)
from specbench.audit.results import ALPHA, EPSILON, PLANTED, deviation_limit, near_tie
from specbench.audit.rule_cases import rule_outcomes
from specbench.audit.token_tests import (
    guess_tests,
    logit_tests,
    rule_tests,
    smallest_tv,
    token_tests,
)
from specbench.audit.white_box import corrected
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter
from specbench.engine.target import Target
from specbench.engine.tree import padded_size
from specbench.errors import SpecbenchError, UserError, containing, debug_traceback
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit
from specbench.measure.local.engine_load import load_model
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.requests import user
from specbench.measure.spec import RunSpec
from specbench.types import Completion, Request, Sampling

SAMPLINGS = (Sampling(1.0), Sampling(0.6, top_p=0.9), Sampling(1.8))
NUM_TOKENS, NUM_OUTCOMES = 1500, 10_000
BUDGETS = (1, 2, 3, 7)
SHIFTS = (-1, 1)
"""Distances by which a wrong draft vocabulary may move its tokens."""

MOST_KNOWN = 2.0
"""Most tokens a step on prompts of tasks / on new ones made of them that drafting explains."""
NUM_ROUNDS = 3
"""Runs of each prompt with right guesses at other ranks, so that steps begin elsewhere."""
NUM_PROMPTS, NUM_KNOWN = 4, 2
"""Prompts of the checks, and prompts of each task that new ones are made of."""


@dataclass(frozen=True)
class Subject:
    """A method's drafter on a target. `build` makes a fresh drafter.

    `prompts` are token ids, `budget` the tokens of an answer. `known` are prompts of tasks,
    and `unknown` as many prompts of no task.
    """

    target: Target
    build: Callable[[], Drafter]
    prompts: Sequence[tuple[int, ...]]
    budget: int = 64
    known: Sequence[tuple[int, ...]] = ()
    unknown: Sequence[tuple[int, ...]] = ()
    drawn: list[TokenNumbers] = field(default_factory=list)
    """The sampled tokens of the checks so far at temperature 1."""

    @cached_property
    def drafter(self) -> Drafter:
        """The drafter that most checks share: its state is carried over."""
        return self.build()

    @property
    def dtype(self) -> str:
        name = str(self.target.dtype).removeprefix("torch.")
        return name if name in EPSILON else "float32"

    def complete(self, drafter: Drafter, prompt: tuple[int, ...], **changes: Any) -> Completion:
        """A checked completion of the budget, without end tokens unless given."""
        values: dict[str, Any] = {"max_new_tokens": self.budget, "seed": 3, **changes}
        return decode(self.target, drafter, Request(prompt, **values), is_checked=True)

    @cached_property
    def answers(self) -> list[tuple[int, ...]]:
        """Greedy answers without a draft."""
        return [self.complete(Plain(), prompt).token_ids for prompt in self.prompts]

    def is_wrong(self, prompt: tuple[int, ...], token_ids: Sequence[int]) -> bool:
        """True if a token is not the best one, beyond rounding."""
        return is_wrong(self.target, prompt, token_ids, near_tie(self.dtype, 1.0))


Check = Callable[[Subject], Iterator[AuditTest]]


def count(name: str, num: int, num_wrong: int, unit: str = "answers") -> AuditTest:
    """A test that fails if anything is wrong."""
    return AuditTest("answers", name, num, num_wrong, f"wrong {unit}", limit=0.0)


def recall(subject: Subject) -> Iterator[AuditTest]:
    """Steps: a prompt met again, or a prompt of a task, may not take fewer than a new one.

    Runs before all others, on prompts that the method cannot know.
    """
    first = [_steps(subject, subject.drafter, prompt) for prompt in subject.prompts]
    num_fewer = 0
    for drafter in (subject.drafter, subject.build()):
        again = [_steps(subject, drafter, prompt) for prompt in subject.prompts]
        num_fewer += sum(now < before for now, before in zip(again, first, strict=True))
    yield count("steps of prompts met again", 2 * len(first), num_fewer, "answers in fewer steps")
    if subject.known:
        fresh, known = (
            Draws(Bootstrap(), name).estimate(_tokens_a_step(subject, prompts))
            for name, prompts in (("fresh", subject.unknown), ("known", subject.known))
        )
        p_value, effect = slower(fresh, known, MOST_KNOWN - 1, EXACT), known.value / fresh.value
        name = "tokens a step on prompts of tasks, against new ones"
        yield AuditTest("guesses", name, len(subject.known), effect, "times", p_value)


def _tokens_a_step(subject: Subject, prompts: Sequence[tuple[int, ...]]) -> Ratio:
    drafter = subject.build()
    steps = [[float(_steps(subject, drafter, prompt))] for prompt in prompts]
    return Ratio(np.full((len(prompts), 1), float(subject.budget)), np.array(steps))


def _steps(subject: Subject, drafter: Drafter, prompt: tuple[int, ...]) -> int:
    return max(1, len(subject.complete(drafter, prompt).accept_lengths))


def greedy(subject: Subject) -> Iterator[AuditTest]:
    """Own drafts at temperature 0: every token is the best one, and the counts add up."""
    num_wrong, num_miscounted = 0, 0
    for prompt in subject.prompts:
        done = subject.complete(subject.drafter, prompt)
        num_wrong += subject.is_wrong(prompt, done.token_ids)
        lengths = zip(done.accept_lengths, done.num_nodes, strict=True)
        fits = all(1 <= length <= nodes for length, nodes in lengths)
        num_miscounted += not fits or 1 + sum(done.accept_lengths) != done.num_tokens
    yield count("greedy", len(subject.prompts), num_wrong)
    yield count("counts of greedy answers", len(subject.prompts), num_miscounted)


def planted(subject: Subject) -> Iterator[AuditTest]:
    """Right guesses in the trees: all are accepted, to full depth, and logits stay right."""
    num_wrong = num_guesses = num_refused = deepest = depth = 0
    rows: list[LogitNumbers] = []
    for prompt, answer in zip(subject.prompts, subject.answers, strict=True):
        drafter, again = (Planted(subject.drafter, (*prompt, *answer)) for _ in range(2))
        found = watched_evidence(subject.target, drafter, Request(prompt, subject.budget))
        rows.append(found.logits)
        num_wrong += subject.is_wrong(prompt, found.token_ids)
        accepted = [n - 1 for n in subject.complete(again, prompt).accept_lengths]
        num_guesses += sum(again.num_planted)
        pairs = zip(again.num_planted, accepted, strict=True)
        num_refused += sum(max(0, n - own) for n, own in pairs)
        deepest = max([deepest, *accepted])
        depth = max([depth, *again.depths])
    yield count("planted guesses", len(subject.prompts), num_wrong)
    yield count(PLANTED, num_guesses, num_refused, "guesses")
    yield count("full depth of the trees", depth, depth - deepest, "levels")
    yield from _logits(rows, subject, "planted")


def _logits(rows: Sequence[LogitNumbers], subject: Subject, what: str) -> list[AuditTest]:
    dtype = subject.dtype
    return _named(logit_tests(LogitNumbers.join(rows), dtype, deviation_limit(dtype)), what)


def _named(tests: Iterable[AuditTest], what: str) -> list[AuditTest]:
    return [replace(test, name=f"{test.name}, {what}") for test in tests]


def sampled(subject: Subject) -> Iterator[AuditTest]:
    """Tokens and guesses as draws, in several settings."""
    for sampling in SAMPLINGS:
        what = f"T={sampling.temperature:g}, top-p {sampling.top_p:g}"
        found: list[Evidence] = []
        while sum(len(one.token_ids) for one in found) < NUM_TOKENS:
            prompt = subject.prompts[len(found) % len(subject.prompts)]
            request = Request(prompt, subject.budget, sampling, seed=1000 + len(found))
            found.append(watched_evidence(subject.target, subject.drafter, request))
        tokens = TokenNumbers.join([one.tokens for one in found])
        if sampling.temperature == 1.0:
            subject.drawn.append(tokens)
        guesses = GuessNumbers.join([one.guesses for one in found])
        yield from _named([*token_tests(tokens), *guess_tests(guesses)], what)
        yield from _logits([one.logits for one in found], subject, what)


def rule(subject: Subject) -> Iterator[AuditTest]:
    """The acceptance rule on small trees with known p and q."""
    yield from rule_tests(rule_outcomes(subject.drafter.rule, NUM_OUTCOMES))


def ends(subject: Subject) -> Iterator[AuditTest]:
    """Answers end at the budget, at an end token, and never after."""
    wrong = [
        subject.complete(subject.drafter, prompt, max_new_tokens=budget).num_tokens != budget
        for budget in BUDGETS
        for prompt in subject.prompts
    ]
    yield count("budget", len(wrong), sum(wrong))
    wrong = []
    for prompt, answer in zip(subject.prompts, subject.answers, strict=True):
        for eos in {answer[i] for i in range(len(answer) // 4, len(answer), len(answer) // 8)}:
            drafter = Planted(subject.drafter, (*prompt, *answer))
            done = subject.complete(drafter, prompt, eos_ids=frozenset({eos}))
            wrong.append(eos in done.token_ids[:-1] or done.token_ids[-1] != eos)
    yield count("end token", len(wrong), sum(wrong))


def repeats(subject: Subject) -> Iterator[AuditTest]:
    """A seed repeats its answer, another seed does not, and a prompt leaves no state."""
    first, second = subject.prompts[:2]
    fresh, again = WatchedDrafter(subject.build()), WatchedDrafter(subject.drafter)
    subject.complete(subject.drafter, first)
    answers = [subject.complete(drafter, second).token_ids for drafter in (fresh, again)]
    is_wrong = answers[0] != answers[1] or fresh.trees != again.trees
    yield count("state left by a prompt", 1, is_wrong)
    draws = [
        subject.complete(subject.drafter, second, sampling=Sampling(1.0), seed=seed).token_ids
        for seed in (5, 5, 6)
    ]
    yield count("same seed", 1, draws[0] != draws[1])
    yield count("other seed", 1, draws[0] == draws[2])


def sizes(subject: Subject) -> Iterator[AuditTest]:
    """Trees have the sizes that are known beforehand."""
    for sampling in (Sampling(), Sampling(1.0)):
        drafter = subject.drafter
        found = {
            size
            for prompt in subject.prompts
            for size in subject.complete(drafter, prompt, sampling=sampling).num_nodes
        }
        sampler = subject.target.sampler(sampling, seed=0)
        known = {
            padded_size(tree.num_nodes) for tree in drafter.trees_to_record(subject.budget, sampler)
        }
        if drafter.has_fixed_size:
            num_wrong = len(found) - 1
        else:
            num_wrong = len(set(map(padded_size, found)) - known)
        yield count(f"sizes of trees, T={sampling.temperature:g}", len(found), num_wrong, "sizes")


def memory(subject: Subject) -> Iterator[AuditTest]:
    """The first guesses: as good after accepted paths as from a fresh start, and not shifted.

    A drafter whose cache is wrong after an accepted path goes on guessing, only worse than a
    fresh one after the same text. One with a wrong draft vocabulary hits tokens beside the
    right ones.
    """
    steps = [*_steps_of_both(subject)]
    carried = [right in own for right, own, _ in steps]
    fresh = [right in other for right, _, other in steps]
    yield _worse("guesses after accepted paths", carried, fresh)
    hits = {shift: [right + shift in own[:1] for right, own, _ in steps] for shift in (0, *SHIFTS)}
    for shift in SHIFTS:
        yield _worse(f"guesses against those shifted by {shift}", hits[0], hits[shift])


def _steps_of_both(subject: Subject) -> Iterator[tuple[int, list[int], list[int]]]:
    """The right token of a step, and the first guesses of the used drafter and of a fresh one."""
    starter = subject.build()
    pairs = zip(subject.prompts, subject.answers, strict=True)
    for (prompt, answer), first_step in product(pairs, range(NUM_ROUNDS)):
        text = (*prompt, *answer)
        used = Planted(subject.drafter, text, first_step)
        subject.complete(used, prompt)
        for at, guesses in used.first_guesses.items():
            if not len(prompt) + 1 < at < len(text):  # a fresh start needs a prompt of its own
                continue
            fresh = Planted(starter, text)
            subject.complete(fresh, text[: at - 1], max_new_tokens=3)
            if at in fresh.first_guesses:
                yield text[at], guesses, fresh.first_guesses[at]


def _worse(name: str, own: Sequence[bool], other: Sequence[bool]) -> AuditTest:
    """A sign test of "the own hits are fewer than the others"."""
    lost = sum(b and not a for a, b in zip(own, other, strict=True))
    won = sum(a and not b for a, b in zip(own, other, strict=True))
    p_value = float(binom.sf(lost - 1, lost + won, 0.5))
    effect = (lost - won) / max(len(own), 1)
    return AuditTest("guesses", name, len(own), effect, "hits lost", p_value)


CHECKS: tuple[Check, ...] = (recall, greedy, planted, ends, repeats, sizes, memory, rule, sampled)


def load_subject(name: str, model: str, *, is_offline: bool = False) -> tuple[Subject, bool]:
    """The subject on a model in float32 on the CPU; true if the method claims to be lossless.

    Its prompts are made of halves of the tasks' own, drawn anew each time: a method cannot
    have answers to them before it is asked.

    Raises:
        UserError: an unknown method or model, or one without weights for the method.
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
    """As many new texts, each with the first words of one and the last words of another."""
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
            if len(faults) == 1 and (traceback := debug_traceback(error)):
                say(traceback)
    (result,) = corrected([MethodAudit(name, 0.0, 0.0, tests=tuple(tests))])
    status: AuditStatus = "no difference"
    failed = {test.subject for test in result.failures}
    if faults or failed:  # what does not claim to be lossless may only fail as a sampler
        is_allowed = not (faults or is_lossless) and failed <= {"tokens", "rule"}
        status = "lossy" if is_allowed else "bug"
    found = TokenNumbers.join(subject.drawn)
    num_tests = sum(test.p_value is not None for test in tests)
    return replace(
        result,
        status=status,
        fault="\n".join(faults),
        num_tokens=len(found),
        smallest_tv=smallest_tv(found, ALPHA / num_tests) if len(found) else None,
    )
