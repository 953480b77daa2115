"""A stand-in for the target, for methods that draft only from tokens."""

from types import SimpleNamespace
from typing import cast

from specbench.engine.target import Target
from specbench.tune.profile_file import Profile


def host_target(profile: Profile) -> Target:
    """Make a target on the CPU that has the vocabulary of a profile's model, but no weights."""
    import torch

    device = torch.device("cpu")
    attributes = SimpleNamespace(device=device, vocab_size=profile.header.vocab_size)
    return cast(Target, attributes)
