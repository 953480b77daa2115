"""Read prompts from the original data sets on the Hugging Face Hub with the `datasets` library.

The library's errors become UserErrors.
"""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from specbench.data.hub import failure_reason, is_offline, unreachable
from specbench.data.prompt_files import Prompt, is_blank
from specbench.data.tasks import HubSource
from specbench.errors import UserError, describe_error, printable, time_limit

DOWNLOAD_LIMIT_S = 3600.0
"""Seconds that a data set may take to download."""


@dataclass(frozen=True, slots=True)
class HubPrompts:
    """The first prompts of a data set."""

    origin: str
    """The data set's id, config, file, split and revision, and how many rows were left out."""
    num_available: int
    """The number of rows in the data set."""
    prompts: tuple[Prompt, ...]
    """The prompts, in the order of the rows."""


def hub_prompts(
    task: str, source: HubSource, *, num_prompts: int | None, offline: bool
) -> HubPrompts:
    """Make prompts from the first rows of a data set. Rows with an empty prompt are skipped.

    The default of `num_prompts` is the card's `default_limit`.

    Raises:
        UserError: the library or the data set is not available, or a column is missing.
    """
    rows = _load(task, source, is_offline(offline))
    if num_prompts is None:
        num_prompts = source.default_limit
    prompts: list[Prompt] = []
    num_placeholders = 0
    for index, row in enumerate(rows):
        if num_prompts is not None and len(prompts) == num_prompts:
            break
        try:
            prompt = _make_prompt(task, source, row, index)
        except KeyError as error:
            columns = ", ".join(row)
            message = f"{source.id} has no column {error.args[0]!r}; it has: {columns}."
            raise UserError(message, f"Correct [hub] in datasets/cards/{task}.toml.") from error
        placeholder = source.placeholder
        if placeholder and any(turn.startswith(placeholder) for turn in prompt.turns):
            num_placeholders += 1
        elif prompt.turns:
            prompts.append(prompt)
    if not prompts:
        raise UserError(f"{source.id} ({source.split}) holds no prompt.", "Use `--prompts paper`.")
    origin = _origin(source)
    if num_placeholders:
        origin += f", without the {num_placeholders} rows whose text is elsewhere"
    return HubPrompts(origin, len(rows), tuple(prompts))


def _load(task: str, source: HubSource, offline: bool) -> Any:
    """Load the rows of a data set in the library's type."""
    import datasets

    # Without a connection the library retries for half a minute, so check the Hub first.
    no_network = None if offline else unreachable(source.id)
    is_cache_only = offline or no_network is not None
    selection = {"split": source.split, "revision": source.revision}
    if source.data_files:
        selection["data_files"] = source.data_files
    what = f"The download of {source.id}"
    download_limit = time_limit(DOWNLOAD_LIMIT_S, what, "Try again, or leave it out.")
    try:
        with _network_off() if is_cache_only else download_limit:
            return datasets.load_dataset(source.id, source.config, **selection)
    except UserError:
        raise
    except Exception as error:  # the library's network, format and disk errors share no base
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            reason = "the disk is full"
        elif offline:
            reason = "it is not in the local cache, and the run is offline"
        elif no_network is not None:
            reason = f"it is not in the local cache, and {failure_reason(no_network)}"
        else:
            reason = describe_error(error)
        raise UserError(
            f"The data set {_origin(source)} of task {task} cannot be loaded: {reason}.",
            "Load it once with network access (HF_HOME is the folder to copy to other machines), "
            "or use `--prompts paper` or `--prompts bundled`.",
        ) from error


@contextmanager
def _network_off() -> Iterator[None]:
    """Turn on Hugging Face's offline switches, which its libraries read only once, at import."""
    from huggingface_hub import constants

    import datasets

    was_hub_offline = constants.HF_HUB_OFFLINE
    was_library_offline = datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_hub_offline
        datasets.config.HF_HUB_OFFLINE = was_library_offline


def _make_prompt(task: str, source: HubSource, row: Mapping[str, Any], index: int) -> Prompt:
    """Make a prompt from a row. It has no turns if the row has no text.

    Raises:
        KeyError: the row lacks a column.
    """
    if source.turns_field is not None:
        turns = tuple(str(turn) for turn in row[source.turns_field])
    else:
        turns = tuple(template.format_map(row) for template in source.turns)
    if source.is_stripped:
        turns = tuple(turn.strip() for turn in turns)
    row_id = row.get(source.id_field, index) if source.id_field else index
    category = str(row[source.category_field]) if source.category_field else source.category
    has_text = not any(map(is_blank, turns))
    return Prompt(f"{task}/{printable(str(row_id))}", category, turns if has_text else ())


def _origin(source: HubSource) -> str:
    """Return the name that a run's header gives to a data set."""
    config = f", config {source.config}" if source.config else ""
    file = f", file {source.data_files}" if source.data_files else ""
    return f"{source.id}@{source.revision or 'main'}{config}{file}, split {source.split}"
