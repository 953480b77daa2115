"""The distribution of three tokens after a prompt: exact, and as a method draws it."""

import torch
from scipy.stats import chisquare

from specbench.engine.accept import Sampler
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.types import Request, Sampling


@torch.inference_mode()
def joint(target: Target, prompt: tuple[int, ...], sampling: Sampling) -> torch.Tensor:
    """Probabilities [vocab ** 3] of the three tokens after the prompt, from a plain forward."""
    tokens = torch.arange(target.vocab_size)
    pairs = torch.cartesian_prod(tokens, tokens)
    ids = torch.cat([torch.tensor(prompt).repeat(len(pairs), 1), pairs], 1)
    rows = target.model(ids).logits[:, -3:]
    sampler = Sampler(sampling, torch.device("cpu"), 0)
    first, second, third = (sampler.probs(rows[:, i]) for i in range(3))
    one = first.gather(1, pairs[:, :1]) * second.gather(1, pairs[:, 1:])
    return (one * third).flatten().double()


def p_value(
    target: Target, drafter: Drafter, prompt: tuple[int, ...], sampling: Sampling, draws: int
) -> float:
    """Of a chi-square test of drawn tokens; 0 if one is drawn that is impossible.

    The vocabulary has to be small, so that the joint distribution is known in full.
    """
    exact, counts = joint(target, prompt, sampling), torch.zeros(target.vocab_size**3).double()
    for seed in range(draws):
        request = Request(prompt, 3, sampling, seed=seed)
        first, second, third = decode(target, drafter, request).token_ids
        counts[(first * target.vocab_size + second) * target.vocab_size + third] += 1
    if counts[exact == 0].any():
        return 0.0
    is_common = exact * draws >= 5
    observed, wanted = (
        torch.cat([each[is_common], each[~is_common].sum()[None]])
        for each in (counts, exact / exact.sum() * draws)
    )
    kept = wanted > 0
    return float(chisquare(observed[kept].numpy(), wanted[kept].numpy()).pvalue)
