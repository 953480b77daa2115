"""From a spec to everything a run needs: names resolved and files checked, nothing loaded.

All of the user's mistakes surface here, before a run folder exists. The passes of a run over
its prompts end when all were made, or when intervals are narrow enough.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from specbench.analysis.stats.confidence import MIN_DEGREES
from specbench.data.prompts import PromptSet, load_prompt_sets, plan_tasks
from specbench.errors import UserError
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.measure.base import ChecksMemory, Plan, Setup
from specbench.measure.methods import BASELINE, find_datastore, no_weights
from specbench.measure.spec import AUTO, PAPER, RunSpec
from specbench.methods import described
from specbench.models.cards import DraftWeights, ModelCard, find_model, pick_dtype
from specbench.models.chat import check_own_template, check_template
from specbench.models.checkpoints import check_checkpoint
from specbench.models.hub import local_folder
from specbench.registry import GROUPS, MethodChoice, check_choice, expand_groups, parse_choices
from specbench.settings.files import read_settings
from specbench.settings.run_method import parse_methods
from specbench.types import Record

PASSES = 3
"""Passes over the prompts for tiny and stand-ins, so that intervals cover the machine too."""
MOST_PASSES = 20
"""Passes of a run that ends when its intervals are narrow enough (--until-ci)."""
LEAST_PASSES = 3
"""Passes before --until-ci may end a run: with fewer, their variance is hardly known."""
MANY = 10**9
"""Prompts of a task whose number is unknown."""
OUR_BUDGET, DEFAULT_BUDGET = 128, 512
"""Default new tokens of an answer: of tiny and stand-ins, and of real models, as in papers."""


SetupMaker = Callable[..., Setup]
"""Makes a spec's setup, with `is_offline`: `make_setup`, or that of a cluster."""


def make_setup(spec: RunSpec, *, is_offline: bool = False) -> Setup:
    """Find and check what the spec's backend needs: the engine in this process, or servers.

    Its module is loaded only when it is used.

    Raises:
        UserError: an unknown name, a wrong value, or a missing or broken file.
    """
    if spec.backend == "server":
        from specbench.measure.server.setup import make_server_setup, make_started_setup

        if spec.serving_engine:
            return make_started_setup(spec, is_offline=is_offline)
        return make_server_setup(spec, is_offline=is_offline)
    from specbench.measure.local.engine_setup import make_engine_setup

    return make_engine_setup(spec, is_offline=is_offline)


def make_plan(
    spec: RunSpec, *, is_offline: bool = False, setup_maker: SetupMaker | None = None
) -> Plan:
    """Resolve and check everything that `spec` names, the cheap things first.

    `setup_maker` is for setups that are elsewhere; by default the spec's backend is set up here.

    Raises:
        UserError: an unknown name, a wrong value, or a missing or broken file.
    """
    is_here = setup_maker is None
    if is_here:
        check_names(spec)
    spec = with_defaults(spec)
    tasks = plan_tasks(spec.tasks, spec.prompts)
    # Before torch is imported, with as many prompts and methods as there may be.
    most = min(spec.limit or MANY, spec.sample or MANY)
    check_goal(spec, len({*spec.methods, BASELINE}) if spec.methods else 2, [most] * len(tasks))
    if is_here and not spec.backend:  # rules between options, before anything is downloaded
        parse_methods(spec.methods)
    sets = load_prompt_sets(tasks, spec.prompts, limit=spec.limit, offline=is_offline)
    setup = (setup_maker or make_setup)(spec, is_offline=is_offline)
    if spec.sample is not None:
        sets = tuple(one.drawn(spec.sample, spec.seed) for one in sets)
    _check_loads(spec, sets)
    check_goal(spec, len(setup.labels), [len(one.prompts) for one in sets])
    budget = new_tokens(spec)
    _check_lengths(setup, sets, spec, reserved=budget if spec.backend == "server" else 1)
    if isinstance(setup, ChecksMemory):
        setup.check_memory(_longest(setup, sets, budget))
    return Plan(spec, setup, sets, budget)


