"""Check the values of a run's options before any file is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError, convert, json
from msgspec.structs import force_setattr

from specbench.errors import UserError, few, unknown_name
from specbench.log.options import options
from specbench.log.spec import SpecValues, parse_goodput, parse_template_args
from specbench.registry import MethodChoice, expand_groups, parse_choices, with_known_names
from specbench.types import Sampling

if TYPE_CHECKING:
    from specbench.models.cards import ModelCard
    from specbench.settings.run_method import RunMethod

_NO_DEVICES = ("gpu", "nvidia", "gpu:0")
"""Names that users give to a GPU, but that torch does not know."""
AUTO = "auto"
"""The value of --settings for settings that are chosen for this machine."""
PAPER = "paper"
"""The value of --settings for the settings of the papers."""
SPREAD = "spread"
"""The order in which `--limit` takes prompts in a new run: spread over a task. Stored runs without
an order took the first prompts.
"""


_FOR_STARTED_SERVERS = ("threads", "settings")
"""Options of the engine in this process that are also for servers that --engine starts."""


class RunSpec(SpecValues, frozen=True, dict=True):
    """The values of a run's options, checked to be within their ranges.

    Without `methods`, the papers' methods, training-free methods and plug-ins run. Without `tasks`,
    the papers' six tasks run.

    Raises:
        UserError: a value is out of range.
    """

    def __post_init__(self) -> None:
        """Bring lists and names into their usual form, and check the options.

        Lists of numbers lose their duplicates. Methods and tasks get the names under which they are
        registered. Unknown names stay: later checks refuse them. `force_setattr` sets a field
        although the spec is frozen.

        Raises:
            UserError: an engine is unknown, or values are out of range or in conflict.
        """
        for field_name in ("temperatures", "concurrency", "request_rates"):
            force_setattr(self, field_name, tuple(dict.fromkeys(getattr(self, field_name))))
        # "EAGLE-2:depth=3" becomes "eagle2:depth=3".
        force_setattr(self, "methods", tuple(map(with_known_names, self.methods)))
        # "GSM8K" becomes "gsm8k". Names in lower case without hyphens stay, and no card is read.
        if any(task != task.lower() or "-" in task for task in self.tasks):
            from specbench.data.tasks import known_names

            force_setattr(self, "tasks", known_names(self.tasks))
        if self.device in _NO_DEVICES:
            raise UserError(f"No device {self.device!r}.", "For an NVIDIA GPU: --device cuda.")
        for option in options(SpecValues):  # each declares a field with its limits and choices
            setting = getattr(self, option.name)
            if option.name == "device":
                setting = setting.partition(":")[0]  # the kind of device: "cuda" for "cuda:1"
            option.check(setting)  # raises for a value that the option does not allow
        if self.serving_engine:
            from specbench.measure.server import NAMES  # engines whose servers a run can start

            if self.serving_engine not in NAMES:
                raise unknown_name("engine", self.serving_engine, NAMES)
        # These three functions are called because they raise: `parse_goodput` for wrong limits of
        # latency, `parse_template_args` for wrong arguments, and `server_root` for wrong addresses.
        parse_goodput(self.goodput)
        parse_template_args(self.template_args)
        if self.urls:
            from specbench.measure.server.address import server_root

            for url in self.urls:
                server_root(url)
        if self.limit and self.sample:
            raise UserError(
                f"--limit {self.limit} and --sample {self.sample} are both given.",
                "Give one: --limit takes the same prompts in every run, --sample draws them.",
            )
        if not self.temperatures:
            raise UserError("No temperature is given.", "Give --temperature 0, 1 or 0,1.")
        _check_backend(self)

    @cached_property
    def card(self) -> ModelCard:
        """The card of the model.

        Raises:
            UserError: the model is unknown, or its folder has no valid card.
        """
        from specbench.models.cards import find_model

        return find_model(self.model)

    @cached_property
    def choices(self) -> tuple[MethodChoice, ...]:
        """The methods and groups of methods that were named.

        Raises:
            UserError: a text is not a list of methods.
        """
        return tuple(parse_choices(self.methods))

    @cached_property
    def run_methods(self) -> tuple[RunMethod, ...]:
        """The methods that were named, with groups replaced by their members. None is imported yet.

        `registry.check_choice`, and the `load` of a method, raise its errors.

        Raises:
            UserError: a text is not a list of methods, or gives options to a group.
        """
        from specbench.settings.run_method import RunMethod

        methods = [RunMethod(choice) for choice in expand_groups(self.choices)]
        labels = [method.label for method in methods]
        # If labels are equal, because files have the same name, they get a hash of the file.
        return tuple(replace(method, has_hash=labels.count(method.label) > 1) for method in methods)

    def sampling(self, temperature: float) -> Sampling:
        """The sampling at one of the run's temperatures."""
        if temperature == 0:
            return Sampling(temperature, top_p=1.0, top_k=0)
        return Sampling(temperature, self.top_p, self.top_k)

    def samplings_text(self) -> str:
        """The samplings at all temperatures as a text, in the form that files of settings use."""
        return " and ".join(str(self.sampling(temperature)) for temperature in self.temperatures)


