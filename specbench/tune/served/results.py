"""Write the result of a tune of servers: its texts, and the files of its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from specbench.log.files import REPEAT, folder_errors, write_whole
from specbench.log.run import Run
from specbench.measure.spec import RunSpec
from specbench.report import formats
from specbench.report.build import plot_files, write_files
from specbench.report.console import TextTable, text_table
from specbench.report.load_notes import break_even_numbers
from specbench.report.texts import make_note
from specbench.settings.files import SettingsFile, toml_text
from specbench.tune.served.load_choice import LoadChoice, MeasuredSize, MethodResult
from specbench.tune.served.plots import ratios_by_load

_NOISE = "Two equal servers differ here by up to {} (95 %)."
_UNKNOWN_NOISE = (
    "One pass does not show how much two equal servers differ. Use more passes (--repeats)."
)
_TIE = "At {load}, {names} differ by less, so the smallest was chosen."


@dataclass(frozen=True)
class TuneResult:
    """The results of a tune's methods, with the run that measured them in turns."""

    spec: RunSpec
    """The options of the tune, as the user gave them."""
    methods: tuple[MethodResult, ...]
    """The methods, in the order in which they were named."""
    run: Run
    """The run of the last measurement."""

    @property
    def software(self) -> str:
        """The engine with its version, or only its name if no server was started."""
        servers = self.run.header.servers.values()
        return next((server.software_phrase for server in servers), self.spec.serving_engine)


def result_table(result: MethodResult) -> TextTable:
    """Make a table of the measured sizes by load, with intervals over tasks and passes."""
    headings = ("requests", "drafts", "tok/s", "of plain decoding (95 %)", "")
    rows = [_row(choice, measured) for choice in result.choices for measured in choice.measured]
    return text_table(headings, rows)


def result_lines(result: MethodResult) -> Iterator[str]:
    """Yield the lines below a method's table: acceptance, break-even load, noise, sizes by load.

    A load is a number of requests at once. The lines about noise tell how much two equal servers
    may differ at each load, and at which loads a slower size was chosen because of that. If the
    noise of any load is unknown, a single line says so.
    """
    # the share of drafts whose first i tokens are accepted, i = 1, 2, ...; may be empty
    if result.acceptance:
        shares = " ".join(f"{share:.2f}" for share in result.acceptance)
        yield f"Drafts accepted up to each position: {shares}"
    # throughput of the best draft size / plain decoding's, by load
    ratios = {choice.load: choice.best_draft.ratio for choice in result.choices}
    loads = [{"ratio": ratio.value, "load": load} for load, ratio in ratios.items()]
    break_even = break_even_numbers(ratios)  # the numbers and texts of the note, by name
    sentence = make_note("loads", method=result.method.label, loads=loads, **break_even).text
    yield sentence[0].upper() + sentence[1:]
    if all(math.isfinite(choice.noise) for choice in result.choices):  # infinite: not known
        noises = [f"{choice.noise * 100:.1f} % at {choice.load}" for choice in result.choices]
        yield _NOISE.format(", ".join(noises))
        for choice in result.choices:
            if choice.chosen != choice.fastest:  # a smaller size that is about as fast
                yield _TIE.format(load=choice.load, names=" and ".join(_tied(choice)))
    else:
        yield _UNKNOWN_NOISE
    ranges = ", ".join(f"{size.title} from {load}" for load, size in result.sizes_by_load)
    yield f"Chosen by requests at once: {ranges}"


def _tied(choice: LoadChoice) -> list[str]:
    """List the titles of the chosen size, and of the sizes that were measured to be faster."""
    return [
        measured.size.title
        for measured in choice.measured
        if measured == choice.chosen or measured.ratio.value > choice.chosen.ratio.value
    ]


