"""The specification of a run: every value, checked before any file or weight is touched."""

from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert
from msgspec.structs import force_setattr

from specbench.errors import UserError, few, unknown_name
from specbench.log.options import options
from specbench.log.spec import SpecValues, parse_goodput
from specbench.registry import parse_choices
from specbench.types import Sampling

_NO_DEVICES = ("gpu", "nvidia", "gpu:0")
AUTO, PAPER = "auto", "paper"
"""Settings chosen for this machine, and those of the papers."""


class RunSpec(SpecValues, frozen=True):
    """Values of a run within their ranges. Without `methods`, those of the papers,
    training-free ones and plug-ins run; without `tasks`, the six of the papers.

    Raises:
        UserError: a value is out of range.
    """

    def __post_init__(self) -> None:
        for name in ("temperatures", "concurrency", "request_rates"):
            force_setattr(self, name, tuple(dict.fromkeys(getattr(self, name))))
        if self.device in _NO_DEVICES:
            raise UserError(f"No device {self.device!r}.", "For an NVIDIA GPU: --device cuda.")
        for option in options(SpecValues):
            value = getattr(self, option.name)
            option.check(value.partition(":")[0] if option.name == "device" else value)
        if self.serving_engine:
            from specbench.measure.server import NAMES

            if self.serving_engine not in NAMES:
                raise unknown_name("engine", self.serving_engine, NAMES)
        parse_goodput(self.goodput)
        if self.urls:
            from specbench.measure.server.address import server_root

            for url in self.urls:
                server_root(url)
        if self.limit and self.sample:
            raise UserError(
                f"--limit {self.limit} and --sample {self.sample} are both given.",
                "Give one: --limit takes the first prompts of a task, --sample draws some.",
            )
        if not self.temperatures:
            raise UserError("No temperature is given.", "Give --temperature 0, 1 or 0,1.")
        _check_backend(self)

    def sampling(self, temperature: float) -> Sampling:
        """The sampling at one of the run's temperatures."""
        is_drawn = temperature > 0
        return Sampling(temperature, self.top_p if is_drawn else 1.0, self.top_k * is_drawn)

    def samplings_text(self) -> str:
        """The samplings at all temperatures, as files of settings name them."""
        return " and ".join(str(self.sampling(temperature)) for temperature in self.temperatures)


def starting(spec: RunSpec, *, has_tasks: bool = True) -> str:
    """The first line of a run: "Starting: tiny, pld, sps, gsm8k"."""
    names = dict.fromkeys(choice.name for choice in parse_choices(spec.methods))
    parts = [f"Starting: {spec.model}", few([*names]) or "its default methods"]
    return ", ".join([*parts, *[few(spec.tasks) or "the default tasks"] * has_tasks])


def _check_backend(values: SpecValues) -> None:
    """Refuse options of servers without one, and options of the engine with one."""
    used = [one for one in options(SpecValues) if getattr(values, one.name) != one.default]
    of_servers = [one.flag for one in used if one.backend == "server"]
    of_engine = [
        one.flag
        for one in used
        if one.backend == "engine" and not (one.name == "threads" and values.serving_engine)
    ]
    if not values.backend and of_servers:
        are = "is" if len(of_servers) == 1 else "are"
        raise UserError(
            f"{', '.join(of_servers)} {are} for servers.",
            "Add --url, --engine or --backend server, or leave it out.",
        )
    if values.backend and of_engine:
        raise UserError(
            f"{', '.join(of_engine)} is for methods in this process, not for servers.",
            "Leave it out.",
        )


def make_spec(**values: Any) -> RunSpec:
    """The spec of values from Python; a single value stands for a list of one.

    Raises:
        UserError: an unknown name, or a value of the wrong type or out of range.
    """
    known = {option.name: option for option in options(SpecValues)}
    for name, value in values.items():
        if name not in known:
            raise unknown_name("value", name, known)
        if isinstance(value, Path):
            values[name] = str(value)
        elif known[name].is_many and isinstance(value, str):
            values[name] = known[name].read([value])
        elif known[name].is_many and isinstance(value, int | float):
            values[name] = [value]
    try:
        return convert(values, RunSpec)
    except ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        name = place.strip("`$.").partition("[")[0]
        raise UserError(
            f"{name}={values[name]!r} has the wrong type.", f"{reason.replace('`', '')}."
        ) from error
