"""The contract of a method: tests of its drafter on a target, with the method's drafts and with
right tokens planted in them.
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
"""Minimum number of tokens to draw with each sampling setting."""
NUM_OUTCOMES = 20_000
"""Number of times that the acceptance rule is run, over all small trees together."""
MOST_MAT_RATIO = 2.0
"""Largest ratio of MAT on task prompts to MAT on unseen prompts that an honest drafter reaches."""
MOST_PAIR_RATIO = 2.5
"""A task prompt is suspicious if its MAT is more than this multiple of the MAT on the unseen prompt
made from the same task. For PLD on `tiny`, two of 48 such pairs have larger ratios, up to 2.7.
Methods that knew the answers had ratios of 4.1 to 8.8.
"""
ContractTest = Callable[[Subject], Iterator[AuditTest]]
"""A part of the contract. The first line of its docstring is shown as progress, up to a colon."""


def recall(subject: Subject) -> Iterator[AuditTest]:
    """Steps: neither a repeated prompt nor a prompt of a task may take too few steps.

    A method that answers a repeated prompt in fewer steps remembers answers. A method that is much
    faster on the prompts of tasks than on unseen prompts has stored answers. The first test counts
    repeated prompts with fewer steps. If the subject has prompts of tasks, two more tests compare
    their tokens per step with those of unseen prompts. This part must run first, before the shared
    drafter (`subject.drafter`) has seen any prompt.
    """
    num_steps = [_num_steps(subject, subject.drafter, prompt) for prompt in subject.prompts]
    # The first drafter has seen the prompts, and the second has not.
    drafters = (subject.drafter, subject.build())
    num_fewer = sum(  # repeated prompts that take fewer steps than the first time
        _num_steps(subject, drafter, prompt) < num_first_steps
        for drafter in drafters
        for prompt, num_first_steps in zip(subject.prompts, num_steps, strict=True)
    )
    num_repeated = 2 * len(subject.prompts)  # each prompt with both drafters
    unit = "answers in fewer steps"
    yield counted("steps on repeated prompts", num_repeated, num_wrong=num_fewer, unit=unit)
    if not subject.task_prompts:
        return
    unseen_ratio = _tokens_per_step(subject, subject.unseen_prompts)
    task_ratio = _tokens_per_step(subject, subject.task_prompts)
    # Mean tokens per step (MAT). "fresh" and "known" name two random streams, so that the
    # bootstraps over prompts are independent.
    unseen_mat = Draws(Bootstrap(), "fresh").estimate(unseen_ratio)
    task_mat = Draws(Bootstrap(), "known").estimate(task_ratio)
    # p-value of "task_mat / unseen_mat is at most MOST_MAT_RATIO". With too few prompts it is None,
    # and the test passes. EXACT: only the choice of prompts adds variance.
    p_value = slower(unseen_mat, task_mat, MOST_MAT_RATIO - 1, EXACT)
    mat_ratio = task_mat.value / unseen_mat.value
    name = "tokens per step on task prompts, relative to new prompts"
    num = len(subject.task_prompts)
    # Tests of drafts have the subject "guesses".
    yield AuditTest("guesses", name, num, effect=mat_ratio, unit="times", p_value=p_value)
    # The mean over all prompts would hide a method that knows only a few tasks. So each prompt of a
    # task is also compared with an unseen prompt that is mixed from prompts of the same task.
    unseen_mats, task_mats = _mats(unseen_ratio), _mats(task_ratio)  # [prompts]
    # Count the pairs in which the task's prompt is suspiciously fast, and those in which the unseen
    # prompt is. The unseen prompt can be so fast only by chance.
    num_faster = int((task_mats > MOST_PAIR_RATIO * unseen_mats).sum())
    num_slower = int((unseen_mats > MOST_PAIR_RATIO * task_mats).sum())
    yield AuditTest(
        "guesses",
        "task prompts with over 2.5 times the tokens per step of a similar new prompt",
        num,
        effect=num_faster,
        unit="prompts",
        p_value=sign_test(num_faster, num_slower),
    )


def _tokens_per_step(subject: Subject, prompts: Sequence[tuple[int, ...]]) -> Ratio:
    """Tokens / steps of each answer [prompts, 1] when a new drafter completes all prompts.

    Answers end at the model's end tokens, because stored answers end there, too.
    """
    drafter = subject.build()
    completions = [subject.complete(drafter, prompt, eos_ids=subject.eos_ids) for prompt in prompts]
    # The number of tokens that each step of each answer emitted. An answer of one token has no
    # steps, but is counted as one step of one token.
    answers = [completion.accept_lengths or (1,) for completion in completions]
    num_tokens = np.array([[sum(step_lengths)] for step_lengths in answers], dtype=np.float64)
    num_steps = np.array([[len(step_lengths)] for step_lengths in answers], dtype=np.float64)
    return Ratio(num_tokens, num_steps)


def _mats(ratio: Ratio) -> FloatArray:
    """Tokens per step of each answer [prompts]."""
    return (ratio.top / ratio.bottom)[:, 0]


def _num_steps(subject: Subject, drafter: Drafter, prompt: tuple[int, ...]) -> int:
    """The number of steps in which a drafter completes a prompt (token ids), at least 1."""
    return max(1, len(subject.complete(drafter, prompt).accept_lengths))


def greedy(subject: Subject) -> Iterator[AuditTest]:
    """The method's drafts at temperature 0: every token is the best one, and the counts add up.

    The method under test completes each prompt of the subject with its own drafts. One test counts
    answers with wrong tokens, and another counts answers whose numbers of tokens, steps and nodes
    contradict each other.
    """
    num_wrong = 0  # answers with a token that is not the target's best, beyond rounding
    num_miscounted = 0  # answers with contradictory numbers of tokens, steps and nodes
    for prompt in subject.prompts:
        completion = subject.complete(subject.drafter, prompt)
        num_wrong += subject.is_wrong(prompt, completion.token_ids)
        # A step emits at least one token (the target's own), and at most one per node of its tree.
        steps = zip(completion.accept_lengths, completion.num_nodes, strict=True)
        has_fitting_steps = all(1 <= num_emitted <= num_nodes for num_emitted, num_nodes in steps)
        # 1: the prefill's token belongs to no step
        has_all_tokens = 1 + sum(completion.accept_lengths) == completion.num_tokens
        num_miscounted += not (has_fitting_steps and has_all_tokens)
    yield counted("greedy", num=len(subject.prompts), num_wrong=num_wrong)
    yield counted("counts of greedy answers", num=len(subject.prompts), num_wrong=num_miscounted)


def planted(subject: Subject) -> Iterator[AuditTest]:
    """Right tokens in the trees: all are accepted, to full depth, and logits stay right.

    The right tokens are the target's greedy answers, which `Planted` puts into the trees of the
    method under test. Each prompt of the subject, including the long ones, is completed twice: once
    to keep the logits of its steps, once to count accepted tokens. There are tests of the answers,
    the acceptance, the depth that was reached, and the logits.
    """
    num_wrong = 0  # answers with a token that is not the target's best, beyond rounding
    # The next four numbers leave out draft tokens for which the budget has no room beside the
    # target's own token.
    num_planted = num_rejected = 0  # right tokens in the trees, and those that were rejected
    deepest_tree = deepest_accepted = 0  # most levels below the root of a tree, or in a path
    logits: list[LogitNumbers] = []  # differences from a plain forward's logits, per answer
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
        # Accepted draft tokens of each step: all emitted tokens but the last. The last one is the
        # target's own, or a draft token after which the budget ends.
        accepted_by_step = [num_emitted - 1 for num_emitted in completion.accept_lengths]
        num_planted += sum(drafter.num_planted)  # one entry per step
        num_rejected += sum(
            max(0, num_right - num_accepted)
            for num_right, num_accepted in zip(drafter.num_planted, accepted_by_step, strict=True)
        )
        deepest_accepted = max([deepest_accepted, *accepted_by_step])
        deepest_tree = max([deepest_tree, *drafter.depths])  # one depth per step
    num_lacking = deepest_tree - deepest_accepted  # levels that no accepted path reached
    yield counted("planted draft tokens", num=len(prompts), num_wrong=num_wrong)
    yield counted(PLANTED, num=num_planted, num_wrong=num_rejected, unit="draft tokens")
    yield counted("full depth of the trees", deepest_tree, num_wrong=num_lacking, unit="levels")
    yield from _logit_tests(logits, subject, "planted")  # their names end with "planted"


def _logit_tests(
    logits: Sequence[LogitNumbers], subject: Subject, suffix: str
) -> Iterator[AuditTest]:
    """Test the logits of several answers. The names of the tests end with `suffix`."""
    allowed = allowed_deviation(subject.dtype)
    tests = logit_tests(LogitNumbers.join(logits), subject.dtype, allowed)
    return _named(tests, suffix)


def _named(tests: Iterable[AuditTest], suffix: str) -> Iterator[AuditTest]:
    """Yield the tests with a suffix added to their names."""
    for test in tests:
        yield replace(test, name=f"{test.name}, {suffix}")


def sampled(subject: Subject) -> Iterator[AuditTest]:
    """Sampled tokens and drafts, in several settings.

    With each of the sampling settings in `NUM_TOKENS`, the method under test answers the subject's
    prompts until enough tokens are drawn. The tests check that the answers' tokens are draws from
    the target's distributions, that draft tokens are draws from the drafter's, and that the logits
    of the steps agree with those of a plain forward.
    """
    for sampling, num_tokens in NUM_TOKENS.items():
        setting_label = f"T={sampling}"  # the end of the tests' names
        answers: list[Evidence] = []
        while sum(len(answer.token_ids) for answer in answers) < num_tokens:
            prompt = subject.prompts[len(answers) % len(subject.prompts)]
            # each answer of a setting has its own seed, which no other part of the contract uses
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
    """The acceptance rule on small trees with known p and q.

    p is the target's distribution, and q the drafter's. There is a test per tree.
    """
    yield from rule_tests(rule_outcomes(subject.drafter.rule, NUM_OUTCOMES))


def repeats(subject: Subject) -> Iterator[AuditTest]:
    """A seed repeats its answer, another seed does not, and a prompt leaves no state.

    There is a test of each claim, which counts 0 or 1 wrong answers. To find state left by a
    prompt, a drafter that has completed it and a fresh drafter complete another prompt. Their trees
    and answers should be equal.
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

    For CUDA graphs a drafter announces that all its trees have one size, or gives an example tree
    of each padded size. A test at temperature 0 and a test at temperature 1 count the wrong sizes
    among the method's trees. If there should be one size, all other sizes are wrong. Otherwise the
    padded sizes that were not announced are wrong.
    """
    drafter = subject.drafter
    for sampling in (Sampling(), Sampling(1.0)):  # the default is greedy
        drafted_sizes: set[int] = set()  # numbers of nodes of the trees that were drafted
        for prompt in subject.prompts:
            drafted_sizes.update(subject.complete(drafter, prompt, sampling=sampling).num_nodes)
        sampler = subject.target.sampler(sampling, seed=0)
        announced_trees = drafter.trees_to_record(subject.budget, sampler)
        announced_sizes = {padded_size(tree.num_nodes) for tree in announced_trees}
        if drafter.has_fixed_size:  # every tree has the same size, whichever it is
            num_wrong = max(len(drafted_sizes) - 1, 0)  # 0 if nothing was drafted
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
    """Run all parts of a method's contract, and judge their tests.

    A part makes several tests. An exception of the method ends the part and is kept as a fault. The
    earlier tests of the part still count.

    Args:
        name: name of the method.
        subject: the method's drafter on a target, with prompts.
        contract: the parts to run, in order.
        is_lossless: False for a method that does not claim to keep the target's distribution, so
            that it may fail the tests of sampled tokens and of the acceptance rule.
        say: prints a line of progress.
    """
    tests: list[AuditTest] = []
    faults: list[str] = []  # "part of the contract: the error that ended it"
    parts = Parts(len(contract), say)
    for contract_test in contract:
        # the docstring's first line, up to a colon if it has one
        part_subject = (contract_test.__doc__ or "").partition("\n")[0].partition(":")[0]
        parts.begin(f"{name}: {part_subject.lower().rstrip('.')}")
        try:
            with containing(contract_test.__name__):  # any exception becomes a SpecbenchError
                tests += contract_test(subject)
        except SpecbenchError as error:
            part_prefix = f"{contract_test.__name__}: "  # `containing` may have added it already
            message = " ".join(error.message.split())  # on one line
            faults.append(part_prefix + message.removeprefix(part_prefix))
            traceback = debug_traceback(error)  # "" without --debug
            if traceback and len(faults) == 1:  # only the first error's
                say(traceback)
    # Each test sets its own temperature, so the two temperatures here have no meaning.
    raw_audit = MethodAudit(name, temperature=0.0, level=0.0, tests=tuple(tests))
    (method_audit,) = corrected([raw_audit])  # p-values corrected for their number
    # `smallest_tv` is the smallest error (total variation) that a test of the tokens sampled at
    # temperature 1 would find. Its rate of false alarms is ALPHA / the number of p-values.
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
    """The status of a method after its contract. A method that does not claim to be lossless is
    "lossy" if it fails only the tests of sampled tokens and of the rule.
    """
    failed_subjects = {test.subject for test in result.failures}
    if not (has_faults or failed_subjects):
        return "no difference"
    if has_faults or is_lossless:
        return "bug"
    return "lossy" if failed_subjects <= {"tokens", "rule"} else "bug"
