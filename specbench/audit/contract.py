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
"""A part of the contract. The first line of its docstring begins with its subject, for readers."""


def recall(subject: Subject) -> Iterator[AuditTest]:
    """Steps: a repeated prompt, or a prompt of a task, may not take fewer steps than a new prompt.

    Otherwise the method remembers answers, or has stored them. Yields a test that counts repeated
    prompts with fewer steps; then two tests that compare tokens per step on prompts of tasks and on
    unseen prompts, if the subject has prompts of tasks. This part must run before all others, while
    the shared drafter (`subject.drafter`) has met no prompt.
    """
    num_steps = [_num_steps(subject, subject.drafter, prompt) for prompt in subject.prompts]
    num_fewer = 0  # repeated prompts that take fewer steps than the first time
    # the drafter that has met the prompts, and a fresh drafter
    for drafter in (subject.drafter, subject.build()):
        for prompt, num_first_steps in zip(subject.prompts, num_steps, strict=True):
            num_fewer += _num_steps(subject, drafter, prompt) < num_first_steps
    num_repeated = 2 * len(subject.prompts)  # by two drafters
    unit = "answers in fewer steps"
    yield counted("steps of prompts met again", num_repeated, num_wrong=num_fewer, unit=unit)
    if not subject.task_prompts:
        return
    unseen_ratio = _tokens_per_step(subject, subject.unseen_prompts)
    task_ratio = _tokens_per_step(subject, subject.task_prompts)
    # Mean tokens per step (MAT) with resamples of prompts; the two streams draw independently.
    unseen_draws, task_draws = Draws(Bootstrap(), "fresh"), Draws(Bootstrap(), "known")
    unseen_mat = unseen_draws.estimate(unseen_ratio)
    task_mat = task_draws.estimate(task_ratio)
    # p-value of "unseen prompts have at least the task prompts' MAT / MOST_MAT_RATIO"; None, which
    # passes, with too few prompts. EXACT: only the choice of prompts adds variance.
    p_value = slower(unseen_mat, task_mat, MOST_MAT_RATIO - 1, EXACT)
    mat_ratio = task_mat.value / unseen_mat.value
    name = "tokens per step on prompts of tasks, against new ones"
    num = len(subject.task_prompts)  # answers tested
    # "guesses": what is tested are the drafts
    yield AuditTest("guesses", name, num, effect=mat_ratio, unit="times", p_value=p_value)
    # Also compare each prompt of a task with the unseen prompt made from the same task: the mean
    # over all prompts would hide a method that knows only a few tasks.
    unseen_mats, task_mats = _mats(unseen_ratio), _mats(task_ratio)  # [prompts]
    # prompts of tasks that are suspiciously fast; and the reverse, which happens by chance alone
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
    """Steps of a completion by a drafter, at least one."""
    return max(1, len(subject.complete(drafter, prompt).accept_lengths))


def greedy(subject: Subject) -> Iterator[AuditTest]:
    """Own drafts at temperature 0: every token is the best one, and the counts add up.

    Yields a test that counts answers with wrong tokens, and a test that counts answers whose steps
    do not add up. The method under test completes each prompt of the subject with its own drafts.
    """
    num_wrong = 0  # answers with a token that is not the target's best, beyond rounding
    num_miscounted = 0  # answers whose numbers of tokens or nodes do not fit
    for prompt in subject.prompts:
        completion = subject.complete(subject.drafter, prompt)
        num_wrong += subject.is_wrong(prompt, completion.token_ids)
        # Per step: emitted tokens, at least one (the target's own), and nodes of the tree, at least
        # as many.
        steps = zip(completion.accept_lengths, completion.num_nodes, strict=True)
        has_fitting_steps = all(1 <= num_emitted <= num_nodes for num_emitted, num_nodes in steps)
        # 1: the prefill's token belongs to no step
        has_all_tokens = 1 + sum(completion.accept_lengths) == completion.num_tokens
        num_miscounted += not (has_fitting_steps and has_all_tokens)
    yield counted("greedy", num=len(subject.prompts), num_wrong=num_wrong)
    yield counted("counts of greedy answers", num=len(subject.prompts), num_wrong=num_miscounted)


