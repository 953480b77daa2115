"""Check that a run has enough prompts for its load, and that they suit its model."""

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
    highest = max(spec.concurrency, default=0)  # most requests at once; 0 without --concurrency
    for prompt_set in prompt_sets:
        num_prompts = len(prompt_set.prompts)
        if highest > num_prompts:
            raise UserError(
                f"--concurrency {highest} needs {highest} prompts per task, and "
                f"{prompt_set.task.name} has {num_prompts}.",
                "Use more prompts (--limit, --prompts paper), or a lower --concurrency.",
            )


def check_ids(setup: Setup, prompt_sets: Sequence[PromptSet]) -> None:
    """Refuse a run if every prompt has a token for which the model has no embedding.

    If the model can read at least one prompt, the run starts, and the samples of the prompts with
    such tokens fail. `prompt_sets` are the prompts per task.

    Raises:
        UserError: the chat template, or every prompt, has such a token.
    """
    codec = setup.codec
    # `beyond_text` is a phrase about the first token without an embedding; empty if all have one.
    # The template is tried with the text "a", which every model can read.
    template_problem = codec.beyond_text(codec.render([user("a")]))
    if template_problem:
        hint = "Use another `--template`, or a tokenizer and weights that fit each other."
        raise UserError(
            f"The chat template {codec.template.name!r} writes {template_problem}.", hint
        )
    problems: dict[str, str] = {}  # the phrase for each prompt, by the prompt's id
    for prompt_set in prompt_sets:
        for prompt in prompt_set.prompts:
            # The problem with the prompt's tokens, if all turns are a single message.
            problem = codec.beyond_text(codec.render([user(" ".join(prompt.turns))]))
            if not problem:
                return
            problems[prompt.sample_id] = problem
    first_id, first_problem = next(iter(problems.items()))
    others_text = " The other prompts have such a token too." if len(problems) > 1 else ""
    raise UserError(f"Prompt {first_id} has {first_problem}.{others_text}", TOKEN_HINT)


def check_lengths(
    setup: Setup, prompt_sets: Sequence[PromptSet], spec: RunSpec, *, num_reserved: int
) -> None:
    """Refuse a prompt whose first turn leaves no room for `num_reserved` tokens in the context.

    All lengths are in tokens. `num_reserved` is the number of new tokens that must fit: on a server
    the whole budget of an answer, since servers refuse longer requests, and in our engine a single
    token, since an answer ends at the end of the context. `setup` has the context and the template;
    `prompt_sets` are the prompts per task. `spec.serving_engine` names the engine of the servers
    that the run starts; it is empty if the run starts none.

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
                # The hint is "Give …, leave the prompt out …" or "Leave the prompt out …".
                budget_hint = f"Give --max-new-tokens {room}, l" if room > 0 else "L"
                raise UserError(
                    f"Prompt {prompt.sample_id} has {length} tokens, and the model's context of "
                    f"{context} tokens has no room for {num_reserved} new tokens.",
                    f"{budget_hint}eave the prompt out (--limit, --dataset), or use a model or a "
                    f"server with a longer context.{server_hint}",
                )


def longest_chat(setup: Setup, prompt_sets: Sequence[PromptSet], budget: int) -> int:
    """The most tokens that a chat of the run may have, within the model's context.

    `budget` is the most new tokens per answer.
    """
    longest = max(
        sum(_length(setup, text) + budget for text in prompt.turns)
        for prompt_set in prompt_sets
        for prompt in prompt_set.prompts
    )
    return longest if setup.context is None else min(longest, setup.context)


def _length(setup: Setup, text: str) -> int:
    """The number of tokens in the prompt for a user's first message."""
    return len(setup.codec.render([user(text)]))
