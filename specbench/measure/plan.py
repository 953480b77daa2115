"""Make the plan of a run from its spec: resolve names and check files, but load nothing.

All of the user's mistakes show here, before a run folder exists.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.measure.base import ChecksMemory, Plan, Setup
from specbench.measure.methods import BASELINE, check_choices, check_sources
from specbench.measure.passes import check_goal, default_passes
from specbench.measure.prompt_checks import check_ids, check_lengths, check_loads, longest_chat
from specbench.measure.spec import AUTO, PAPER, SPREAD, RunSpec
from specbench.models.cards import pick_dtype
from specbench.models.checkpoints import check_checkpoint
from specbench.models.templates import check_own_template, check_template
from specbench.settings.files import read_settings

MAX_PROMPTS = 10**9
"""The number of prompts that a task is assumed to have until its prompts are read."""
OUR_BUDGET = 128
"""Default number of new tokens per answer for tiny and stand-ins."""
DEFAULT_BUDGET = 512
"""Default number of new tokens per answer for real models, as in papers."""


SetupMaker = Callable[..., Setup]
"""Makes the setup of a spec, as `make_setup` does. Its keyword argument is `is_offline`."""


def make_setup(spec: RunSpec, *, is_offline: bool = False) -> Setup:
    """Find and check what the spec's backend needs: the engine in this process, or servers.

    The module of a backend is imported only if the backend is used. With `is_offline`, nothing is
    downloaded.

    Raises:
        UserError: an unknown name, a wrong value, or a missing or broken file.
    """
    if spec.backend == "server":
        if spec.serving_engine:
            from specbench.measure.server.started_setup import make_started_setup

            return make_started_setup(spec, is_offline=is_offline)
        from specbench.measure.server.running_setup import make_running_setup

        return make_running_setup(spec, is_offline=is_offline)
    from specbench.measure.local.engine_setup import make_engine_setup

    return make_engine_setup(spec, is_offline=is_offline)


def make_plan(
    spec: RunSpec, *, is_offline: bool = False, setup_maker: SetupMaker | None = None
) -> Plan:
    """Resolve and check everything that `spec` names, the cheap checks first.

    `setup_maker` makes the setup of a run on other machines; None if this machine runs the methods
    or asks the servers. With `is_offline`, nothing is downloaded. The plan has the spec with its
    defaults, the setup, the prompts of each task, and the largest number of new tokens per answer.

    Raises:
        UserError: an unknown name, a wrong value, a missing or broken file, --until-ci in a run
            that cannot have intervals, fewer prompts than requests at once, a prompt that is too
            long, no prompt that the model can read, or too little memory.
    """
    is_here = setup_maker is None  # this machine runs the methods or asks the servers
    if is_here:
        check_early(spec)
    spec = with_defaults(spec)
    tasks = plan_tasks(spec.tasks, spec.prompts)
    # `check_goal` raises for --until-ci with too few methods, passes or prompts for any
    # confidence interval. This first call runs before torch is imported, when neither the prompts
    # nor the default methods are known. It assumes the largest possible number of prompts per task,
    # and two methods if none is named.
    # `limit` and `sample` are the user's numbers of prompts to take and to draw per task, or None.
    max_prompts = min(spec.limit or MAX_PROMPTS, spec.sample or MAX_PROMPTS)
    num_methods = len({*spec.methods, BASELINE}) if spec.methods else 2
    check_goal(spec, num_methods, [max_prompts] * len(tasks))
    if is_here and not spec.backend:  # the methods run in this process, not on servers
        for method in spec.run_methods:
            method.load()  # imports the method, and raises for options that do not agree
    prompt_sets = load_prompt_sets(
        tasks,
        spec.prompts,
        num_prompts=spec.limit,
        is_spread=spec.limit_order == SPREAD,  # over the categories; False: the first prompts
        offline=is_offline,
    )
    # The model or the servers, found and checked; nothing is loaded yet.
    setup = (setup_maker or make_setup)(spec, is_offline=is_offline)
    if spec.sample is not None:
        prompt_sets = tuple(prompt_set.drawn(spec.sample, spec.seed) for prompt_set in prompt_sets)
    check_loads(spec, prompt_sets)  # a task needs as many prompts as there are requests at once
    # Check again, now that the methods and the prompts are known.
    check_goal(spec, len(setup.labels), [len(prompt_set.prompts) for prompt_set in prompt_sets])
    budget = new_tokens(spec)  # the most new tokens per answer
    # A server refuses a request that could exceed its context, so the whole budget must fit. Our
    # engine ends an answer at the end of the context, so room for a single new token is enough.
    num_reserved = budget if spec.backend == "server" else 1
    # Raises if each prompt, or the chat template, has a token that the model has no embedding for.
    check_ids(setup, prompt_sets)
    check_lengths(setup, prompt_sets, spec, num_reserved=num_reserved)  # raises for a long prompt
    if isinstance(setup, ChecksMemory):  # the engine in this process
        # Raises if the longest prompt with its answer does not fit into the device's memory.
        setup.check_memory(longest_chat(setup, prompt_sets, budget))
    return Plan(spec, setup, prompt_sets, budget)


def check_early(spec: RunSpec) -> None:
    """Check the names, options, folders, datastores and templates of a run in this process.

    This runs before torch is imported, so that a misspelt name costs no time. Nothing is
    downloaded, and no method's code runs. Rules between options, the options of plug-ins, and GPUs
    are checked later. For a run on servers, only the model's name is checked here.

    Raises:
        UserError: a name is unknown, a value is wrong, or a file is missing or damaged.
    """
    card = spec.card  # the model's card; raises for an unknown model
    if spec.backend:  # servers, whose setup checks the methods
        return
    if spec.settings not in (AUTO, PAPER):  # the path of a file of settings, or of a run
        read_settings(spec.settings, card.name)
    check_choices(spec.choices)  # the methods and groups of methods that were named
    is_folder = Path(card.repo).is_dir()  # else a GGUF file or a Hub id
    if spec.weights != "stand-in":  # a stand-in needs no files of the model or its drafters
        if is_folder:
            check_checkpoint(Path(card.repo), what=f"Model {card.name}")
        check_sources(card, spec.choices)  # the local weights and datastores of named methods
    pick_dtype(card, spec.dtype, "cpu")  # raises for an unknown dtype
    check_template(spec.template)  # raises for an unknown chat template
    if is_folder:
        check_own_template(spec.template, card, Path(card.repo))  # the folder's template, if used


def with_defaults(spec: RunSpec) -> RunSpec:
    """The spec with the source of prompts, the methods, and the number of passes filled in.

    Each method that the user named becomes a name with its options, as in `pld:num_tokens=5`, and
    groups of methods are replaced by their members. `methods` is empty if no method was named. It
    is also empty if `all` was named for a serving engine: then all methods of this engine run.

    Raises:
        UserError: an unknown model or method.
    """
    is_ours = _is_ours(spec)  # True for the embedded model (tiny) and stand-in weights
    prompt_source = spec.prompts
    if prompt_source == "auto":  # tiny and stand-ins only exercise specbench
        prompt_source = "bundled" if is_ours else "paper"
    methods: tuple[str, ...] = ()
    if not (spec.serving_engine and spec.methods == ("all",)):
        methods = tuple(str(method.asked) for method in spec.run_methods)
    num_passes = spec.repeats or default_passes(spec, is_ours=is_ours)
    return replace(spec, prompts=prompt_source, methods=methods, repeats=num_passes)


def new_tokens(spec: RunSpec) -> int:
    """The largest number of new tokens per answer, as the user gave it, or the model's default."""
    return spec.max_new_tokens or (OUR_BUDGET if _is_ours(spec) else DEFAULT_BUDGET)


def _is_ours(spec: RunSpec) -> bool:
    """True for the embedded model and stand-ins."""
    return spec.weights == "stand-in" or spec.card.is_embedded
