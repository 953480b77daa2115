"""`specbench audit`: check that a run, or a method with planted drafts, is lossless."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from specbench.cli.options import Call, complete_runs, quiet_libraries, say, takes
from specbench.errors import UserError
from specbench.log.options import option, options


class Audit(Struct, frozen=True):
    """The options of an audit. `model` is for methods, and the others are for runs."""

    # fmt: off
    method: Annotated[str | None, option(
        "Audit this method, such as pld:ngram=2, with planted drafts, instead of a run.",
        "measure", "note", "METHOD")] = None
    model: Annotated[str, option(
        "The model for --method.", "model", "note", "MODEL")] = "tiny"
    dtype: Annotated[str | None, option(
        "Number format of the audit; float32 finds the most.",
        "model", "note", "DTYPE")] = None
    device: Annotated[str | None, option(
        "Audit on cpu, cuda or cuda:1", "model", "note", "DEVICE", unset="the run's")] = None
    tokens: Annotated[int, option(
        "Tokens to test per method and temperature; 0: compare recorded answers only.",
        "measure", "note", least=0)] = 2000
    power: Annotated[float | None, option(
        "Draw enough tokens to find a total variation of this size, such as 0.02.",
        "measure", "note", "TV", least=0.001, most=0.999,
        hint="Give a total variation from 0.001 to 0.999, such as --power 0.02.")] = None
    # fmt: on


@takes(*options(Audit), *options(Call, "full", "offline"))
def audit(
    values: Mapping[str, Any],
    call: Call,
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="A run's folder or a file in it.", autocompletion=complete_runs
        ),
    ] = None,
) -> None:
    """Check that outputs are lossless; separate rounding from bugs."""
    audit_options = Audit(**values)
    is_run = run is not None
    if is_run is (audit_options.method is not None):
        raise UserError("Audit a run or a method.", "Give RUN, or --method METHOD.")
    for declared in options(Audit):
        is_given = declared.name in values and declared.name != "method"
        is_for_methods = declared.name == "model"  # the other options are for runs
        if is_given and is_for_methods is is_run:
            what = "a run" if is_run else "a method"
            raise UserError(f"{declared.flag} is not for the audit of {what}.", "Leave it out.")
        declared.check(getattr(audit_options, declared.name))
    if audit_options.method:
        _audit_method(audit_options.method, audit_options.model, call)
    if run:
        _audit_run(run, audit_options, call)


def _audit_method(name: str, model: str, call: Call) -> None:
    """Audit a method on a model in float32, print the result and end the program."""
    say(f"Starting: the audit of {name} on {model}")
    from specbench.measure.plan import check_early
    from specbench.measure.spec import RunSpec

    check_early(RunSpec(model=model, methods=(name,)))
    quiet_libraries()
    from specbench.audit.contract import run_contract
    from specbench.audit.results import is_idle
    from specbench.audit.subject import load_subject
    from specbench.audit.terminal import print_contract
    from specbench.report.export.terminal import report_console

    subject, is_lossless = load_subject(name, model, is_offline=call.offline)
    result = run_contract(name, subject, is_lossless=is_lossless, say=say)
    print_contract(result, report_console(), is_full=call.full)
    if result.status == "bug":
        raise typer.Exit(1)
    raise typer.Exit(3 if is_idle(result) else 0)


def _audit_run(run: Path, audit_options: Audit, call: Call) -> None:
    """Audit the run in a folder, print the result, store it there, and end the program."""
    from specbench.log.folders import run_folder
    from specbench.log.store import read_run

    stored_run = read_run(run_folder(run))
    from specbench.audit.model import RunModel
    from specbench.audit.run import audit as audit_run
    from specbench.audit.run import store_audit
    from specbench.audit.terminal import print_audit
    from specbench.audit.white_box import Effort
    from specbench.report.export.terminal import report_console

    effort = Effort(audit_options.tokens, audit_options.power)
    quiet_libraries()

    def open_model(has_methods: bool) -> RunModel:
        """Load the run's model again, with its methods or with vanilla only."""
        return RunModel(
            stored_run,
            dtype=audit_options.dtype,
            device=audit_options.device,
            has_methods=has_methods,
            is_offline=call.offline,
        )

    audited = audit_run(
        stored_run,
        open_model,
        is_recheck=audit_options.dtype is not None,
        effort=effort,
        say=say,
    )
    print_audit(audited, stored_run.header, report_console(), is_full=call.full)
    store_audit(audited, stored_run, say)
    raise typer.Exit(audited.exit_code)
