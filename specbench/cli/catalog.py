"""`specbench list` and `specbench show`: methods, models, datasets and runs as tables.

Both must be fast, so torch is imported only to show a single method.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from specbench import registry
from specbench.cli.options import completing, say
from specbench.cli.tunes import say_tunes_folder, tunes_table
from specbench.data.tasks import TaskCard, broken_cards, load_cards
from specbench.errors import RunFolderError, UserError, few, same_name, unknown_name
from specbench.log.backend import ExecutionHeader
from specbench.log.folders import list_runs, num_records, run_folder, state
from specbench.log.header import RunHeader
from specbench.log.methods import MethodHeader
from specbench.log.store import HEADER, read_header
from specbench.models.cards import ModelCard, find_model, known_models
from specbench.report.console import SafeConsole, TextTable, text_table
from specbench.types import RUNS


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, models, datasets, runs or tunes.",
            autocompletion=completing(lambda: _KINDS),
        ),
    ],
) -> None:
    """List methods, models, datasets, runs or tunes."""
    if kind not in _KINDS:
        raise unknown_name("list of", kind, _KINDS)
    _print(_KINDS[kind]())
    if kind == "tunes":
        say_tunes_folder()
    else:
        say("For details of one: specbench show NAME")


def _everything() -> list[str]:
    """Return all names that `specbench show` takes."""
    return [*registry.names(), *load_cards(), *known_models(), *map(str, list_runs(RUNS))]


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A method, model, dataset or run; or schema.",
            autocompletion=completing(_everything),
        ),
    ],
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="After schema: header (run.json), record (samples.jsonl), trace or audit.",
        ),
    ] = "",
) -> None:
    """Show one method, model, dataset or run in full, or the JSON Schema of a run's files."""
    if name == "schema":
        from specbench.log.schema import json_schema

        typer.echo(json.dumps(json_schema(file or "header"), indent=2))
        return
    if file:
        raise UserError(f"{file} is one name too many.", "Show one thing at a time.")
    _print(*_details(name))


def _details(name: str) -> Sequence[TextTable | str]:
    """Return tables about a method with this name, or else a dataset, a run, or a model."""
    datasets = load_cards()  # the cards by name
    name = same_name(name, [*registry.names(), *datasets])
    if name in registry.names():
        return _method(name)
    if name in datasets:
        return [_dataset(datasets[name])]
    if (path := _run_path(name)) is not None:
        return _run(path)
    try:
        card = find_model(name)
    except UserError:
        hint = "`specbench list` lists them by kind."
        raise unknown_name("method, model, dataset or run", name, _everything(), hint) from None
    return [_model(card), _drafters(card)]


def _methods() -> TextTable:
    """Return a table of all methods, including those that cannot be imported."""
    rows = []
    for method in registry.entries():
        summary = f"BROKEN: {method.error}" if method.error else method.summary
        rows.append([method.name, summary, method.origin])
    return text_table(["method", "summary", "from"], rows)


def _method(name: str) -> list[TextTable]:
    """Return a table of facts about a method, and a table of its options if it has any."""
    from specbench.report.export.bibtex import paper_url

    method = registry.get(name)
    options = {option.name: option for option in registry.describe_options(method)}
    if "datastore" in options and "weights" not in options:
        checkpoint_text = "a file: datastore=FILE"
    elif method.weights:
        checkpoint_text = f"the model card's {method.weights!r}"
    else:
        checkpoint_text = "none needed"
    facts = {
        "title": method.title,
        "summary": method.summary,
        "paper": " ".join(filter(None, (method.paper, paper_url(name)))) or "-",
        "lossless": "yes" if method.is_lossless else "no",
        "checkpoint": checkpoint_text,
    }
    tables = [text_table(["method", name], facts.items())]
    if options:
        rows = [
            [option.name, option.kind, str(option.default), option.help]
            for option in options.values()
        ]
        tables.append(text_table(["option", "kind", "default", "meaning"], rows))
    return tables


def _models() -> TextTable:
    """Return a table of the known models, their weights, and the methods with draft weights."""
    rows = []
    for card in known_models().values():
        weights_text = _source(card)
        if card.draft_weights:
            weights_text += f" with {', '.join(draft.method for draft in card.draft_weights)}"
        rows.append([card.name, weights_text])
    return text_table(["model", "weights, with draft weights for"], rows)


def _model(card: ModelCard) -> TextTable:
    facts = {
        "title": card.title,
        "weights": _source(card),
        "revision": card.revision,
        "template": card.template or "the tokenizer's own",
        "dtype on a GPU": card.dtype or "as in config.json",
        "parameters": f"{card.shape.num_parameters / 1e9:.2f} billion" if card.shape else "",
        "note": card.note,
    }
    return text_table(["model", card.name], _without_blanks(facts))


