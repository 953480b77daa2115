"""The options of a run in its header: the values in effect, and the values that the user gave.

Each option is declared here, with its help, limits and role. Rules that concern several options are
in `measure.spec`.
"""

from typing import Annotated, Any, Literal

from msgspec import MsgspecError, Struct, json

from specbench.errors import UserError
from specbench.log.options import option, role

QUANTISED = "For quantised weights, give --model the folder or GGUF file that has them."
"""Hint for users who ask for a quantised type, such as int8."""


class SpecValues(Struct, frozen=True):
    """The values of all options of a run. A value that an older version did not write has its
    default.
    """

    # fmt: off
    model: Annotated[str, option(
        "A known model, a folder or a Hub id.", "model", "work", "MODEL")] = "tiny"
    methods: Annotated[tuple[str, ...], option(
        "Methods, such as pld,sps:num_tokens=4; or a group: papers or all", "measure", "method",
        "METHOD,...", parameter="method", form="texts",
        unset="papers, training-free methods and plug-ins", is_compared=True)] = ()
    tasks: Annotated[tuple[str, ...], option(
        "Tasks", "measure", "draw", "TASK,...", parameter="dataset",
        unset="the six of the papers")] = ()
    prompts: Annotated[str, option(
        "Prompts: bundled, paper, hub, or a file", "measure", "work", "SOURCE",
        unset="bundled for tiny and stand-ins, else paper")] = "auto"
    limit: Annotated[int | None, option(
        "Use N prompts per task.", "measure", "draw", least=1)] = None
    limit_order: Annotated[Literal["spread", "first"], option(
        "With --limit: prompts spread over all categories, or the first", "measure", "draw",
        "ORDER", choices=("spread", "first"), unset="spread")] = "first"
    sample: Annotated[int | None, option(
        "Use N prompts per task, drawn with the seed.", "measure", "draw", least=1)] = None
    temperatures: Annotated[tuple[float, ...], option(
        "Temperatures to run; 0 is greedy", "decoding", "work", "T,...",
        parameter="temperature", unset="0", least=0,
        hint="Give 0 for greedy decoding, or a positive number such as 1.",
        is_compared=True)] = (0.0,)
    top_p: Annotated[float, option(
        "Probability mass for nucleus sampling.", "decoding", "work", "P", above=0, most=1,
        hint="Give a number above 0 and up to 1; 1 turns it off.", is_compared=True)] = 1.0
    top_k: Annotated[int, option(
        "Sample among the K most likely tokens; 0: off.", "decoding", "work", "K",
        least=0, is_compared=True)] = 0
    max_new_tokens: Annotated[int | None, option(
        "Most tokens per answer", "decoding", "work", least=1,
        unset="128 for tiny and stand-ins, else 512", is_compared=True)] = None
    repeats: Annotated[int | None, option(
        "Passes over all prompts", "measure", "draw", least=1,
        unset="3 for tiny and stand-ins, 2 with --limit or bundled prompts, else 1")] = 1
    until_ci: Annotated[float | None, option(
        "Repeat until mean speedups have intervals of at most +/- SHARE.", "measure", "draw",
        "SHARE", form="share", above=0, most=1, hint="Give a share such as 2%.",
        backend="engine")] = None
    seed: Annotated[int, option(
        "Seed of all random draws.", "decoding", "draw", least=0, is_compared=True)] = 0
    device: Annotated[str, option(
        "auto, cpu, cuda, cuda:1 or cuda:0-1. A model too large for one GPU gets several.",
        "model", "machine", "DEVICE", choices=("auto", "cpu", "cuda"))] = "auto"
    threads: Annotated[int | None, option(
        "CPU threads per operation; auto measures which number is fastest.", "model",
        "machine", word="auto", least=1, backend="engine")] = None
    dtype: Annotated[str, option(
        "Number format of the weights:", "model", "work", "DTYPE",
        choices=("auto", "float32", "bfloat16", "float16"), hint=QUANTISED)] = "auto"
    template: Annotated[str, option(
        "Chat template: auto, thinking, none, or a name.", "model", "work", "NAME",
        is_compared=True)] = "auto"
    template_args: Annotated[str, option(
        """Values for the chat template in JSON, such as '{"thinking": false}'.""", "model", "work",
        "JSON", is_compared=True)] = ""
    history: Annotated[Literal["shared", "own"], option(
        "Earlier answers in a chat: shared (vanilla's) or own (the method's).", "decoding",
        "work", "KIND", choices=("shared", "own"), is_compared=True)] = "shared"
    settings: Annotated[str, option(
        "Draft sizes: auto (fastest here), paper, or those of a file or a run.", "measure",
        "method", "auto|paper|FILE|RUN", unset="auto on a CPU, else paper",
        backend="engine")] = "paper"
    is_baseline_run: Annotated[bool, option(
        "Run vanilla too, for speedups.", "measure", "method", parameter="baseline")] = True
    phases: Annotated[bool, option(
        "Time the phases of a step; the run has no speedup.", "decoding", "work",
        backend="engine", is_compared=True)] = False
    energy: Annotated[bool, option(
        "Also run each method alone for 6 s or more to measure energy.", "measure", "note",
        backend="engine")] = False
    weights: Annotated[str, option(
        "hub, or stand-in: tiny's weights in the model's shape, no download.", "model", "work",
        "KIND", choices=("hub", "stand-in"), noun="kind of weights", backend="engine")] = "hub"
    execution: Annotated[str, option(
        "auto, eager, or graph: replay CUDA graphs.", "decoding", "machine", "MODE",
        choices=("auto", "eager", "graph"), backend="engine", is_compared=True)] = "auto"
    kernels: Annotated[str, option(
        "Kernels for the layers: torch, plain or overlapped. "
        "auto: the fastest that gives correct results.",
        "model", "machine", "KIND", choices=("auto", "torch", "plain", "overlapped"),
        noun="kind of kernels", backend="engine")] = "auto"
    trace: Annotated[bool, option(
        "Record the drafter's confidence in each node.", "decoding", "note",
        backend="engine")] = False
    check_drafts: Annotated[bool, option(
        "Check every draft and accepted path against the contract; slows steps.",
        "decoding", "note", backend="engine")] = False
    backend: Annotated[str, option(
        "engine: in this process; server: over HTTP.", "server", "work", "KIND",
        choices=("", "server"), word="engine", is_compared=True)] = ""
    serving_engine: Annotated[str, option(
        "Start a server of this engine for each method:", "server", "work", "ENGINE",
        parameter="engine", is_compared=True)] = ""
    engine_command: Annotated[tuple[str, ...], option(
        "The engine's command, if it is not on the PATH.", "server", "machine", "COMMAND",
        form="words")] = ()
    engine_args: Annotated[tuple[str, ...], option(
        "More arguments for the engine, in quotes.", "server", "machine", "ARGS",
        form="words")] = ()
    urls: Annotated[tuple[str, ...], option(
        "Address of a running server; one per --label.", "server", "note", "URL",
        parameter="url")] = ()
    labels: Annotated[tuple[str, ...], option(
        "Method of the server at --url; vanilla is the baseline.", "server", "method", "NAME",
        parameter="label")] = ()
    served_model: Annotated[str, option(
        "The model's name on the server, if it differs.", "server", "note", "NAME")] = ""
    concurrency: Annotated[tuple[int, ...], option(
        "Requests sent to a server at once", "server", "work", "N,...", above=0,
        unset="1", is_compared=True)] = ()
    request_rates: Annotated[tuple[float, ...], option(
        "Requests per second to a server, at random times.", "server", "work", "R,...",
        parameter="request_rate", above=0, is_compared=True)] = ()
    goodput: Annotated[str, option(
        "Latency limits (ms) for a good request, e.g. ttft:500,tpot:50", "server", "note",
        "LIMITS")] = ""
    request_timeout_s: Annotated[float | None, option(
        "Time limit of a request", "server", "note", "S", parameter="request_timeout", above=0,
        unset="600")] = None
    # fmt: on
    is_first_look: Annotated[bool, role("note")] = False
    """True if the command had no options, so that prompts and passes are few; absent otherwise."""