def new_spec_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a new run. Values that are not given get the command's defaults.

    Stored runs and recipes have other defaults.
    """
    settings = PAPER if values.get("backend") else AUTO
    return {"repeats": None, "settings": settings, "limit_order": SPREAD} | {**values}


def starting(spec: RunSpec, *, has_tasks: bool = True) -> str:
    """The first line of a run, such as "Starting: tiny, pld, sps, gsm8k"."""
    methods = dict.fromkeys(choice.name for choice in spec.choices)
    words = [f"Starting: {spec.model}", few([*methods]) or "its default methods"]
    if has_tasks:
        words.append(few(spec.tasks) or "the default tasks")
    return ", ".join(words)


def _check_backend(values: SpecValues) -> None:
    """Refuse options for servers in a run of our engine, and options for our engine with servers.

    Options with their default values are allowed. `values.backend` is "server", or empty for our
    engine, in this process. `option.backend` is "server" or "engine" for options that only one of
    these takes. Servers that --engine starts (`values.serving_engine`) also take some options of
    our engine.

    Raises:
        UserError: such an option has a value other than its default.
    """
    used_options = [
        option for option in options(SpecValues) if getattr(values, option.name) != option.default
    ]
    server_flags = [option.flag for option in used_options if option.backend == "server"]
    engine_flags = [
        option.flag
        for option in used_options
        if option.backend == "engine"
        and not (option.name in _FOR_STARTED_SERVERS and values.serving_engine)
    ]
    if not values.backend and server_flags:
        verb = "is" if len(server_flags) == 1 else "are"
        raise UserError(
            f"{', '.join(server_flags)} {verb} for servers.",
            "Add --url, --engine or --backend server, or leave it out.",
        )
    if values.backend and engine_flags:
        raise UserError(
            f"{', '.join(engine_flags)} is for methods in this process, not for servers.",
            "Leave it out.",
        )


def make_spec(**values: Any) -> RunSpec:
    """The spec of a run whose options a Python program gives as keyword arguments.

    `values` maps the names of the spec's fields to the values of the options. A text or a number
    may stand for a list, such as "0,1" or 0.7 for a list of temperatures.

    Raises:
        UserError: a name is unknown, or a value has the wrong type or is out of range.
    """
    options_by_name = {option.name: option for option in options(SpecValues)}
    for name, argument in values.items():
        if name not in options_by_name:
            raise unknown_name("value", name, options_by_name)
        is_many = options_by_name[name].is_many  # the option's value is a list
        if isinstance(argument, Path):
            values[name] = str(argument)
        elif isinstance(argument, dict):  # such as template arguments, which the spec keeps as JSON
            values[name] = json.encode(argument).decode()
        elif is_many and isinstance(argument, str):
            values[name] = options_by_name[name].read([argument])  # most options split "a,b"
        elif is_many and isinstance(argument, int | float):
            values[name] = [argument]
    try:
        return convert(values, RunSpec)  # a UserError of `__post_init__` is not caught here
    except ValidationError as error:
        # The message is "Expected `int`, got `str` - at `$.seed`", or for an item of a list
        # "... - at `$.tasks[0]`".
        reason, _, json_path = str(error).partition(" - at ")
        wrong_name = json_path.strip("`$.").partition("[")[0]  # "seed", "tasks"
        raise UserError(
            f"{wrong_name}={values[wrong_name]!r} has the wrong type.",
            f"{reason.replace('`', '')}.",
        ) from error