def check_names(spec: RunSpec) -> None:
    """Check names, options, folders, datastores and templates, in this order.

    Before torch is imported: a misspelt name costs no time. Nothing is downloaded, and no
    method's code runs. Rules between options, plug-ins that declare their options elsewhere and
    GPUs are checked later.

    Raises:
        UserError: a name is unknown, a value is wrong, or a file is missing or damaged.
    """
    card = find_model(spec.model)
    if spec.backend:
        return
    if spec.settings not in (AUTO, PAPER):
        read_settings(spec.settings, card.name)
    choices = parse_choices(spec.methods)
    for choice in choices:
        if choice.name not in GROUPS:
            check_choice(choice)
        elif choice.given:
            expand_groups([str(choice)])  # says why not
    if spec.weights != "stand-in":
        _check_files(card, [one for one in choices if one.name != BASELINE])
    pick_dtype(card, spec.dtype, "cpu")
    check_template(spec.template)
    if Path(card.repo).is_dir():
        check_own_template(spec.template, card, Path(card.repo))


def _check_files(card: ModelCard, choices: Sequence[MethodChoice]) -> None:
    """Check the model's folder and the files that methods are given, as far as they are local."""
    if Path(card.repo).is_dir():
        check_checkpoint(Path(card.repo), what=f"Model {card.name}")
    lacking = []
    for name, given in ((one.name, one.given) for one in choices):
        own = about.weights if (about := described().get(name)) else None
        what = f"The {name} checkpoint"
        if "weights" in given and (folder := local_folder(given["weights"], what=what)):
            is_model = DraftWeights(own or name, given["weights"]).is_model
            check_checkpoint(folder, what=what, needs_tokenizer=is_model)
        find_datastore(given.get("datastore", ""))
        if own and not {"weights", "datastore"} & {*given} and not card.weights_of(name):
            lacking.append(name)
    if lacking and len(lacking) == len(choices):
        raise no_weights(card, lacking)


def with_defaults(spec: RunSpec) -> RunSpec:
    """The spec with its source of prompts, its methods one by one, and its number of passes.

    A serving engine runs all of its own methods if none is named.

    Raises:
        UserError: an unknown model or method.
    """
    is_every_one = spec.serving_engine and spec.methods == ("all",)
    # What only exercises specbench takes the prompts of specbench.
    usual = "bundled" if _is_ours(spec) else "paper"
    return replace(
        spec,
        prompts=usual if spec.prompts == "auto" else spec.prompts,
        methods=() if is_every_one else expand_groups(spec.methods),
        repeats=spec.repeats or _passes(spec),
    )


def _passes(spec: RunSpec) -> int:
    """Default number of passes: the most with --until-ci, one for servers and for a paper's
    whole datasets, three for tiny and stand-ins, else two, since one pass claims nothing.
    """
    if spec.until_ci:
        return MOST_PASSES
    if spec.backend:
        return 1
    if _is_ours(spec):
        return PASSES
    is_short = bool(spec.limit) or spec.prompts == "bundled"  # a pass of a paper's takes hours
    return 2 if is_short else 1


def new_tokens(spec: RunSpec) -> int:
    """New tokens of an answer at most: the given number, or the default for the model."""
    return spec.max_new_tokens or (OUR_BUDGET if _is_ours(spec) else DEFAULT_BUDGET)


def _is_ours(spec: RunSpec) -> bool:
    """True for the embedded model and stand-ins."""
    return spec.weights == "stand-in" or find_model(spec.model).is_embedded


def _length(setup: Setup, text: str) -> int:
    """Tokens of the prompt for a user's first message."""
    return len(setup.codec.render([{"role": "user", "content": text}]))


def _longest(setup: Setup, sets: Sequence[PromptSet], budget: int) -> int:
    """Tokens that the longest chat may grow to, as far as the model's context allows."""
    longest = max(
        sum(_length(setup, text) + budget for text in prompt.turns)
        for prompt_set in sets
        for prompt in prompt_set.prompts
    )
    return longest if setup.context is None else min(longest, setup.context)


def _check_loads(spec: RunSpec, sets: Sequence[PromptSet]) -> None:
    """Refuse requests at once that a task has too few prompts for."""
    most = max(spec.concurrency, default=0)
    for prompt_set in sets:
        if most > (number := len(prompt_set.prompts)):
            raise UserError(
                f"--concurrency {most} needs {most} prompts a task, and {prompt_set.task.name} has "
                f"{number}.",
                "Use more prompts (--limit, --prompts paper), or a lower --concurrency.",
            )


