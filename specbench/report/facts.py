"""Facts of a run's header as text to print. No other part of the reports reads a header's parts."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from msgspec import structs

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.log.header import PromptsHeader, RunHeader
from specbench.log.machine import UNKNOWN
from specbench.log.methods import MethodHeader
from specbench.log.model import HUB_ID, WeightsHeader
from specbench.log.options import options
from specbench.log.run import loads_of
from specbench.log.spec import SpecValues
from specbench.report.texts import make_note

_SOURCES = {
    "bundled": "prompts bundled with specbench, in the style of the tasks",
    "paper": "published prompts",
    "hub": "prompts of the original data sets",
}
_ORIGINAL = "bundled prompts"


def model_label(info: RunHeader) -> str:
    """The model's title, marked if it is a stand-in."""
    if info.model.is_stand_in and "stand-in" not in info.model.label.lower():
        return f"{info.model.label} (stand-in: the real shape, not the real weights)"
    return info.model.label


def model_text(info: RunHeader) -> str:
    """The model with the Hub id and commit of its weights, if they have any.

    Never a folder: a report is published, and its title would show the machine's own paths.
    """
    label, model = model_label(info), info.model
    if model.source == model.label or not HUB_ID.fullmatch(model.source):
        return label
    commit = f" at {model.revision[:8]}" if model.revision else ""
    return f"{label} ({model.source}{commit})"


def prompts_text(info: RunHeader) -> str:
    """The number of the prompts by their source; empty if unknown."""
    sets: dict[str, list[PromptsHeader]] = defaultdict(list)
    for one in info.prompts:
        words = _SOURCES.get(one.source, f"prompts of {one.origin}")
        sets[words if one.is_imitation or one.source != "bundled" else _ORIGINAL].append(one)
    return ", ".join(_counted(found, words) for words, found in sets.items())


def _counted(sets: Sequence[PromptsHeader], words: str) -> str:
    used = sum(one.num_prompts for one in sets)
    available = sum(one.num_available for one in sets)
    if used != available:
        return f"{used} of {available} {words}"
    return f"{used} {words}" if used != 1 else f"1 {words.replace('prompts', 'prompt', 1)}"


def load_text(run: RunMetrics) -> str:
    """The loads that were asked for, and the requests that were in flight."""
    text = ", ".join(load.text for load in loads_of(run.info.spec.values))
    found = [one.in_flight for one in run.serving.values() if one.in_flight.most > 1]
    if not found:
        return text
    mean, most = sum(one.mean for one in found) / len(found), max(one.most for one in found)
    return f"{text} ({mean:.1f} in flight, at most {most})"


def is_on_gpu(info: RunHeader) -> bool:
    """True if the run used a CUDA device."""
    return info.spec.values.device.startswith("cuda")


def workers(info: RunHeader) -> list[dict[str, Any]]:
    """The workers with their cards, bandwidth and clocks; none without --ray."""
    return [
        {
            "name": name,
            "node": one.node,
            "device": one.environment.device_phrase(
                info.spec.values.device, one.threads.num if one.threads else None
            ),
            "bandwidth": one.roofline.bandwidth_bytes_per_s if one.roofline else None,
            "clock_mhz": clock.mean if one.gpu and (clock := one.gpu.sm_clock_mhz) else None,
        }
        for name, one in info.workers.items()
    ]


def listed_facts(info: RunHeader) -> list[tuple[str, str]]:
    """Label and text of the facts about the machine and the run, in order."""
    facts = {
        "Machine": info.device_phrase,
        "Workers": make_note("workers", workers=workers(info)).text,
        "Operating system": info.environment.os,
        "Software": info.environment.software_phrase,
        "CUDA": info.environment.torch.cuda,
        "Commit": info.environment.commit_phrase,
        "Model": f"{info.model.label}, {info.model.precision}",
        "Prompts": "; ".join(
            f"{one.title}: {one.num_prompts} {one.source}, sha256 {one.sha256[:12]}"
            for one in info.prompts
        ),
        "Run": f"{info.id}, {info.status}",
        "From": info.created,
        "To": info.finished,
    }
    return [(name, text) for name, text in facts.items() if text]


def options_text(about: MethodHeader | None) -> str:
    """The options of a method in effect."""
    options: dict[str, Any] = about.options if about else {}
    given = [f"{name}={value}" for name, value in options.items() if value not in ("", None)]
    return ", ".join(given) or "none"


def weights_text(weights: WeightsHeader | None) -> str:
    """The revision of draft weights, or the hash of their largest file."""
    if weights is None:
        return "none"
    if weights.revision:
        return f"revision {weights.revision[:12]}"
    if not weights.files:
        return UNKNOWN
    name, largest = max(weights.files.items(), key=lambda item: item[1].bytes)
    return f"{name}, sha256 {(largest.sha256 or UNKNOWN)[:12]}"


def typed_command(info: RunHeader) -> str:
    """The command as the user typed it; empty if unknown."""
    return shlex.join(["specbench", *info.command]) if info.command else ""


def full_command(info: RunHeader) -> str:
    """The command with every setting written out, so that no default can change it.

    The number of passes is the one that was taken, so that `--until-ci` is left out.
    """
    values, asked = info.spec.values, info.spec.asked or info.spec.values
    cards = [name for name in asked.tasks if name.endswith(".toml")]
    own = {Path(card).stem for card in cards}
    methods = [m for m in values.methods if m != BASELINE or not values.is_baseline_run]
    methods = methods or [*values.methods]  # vanilla alone
    groups = groupby(() if values.urls else methods, lambda one: ":" in one)
    spelled = chain.from_iterable(own if has else [",".join(own)] for has, own in groups)
    replaced: dict[str, list[str]] = {
        "methods": [f"--method {shlex.quote(one)}" for one in spelled],
        "until_ci": [],
        "is_baseline_run": [] if values.is_baseline_run else ["--no-baseline"],
        "backend": ["--backend server"] if values.backend and not values.serving_engine else [],
        "urls": [
            f"--url {shlex.quote(url)} --label {shlex.quote(label)}"
            for url, label in zip(values.urls, values.labels or ("server",), strict=False)
        ],
        "labels": [],
    }
    written = structs.replace(
        values,
        template=asked.template,
        tasks=tuple(task for task in values.tasks if task.partition("/")[0] not in own),
    )
    parts = ["specbench run"]
    for option in options(SpecValues):
        value = getattr(written, option.name)
        if option.name in replaced:
            parts += replaced[option.name]
        elif option.item is bool:
            parts += [option.flag] * value
        elif value not in (None, "", ()) and (value or option.name != "top_k"):
            parts.append(f"{option.flag} {shlex.quote(option.write(value))}")
        if option.name == "tasks":
            parts += [f"--task {shlex.quote(card)}" for card in cards]
    return _wrapped(parts)


def _wrapped(parts: Iterable[str]) -> str:
    """The parts on as few lines as they need, joined by backslashes."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= 88:
            lines[-1] += f" {part}"
        else:
            lines.append(f"  {part}" if lines else part)
    return " \\\n".join(lines)
