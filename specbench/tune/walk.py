"""The steps of one setting over one stored answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Walk:
    """One setting's steps over one stored answer."""

    prompt: str
    """Its name, "task/sample_id/turn"."""
    prompt_tokens: int
    """Tokens of the prompt."""
    accepts: tuple[int, ...]
    """Tokens that each step emits: accepted draft tokens + 1, as `Record.accept_lengths`."""
    nodes: tuple[int, ...]
    """Rows of each step, as `Record.num_nodes`."""
