"""The vocabulary: the values that travel between the rooms and are logged.

Knows plain numbers, strings and token ids. Knows nothing of torch, models, files or terminals.
"""

from dataclasses import dataclass, field
from typing import Literal

SCHEMA = 1
"""Version of `run.json` and `samples.jsonl`."""

StopReason = Literal["eos", "budget", "length"]
"""Why a completion ended: an end token, the request's budget, or the model's context."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama-like model, as in its config.json.

    `architecture` is the config's model type. `own_head_dim` is given where a head is not the
    hidden size by the heads.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    context: int
    num_experts: int = 1
    architecture: str = "llama"
    own_head_dim: int | None = None

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.hidden_size // self.num_heads

    @property
    def num_parameters(self) -> int:
        """Matrix weights, embeddings included; norms and biases (under 0.01 %) are left out."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size * self.num_experts
        return self.num_layers * (attention + mlp) + 2 * self.vocab_size * self.hidden_size


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target picks a token. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete. `seed` drives every random draw made for it."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    eos_ids: frozenset[int] = frozenset()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One target forward after the prefill.

    `num_nodes` counts the tree's nodes, root and scratch nodes included. `accept_length` counts the
    tokens the step emitted: accepted draft tokens plus the bonus token, less what EOS or the
    budget cut.
    """

    num_nodes: int
    accept_length: int


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of the decode steps went, summed over them.

    `draft_s`: the drafter, to see the last step and propose the next tree. `verify_s`: the
    target's forward. `commit_s`: the rule, and keeping the accepted path. `host_s`: the rest, in
    which tokens are counted and nothing is computed. `engine.clock` says how they are told apart.
    """

    draft_s: float
    verify_s: float
    commit_s: float
    host_s: float


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step's tree and what became of it, where the drafter says how sure it is of its guesses.

    `parents` of the nodes (the root's is itself), `log_probs` of the paths to them as the draft
    holds them (the root's entry means nothing), and `path`, the accepted nodes.
    """

    parents: tuple[int, ...]
    log_probs: tuple[float, ...]
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """What one request produced, and the time it took.

    `prefill_s` runs until the first token is on the host, `decode_s` from there to the last one.
    `1 + sum(accept_lengths) == num_tokens` always: the prefill's token belongs to no step.
    `phases`, `peak_memory_bytes` (of the device, the weights of all that is loaded included) and
    `energy_j` (of the whole card) are None where they were not measured.
    """

    token_ids: tuple[int, ...]
    stop_reason: StopReason
    steps: tuple[Step, ...]
    prefill_s: float
    decode_s: float
    phases: Phases | None = None
    peak_memory_bytes: int | None = None
    energy_j: float | None = None
    trace: tuple[TracedStep, ...] = ()

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


@dataclass(frozen=True, slots=True)
class SampleKey:
    """What identifies one line of `samples.jsonl`; every line has its own."""

    method: str
    temperature: float
    task: str
    sample_id: str
    turn: int
    repeat: int


@dataclass(frozen=True, slots=True)
class Record:
    """One line of `samples.jsonl`: the outcome of one key.

    `method` of the key is the method's full spelling with its given options ("pld:ngram=2"). A
    failed sample has status "error", the error's text, and neither tokens nor times. `phases`,
    `peak_memory_bytes` and `energy_j` are None where they were not measured.
    """

    key: SampleKey
    status: Literal["ok", "error"]
    prompt_tokens: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    stop_reason: StopReason | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    accept_lengths: tuple[int, ...] = ()
    num_nodes: tuple[int, ...] = ()
    seed: int = 0
    error: str | None = None
    phases: Phases | None = None
    peak_memory_bytes: int | None = None
    energy_j: float | None = None
    trace: tuple[TracedStep, ...] = ()

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def wall_s(self) -> float | None:
        if self.prefill_s is None or self.decode_s is None:
            return None
        return self.prefill_s + self.decode_s
