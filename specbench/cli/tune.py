"""`specbench tune`: find the fastest settings of methods on this machine, or on servers.

Subcommands run one part of the search.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.help import CommandWithParts, Part
from specbench.cli.options import Call, quiet_libraries, say, takes
from specbench.errors import RunFolderError, UserError, few
from specbench.log.files import REPEAT
from specbench.log.options import options
from specbench.log.spec import SpecValues

if TYPE_CHECKING:
    from specbench.tune import Choice, Prediction

commands = typer.Typer(
    cls=CommandWithParts,
    add_completion=False,
    help="Find and measure the fastest settings of methods on this machine (docs/tune.md). "
    "With --engine: the fastest number of draft tokens of a server, at loads of 1, 2, 4 and 8 "
    "(docs/tune_servers.md).",
    rich_markup_mode=None,
)
_WORK = options(SpecValues, "methods", "model", "tasks", "limit", "max_new_tokens", "seed")
_ENGINE = options(
    SpecValues, "prompts", "device", "threads", "dtype", "weights", "template", "template_args"
)
_TIMED = options(SpecValues, "execution", "kernels")
_DRAWN = options(SpecValues, "temperatures", "repeats")
_OFFLINE = options(Call, "offline")
_SERVERS = options(
    SpecValues,
    "serving_engine",
    "engine_command",
    "engine_args",
    "concurrency",
    "request_timeout_s",
)
"""The options for servers of an engine, which are tuned by their load."""
_PLAIN_WIDTH = 80
"""The characters in a line of a table that is not printed on a terminal."""
_NUM_SHOWN = 5
"""The number of predictions that are printed for each method and machine."""
_OUT = typer.Option("--out", metavar="DIR", help="Folder for the result.", file_okay=False)
Out = Annotated[Path, _OUT]
MaybeOut = Annotated[Path | None, _OUT]
Forget = Annotated[
    str | None,
    typer.Option(
        "--forget",
        metavar="MODEL|FILE|all",
        help="Only delete stored settings; `specbench list tunes` shows them.",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option("--minutes", metavar="N", min=0.1, help="Goal for the total time in minutes."),
]


@takes(*_WORK, *_DRAWN, *_ENGINE, *_TIMED, *_SERVERS, *_OFFLINE)
def _tune(
    values: dict[str, Any],
    call: Call,
    out: MaybeOut = None,
    minutes: Minutes = None,
    forget: Forget = None,
) -> None:
    """Tune methods on this machine or on servers, as `values` say, or forget stored settings."""
    if forget is not None:
        if values or out or minutes:
            raise UserError(
                "--forget takes no other option.", f"specbench tune --forget {forget} is enough."
            )
        _forget(forget)
        return
    if out is None:
        raise UserError("specbench tune needs a folder.", "Name one: --out DIR")
    from specbench.cli.progress import progress_view

    quiet_libraries()
    if "serving_engine" in values:
        if minutes is not None:
            raise UserError(
                "--minutes is for methods in this process, not for servers.",
                "Limit their work with --limit, --repeats, --concurrency or --max-new-tokens.",
            )
        _tune_servers(values, call, out)
        return
    from specbench.tune import tune

    with progress_view() as view, _repeatable(out):

        def show(choices: Sequence["Choice"]) -> None:
            """Print the choices, so that they are not lost if they cannot be stored."""
            view.finished()
            for choice in choices:
                for line in choice.lines:
                    say(line, is_error=False)

        tune(
            output=out, minutes=minutes, offline=call.offline, progress=view, chosen=show, **values
        )
    model = values.get("model", "tiny")
    say(f"Use them: specbench run --model {model} --settings {out}/settings.toml", is_error=False)


def _forget(name: str) -> None:
    """Remove stored settings, and say which."""
    from specbench.settings.tuned_settings import forget

    for tune in forget(name):
        methods = few([*tune.file.methods]) if tune.file else "unreadable settings"
        say(f"Forgotten: {methods} of {tune.model or tune.path}", is_error=False)


def _tune_servers(values: dict[str, Any], call: Call, out: Path) -> None:
    """Find, print and write the draft sizes of an engine's methods for each load."""
    from specbench.cli.progress import progress_view
    from specbench.report.console import SafeConsole
    from specbench.tune.served.results import result_lines, result_table, write_results
    from specbench.tune.served.tune_servers import tune_servers

    engine = values.pop("serving_engine")
    with progress_view() as view, _repeatable(out):
        result = tune_servers(engine, output=out, offline=call.offline, progress=view, **values)
        view.finished()
    console = SafeConsole(plain_width=_PLAIN_WIDTH)
    for method in result.methods:
        console.print(f"{method.method.label}, {result.software}, {result.spec.card.name}")
        console.print(result_table(method), crop=False)
        for line in result_lines(method):
            say(line, is_error=False)
    write_results(out, result)
    spellings = [str(method.method.asked) for method in result.methods if method.is_drafting]
    if spellings:
        methods = " ".join(f"--method {quote(spelling)}" for spelling in spellings)
        command = f"specbench run --engine {engine} --model {quote(result.spec.model)} {methods}"
        say(f"Use them: {command} --settings {out}/settings.toml", is_error=False)