def _drafters(card: ModelCard) -> TextTable:
    """Return a row for each draft checkpoint on a model's card, alternatives included."""
    rows = []
    for name in registry.names():
        if (weights := card.weights_of(name)) is None:
            continue
        rows.append([name, "embedded" if weights.is_shipped else weights.repo])
        for repo in card.alternatives.get(name, ()):
            layers = f", layers={card.layers[repo]}" if repo in card.layers else ""
            rows.append([f"{name}:weights=REPO", f"or {repo}{layers}"])
    return text_table(["method", "checkpoint"], rows)


def _source(card: ModelCard) -> str:
    """Return the repository or folder of a model's weights."""
    return "embedded" if card.is_embedded else card.repo


def _datasets() -> TextTable:
    """Return a table of all datasets, including those whose card is broken."""
    rows = []
    for card in load_cards().values():
        is_default = "yes" if card.is_default else "no"
        rows.append([card.name, ", ".join(card.sources), is_default, card.title])
    rows += [
        [name, "-", "no", f"BROKEN: {error.message}"] for name, error in broken_cards().items()
    ]
    return text_table(["dataset", "prompts", "default", "title"], rows)


def _dataset(card: TaskCard) -> TextTable:
    """Return a table of facts about a dataset."""
    paper = card.paper  # the file of the published prompts, or None
    hub = card.hub  # the data set on the Hub, or None
    facts = {
        "column": card.title,
        "description": card.description,
        "prompts": ", ".join(card.sources),
        "paper file": paper.url if paper else "",
        "paper prompts": str(paper.num_prompts) if paper else "",
        "sha256": paper.sha256 if paper else "",
        "hub": f"{hub.id} ({hub.split})" if hub else "",
        **{f"sub-task {task.name}": task.title for task in card.tasks if card.group},
    }
    return text_table(["dataset", card.name], _without_blanks(facts))


def _without_blanks(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the facts whose text is not empty."""
    return [(name, fact) for name, fact in facts.items() if fact]


def _run_path(name: str) -> Path | None:
    """Return the folder of a run that is named by its path, or by its name in `RUNS`."""
    paths = (run_folder(Path(name)), RUNS / name)
    return next((path for path in paths if (path / HEADER).is_file()), None)


def _runs() -> TextTable:
    headings = ["run", "status", "progress", "model", "methods", "begun"]
    return text_table(headings, [*starmap(_run_row, list_runs(RUNS).items())])


def _run_row(path: Path, header: RunHeader | RunFolderError) -> list[str]:
    """Return the row of a run, or of a folder whose header cannot be read."""
    if isinstance(header, RunFolderError):
        return [path.name, f"UNREADABLE: {header.message}", "-", "-", "-", "-"]
    return [
        path.name,
        state(path, header),
        _progress(path, header),
        header.model.name,
        few(header.spec.values.methods),
        header.created[:16].replace("T", " "),
    ]


def _progress(path: Path, header: RunHeader) -> str:
    num_done = num_records(path)
    return str(num_done) if header.num_records is None else f"{num_done} of {header.num_records}"


def _run(path: Path) -> list[TextTable | str]:
    """Return tables about a run and its methods, and the command that repeats it."""
    from specbench.report import commands, facts

    header = read_header(path)
    rows = [["status", state(path, header)], ["completions", _progress(path, header)]]
    rows += [[name.lower(), fact] for name, fact in facts.listed_facts(header) if name != "Run"]
    rows += [["warning", warning] for warning in header.warnings]
    method_rows = []
    for spelling, method in header.methods.items():
        options_text, weights_text = _execution(method, header.execution.get(spelling))
        method_rows.append([method.title, spelling, options_text, weights_text])
    return [
        text_table(["run", str(path)], rows),
        text_table(["method", "name", "options in effect", "weights"], method_rows),
        f"To repeat it, with every setting:\n{commands.full_command(header)}",
    ]


def _execution(method: MethodHeader, execution: ExecutionHeader | None) -> tuple[str, str]:
    """Return a method's options in effect, and its checkpoint, in words.

    The target layers that the head reads are listed as the option `layers`. The checkpoint's
    published layout follows its name.
    """
    from specbench.report import facts

    weights_text = facts.weights_text(method.weights)
    if execution and execution.weights_layout:
        weights_text += f", {execution.weights_layout} layout"
    if execution and execution.layer_inputs:
        layers = "+".join(map(str, execution.layer_inputs))
        if execution.has_guessed_layers:
            layers += " (guessed)"
        method = replace(method, options={**method.options, "layers": layers})
    return facts.options_text(method), weights_text


_KINDS = {
    "methods": _methods,
    "models": _models,
    "datasets": _datasets,
    "runs": _runs,
    "tunes": tunes_table,
}


def _print(*blocks: TextTable | str) -> None:
    """Print blocks with a blank line between them. A file or a pipe gets 160 columns."""
    console = SafeConsole(plain_width=160)
    for i, block in enumerate(blocks):
        if i > 0:
            console.print()
        console.print(block, soft_wrap=isinstance(block, str), crop=False)
