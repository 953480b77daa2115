"""`specbench list` and `specbench show`: what there is, as tables of text.

Both must appear at once: nothing here imports torch before a single method is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from specbench import registry
from specbench.cli import complete
from specbench.cli.options import RUNS
from specbench.data.tasks import TaskCard, broken_cards, load_cards
from specbench.errors import UserError, unknown_name
from specbench.log.header import RunHeader
from specbench.log.state import num_records, run_folder, state
from specbench.log.store import HEADER, ListedRun, list_runs, read_header
from specbench.models.cards import ModelCard, find_model, known_models
from specbench.models.sizes import num_parameters
from specbench.outside import printable

if TYPE_CHECKING:
    from specbench.engine.drafter import Method


@dataclass(frozen=True, slots=True)
class Listing:
    """Headings and the rows below them."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, models, datasets or runs.",
            autocompletion=complete.choice("methods", "models", "datasets", "runs"),
        ),
    ],
) -> None:
    """List methods, models, datasets or runs."""
    if kind not in _KINDS:
        raise unknown_name("kind of thing", kind, _KINDS)
    _print(_KINDS[kind]())


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A method, model, dataset or run.",
            autocompletion=complete.anything,
        ),
    ],
) -> None:
    """Show one method, model, dataset or run in full."""
    for number, part in enumerate(_details(name)):
        if number:
            typer.echo()
        if isinstance(part, str):
            typer.echo(part)
        else:
            _print(part)


def _details(name: str) -> Sequence[Listing | str]:
    cards = load_cards()
    if name in registry.names():
        return _method(name)
    if name in cards:
        return [_dataset(cards[name])]
    if (path := _run_path(name)) is not None:
        return _run(path)
    try:
        card = find_model(name)
        return [_model(card), _drafters(card)]
    except UserError:
        known = [*registry.names(), *cards, *known_models()]
        raise unknown_name("method, model, dataset or run", name, known) from None


def _methods() -> Listing:
    rows = [
        [entry.name, f"BROKEN: {entry.error}" if entry.error else entry.summary, entry.origin]
        for entry in registry.entries()
    ]
    return Listing(["method", "summary", "from"], rows)


def _checkpoint(method: Method) -> str:
    """The files that a method needs, in words."""
    if any(option.name == "datastore" for option in registry.describe_options(method)):
        return "a file: datastore=FILE"
    return f"the model card's {method.weights!r}" if method.weights else "none needed"


def _method(name: str) -> list[Listing]:
    method = registry.get(name)
    facts = [
        ["title", method.title],
        ["summary", method.summary],
        ["paper", method.paper or "-"],
        ["lossless", "yes" if method.is_lossless else "no"],
        ["checkpoint", _checkpoint(method)],
    ]
    options = [
        [option.name, option.kind, str(option.default), option.help]
        for option in registry.describe_options(method)
    ]
    listings = [Listing(["method", name], facts)]
    if options:
        listings.append(Listing(["option", "kind", "default", "meaning"], options))
    return listings


def _models() -> Listing:
    rows = []
    for card in known_models().values():
        methods = ", ".join(weights.method for weights in card.draft_weights)
        rows.append([card.name, _source(card), methods or "-"])
    return Listing(["model", "weights", "drafters for"], rows)


def _model(card: ModelCard) -> Listing:
    rows = [
        ["title", card.title],
        ["weights", _source(card)],
        ["revision", card.revision],
        ["template", card.template or "the tokenizer's own"],
        ["dtype on a GPU", card.dtype or "as in config.json"],
    ]
    if card.shape is not None:
        rows.append(["parameters", f"{card.shape.num_parameters / 1e9:.2f} billion"])
    if card.note:
        rows.append(["note", card.note])
    return Listing(["model", card.name], rows)


def _drafters(card: ModelCard) -> Listing:
    """A row for each method with a checkpoint; the others need none."""
    rows = []
    total = card.shape.num_parameters if card.shape else None
    for entry in registry.entries():
        weights = card.weights_of(entry.name)
        if weights is None:
            continue
        source = "embedded" if card.is_embedded else weights.repo
        count = num_parameters(card, weights)
        share = f"{count / total:.1%}" if count and total else "-"
        rows.append([entry.name, source, f"{count / 1e6:,.1f} M" if count else "-", share])
    return Listing(["method", "checkpoint", "parameters", "of the target"], rows)


