"""What a run is asked to do: every value, checked before any file or weight is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from specbench.errors import UserError, unknown_name
from specbench.types import Sampling

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
WEIGHTS = ("hub", "stand-in")
EXECUTIONS = ("auto", "eager", "graph")


@dataclass(frozen=True, slots=True)
class RunSpec:
    """All values of a run. Empty `methods` and `tasks` mean every one there is.

    `max_new_tokens` 0 stands for the model card's own default; the effective figure is in the
    run's header.
    """

    model: str = "tiny"
    methods: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    prompts: str = "bundled"
    limit: int | None = None
    temperatures: tuple[float, ...] = (0.0,)
    top_p: float = 1.0
    max_new_tokens: int | None = None
    repeats: int = 1
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    template: str = "auto"
    history: Literal["shared", "own"] = "shared"
    is_baseline_run: bool = True
    phases: bool = False
    weights: str = "hub"
    execution: str = "auto"
    trace: bool = False

    def __post_init__(self) -> None:
        _at_least("--limit", self.limit, 1)
        _at_least("--max-new-tokens", self.max_new_tokens, 1)
        _at_least("--repeats", self.repeats, 1)
        _at_least("--seed", self.seed, 0)
        for temperature in self.temperatures:
            if not 0 <= temperature < float("inf"):
                raise UserError(
                    f"--temperature {temperature} is no temperature.",
                    "Give 0 for greedy decoding, or a positive number such as 1.",
                )
        if not self.temperatures:
            raise UserError("No temperature is given.", "Give --temperature 0, 1 or 0,1.")
        if not 0 < self.top_p <= 1:
            raise UserError(
                f"--top-p {self.top_p} is no share of probability.",
                "Give a number above 0 and up to 1; 1 turns it off.",
            )
        if self.device.partition(":")[0] not in DEVICES:
            raise unknown_name("device", self.device, DEVICES)
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        if self.history not in ("shared", "own"):
            raise unknown_name("history", self.history, ("shared", "own"))
        if self.weights not in WEIGHTS:
            raise unknown_name("kind of weights", self.weights, WEIGHTS)
        if self.execution not in EXECUTIONS:
            raise unknown_name("execution", self.execution, EXECUTIONS)

    def sampling(self, temperature: float) -> Sampling:
        """How tokens are picked at one of the run's temperatures."""
        return Sampling(temperature, self.top_p if temperature else 1.0)

    def to_json(self) -> dict[str, Any]:
        """The values as `run.json` holds them."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunSpec:
        """The spec that `to_json` wrote; fields unknown to this version are left out."""
        known = {f.name for f in fields(cls)}
        picked: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in known
        }
        return cls(**picked)

    def differences(self, other: RunSpec) -> list[str]:
        """The values in which two specs differ, in words."""
        mine, theirs = self.to_json(), other.to_json()
        return [
            f"{name} is {theirs[name]!r} there and {mine[name]!r} here"
            for name in mine
            if mine[name] != theirs[name]
        ]


def _at_least(option: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise UserError(f"{option} {value} is too small.", f"Give {option} at least {low}.")