def write_results(folder: Path, result: TuneResult) -> None:
    """Write the files of a tune into its folder.

    They are `result.json`, `settings.toml`, and for each method a plot and tables of draft tokens
    by load: one for each engine that can read it.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    with folder_errors(folder, "--out", REPEAT):  # system errors become RunFolderErrors
        write_whole(folder / "result.json", _json(_document(result)))
        write_whole(folder / "settings.toml", toml_text(_settings_file(result)).encode())
        for method_result in result.methods:
            for engine, table in _tables(method_result).items():
                if table is not None:  # None: the engine has no form for these sizes
                    write_whole(folder / f"{method_result.file_name}.{engine}.json", _json(table))
    plots = [ratios_by_load(method_result, result.software) for method_result in result.methods]
    write_files(folder, plot_files(plots))


def _row(choice: LoadChoice, measured: MeasuredSize) -> list[str]:
    """Make the table row of a size at a load. Only the first row of a load has the load."""
    return [
        str(choice.load) if measured == choice.measured[0] else "",
        measured.size.title,
        formats.rate(Estimate(measured.tokens_per_s)),
        f"{measured.ratio.value:.2f}{formats.brackets(measured.ratio)}",
        "chosen" if measured == choice.chosen else "",
    ]


def _document(result: TuneResult) -> dict[str, Any]:
    """Make a JSON object of the result. Infinite numbers become null."""
    return {
        "software": result.software,
        "model": result.spec.card.name,
        "methods": {method.method.label: _method(method, result.run) for method in result.methods},
    }


def _method(result: MethodResult, run: Run) -> dict[str, Any]:
    """Make a JSON object of a method's result."""
    break_even = result.break_even
    interval = break_even.interval
    return {
        "acceptance_by_position": list(result.acceptance),
        "loads": [_choice(choice, run) for choice in result.choices],
        "break_even": {
            "load": _finite(break_even.load),
            "low": _finite(interval.low) if interval else None,
            "high": _finite(interval.high) if interval else None,
            "last_faster": break_even.last_faster,
            "first_slower": break_even.first_slower,
        },
        "tables": _tables(result),
    }


def _choice(choice: LoadChoice, run: Run) -> dict[str, Any]:
    """Make a JSON object of the choice at a load. `run` has the command of each server."""
    server = run.header.servers.get(choice.chosen.size.label)
    return {
        "requests_at_once": choice.load,
        "chosen": choice.chosen.size.options_text,
        "num_tokens": choice.chosen.size.num_tokens,
        "flags": speculation_flags(server.command if server else ()),
        "equal_servers_differ_by": _finite(choice.noise),
        "measured": [
            {
                "options": measured.size.options_text,
                "num_tokens": measured.size.num_tokens,
                "tokens_per_s": measured.tokens_per_s,
                "ratio": measured.ratio.value,
                "interval": _ends(measured),
            }
            for measured in choice.measured
        ],
    }


def _ends(measured: MeasuredSize) -> list[float] | None:
    """Return both ends of the interval of a size's ratio; None without an interval."""
    interval = formats.interval_of(measured.ratio)
    return [interval.low, interval.high] if interval else None


def speculation_flags(command: Sequence[str]) -> list[str]:
    """List the options of a server's command that begin with `--spec`, with their arguments.

    The path of llama.cpp's draft weights, `--model-draft`, is not among them.
    """
    words: list[str] = []
    is_speculation = False  # True at such an option and its arguments
    for word in command:
        if word.startswith("--"):  # the next option
            is_speculation = word.startswith("--spec")
        if is_speculation:
            words.append(word)
    return words


def _tables(result: MethodResult) -> dict[str, Any]:
    """Make tables of draft tokens by load for vLLM ("vllm") and TensorRT-LLM ("trtllm").

    A table is None if the engine has no form for these draft tokens. Neither has a form for trees.
    """
    if any(choice.chosen.size.is_tree for choice in result.choices):
        return {"vllm": None, "trtllm": None}
    try:
        schedule = result.table.trtllm_schedule()
    except UserError:  # TensorRT-LLM has no form for this table
        schedule = None
    return {"vllm": result.table.vllm_rows(), "trtllm": schedule}


def _settings_file(result: TuneResult) -> SettingsFile:
    """List the sizes of each method by load, for `run --engine ... --settings`."""
    header = result.run.header
    sizes = {
        method.method.label: {
            "by_load": [[load, size.options_text] for load, size in method.sizes_by_load]
        }
        for method in result.methods
    }
    fits = {
        "software": result.software,
        "machine": header.environment.device_phrase(header.spec.values.device, None),
        "temperature": result.spec.samplings_text(),
    }
    return SettingsFile(
        methods=sizes,
        title=f"tuned {header.created[:10]}",
        model=result.spec.card.name,
        engine=result.spec.serving_engine,
        fits=fits,
    )


def _json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