@contextmanager
def _repeatable(out: Path) -> Iterator[None]:
    """If the run of a tune cannot be written, say how to continue. A tune has no --resume."""
    try:
        yield
    except RunFolderError as error:
        if "--resume" not in error.hint:
            raise
        hint = f"Free space, or make {out} writable, then {REPEAT}, which continues the work."
        raise RunFolderError(error.message, hint) from error


def _group(context: typer.Context, **raw: Any) -> None:
    if context.invoked_subcommand is None:
        _tune(context, **raw)


_group.__signature__ = _tune.__signature__  # type: ignore[attr-defined]
_group.__annotations__ = _tune.__annotations__
commands.callback(invoke_without_command=True)(_group)


@commands.command(cls=Part)
@takes(*_WORK, *_DRAWN, *_ENGINE, *_OFFLINE)
def profile(values: dict[str, Any], call: Call, out: Out) -> None:
    """Record what methods draft at each position of vanilla's answers."""
    quiet_libraries()
    from specbench.measure.spec import RunSpec
    from specbench.tune import mat, replay
    from specbench.tune import profile as record_profile

    spec = RunSpec(methods=values.get("methods", ()))
    # labels leave out the folders of files
    spellings = {method.label: str(method.asked) for method in spec.run_methods}
    recorded = record_profile(output=out, offline=call.offline, say=say, **values)
    for label in recorded.header.methods:
        walks = replay(recorded, spellings.get(label, label))
        num_steps = sum(walk.num_steps for walk in walks)
        if num_steps:
            say(f"{label}: MAT {mat(walks):.2f} in {num_steps:,.0f} steps", is_error=False)
    say(f"Profile: {out}", is_error=False)


@commands.command(cls=Part)
@takes(*_WORK, *_DRAWN[:1], *_ENGINE, *_TIMED, *_OFFLINE)
def cost(values: dict[str, Any], call: Call, out: Out, minutes: Minutes = None) -> None:
    """Measure the time of a draft, and of a step at each number of rows and context length."""
    quiet_libraries()
    from specbench.report.build import plot_files, write_files
    from specbench.report.formats import at_least
    from specbench.tune import cost as measure_cost
    from specbench.tune.plots import cost_curve

    curve = measure_cost(output=out, minutes=minutes, offline=call.offline, say=say, **values)
    write_files(out, plot_files([cost_curve(curve)]))
    say(f"A step of vanilla: {at_least(3, curve.vanilla_s * 1e3)} ms", is_error=False)
    say(f"Cost curve: {out}", is_error=False)


@commands.command(cls=Part)
def predict(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="Folder of a profile.")],
    cost: Annotated[
        list[Path], typer.Option("--cost", metavar="COST", help="Folder of a cost curve.")
    ],
    out: MaybeOut = None,
) -> None:
    """Predict the speedup of all settings on each cost curve's machine."""
    from specbench.analysis.grouping import group_by
    from specbench.report.build import plot_files, write_files
    from specbench.tune import predict as make_predictions
    from specbench.tune import prediction_frame, read_curve, read_profile
    from specbench.tune.plots import heat_map

    stored_profile = read_profile(profile)
    every_prediction: list[Prediction] = []
    for curve_number, folder in enumerate(cost, start=1):
        predictions = make_predictions(stored_profile, read_curve(folder))
        every_prediction += predictions
        heading = f"On {predictions[0].machine}:" if predictions else f"{folder}: no method"
        say(heading, is_error=False)
        by_method = group_by(predictions, key=lambda prediction: prediction.method)
        for method_predictions in by_method.values():
            _say_fastest(method_predictions)
            plot = heat_map(method_predictions) if out else None
            if out and plot:
                name = f"{curve_number}-{folder.name}" if len(cost) > 1 else folder.name
                write_files(out / name, plot_files([plot]))
    if out:
        table = prediction_frame(every_prediction).to_csv(index=False)
        write_files(out, {"predictions.csv": table.encode()})
        say(f"Table and plots: {out}", is_error=False)


def _say_fastest(predictions: "Sequence[Prediction]") -> None:
    """Print the fastest settings of a method with their intervals."""
    fastest_first = sorted(predictions, key=lambda prediction: -prediction.speedup)
    for prediction in fastest_first[:_NUM_SHOWN]:
        interval = f"({prediction.low:.2f} to {prediction.high:.2f})"
        say(f"{prediction.speedup:.2f}x {interval}  {prediction.settings}", is_error=False)
