"""Small draft trees and samplers, on the CPU."""

import torch

from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Sampling
from tests.support.devices import CPU


def sampler(temperature: float = 0.0, seed: int = 0, top_p: float = 1.0, top_k: int = 0) -> Sampler:
    return Sampler(Sampling(temperature, top_p, top_k), CPU, seed)


def tree(tokens: list[int], parents: list[int], num_verify: int | None = None) -> DraftTree:
    """The tree of these tokens. The first `num_verify` nodes may be accepted, by default all."""
    layout = TreeLayout.from_parents(parents, CPU)
    if num_verify is None:
        num_verify = len(tokens)
    return DraftTree(torch.tensor(tokens), layout, num_verify)
