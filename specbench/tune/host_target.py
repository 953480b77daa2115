"""A stand-in for the target of methods that draft from tokens alone."""

from types import SimpleNamespace
from typing import cast

from specbench.engine.target import Target
from specbench.tune.profile_file import Profile


def host_target(profile: Profile) -> Target:
    """A target on the CPU with the vocabulary of a profile's model, and without weights."""
    import torch

    device = torch.device("cpu")
    attributes = SimpleNamespace(device=device, vocab_size=profile.header.vocab_size)
    return cast(Target, attributes)
