"""Checks of a run's prompts: there are enough of them, and they are short enough for the model."""

from collections.abc import Sequence

from specbench.data.prompts import PromptSet
from specbench.errors import UserError
from specbench.measure.base import Setup
from specbench.measure.requests import TOKEN_HINT, user
from specbench.measure.spec import RunSpec


def check_loads(spec: RunSpec, prompt_sets: Sequence[PromptSet]) -> None:
    """Refuse a concurrency higher than the number of prompts of a task.

    Raises:
        UserError: a task has too few prompts.
    """
    highest = max(spec.concurrency, default=0)
    for prompt_set in prompt_sets:
        num_prompts = len(prompt_set.prompts)
        if highest > num_prompts:
            raise UserError(
                f"--concurrency {highest} needs {highest} prompts per task, and "
                f"{prompt_set.task.name} has {num_prompts}.",
                "Use more prompts (--limit, --prompts paper), or a lower --concurrency.",
            )


def check_ids(setup: Setup, prompt_sets: Sequence[PromptSet]) -> None:
    """Refuse a run of which the model can read no prompt: it has no embedding for some tokens.

    If it can read one of the prompts, the run starts, and the samples of the others fail.

    Raises:
        UserError: the chat template, or every prompt, has such a token.
    """
    codec = setup.codec
    # A clause on the first token that has no embedding; empty if all tokens have one.
    problem = codec.beyond_text(codec.render([user("a")]))
    if problem:
        hint = "Use another `--template`, or files of a tokenizer and weights that fit each other."
        raise UserError(f"The chat template {codec.template.name!r} writes {problem}.", hint)
    problems: dict[str, str] = {}  # by prompt
    for prompt_set in prompt_sets:
        for prompt in prompt_set.prompts:
            problem = codec.beyond_text(codec.render([user(" ".join(prompt.turns))]))
            if not problem:
                return
            problems[prompt.sample_id] = problem
    sample_id, problem = next(iter(problems.items()))
    others = " The other prompts have such a token too." if len(problems) > 1 else ""
    raise UserError(f"Prompt {sample_id} has {problem}.{others}", TOKEN_HINT)


def check_lengths(
    setup: Setup, prompt_sets: Sequence[PromptSet], spec: RunSpec, *, num_reserved: int
) -> None:
    """Refuse a prompt whose first turn leaves no room for `num_reserved` tokens in the context.

    All lengths are in tokens. `setup` has the model's context and chat template; `prompt_sets`
    are the prompts per task; `spec.serving_engine` is set for servers that the run starts.

    Raises:
        UserError: a prompt is too long.
    """
    context = setup.context
    if context is None:  # unknown: neither the model's config nor a server reports it
        return
    server_hint = ""
    if spec.serving_engine:
        server_hint = (
            " Servers that --engine starts have a context of at most 4096 tokens. For more, start "
            "a server yourself, and give its --url."
        )
    for prompt_set in prompt_sets:
        for prompt in prompt_set.prompts:
            length = _length(setup, prompt.turns[0])  # with the chat template
            room = context - length  # for new tokens
            if room < num_reserved:
                # The sentence continues below: "[Give …, l]eave the prompt out".
                budget_hint = f"Give --max-new-tokens {room}, l" if room > 0 else "L"
                raise UserError(
                    f"Prompt {prompt.sample_id} has {length} tokens, and the model's context of "
                    f"{context} tokens has no room for {num_reserved} new tokens.",
                    f"{budget_hint}eave the prompt out (--limit, --dataset), or use a model or a "
                    f"server with more context.{server_hint}",
                )


def longest_chat(setup: Setup, prompt_sets: Sequence[PromptSet], budget: int) -> int:
    """Tokens that the longest chat may grow to, as far as the model's context allows.

    `budget` bounds the new tokens per answer.
    """
    longest = max(
        sum(_length(setup, text) + budget for text in prompt.turns)
        for prompt_set in prompt_sets
        for prompt in prompt_set.prompts
    )
    return longest if setup.context is None else min(longest, setup.context)


def _length(setup: Setup, text: str) -> int:
    """Tokens of the prompt for a user's first message."""
    return len(setup.codec.render([user(text)]))
