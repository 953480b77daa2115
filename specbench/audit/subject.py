"""A method under test, with the target and the prompts that it is tested on."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from specbench.audit.drafters import Plain
from specbench.audit.numbers import TokenNumbers
from specbench.audit.reference import is_wrong
from specbench.audit.results import EPSILON, near_tie
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.measure.local.engine_load import load_model
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.requests import user
from specbench.measure.spec import RunSpec
from specbench.types import Completion, Request

NUM_PROMPTS = 4
"""Number of prompts in most tests. The shortest unseen prompts are taken."""
LONG = 150
"""A prompt counts as long if it has at least this many tokens."""
NUM_TASK_PROMPTS = 8
"""Number of prompts per task. The same number of unseen prompts is made from them. Eight are
enough to find a method that knows two of six tasks.
"""


@dataclass(frozen=True)
class Subject:
    """A method's drafter on a target, with prompts as token ids."""

    target: Target
    build: Callable[[], Drafter]
    """Makes a fresh drafter."""
    prompts: Sequence[tuple[int, ...]]
    """The prompts of most tests."""
    long_prompts: Sequence[tuple[int, ...]] = ()
    """Long prompts, on which right tokens are also planted. Errors in positions may show only in a
    long text.
    """
    budget: int = 64
    """Tokens of an answer."""
    task_prompts: Sequence[tuple[int, ...]] = ()
    """Prompts of tasks, for which a method might have stored answers."""
    unseen_prompts: Sequence[tuple[int, ...]] = ()
    """For each of `task_prompts`, a new prompt that is mixed from prompts of the same task."""
    eos_ids: frozenset[int] = frozenset()
    """End tokens of the model. An answer that a method knows in advance would end with one."""
    drawn: list[TokenNumbers] = field(default_factory=list)
    """The tokens sampled at temperature 1 in the tests so far."""

    @cached_property
    def drafter(self) -> Drafter:
        """The drafter that most tests share. It keeps its state from one test to the next."""
        return self.build()

    @property
    def dtype(self) -> str:
        """The name of the target's dtype, or "float32" for a dtype without an epsilon (float64)."""
        name = str(self.target.dtype).removeprefix("torch.")
        return name if name in EPSILON else "float32"

    def complete(self, drafter: Drafter, prompt: tuple[int, ...], **changes: Any) -> Completion:
        """Complete a prompt (token ids) with a drafter, and check the drafts.

        By default, the completion has `budget` tokens and ignores end tokens. `changes` are values
        for fields of the request.
        """
        options: dict[str, Any] = {"max_new_tokens": self.budget, "seed": 3, **changes}
        return decode(self.target, drafter, Request(prompt, **options), is_checked=True)

    @cached_property
    def answers(self) -> list[tuple[int, ...]]:
        """The target's greedy answers to `prompts` as token ids, completed without drafts."""
        return [self.complete(Plain(), prompt).token_ids for prompt in self.prompts]

    def is_wrong(self, prompt: tuple[int, ...], token_ids: Sequence[int]) -> bool:
        """True if a token is not the target's best, and rounding does not explain it."""
        return is_wrong(self.target, prompt, token_ids, near_tie(self.dtype, 1.0))


class LoadedSubject(NamedTuple):
    """A subject, and the claims of its method."""

    subject: Subject
    is_lossless: bool
    """The method claims that its output distribution is the target's."""


def load_subject(name: str, model: str, *, is_offline: bool = False) -> LoadedSubject:
    """Load a method on a model, in float32 on the CPU, as the subject of tests.

    The subject has prompts of tasks, and the same number of unseen prompts. These are mixed at
    random from the tasks' texts, so that a method cannot have stored answers to them.

    Args:
        name: the method with its options, as on the command line.
        model: name or path of the model.
        is_offline: download nothing.

    Raises:
        UserError: the method or the model is unknown, or there are no draft weights for the method.
    """
    spec = RunSpec(
        model=model,
        methods=(name,),
        limit=NUM_TASK_PROMPTS,  # prompts per task
        device="cpu",
        dtype="float32",
        is_baseline_run=False,  # only the method, without vanilla
    )
    plan = make_plan(spec, is_offline=is_offline)
    setup = plan.setup
    assert isinstance(setup, EngineSetup)  # since the spec names no server
    if setup.missing:  # methods without draft weights
        raise UserError(
            f"{model} has no draft weights for {name}.",
            f"Give them, such as {name}:weights=DIR, or another --model.",
        )
    (run_method,) = setup.methods
    target = load_model(setup)

    def render(texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The token ids of each text as a user's turn in the chat template."""
        return [setup.codec.render([user(text)]) for text in texts]

    def build() -> Drafter:
        """Build a fresh drafter of the method."""
        context = BuildContext(target, run_method.weights)
        return run_method.method.build(run_method.options, context)

    # the text of the first turn of each prompt, per task
    texts_by_task = [[prompt.turns[0] for prompt in prompts] for prompts in plan.prompts.values()]
    task_prompts = render([*chain(*texts_by_task)])
    unseen_prompts = render([*chain(*map(new_texts, texts_by_task))])
    by_length = sorted(unseen_prompts, key=len)  # the shortest first
    subject = Subject(
        target,
        build,
        prompts=by_length[:NUM_PROMPTS],
        long_prompts=[prompt for prompt in by_length if len(prompt) >= LONG][:1],  # one is enough
        task_prompts=task_prompts,
        unseen_prompts=unseen_prompts,
        eos_ids=setup.codec.eos_ids,
    )
    return LoadedSubject(subject, run_method.method.is_lossless_with(run_method.options))


def new_texts(texts: Sequence[str]) -> list[str]:
    """Mix texts at random: the first words of each text, followed by the last words of the next."""
    random_source = random.SystemRandom()  # has no seed, so that the texts are new each time
    words_of_texts = [text.split() for text in texts]
    words_of_next_texts = [*words_of_texts[1:], *words_of_texts[:1]]  # the first follows the last
    mixed_texts = []
    for words, next_words in zip(words_of_texts, words_of_next_texts, strict=True):
        # the share of words that is kept of this text, and left out of the next text
        share = random_source.uniform(0.3, 0.7)
        first_words = words[: 1 + int(len(words) * share)]  # at least one
        last_words = next_words[int(len(next_words) * share) :]
        mixed_texts.append(" ".join(first_words + last_words))
    return mixed_texts