class SpecHeader(Struct, frozen=True):
    """The specification of a run."""

    values: SpecValues
    """Values in effect."""
    asked: Annotated[SpecValues | None, role("note")] = None
    """Values requested, with defaults filled in."""
    given: Annotated[tuple[str, ...], role("note")] = ()
    """Options that the user gave."""


GOODPUT = ("ttft", "tpot", "e2e")
"""Times of a request that may have a limit: to the first token, per later token, and in total."""


def parse_goodput(limits_text: str) -> dict[str, float]:
    """Name of a time -> its limit in seconds. `limits_text` has milliseconds: "ttft:500,tpot:50".

    The mapping is empty for an empty text. The names are those in `GOODPUT`.

    Raises:
        UserError: the text has another form, a name is unknown, or a limit is not a finite number
            above 0.
    """
    limits_s: dict[str, float] = {}
    for limit_text in filter(None, limits_text.split(",")):
        time_name, _, milliseconds = limit_text.strip().partition(":")
        try:
            limits_s[time_name] = float(milliseconds) / 1e3
        except ValueError:
            limits_s[time_name] = 0.0  # which is refused below
        if time_name not in GOODPUT or not 0 < limits_s[time_name] < float("inf"):
            raise UserError(
                f"--goodput {limits_text} is not a list of limits: {limit_text!r}.",
                f"Give milliseconds by name, such as ttft:500,tpot:50; names are "
                f"{', '.join(GOODPUT)}.",
            )
    return limits_s


def parse_template_args(json_text: str) -> dict[str, Any]:
    """The values of a template's variables by name, from a JSON object. Empty if the text is empty.

    Raises:
        UserError: the text has another form.
    """
    try:
        return json.decode(json_text or "{}", type=dict[str, Any])
    except MsgspecError as error:
        raise UserError(
            f"--template-args {json_text} is not an object in JSON.",
            """Give values by name, such as '{"thinking": false}'.""",
        ) from error
