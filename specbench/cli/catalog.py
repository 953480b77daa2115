"""`specbench list` and `specbench show`: what there is, as tables of text.

Both must appear at once: nothing here imports torch before a single method is shown.
"""

from __future__ import annotations

import json
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
from specbench.errors import UserError, printable, unknown_name
from specbench.log.header import RunHeader
from specbench.log.state import num_records, run_folder, state
from specbench.log.store import HEADER, ListedRun, list_runs, read_header
from specbench.models.cards import ModelCard, find_model, known_models
from specbench.models.sizes import num_parameters

if TYPE_CHECKING:
    from specbench.engine.drafter import Method


@dataclass(frozen=True, slots=True)
class TextTable:
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
            help="A method, model, dataset or run; or schema.",
            autocompletion=complete.anything,
        ),
    ],
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Of schema: header (run.json), record (samples.jsonl), trace or audit.",
        ),
    ] = "",
) -> None:
    """Show one method, model, dataset or run in full, or the JSON Schema of a run's files."""
    if name == "schema":
        print_schema(file or "header")
        return
    if file:
        raise UserError(f"{file} is one name too many.", "Show one thing at a time.")
    for number, part in enumerate(_details(name)):
        if number:
            typer.echo()
        if isinstance(part, str):
            typer.echo(part)
        else:
            _print(part)


def print_schema(kind: str) -> None:
    """Print the JSON Schema of one of a run's files."""
    from specbench.log.schema import json_schema

    typer.echo(json.dumps(json_schema(kind), indent=2))


def _details(name: str) -> Sequence[TextTable | str]:
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


def _methods() -> TextTable:
    rows = [
        [entry.name, f"BROKEN: {entry.error}" if entry.error else entry.summary, entry.origin]
        for entry in registry.entries()
    ]
    return TextTable(["method", "summary", "from"], rows)


def _checkpoint(method: Method) -> str:
    """The files that a method needs, in words."""
    names = {option.name for option in registry.describe_options(method)}
    if "datastore" in names and "weights" not in names:
        return "a file: datastore=FILE"
    return f"the model card's {method.weights!r}" if method.weights else "none needed"


def _method(name: str) -> list[TextTable]:
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
    parts = [TextTable(["method", name], facts)]
    if options:
        parts.append(TextTable(["option", "kind", "default", "meaning"], options))
    return parts


def _models() -> TextTable:
    rows = []
    for card in known_models().values():
        methods = ", ".join(weights.method for weights in card.draft_weights)
        rows.append([card.name, _source(card), methods or "-"])
    return TextTable(["model", "weights", "draft weights for"], rows)


def _model(card: ModelCard) -> TextTable:
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
    return TextTable(["model", card.name], rows)


def _drafters(card: ModelCard) -> TextTable:
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
        rows += [
            [f"{entry.name}:weights=REPO", f"or {other.repo}", "-", "-"]
            for other in card.alternatives
            if other.method == entry.name
        ]
    return TextTable(["method", "checkpoint", "parameters", "of the target"], rows)


def _source(card: ModelCard) -> str:
    return "embedded" if card.is_embedded else card.repo


def _datasets() -> TextTable:
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
    return TextTable(["dataset", "column", "description", "prompts", "default"], rows)


def _dataset(card: TaskCard) -> TextTable:
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
    return TextTable(["dataset", card.name], rows)


def _run_path(name: str) -> Path | None:
    """The folder of a run given as a path, or by its name in `RUNS`."""
    paths = (run_folder(Path(name)), RUNS / name)
    return next((path for path in paths if (path / HEADER).is_file()), None)


def _runs() -> TextTable:
    headings = ["run", "status", "progress", "model", "methods", "begun"]
    return TextTable(headings, [*map(_run_row, list_runs(RUNS))])


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


def _run(path: Path) -> list[TextTable | str]:
    from specbench.report import facts

    header = read_header(path)
    rows = [
        ["status", state(path, header)],
        ["completions", _progress(path, header)],
        *([name.lower(), text] for name, text in facts.listed_facts(header) if name != "Run"),
        *(["warning", text] for text in header.warnings),
    ]
    methods = [
        [about.title, spelling, _options(header, spelling), _weights(header, spelling)]
        for spelling, about in header.methods.items()
    ]
    return [
        TextTable(["run", str(path)], rows),
        TextTable(["method", "name", "options in effect", "weights"], methods),
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


def _weights(header: RunHeader, spelling: str) -> str:
    """The checkpoint, with its published layout."""
    from specbench.report import facts

    execution = header.execution.get(spelling)
    layout = execution.weights_layout if execution else ""
    text = facts.weights_text(header.methods[spelling].weights)
    return f"{text}, {layout} layout" if layout else text


_KINDS: Mapping[str, Callable[[], TextTable]] = {
    "methods": _methods,
    "models": _models,
    "datasets": _datasets,
    "runs": _runs,
}


def _print(shown: TextTable) -> None:
    """The table on stdout; 160 columns wide in a file or a pipe."""
    from rich.table import Table

    from specbench.report.console import SafeConsole

    table = Table(box=None, pad_edge=False)
    for heading in shown.headings:
        table.add_column(heading, no_wrap=heading == shown.headings[0], overflow="fold")
    for row in shown.rows:
        table.add_row(*map(printable, row))
    SafeConsole(plain_width=160).print(table)