def _check_lengths(
    setup: Setup, sets: Sequence[PromptSet], spec: RunSpec, *, reserved: int
) -> None:
    """Refuse a prompt whose first turn leaves no room for `reserved` tokens in the context.

    A server refuses a request that could outgrow its context, so that its whole budget counts.
    """
    context = setup.context
    if context is None:
        return
    more = " Servers that --engine starts have at most 4096: start one, and give its --url."
    more = more if spec.serving_engine else ""
    for prompt_set in sets:
        for prompt in prompt_set.prompts:
            length = _length(setup, prompt.turns[0])
            if (room := context - length) < reserved:
                less = f"Give --max-new-tokens {room}, l" if room > 0 else "L"
                raise UserError(
                    f"Prompt {prompt.sample_id} has {length} tokens, and the model's context of "
                    f"{context} tokens has no room for {reserved} new.",
                    f"{less}eave the prompt out (--limit, --dataset), or use a model or a server "
                    f"with more context.{more}",
                )


@dataclass(frozen=True, slots=True)
class Width:
    """The largest relative half width of the mean speedups' intervals after some passes.

    None if a speedup has no interval.

    `goal` is the value of --until-ci.
    """

    passes: int
    goal: float
    half: float | None

    @property
    def is_enough(self) -> bool:
        return self.passes >= LEAST_PASSES and self.half is not None and self.half <= self.goal

    def __str__(self) -> str:
        half = "no interval yet" if self.half is None else f"± {self.half:.1%}"
        reached = ", reached" if self.is_enough else ""
        return f"pass {self.passes}: {half}, --until-ci ± {self.goal:.1%}{reached}"


def width_after(header: RunHeader, records: Sequence[Record]) -> Width | None:
    """The width after the records of whole passes; None without --until-ci."""
    from specbench.analysis.metrics import measure  # imports numpy

    goal = header.spec.values.until_ci
    if goal is None:
        return None
    metrics = measure(Run(header, tuple(records)))
    means = [value for one in metrics.rankings.values() for value in one.speedups.values()]
    halves = [one.interval.half_width / one.value for one in means if one.interval is not None]
    is_known = bool(means) and len(halves) == len(means)
    return Width(metrics.scope.number, goal, max(halves) if is_known else None)


def check_goal(spec: RunSpec, num_methods: int, prompts: Sequence[int]) -> None:
    """Refuse --until-ci where no interval can come: `prompts` are the numbers of each task.

    Raises:
        UserError: no method to compare with vanilla, too few prompts, or too few passes.
    """
    if spec.until_ci is None:
        return
    asked = f"--until-ci {100 * spec.until_ci:g}%"
    if num_methods < 2 or not spec.is_baseline_run:
        raise UserError(f"{asked} needs vanilla and another method.", "Name one: --method pld.")
    if spec.repeats and spec.repeats < LEAST_PASSES:
        raise UserError(
            f"{asked} needs {LEAST_PASSES} passes, and --repeats {spec.repeats} allows fewer.",
            f"Leave out --repeats, or give the most passes: {LEAST_PASSES} or more.",
        )
    if not has_interval(prompts):
        raise UserError(
            f"{asked} cannot be reached: too few prompts for an interval ({sum(prompts)} in all).",
            f"Use {least_prompts(len(prompts))} prompts a task or more (--limit, --dataset).",
        )


def has_interval(prompts: Iterable[int]) -> bool:
    """True if tasks with these numbers of prompts give the mean an interval."""
    return sum(number - 1 for number in prompts) > MIN_DEGREES


def least_prompts(num_tasks: int) -> int:
    """The fewest prompts a task that give an interval."""
    return 2 + MIN_DEGREES // num_tasks


def finished_header(header: RunHeader, records: Sequence[Record]) -> RunHeader:
    """The header of a complete run: after --until-ci, with the passes that it took."""
    spec = header.spec
    if spec.values.until_ci is None:
        return header
    repeats = 1 + max((record.key.repeat for record in records), default=0)
    asked = spec.asked and replace(spec.asked, repeats=repeats)
    values = replace(spec.values, repeats=repeats)
    spec = replace(spec, values=values, asked=asked)
    width, told = width_after(header, records), header.warnings
    if width and not width.is_enough:
        told = (*told, f"The goal of --until-ci was not reached: {width}.")
    return replace(header, spec=spec, num_records=len(records), warnings=told)
