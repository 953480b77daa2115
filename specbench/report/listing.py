"""What `specbench list` and `specbench show` print: rows of text, the first being the headings.

Lists must appear at once, so that nothing here imports torch before a single method is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from specbench import registry
from specbench.bench.models import ModelCard, find_model, known_models
from specbench.bench.sizes import num_parameters
from specbench.bench.store import HEADER, list_runs, read_header
from specbench.bench.tasks import TaskCard, load_cards
from specbench.errors import UserError, unknown_name

Listing = tuple[str, list[list[str]]]
"""A title and its rows."""


def listing(what: str, runs_root: Path) -> Listing:
    """Everything of a kind: methods, models, datasets or runs."""
    kinds: dict[str, Callable[[], Listing]] = {
        "methods": _methods,
        "models": _models,
        "datasets": _datasets,
        "runs": lambda: _runs(runs_root),
    }
    if what not in kinds:
        raise unknown_name("kind of thing", what, kinds)
    return kinds[what]()


def details(name: str) -> list[Listing]:
    """All there is to say of one method, model, dataset or run folder."""
    cards = load_cards()
    if name in registry.names():
        return _method(name)
    if name in cards:
        return [_dataset(cards[name])]
    if (Path(name) / HEADER).is_file():
        return [_run(Path(name))]
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
    return "", [["method", "what it does", "from"], *rows]


def _method(name: str) -> list[Listing]:
    method = registry.get(name)
    facts = [
        ["name", name],
        ["title", method.title],
        ["what it does", method.summary],
        ["paper", method.paper or "-"],
        ["lossless", "yes" if method.is_lossless else "no"],
        ["checkpoint", f"the model card's {method.weights!r}" if method.weights else "none needed"],
    ]
    options = [
        [option.name, option.kind, str(option.default), option.help]
        for option in registry.describe_options(method)
    ]
    tables: list[Listing] = [("", [["method", name], *facts[1:]])]
    if options:
        tables.append(("", [["option", "kind", "default", "meaning"], *options]))
    return tables


def _models() -> Listing:
    rows = [
        [card.name, card.title, _source(card), ", ".join(_drafted(card)) or "-"]
        for card in known_models().values()
    ]
    return "", [["model", "title", "weights", "drafters for"], *rows]


def _model(card: ModelCard) -> Listing:
    rows = [
        ["model", card.name],
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
    return "", rows


def _drafters(card: ModelCard) -> Listing:
    """What there is for each method; a method without a row needs no checkpoint."""
    rows = [["method", "checkpoint", "parameters", "of the target"]]
    total = card.shape.num_parameters if card.shape else None
    for entry in registry.entries():
        drafter = card.drafter(entry.name)
        if drafter is None:
            continue
        where = "embedded" if card.is_embedded else drafter.repo
        count = num_parameters(card, drafter)
        share = f"{count / total:.1%}" if count and total else "-"
        rows.append([entry.name, where, f"{count / 1e6:,.1f} M" if count else "-", share])
    return "", rows


def _source(card: ModelCard) -> str:
    return "embedded" if card.is_embedded else card.repo


def _drafted(card: ModelCard) -> list[str]:
    return [drafter.method for drafter in card.drafters]


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
    return "", [["dataset", "column", "what it asks", "prompts", "default"], *rows]


def _dataset(card: TaskCard) -> Listing:
    rows = [
        ["dataset", card.name],
        ["column", card.title],
        ["what it asks", card.description],
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
    rows += [[f"sub-task {task.name}", task.title] for task in card.tasks if card.groups]
    return "", rows


def _runs(root: Path) -> Listing:
    rows = [
        [
            str(path),
            str(header.get("status", "unknown")),
            str(header.get("created", "unknown")),
            _short(header.get("spec", {}).get("values", {}).get("methods", [])),
        ]
        for path, header in list_runs(root)
    ]
    return "", [["run", "status", "created", "methods"], *rows]


def _run(path: Path) -> Listing:
    header = read_header(path)
    rows = [["run", str(path)]]
    for key in ("status", "created", "finished", "command", "spec", "model", "environment"):
        value = header.get(key)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        rows.append([key, text])
    return "", rows


def _short(values: Sequence[str]) -> str:
    return ", ".join(values)
