"""The contract of one method: tests of its own drafter on a target, and of the drafter with right
tokens planted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.sign_test import sign_test
from specbench.analysis.stats.significance import slower
from specbench.analysis.stats.variance import EXACT
from specbench.audit.answer_ends import ends
from specbench.audit.drafters import Plain, Planted, WatchedDrafter
from specbench.audit.evidence import Evidence, watched_evidence
from specbench.audit.first_drafts import memory
from specbench.audit.logit_tests import logit_tests
from specbench.audit.numbers import DraftNumbers, LogitNumbers, TokenNumbers
from specbench.audit.parts import Parts
from specbench.audit.results import ALPHA, PLANTED, allowed_deviation, counted
from specbench.audit.rule_cases import rule_outcomes
from specbench.audit.subject import Subject
from specbench.audit.token_tests import draft_tests, rule_tests, smallest_tv, token_tests
from specbench.audit.verdicts import corrected
from specbench.engine.drafter import Drafter
from specbench.engine.tree import padded_size
from specbench.errors import SpecbenchError, containing, debug_traceback
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit
from specbench.types import Request, Sampling

NUM_TOKENS = {
    Sampling(1.0): 1500,
    Sampling(0.6, top_p=0.9, top_k=20): 1500,
    Sampling(1.8): 1500,
    Sampling(0.3): 500,
}
"""Tokens that are drawn under each setting."""
NUM_OUTCOMES = 20_000
"""Outcomes of the acceptance rule that are drawn."""
MOST_MAT_RATIO = 2.0
"""Largest ratio of MAT on task prompts to MAT on unseen prompts that an honest drafter reaches."""
MOST_PAIR_RATIO = 2.5
"""Largest ratio of MAT on one task prompt to MAT on the unseen prompt that is made from its task.
For PLD on `tiny`, two of 48 such pairs are above it, at most 2.7. Methods that knew the answers had
ratios of 4.1 to 8.8.
"""
ContractTest = Callable[[Subject], Iterator[AuditTest]]
"""A part of the contract. Its docstring begins with its subject."""


def recall(subject: Subject) -> Iterator[AuditTest]:
    """Steps: a repeated prompt, or a prompt of a task, may not take fewer steps than a new prompt.

    This part runs before all others, on prompts that the method cannot know. `subject` is the
    method under test: its shared drafter, a builder of fresh ones, its target, and prompts as token
    ids.
    """
    num_steps = [_num_steps(subject, subject.drafter, prompt) for prompt in subject.prompts]
    num_fewer = 0  # answers to repeated prompts that take fewer steps than the first time
    for drafter in (subject.drafter, subject.build()):  # one that met the prompts, and a fresh one
        for prompt, num_before in zip(subject.prompts, num_steps, strict=True):
            num_fewer += _num_steps(subject, drafter, prompt) < num_before
    num_repeated = 2 * len(subject.prompts)  # answers to repeated prompts
    unit = "answers in fewer steps"
    yield counted("steps of prompts met again", num_repeated, num_wrong=num_fewer, unit=unit)
    if not subject.task_prompts:  # nothing to compare unseen prompts with
        return
    unseen_ratio = _tokens_per_step(subject, subject.unseen_prompts)
    task_ratio = _tokens_per_step(subject, subject.task_prompts)
    # Mean accepted tokens per step (MAT), with resamples of prompts from a random stream each.
    unseen_draws, task_draws = Draws(Bootstrap(), "fresh"), Draws(Bootstrap(), "known")
    unseen_mat = unseen_draws.estimate(unseen_ratio)
    task_mat = task_draws.estimate(task_ratio)
    # The p-value of "the ratio is at most MOST_MAT_RATIO". The machine adds no variance (EXACT).
    p_value = slower(unseen_mat, task_mat, MOST_MAT_RATIO - 1, EXACT)
    ratio = task_mat.value / unseen_mat.value
    name = "tokens per step on prompts of tasks, against new ones"
    num = len(subject.task_prompts)  # answers tested
    yield AuditTest("guesses", name, num, effect=ratio, unit="times", p_value=p_value)
    # Compare each prompt of a task with the unseen prompt made from its task: a mean over all
    # prompts would hide a method that knows only a few tasks.
    unseen_mats, task_mats = _mats(unseen_ratio), _mats(task_ratio)  # [prompts]
    num_faster = int((task_mats > MOST_PAIR_RATIO * unseen_mats).sum())
    num_slower = int((unseen_mats > MOST_PAIR_RATIO * task_mats).sum())
    yield AuditTest(
        "guesses",
        "prompts of tasks with over 2.5 times the tokens per step of a new one of the task",
        num,
        effect=num_faster,
        unit="prompts",
        p_value=sign_test(num_faster, num_slower),
    )


def _tokens_per_step(subject: Subject, prompts: Sequence[tuple[int, ...]]) -> Ratio:
    """Tokens / steps of the answers [prompts, 1], by a drafter that has seen none of the prompts.

    Answers end at the model's end tokens: a method that knows an answer knows it only up to there.
    """
    drafter = subject.build()
    completions = [subject.complete(drafter, prompt, eos_ids=subject.eos_ids) for prompt in prompts]
    # Tokens of each step. An answer of one token has no step, and counts as one step of one token.
    lengths = [completion.accept_lengths or (1,) for completion in completions]
    num_tokens = np.array([[sum(of_answer)] for of_answer in lengths], dtype=np.float64)
    num_steps = np.array([[len(of_answer)] for of_answer in lengths], dtype=np.float64)
    return Ratio(num_tokens, num_steps)


def _mats(ratio: Ratio) -> FloatArray:
    """Tokens per step of each answer [prompts]."""
    return (ratio.top / ratio.bottom)[:, 0]


def _num_steps(subject: Subject, drafter: Drafter, prompt: tuple[int, ...]) -> int:
    return max(1, len(subject.complete(drafter, prompt).accept_lengths))


def greedy(subject: Subject) -> Iterator[AuditTest]:
    """Own drafts at temperature 0: every token is the best one, and the counts add up.

    Each prompt of the subject (the method under test) gives one completion of its shared drafter.
    """
    num_wrong = 0  # answers with a token that is not the target's best, beyond rounding
    num_miscounted = 0  # answers whose steps or tokens do not add up
    for prompt in subject.prompts:
        completion = subject.complete(subject.drafter, prompt)
        num_wrong += subject.is_wrong(prompt, completion.token_ids)
        # Per step: tokens emitted (at least the bonus), and nodes. The first token is of no step.
        steps = zip(completion.accept_lengths, completion.num_nodes, strict=True)
        has_fitting_steps = all(1 <= length <= num_nodes for length, num_nodes in steps)
        has_all_tokens = 1 + sum(completion.accept_lengths) == completion.num_tokens
        num_miscounted += not (has_fitting_steps and has_all_tokens)
    yield counted("greedy", num=len(subject.prompts), num_wrong=num_wrong)
    yield counted("counts of greedy answers", num=len(subject.prompts), num_wrong=num_miscounted)


def planted(subject: Subject) -> Iterator[AuditTest]:
    """Right tokens in the trees: all are accepted, to full depth, and logits stay right.

    The right tokens are the target's greedy answers. A `Planted` drafter puts them into the trees
    that the method's drafter makes. Each prompt of the subject (the method under test), and a long
    one, is completed twice: watched, for its logits, and plain, for its counts.
    """
    num_wrong = 0  # watched answers with a token that is not the best one
    num_planted = num_refused = 0  # right tokens in the trees, and those not accepted
    deepest_tree = deepest_accepted = 0  # levels below the root
    logits: list[LogitNumbers] = []  # of each watched answer: its deviations from a plain forward
    long_answers = [subject.complete(Plain(), prompt).token_ids for prompt in subject.long_prompts]
    prompts = [*subject.prompts, *subject.long_prompts]
    for prompt, answer in zip(prompts, [*subject.answers, *long_answers], strict=True):
        right_ids = (*prompt, *answer)
        request = Request(prompt, subject.budget)
        evidence = watched_evidence(subject.target, Planted(subject.drafter, right_ids), request)
        logits.append(evidence.logits)
        num_wrong += subject.is_wrong(prompt, evidence.token_ids)
        drafter = Planted(subject.drafter, right_ids)
        completion = subject.complete(drafter, prompt)
        # Accepted draft tokens per step: the bonus token is not one.
        num_accepted = [length - 1 for length in completion.accept_lengths]
        num_planted += sum(drafter.num_planted)  # one number per step, as its depths below
        for num_in_tree, num_kept in zip(drafter.num_planted, num_accepted, strict=True):
            num_refused += max(0, num_in_tree - num_kept)
        deepest_accepted = max([deepest_accepted, *num_accepted])
        deepest_tree = max([deepest_tree, *drafter.depths])
    num_lacking = deepest_tree - deepest_accepted  # levels that no accepted path reached
    yield counted("planted guesses", num=len(prompts), num_wrong=num_wrong)
    yield counted(PLANTED, num=num_planted, num_wrong=num_refused, unit="guesses")
    yield counted("full depth of the trees", deepest_tree, num_wrong=num_lacking, unit="levels")
    yield from _logit_tests(logits, subject, "planted")  # "planted" ends the tests' names


def _logit_tests(
    logits: Sequence[LogitNumbers], subject: Subject, what: str
) -> Iterator[AuditTest]:
    """The tests of the logits of several answers."""
    allowed = allowed_deviation(subject.dtype)
    tests = logit_tests(LogitNumbers.join(logits), subject.dtype, allowed)
    return _named(tests, what)


def _named(tests: Iterable[AuditTest], what: str) -> Iterator[AuditTest]:
    """The tests, with their subject in their names."""
    for test in tests:
        yield replace(test, name=f"{test.name}, {what}")


def sampled(subject: Subject) -> Iterator[AuditTest]:  # a method's drafter, target and prompts
    """Tokens and drafts as draws, in several settings."""
    for sampling, num_tokens in NUM_TOKENS.items():
        setting_label = f"T={sampling}"
        answers: list[Evidence] = []  # numbers about the tokens, logits and drafts of each answer
        while sum(len(answer.token_ids) for answer in answers) < num_tokens:
            prompt = subject.prompts[len(answers) % len(subject.prompts)]  # in turn, on new seeds
            request = Request(prompt, subject.budget, sampling, seed=1000 + len(answers))
            answers.append(watched_evidence(subject.target, subject.drafter, request))
        tokens = TokenNumbers.join([answer.tokens for answer in answers])  # columns [tokens]
        if sampling.temperature == 1.0:
            subject.drawn.append(tokens)  # kept for the smallest total variation that tests find
        drafts = DraftNumbers.join([answer.drafts for answer in answers])  # [draft tokens]
        yield from _named(token_tests(tokens), setting_label)  # with the label in their names
        yield from _named(draft_tests(drafts), setting_label)
        yield from _logit_tests([answer.logits for answer in answers], subject, setting_label)


def rule(subject: Subject) -> Iterator[AuditTest]:
    """The acceptance rule on small trees with known p and q."""
    yield from rule_tests(rule_outcomes(subject.drafter.rule, NUM_OUTCOMES))


def repeats(subject: Subject) -> Iterator[AuditTest]:  # a method's drafter, target and prompts
    """A seed repeats its answer, another seed does not, and a prompt leaves no state."""
    first_prompt, second_prompt = subject.prompts[:2]  # token ids
    # The used drafter completes the first prompt before the second, the fresh one does not.
    fresh_drafter = WatchedDrafter(subject.build())  # keeps the tree of each step
    used_drafter = WatchedDrafter(subject.drafter)
    subject.complete(subject.drafter, first_prompt)
    fresh_ids = subject.complete(fresh_drafter, second_prompt).token_ids
    used_ids = subject.complete(used_drafter, second_prompt).token_ids
    has_state = fresh_ids != used_ids or fresh_drafter.trees != used_drafter.trees
    yield counted("state left by a prompt", num=1, num_wrong=has_state)  # fails if any is wrong

    def draw(seed: int) -> tuple[int, ...]:
        """The token ids of an answer at temperature 1."""
        sampling = Sampling(1.0)
        drafter = subject.drafter
        return subject.complete(drafter, second_prompt, sampling=sampling, seed=seed).token_ids

    drawn_ids, same_seed_ids, other_seed_ids = draw(5), draw(5), draw(6)
    yield counted("same seed", num=1, num_wrong=drawn_ids != same_seed_ids)
    yield counted("other seed", num=1, num_wrong=drawn_ids == other_seed_ids)


def sizes(subject: Subject) -> Iterator[AuditTest]:  # a method's drafter, target and prompts
    """Trees have the announced sizes."""
    drafter = subject.drafter
    for sampling in (Sampling(), Sampling(1.0)):  # greedy, and temperature 1
        drafted_sizes: set[int] = set()  # numbers of nodes of the trees that were drafted
        for prompt in subject.prompts:
            drafted_sizes.update(subject.complete(drafter, prompt, sampling=sampling).num_nodes)
        sampler = subject.target.sampler(sampling, seed=0)
        # The trees that the drafter announces, for which CUDA graphs are captured.
        recorded_trees = drafter.trees_to_record(subject.budget, sampler)
        recorded_sizes = {padded_size(tree.num_nodes) for tree in recorded_trees}
        # Wrong sizes: any second one, or those that no announced tree is padded to.
        if drafter.has_fixed_size:  # it claims that all of its trees have one size
            num_wrong = len(drafted_sizes) - 1
        else:
            num_wrong = len({*map(padded_size, drafted_sizes)} - recorded_sizes)
        name = f"sizes of trees, T={sampling.temperature:g}"
        yield counted(name, num=len(drafted_sizes), num_wrong=num_wrong, unit="sizes")


CONTRACT: tuple[ContractTest, ...] = (
    recall, greedy, planted, ends, repeats, sizes, memory, rule, sampled,
)  # fmt: skip


def run_contract(
    name: str,
    subject: Subject,
    *,
    contract: Sequence[ContractTest] = CONTRACT,
    is_lossless: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> MethodAudit:
    """The result of a method's contract. An exception of the method ends a part and fails it.

    `name` is the method's, `subject` its drafter on a target with prompts. `say` prints a line of
    progress. A method that does not claim `is_lossless` may fail the tests of tokens and rule.
    """
    tests: list[AuditTest] = []
    faults: list[str] = []  # messages of the method's errors
    parts = Parts(len(contract), say)
    for contract_test in contract:  # a part: it makes several tests
        part_subject = (contract_test.__doc__ or "").partition(":")[0]
        parts.begin(f"{name}: {part_subject.lower()}")
        try:
            with containing(contract_test.__name__):  # any exception becomes a SpecbenchError
                tests += contract_test(subject)
        except SpecbenchError as error:
            faults.append(error.message)
            traceback = debug_traceback(error)
            if traceback and len(faults) == 1:  # with --debug: of the first error alone
                say(traceback)
    # P-values are corrected for their number (Holm). The tests set temperatures of their own.
    raw_audit = MethodAudit(name, temperature=0.0, level=0.0, tests=tuple(tests))
    (method_audit,) = corrected([raw_audit])
    # Sampled tokens at temperature 1, for the smallest total variation that a test finds whose
    # share of false alarms is ALPHA over the number of p-values.
    drawn_tokens = TokenNumbers.join(subject.drawn)
    num_p_values = sum(test.p_value is not None for test in tests)
    return replace(
        method_audit,
        status=_status(method_audit, has_faults=bool(faults), is_lossless=is_lossless),
        fault="\n".join(faults),
        num_tokens=len(drawn_tokens),
        smallest_tv=smallest_tv(drawn_tokens, ALPHA / num_p_values) if len(drawn_tokens) else None,
    )


def _status(result: MethodAudit, *, has_faults: bool, is_lossless: bool) -> AuditStatus:
    """The status of a contract. A method that is not lossless may fail as a sampler, but not
    elsewhere.
    """
    failed = {test.subject for test in result.failures}
    if not (has_faults or failed):
        return "no difference"
    if has_faults or is_lossless:
        return "bug"
    return "lossy" if failed <= {"tokens", "rule"} else "bug"
