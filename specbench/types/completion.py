"""Requests, and their completions with the steps."""

from dataclasses import astuple, dataclass, field
from typing import Literal

from msgspec import UNSET, UnsetType

StopReason = Literal["eos", "budget", "length"]
"""The reason why a completion ended: an end token, the request's budget of new tokens, or the end
of the model's context. Servers call the budget "length".
"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of the target."""

    temperature: float = 0.0
    """Temperature of the logits. 0 is greedy decoding."""
    top_p: float = 1.0
    """Probability of the nucleus. 1 turns nucleus sampling off."""
    top_k: int = 0
    """Number of the most likely tokens to sample from. 0 allows all tokens."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def __str__(self) -> str:
        has_nucleus = f"{self.top_p:g}" != "1" or self.top_k != 0
        nucleus = f", top_p={self.top_p:g}, top_k={self.top_k}" if has_nucleus else ""
        return f"{self.temperature:g}{nucleus}"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete."""

    prompt_ids: tuple[int, ...]
    """Tokens of the prompt."""
    max_new_tokens: int
    """Most tokens of the answer."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling settings for the answer."""
    eos_ids: frozenset[int] = frozenset()
    """End tokens."""
    seed: int = 0
    """Seed of every random draw for the request."""


@dataclass(frozen=True, slots=True)
class Step:
    """One target forward after the prefill."""

    num_nodes: int
    """Nodes of the tree, root and scratch nodes included."""
    accept_length: int
    """Tokens that the step emitted: the accepted draft tokens and the bonus token, without tokens
    that EOS or the budget cut off.
    """


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of the decode steps by phase, summed over the steps. `engine.clock` measures them."""

    draft_s: float
    """Drafting: the drafter observes the last step and proposes the next tree."""
    verify_s: float
    """Forward of the target."""
    commit_s: float
    """Acceptance rule, and commit of the accepted path to the cache."""
    host_s: float
    """The rest of the time, in which the host counts tokens."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step's tree with the drafter's confidence in each node, and the accepted path."""

    parents: tuple[int, ...]
    """Parent of each node [nodes]. The root is its own parent."""
    log_probs: tuple[float | None, ...]
    """Draft log-probability of the path to each node [nodes]. Null if unknown."""
    path: tuple[int, ...]
    """Accepted nodes, from the root down."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Numbers that only a server's answer has. None stands for an unknown number."""

    began_s: float
    """Seconds from the start of the block to the request."""
    gaps_s: tuple[float, ...] = ()
    """Seconds between arrivals of tokens (inter-token latency)."""
    reported_tokens: int | None = None
    """Tokens that the server counted. Null if the server sent token ids, which are counted instead.
    """
    num_accepted: int | None = None
    """Accepted draft tokens that the server counted for this answer."""
    num_drafts: int | None = None
    """Drafts that the server counted for this answer."""
    server_prefill_s: float | None = None
    """Seconds to the first token by the server's own clock."""
    server_decode_s: float | None = None
    """Seconds of the other tokens by the server's own clock."""
    num_retries: int = 0
    """Attempts that the server refused before it began to answer."""
    num_reasoning: int | UnsetType = UNSET
    """Characters that the server sent as reasoning before the text. Absent if 0."""
    num_hidden: int | UnsetType = UNSET
    """Counted tokens that are not in the text, such as marks around reasoning. Absent if 0."""
    reported_prompt_tokens: int | UnsetType = UNSET
    """Tokens of the prompt that the server counted. 0 if it gave no count, absent in older runs."""
    cached_prompt_tokens: int | UnsetType = UNSET
    """Tokens of the prompt that the server took from a cache. Absent if it does not say."""
    num_drafted: int | UnsetType = UNSET
    """Draft tokens that the server counted for this answer. Absent if it does not count them."""
    drafts_by_length: tuple[int, ...] | UnsetType = UNSET
    """Numbers of drafts of 1, 2, 3, ... tokens. Absent if the server does not list its drafts."""
    drafts_by_accepted: tuple[int, ...] | UnsetType = UNSET
    """Numbers of drafts with 0, 1, 2, ... accepted tokens. Absent if the server does not say."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The output of one request, and its times.

    `1 + sum(accept_lengths) == num_tokens` always holds, because the first token is the prefill's
    and belongs to no step. None stands for a value that was not measured.
    """

    token_ids: tuple[int, ...]
    """Tokens of the answer."""
    stop_reason: StopReason
    """The reason for the end of the answer."""
    steps: tuple[Step, ...]
    """Forwards of the target after the prefill."""
    prefill_s: float
    """Seconds until the first token is on the host."""
    decode_s: float
    """Seconds from the first token to the last."""
    phases: Phases | None = None
    """Seconds of the decode steps by phase."""
    peak_memory_bytes: int | None = None
    """Peak memory of the device for the target, its cache and only this method."""
    energy_j: float | None = None
    """Energy of the whole card in joules."""
    trace: tuple[TracedStep, ...] = ()
    """Steps with the log-probabilities of their drafts. Empty without --trace."""
    draft_prefill_s: float | None = None
    """The part of `decode_s` in which the drafter read the prompt. None on a GPU, where measuring
    it would mean waiting for the device.
    """
    outer_s: float | None = None
    """Seconds of the whole completion, measured by a clock outside the decoding loop. They include
    the loop's work before and after the timed parts.
    """

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def accept_lengths(self) -> tuple[int, ...]:
        return tuple(step.accept_length for step in self.steps)

    @property
    def num_nodes(self) -> tuple[int, ...]:
        return tuple(step.num_nodes for step in self.steps)

    @property
    def wall_s(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def least_s(self) -> float:
        """The smallest of the completion's times. It is negative if the clock went back, and 0 if
        it stood still.
        """
        outer_s = self.wall_s if self.outer_s is None else self.outer_s
        phases = astuple(self.phases) if self.phases else ()
        parts = (self.draft_prefill_s or 0.0, outer_s - self.wall_s, *phases)  # may be zero
        work_s = self.decode_s if self.steps else self.wall_s
        return min(0.0, self.prefill_s, *parts) or work_s
