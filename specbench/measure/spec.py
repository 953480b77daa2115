"""The specification of a run: every value, checked before any file or weight is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert

from specbench.analysis.goodput import parse_goodput
from specbench.errors import UserError, unknown_name
from specbench.log.spec import SpecValues
from specbench.measure.backends import SETUPS
from specbench.types import Sampling

CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantize": ("", "int8", "int4"),
    "history": ("shared", "own"),
    "weights": ("hub", "stand-in"),
    "execution": ("auto", "eager", "graph"),
    "backend": tuple(SETUPS),
    "serving_engine": ("", "vllm", "sglang", "llamacpp"),
}
"""Values that a field may have. A device may have a number too, as in "cuda:1"."""
_NO_DEVICES = ("gpu", "nvidia", "gpu:0")
_LEAST = {
    **dict.fromkeys(("limit", "sample", "max_new_tokens", "repeats", "threads"), 1),
    **dict.fromkeys(("top_k", "seed"), 0),
}


class RunSpec(SpecValues, frozen=True):
    """Values of a run within their ranges. Without `methods`, those of the papers,
    training-free ones and plug-ins run; without `tasks`, the six of the papers.

    Raises:
        UserError: a value is out of range.
    """

    def __post_init__(self) -> None:
        for name, low in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < low:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} {value} is too small.", f"Give {option} at least {low}.")
        for temperature in self.temperatures:
            if not 0 <= temperature < float("inf"):
                raise UserError(
                    f"--temperature {temperature} is not a valid temperature.",
                    "Give 0 for greedy decoding, or a positive number such as 1.",
                )
        if any(size < 1 for size in self.pad_to):
            raise UserError(f"--pad-to {min(self.pad_to)} is too small.", "Give at least 1.")
        if self.until_ci is not None and not 0 < self.until_ci < 1:
            raise UserError(
                f"--until-ci {self.until_ci:g} is not a share.", "Give one such as --until-ci 2%."
            )
        if self.limit and self.sample:
            raise UserError(
                f"--limit {self.limit} and --sample {self.sample} are both given.",
                "Give one: --limit takes the first prompts of a task, --sample draws some.",
            )
        if not self.temperatures:
            raise UserError("No temperature is given.", "Give --temperature 0, 1 or 0,1.")
        if not 0 < self.top_p <= 1:
            raise UserError(
                f"--top-p {self.top_p} is not a valid probability mass.",
                "Give a number above 0 and up to 1; 1 turns it off.",
            )
        if self.device in _NO_DEVICES:
            raise UserError(f"No device {self.device!r}.", "For an NVIDIA GPU: --device cuda.")
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if (value.partition(":")[0] if name == "device" else value) not in choices:
                kind = {
                    "weights": "kind of weights",
                    "serving_engine": "engine",
                    "quantize": "format of quantised weights",
                }.get(name, name)
                raise unknown_name(kind, value, filter(None, choices))
        check_server_values(self)
        if self.quantize and self.weights == "stand-in":
            raise UserError(
                f"A stand-in is not quantised by --quantize {self.quantize}.", "Leave it out."
            )

    def sampling(self, temperature: float) -> Sampling:
        """The sampling at one of the run's temperatures."""
        is_drawn = temperature > 0
        return Sampling(temperature, self.top_p if is_drawn else 1.0, self.top_k * is_drawn)


def check_server_values(values: SpecValues) -> None:
    """Raise UserError for options of servers without one, options of the engine with one, and
    loads or limits that cannot be.
    """
    given = {
        "--url": values.urls,
        "--label": values.labels,
        "--concurrency": values.concurrency,
        "--request-rate": values.request_rates,
        "--goodput": values.goodput,
        "--engine": values.serving_engine,
        "--request-timeout": values.request_timeout_s is not None,
    }
    if not values.backend and (unused := [name for name, value in given.items() if value]):
        raise UserError(
            f"{', '.join(unused)} is for servers.", "Add --backend server, or leave it out."
        )
    for option, numbers in (
        ("--concurrency", values.concurrency),
        ("--request-rate", values.request_rates),
        ("--request-timeout", (values.request_timeout_s or 1,)),
    ):
        for number in numbers:
            if not 0 < number < float("inf"):
                raise UserError(f"{option} {number:g} is not possible.", "Give a number above 0.")
    parse_goodput(values.goodput)
    of_engine = {
        "--threads": values.threads is not None,
        "--quantize": values.quantize,
        "--execution": values.execution != "auto",
        "--weights": values.weights != "hub",
        "--phases": values.phases,
        "--trace": values.trace,
        "--until-ci": values.until_ci is not None,
        "--check-drafts": values.check_drafts,
    }
    if values.backend and (unused := [name for name, value in of_engine.items() if value]):
        raise UserError(
            f"{', '.join(unused)} is for methods in this process, not for servers.",
            "Leave it out.",
        )


def make_spec(**values: Any) -> RunSpec:
    """The spec of values from Python; a single value stands for a list of one.

    Raises:
        UserError: an unknown name, or a value of the wrong type or out of range.
    """
    for name, value in values.items():
        if name not in RunSpec.__struct_fields__:
            raise unknown_name("value", name, RunSpec.__struct_fields__)
        if isinstance(value, Path):
            values[name] = str(value)
        elif name == "tasks" and isinstance(value, str):
            values[name] = [text.strip() for text in value.split(",")]
        elif name in ("methods", "temperatures", "pad_to") and isinstance(value, str | float | int):
            values[name] = [value]
    try:
        return convert(values, RunSpec)
    except ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        name = place.strip("`$.").partition("[")[0]
        raise UserError(
            f"{name}={values[name]!r} has the wrong type.", f"{reason.replace('`', '')}."
        ) from error