def planted(subject: Subject) -> Iterator[AuditTest]:
    """Right tokens in the trees: all are accepted, to full depth, and logits stay right.

    The right tokens are the target's greedy answers; `Planted` puts them into the trees that the
    method under test drafts. Each prompt of the subject, also a long one, is completed twice: once
    to keep the logits of its steps, once to count accepted tokens. Yields tests of the answers, of
    acceptance, of the depth that was reached, and of the logits.
    """
    num_wrong = 0  # answers with a token that is not the target's best, beyond rounding
    # Right tokens in the trees, and those that were not accepted. In these numbers and the next, a
    # step counts at most the tokens left of the budget less one, the target's own.
    num_planted = num_refused = 0
    deepest_tree = deepest_accepted = 0  # levels below the root: of the trees, of accepted paths
    logits: list[LogitNumbers] = []  # per answer: how its logits differ from a plain forward's
    long_answers = [subject.complete(Plain(), prompt).token_ids for prompt in subject.long_prompts]
    prompts = [*subject.prompts, *subject.long_prompts]
    for prompt, answer in zip(prompts, [*subject.answers, *long_answers], strict=True):
        right_ids = (*prompt, *answer)  # token ids
        request = Request(prompt, subject.budget)
        evidence = watched_evidence(subject.target, Planted(subject.drafter, right_ids), request)
        logits.append(evidence.logits)
        num_wrong += subject.is_wrong(prompt, evidence.token_ids)
        drafter = Planted(subject.drafter, right_ids)
        completion = subject.complete(drafter, prompt)
        # Accepted draft tokens per step: all emitted tokens but the target's own, or but the last
        # draft token if the budget cuts the target's own off.
        num_accepted = [num_emitted - 1 for num_emitted in completion.accept_lengths]
        num_planted += sum(drafter.num_planted)  # a number per step
        for num_right, num_kept in zip(drafter.num_planted, num_accepted, strict=True):
            num_refused += max(0, num_right - num_kept)
        deepest_accepted = max([deepest_accepted, *num_accepted])
        deepest_tree = max([deepest_tree, *drafter.depths])  # depths: of the tree of each step
    num_lacking = deepest_tree - deepest_accepted  # levels that no accepted path reached
    yield counted("planted guesses", num=len(prompts), num_wrong=num_wrong)
    yield counted(PLANTED, num=num_planted, num_wrong=num_refused, unit="guesses")
    yield counted("full depth of the trees", deepest_tree, num_wrong=num_lacking, unit="levels")
    yield from _logit_tests(logits, subject, "planted")  # their names end with "planted"


def _logit_tests(
    logits: Sequence[LogitNumbers], subject: Subject, what: str
) -> Iterator[AuditTest]:
    """The tests of the logits of several answers. Their names end with `what`."""
    allowed = allowed_deviation(subject.dtype)
    tests = logit_tests(LogitNumbers.join(logits), subject.dtype, allowed)
    return _named(tests, what)


def _named(tests: Iterable[AuditTest], what: str) -> Iterator[AuditTest]:
    """The tests, with `what` added to their names."""
    for test in tests:
        yield replace(test, name=f"{test.name}, {what}")


def sampled(subject: Subject) -> Iterator[AuditTest]:
    """Tokens and drafts as draws, in several settings.

    In each of the sampling settings of `NUM_TOKENS`, the method under test answers the subject's
    prompts until enough tokens are drawn. Yields tests that the answers' tokens are draws from the
    target's distributions, that draft tokens are draws from the drafter's, and that the steps'
    logits are a plain forward's.
    """
    for sampling, num_tokens in NUM_TOKENS.items():
        setting_label = f"T={sampling}"  # ends the tests' names
        answers: list[Evidence] = []  # with numbers about tokens, logits and drafts
        while sum(len(answer.token_ids) for answer in answers) < num_tokens:
            prompt = subject.prompts[len(answers) % len(subject.prompts)]  # in turn
            # another seed per answer of a setting, which no other part of the contract uses
            request = Request(prompt, subject.budget, sampling, seed=1000 + len(answers))
            answers.append(watched_evidence(subject.target, subject.drafter, request))
        tokens = TokenNumbers.join([answer.tokens for answer in answers])  # of all answers
        if sampling.temperature == 1.0:
            subject.drawn.append(tokens)  # `run_contract` computes the power of the tests from it
        drafts = DraftNumbers.join([answer.drafts for answer in answers])
        yield from _named(token_tests(tokens), setting_label)
        yield from _named(draft_tests(drafts), setting_label)
        yield from _logit_tests([answer.logits for answer in answers], subject, setting_label)


def rule(subject: Subject) -> Iterator[AuditTest]:
    """The acceptance rule on small trees with known p and q."""
    yield from rule_tests(rule_outcomes(subject.drafter.rule, NUM_OUTCOMES))


