"""The vocabulary: values that travel between packages and are logged, and where the package is.

Plain numbers, strings and token ids.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

VERSION = "0.1.0"
BASELINE = "vanilla"
"""The method that speedups compare with."""

_PACKAGE = Path(__file__).resolve().parent
CHECKOUT = _PACKAGE.parent
"""The folder around the package: the checkout's root, if it is one."""
ROOTS = (_PACKAGE, CHECKOUT) if (CHECKOUT / "pyproject.toml").is_file() else (_PACKAGE,)
"""Folders that hold `datasets/` and `results/`: the wheel's, then a checkout's."""
RUNS = Path("results/runs")
"""Default folder of runs."""


StopReason = Literal["eos", "budget", "length"]
"""Reason that ended a completion: an end token, the request's budget of new tokens, or the
end of the model's context. (Servers call the budget "length".)
"""


Scope = Literal["request", "run"]
"""Lifetime of a method's memory: one request, or all requests of a pass."""


ProfileKind = Literal["pool", "ranks", "path", "token", "text"]
"""The data that an acceptance profile has of a method, for each position of an answer.

pool: all candidates of a dynamic tree. ranks: for static trees, the answer's tokens among the
draft tokens of each depth. path: how much of a drafted chain is right. token: one bit, if a
draft token does not depend on where its draft began. text: nothing, since drafts follow from
the tokens alone.
"""


OptionT = TypeVar("OptionT")


def option(default: OptionT, text: str, **limits: float) -> OptionT:
    """Declare a field of a method's options: its default, help, and limits (min and max)."""
    return field(default=default, metadata={"help": text, **limits})