def _source(card: ModelCard) -> str:
    return "embedded" if card.is_embedded else card.repo


def _datasets() -> Listing:
    rows = [
        [
            card.name,
            card.title,
            card.description,
            ", ".join(card.sources),
            "yes" if card.is_default else "no",
        ]
        for card in load_cards().values()
    ]
    rows += [
        [name, "-", f"BROKEN: {error.message}", "-", "no"] for name, error in broken_cards().items()
    ]
    return Listing(["dataset", "column", "description", "prompts", "default"], rows)


def _dataset(card: TaskCard) -> Listing:
    rows = [
        ["column", card.title],
        ["description", card.description],
        ["prompts", ", ".join(card.sources)],
    ]
    if card.paper is not None:
        rows += [
            ["paper file", card.paper.url],
            ["prompts there", str(card.paper.num_prompts)],
            ["sha256", card.paper.sha256],
        ]
    if card.hub is not None:
        rows.append(["hub", f"{card.hub.id} ({card.hub.split})"])
    rows += [[f"sub-task {task.name}", task.title] for task in card.tasks if card.group]
    return Listing(["dataset", card.name], rows)


def _run_path(name: str) -> Path | None:
    """The folder of a run given as a path, or by its name in `RUNS`."""
    paths = (run_folder(Path(name)), RUNS / name)
    return next((path for path in paths if (path / HEADER).is_file()), None)


def _runs() -> Listing:
    headings = ["run", "status", "progress", "model", "methods", "begun"]
    return Listing(headings, [*map(_run_row, list_runs(RUNS))])


def _run_row(run: ListedRun) -> list[str]:
    about = run.header
    if not isinstance(about, RunHeader):
        return [run.path.name, f"UNREADABLE: {about.message}", *["-"] * 4]
    first, more = about.spec.values.methods[:3], len(about.spec.values.methods) - 3
    methods = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    begun = about.created[:16].replace("T", " ")
    return [
        run.path.name, state(run.path, about), _progress(run.path, about), about.model.name,
        methods, begun,
    ]  # fmt: skip


def _progress(path: Path, header: RunHeader) -> str:
    done = num_records(path)
    return str(done) if header.num_records is None else f"{done} of {header.num_records}"


def _run(path: Path) -> list[Listing | str]:
    from specbench.report import facts

    header = read_header(path)
    rows = [
        ["status", state(path, header)],
        ["completions", _progress(path, header)],
        *([name.lower(), text] for name, text in facts.listed_facts(header) if name != "Run"),
        *(["warning", text] for text in header.warnings),
    ]
    methods = [
        [about.title, spelling, _options(header, spelling), facts.weights_text(about.weights)]
        for spelling, about in header.methods.items()
    ]
    return [
        Listing(["run", str(path)], rows),
        Listing(["method", "name", "options in effect", "weights"], methods),
        f"To repeat it, every setting written out:\n{facts.full_command(header)}",
    ]


def _options(header: RunHeader, spelling: str) -> str:
    """The options in effect, with the target layers that were read if the config named them."""
    from specbench.report import facts

    about, execution = header.methods[spelling], header.execution.get(spelling)
    if execution and execution.layer_inputs:
        layers = "+".join(map(str, execution.layer_inputs))
        about = replace(about, options={**about.options, "layers": layers})
    return facts.options_text(about)


_KINDS: Mapping[str, Callable[[], Listing]] = {
    "methods": _methods,
    "models": _models,
    "datasets": _datasets,
    "runs": _runs,
}


def _print(listing: Listing) -> None:
    """The table on stdout; 160 columns wide in a file or a pipe."""
    from rich.table import Table

    from specbench.report.console import SafeConsole

    table = Table(box=None, pad_edge=False)
    for heading in listing.headings:
        table.add_column(heading, no_wrap=heading == listing.headings[0], overflow="fold")
    for row in listing.rows:
        table.add_row(*map(printable, row))
    SafeConsole(plain_width=160).print(table)