def repeats(subject: Subject) -> Iterator[AuditTest]:
    """A seed repeats its answer, another seed does not, and a prompt leaves no state.

    Yields a test of each claim for the method under test; each test counts a wrong answer, 0 or 1.
    A prompt left a state if a drafter that completed it drafts or answers otherwise on the next
    prompt than a fresh drafter.
    """
    first_prompt, second_prompt = subject.prompts[:2]  # token ids
    fresh_drafter = WatchedDrafter(subject.build())  # `trees` keeps the tree of each step
    used_drafter = WatchedDrafter(subject.drafter)
    subject.complete(subject.drafter, first_prompt)
    fresh_ids = subject.complete(fresh_drafter, second_prompt).token_ids
    used_ids = subject.complete(used_drafter, second_prompt).token_ids
    has_state = fresh_ids != used_ids or fresh_drafter.trees != used_drafter.trees
    yield counted("state left by a prompt", num=1, num_wrong=has_state)

    def draw(seed: int) -> tuple[int, ...]:
        """The token ids of the answer to the second prompt at temperature 1, with this seed."""
        sampling = Sampling(1.0)
        drafter = subject.drafter
        return subject.complete(drafter, second_prompt, sampling=sampling, seed=seed).token_ids

    drawn_ids, same_seed_ids, other_seed_ids = draw(5), draw(5), draw(6)
    yield counted("same seed", num=1, num_wrong=drawn_ids != same_seed_ids)
    yield counted("other seed", num=1, num_wrong=drawn_ids == other_seed_ids)


def sizes(subject: Subject) -> Iterator[AuditTest]:
    """Trees have the announced sizes.

    For CUDA graphs a drafter announces that all its trees have one size, or a tree of each padded
    size. Yields a test at temperature 0 and a test at temperature 1, which count wrong sizes of the
    trees of the method under test: all but one, or all padded sizes that were not announced.
    """
    drafter = subject.drafter
    for sampling in (Sampling(), Sampling(1.0)):  # greedy, and temperature 1
        drafted_sizes: set[int] = set()  # numbers of nodes of the trees that were drafted
        for prompt in subject.prompts:
            drafted_sizes.update(subject.complete(drafter, prompt, sampling=sampling).num_nodes)
        sampler = subject.target.sampler(sampling, seed=0)
        announced_trees = drafter.trees_to_record(subject.budget, sampler)
        announced_sizes = {padded_size(tree.num_nodes) for tree in announced_trees}
        if drafter.has_fixed_size:  # every tree has the same size, whichever it is
            num_wrong = max(len(drafted_sizes) - 1, 0)  # no size if no answer had a step
        else:  # trees are padded to an announced size
            num_wrong = len({*map(padded_size, drafted_sizes)} - announced_sizes)
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
    """Run all parts of the contract of a method; returns its tests with a status.

    A part makes several tests. An exception of the method ends a part, and is a fault; the part's
    earlier tests count.

    Args:
        name: name of the method.
        subject: the method's drafter on a target, with prompts.
        contract: the parts to run, in order.
        is_lossless: False for a method that does not claim to keep the target's distribution: it
            may fail the tests of sampled tokens and of the rule that accepts draft tokens.
        say: prints a line of progress.
    """
    tests: list[AuditTest] = []
    faults: list[str] = []  # messages of the method's errors, one per part that ended early
    parts = Parts(len(contract), say)  # reports each part as it begins
    for contract_test in contract:
        # the docstring's first line, up to a colon if it has one
        part_subject = (contract_test.__doc__ or "").partition("\n")[0].partition(":")[0]
        parts.begin(f"{name}: {part_subject.lower()}")
        try:
            with containing(contract_test.__name__):  # any exception becomes a SpecbenchError
                tests += contract_test(subject)
        except SpecbenchError as error:
            faults.append(error.message)
            traceback = debug_traceback(error)  # "" without --debug
            if traceback and len(faults) == 1:  # of the first error alone
                say(traceback)
    # The tests set the temperatures of their answers, so the audit has none: neither that of a run
    # nor that of tested answers (`level`).
    raw_audit = MethodAudit(name, temperature=0.0, level=0.0, tests=tuple(tests))
    (method_audit,) = corrected([raw_audit])  # p-values corrected for their number
    # For `smallest_tv`, the smallest error (total variation) that a test of the sampled tokens at
    # temperature 1 finds. Its rate of false alarms is ALPHA / the number of tests with a p-value.
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
    failed_subjects = {test.subject for test in result.failures}
    if not (has_faults or failed_subjects):
        return "no difference"
    if has_faults or is_lossless:
        return "bug"
    return "lossy" if failed_subjects <= {"tokens", "rule"} else "bug"