CONFIG_NAMES = {
    "num_layers": "num_hidden_layers", "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size", "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads", "own_head_dim": "head_dim",
    "vocab_size": "vocab_size", "context": "max_position_embeddings",
}  # fmt: skip
"""The names in config.json of a shape's fields."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama-like model, as in its config.json."""

    num_layers: int
    """Decoder layers."""
    hidden_size: int
    """Width of the hidden states."""
    intermediate_size: int
    """Width of the MLP."""
    num_heads: int
    """Attention heads."""
    num_kv_heads: int
    """Key and value heads."""
    vocab_size: int
    """Rows of the embedding matrix."""
    context: int
    """Positions that the model supports."""
    num_experts: int = 1
    """Experts per layer; 1 for a dense model."""
    architecture: str = "llama"
    """`model_type` of config.json."""
    own_head_dim: int | None = None
    """Size of a head; null if it is hidden_size / num_heads."""

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.hidden_size // self.num_heads

    @property
    def config(self) -> dict[str, Any]:
        """The sizes of a dense model by their names in config.json."""
        sizes = {name: getattr(self, field) for field, name in CONFIG_NAMES.items()}
        return {**sizes, "head_dim": self.head_dim}

    @property
    def num_parameters(self) -> int:
        """Matrix weights, embeddings included; norms and biases (under 0.01 %) are left out."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size * self.num_experts
        return self.num_layers * (attention + mlp) + 2 * self.vocab_size * self.hidden_size


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of the target. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def __str__(self) -> str:
        limits = f", top_p={self.top_p:g}, top_k={self.top_k}"
        return f"{self.temperature:g}" + limits * (limits != ", top_p=1, top_k=0")


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

    `num_nodes` counts the tree's nodes, root and scratch nodes included. `accept_length`
    counts the tokens the step emitted: accepted draft tokens plus the bonus token, less what
    EOS or the budget cut.
    """

    num_nodes: int
    accept_length: int


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of the decode steps by phase, summed over the steps; see `engine.clock`."""

    draft_s: float
    """drafter: observe the last step, propose the next tree."""
    verify_s: float
    """Forward of the target."""
    commit_s: float
    """Acceptance rule, and commit of the accepted path."""
    host_s: float
    """The rest, on the host: counting tokens."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step's tree with the drafter's confidence in each node, and the accepted path."""

    parents: tuple[int, ...]
    """Parent of each node [nodes]; the root's is itself."""
    log_probs: tuple[float | None, ...]
    """Draft log-probability of the path to each node [nodes]; null if it has none."""
    path: tuple[int, ...]
    """Accepted nodes, from the root down."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Figures of an answer from a server, beside its times. None is unknown."""

    began_s: float
    """Seconds from the start of the block to the request."""
    gaps_s: tuple[float, ...] = ()
    """Seconds between arrivals of tokens (inter-token latency)."""
    reported_tokens: int | None = None
    """Tokens that the server counted; null if token_ids are its own, not tokenised text."""
    num_accepted: int | None = None
    """Accepted draft tokens that the server counted for this answer."""
    num_drafts: int | None = None
    """Drafts that the server counted for this answer."""
    server_prefill_s: float | None = None
    """Seconds to the first token by the server's own clock."""
    server_decode_s: float | None = None
    """Seconds of the other tokens by the server's own clock."""
    num_retries: int = 0
    """Earlier attempts that the server refused before it began."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Output of one request, and the time it took.

    `prefill_s` runs until the first token is on the host, `decode_s` from there to the last
    one. `1 + sum(accept_lengths) == num_tokens` always: the prefill's token belongs to no
    step. `draft_prefill_s` is the part of `decode_s` in which the drafter read the prompt;
    None on a GPU, where measuring it would wait for the device. `outer_s` is the whole
    completion by a clock outside of the loop, what the loop does before and after included.
    `phases`, `peak_memory_bytes` (of the device: the target, its cache and what this method
    alone needs besides) and `energy_j` (of the whole card) are None if they were not measured.
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
    draft_prefill_s: float | None = None
    outer_s: float | None = None

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


class RequestKey(NamedTuple):
    """Identity of a request over methods: every method answers it."""

    temperature: float
    task: str
    sample_id: str
    turn: int
    repeat: int
    concurrency: int = 0
    request_rate: float = 0


def seed_of(run_seed: int, key: RequestKey) -> int:
    """The seed of a request's draws: the same for every method and temperature."""
    parts = (run_seed, key.task, key.sample_id, key.turn, key.repeat)
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Identity of one line of `samples.jsonl`: a method's answer to a request.

    `method` is the method's full spelling with the options that were given ("pld:ngram=2").
    `concurrency` (requests at once) or `request_rate` (requests/s) is the load of a server;
    both are 0 for the engine in this process.
    """

    method: str
    temperature: float
    task: str
    sample_id: str
    turn: int
    repeat: int
    concurrency: int = 0
    request_rate: float = 0

    @property
    def request(self) -> RequestKey:
        return RequestKey(*(getattr(self, name) for name in RequestKey._fields))


@dataclass(frozen=True, slots=True)
class Record:
    """One line of `samples.jsonl`: the outcome of one key. Fields as in `log.record`.

    A failed record has status "error", the error's text, and neither tokens nor times.
    `phases`, `peak_memory_bytes` and `energy_j` are None if they were not measured. `trace` is
    written to a file of its own and is not read back. `token_ends` is empty and `place` None
    in records of older versions. `origin` is empty except in merged runs, `worker` except in
    runs on a cluster.
    """

    key: RecordKey
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
    token_ends: tuple[int, ...] = ()
    is_paused: bool = False
    serving: Serving | None = None
    place: int | None = None
    draft_prefill_s: float | None = None
    outer_s: float | None = None
    origin: str = ""
    worker: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer. For a server that sends text, its own count."""
        reported = self.serving.reported_tokens if self.serving else None
        return len(self.token_ids) if reported is None else reported

    @property
    def wall_s(self) -> float | None:
        if self.prefill_s is None or self.decode_s is None:
            return None
        return self.prefill_s + self.decode_s
