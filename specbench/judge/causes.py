"""Settings that differ between two sides, and the factors that each can move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from specbench.analysis.factors import (
    AVERAGING,
    COST,
    COUNTING,
    IN_FLIGHT,
    MAT,
    PER_TOKEN,
    PREFILL,
    PROMPTS,
    Product,
)
from specbench.analysis.records import BASELINE
from specbench.judge.explained_sides import ExplainedSide
from specbench.log.difference import Difference
from specbench.log.differences import differences
from specbench.log.header import RunHeader
from specbench.log.machine import UNKNOWN

_EVERY = (MAT, COST, PREFILL, IN_FLIGHT)
_MACHINE = (COST, IN_FLIGHT)
_NEIGHBOUR = (COST, PREFILL, IN_FLIGHT)
_TEXTS_OF_PROMPTS = (MAT, PREFILL)
_MOVED: Mapping[str, tuple[str, ...]] = {
    "methods.vanilla.*": _MACHINE,
    "methods.*": (MAT, COST),
    "model.template_sha256": _TEXTS_OF_PROMPTS,
    "model.*": _EVERY,
    "prompts.*": _TEXTS_OF_PROMPTS,
    "spec.template": _TEXTS_OF_PROMPTS,
    "spec.max_new_tokens": _TEXTS_OF_PROMPTS,
    "spec.history": _TEXTS_OF_PROMPTS,
    "spec.top_?": (MAT,),
    "spec.seed": (MAT,),
    "spec.backend": _EVERY,
    "spec.serving_engine": _EVERY,
    "num_threads": (),
    "counting": (),
    "spec.*": (),  # the explained method, temperature and load are compared apart
    "*": _MACHINE,
}
"""The factors that a field of the header can move, by its pattern; the first match counts."""
_WITHOUT_VALUES = {
    "prompts.*": "texts of the prompts",
    "model.files.*": "weights of the model",
    "*.weights.*": "weights of {}",
    "*.tree_sha256": "tree of {}",
    "*_sha256": "text of the chat template",
}
"""Words for fields whose values are hashes; "{}" stands for the method."""
_LEAST_CHANGE = 0.005
"""Smallest relative difference of measured lengths and sizes that counts as a cause."""
_LEAST_OTHERS = 0.05
"""Smallest difference in the other programs' share of the processor that counts as a cause."""
_ARITHMETICS = {
    "tasks": "mean of the tasks",
    "totals": "all tokens / all seconds",
    "rates": "quotient of mean tokens/s",
    "ratios": "mean of the questions' quotients",
}


class Setting(NamedTuple):
    """A setting in which two sides differ."""

    text: str
    """The setting with both values, the subject's first."""
    factors: tuple[str, ...]
    """The factors that it can move."""


def settings_that_differ(
    subject: ExplainedSide, reference: ExplainedSide, product: Product
) -> list[Setting]:
    """The settings that differ and can move a factor, with both values in words."""
    listed = [
        *_of_keys(subject, reference),
        *_of_headers(subject, reference),
        *_of_texts(subject, reference),
        *_of_measurements(subject, reference),
        *_of_counting(subject, reference, product),
    ]
    # without steps, a setting that moves MAT or cost moves the seconds per token
    return [
        Setting(text, (*factors, PER_TOKEN) if {MAT, COST} & {*factors} else factors)
        for text, factors in dict.fromkeys(listed)
    ]


def _of_headers(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """Differences between the headers, reduced to vanilla and the explained method."""
    name = subject.key.method.partition(":")[0]
    title = subject.header.method(subject.key.method).title
    sides = (subject, reference)
    headers = [_alone(side.header, side.key.method, name) for side in sides]
    for difference in sorted(differences(*headers), key=_place):
        factors = next(
            factors for pattern, factors in _MOVED.items() if fnmatchcase(difference.field, pattern)
        )
        text = words(difference, title)
        if difference.field == f"methods.{name}.options":
            options = [header.methods[name].options for header in headers]
            text = f"{title}: {_options_text(*options)}"
        if factors:
            yield Setting(text, factors)


def words(difference: Difference, title: str = "a method") -> str:
    """A difference with both values, unless they are hashes. `title` is the method's title."""
    for pattern, text in _WITHOUT_VALUES.items():
        if fnmatchcase(difference.field, pattern):
            return text.format(title)
    return f"{difference.what}: {difference.first} against {difference.second}"


def _place(difference: Difference) -> int:
    """The sort key of a difference: the most frequent causes come first, versions last."""
    patterns = ("methods.*", "hardware", "model.*", "spec.*", "prompts.*", "kernels.*", "*")
    return next(
        place for place, pattern in enumerate(patterns) if fnmatchcase(difference.field, pattern)
    )


def _alone(header: RunHeader, spelling: str, name: str) -> RunHeader:
    """The header reduced to vanilla and the method of this spelling, renamed to `name`."""

    def only(entries: Mapping[str, Any]) -> dict[str, Any]:
        # A header may list a method by its spelling or by its name.
        method_entry = entries.get(spelling) or entries.get(spelling.partition(":")[0])
        renamed = {BASELINE: entries.get(BASELINE), name: method_entry}
        return {key: entry for key, entry in renamed.items() if entry is not None}

    return structs.replace(
        header,
        methods=only(header.methods),
        execution=only(header.execution),
        servers=only(header.servers),
    )


def _options_text(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """The options that differ, with both values: "6 levels against 8"."""
    texts = []
    for option in sorted(first.keys() & second.keys()):
        if first[option] != second[option]:
            if option == "depth" and "total_tokens" in first:  # of a tree: levels - 1
                texts.append(f"{first[option] + 1} levels against {second[option] + 1}")
            else:
                texts.append(f"{option} {first[option]} against {second[option]}")
    return ", ".join(texts)


def _of_keys(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """A different method, temperature or load."""
    first, second = subject.key, reference.key
    if first.method.partition(":")[0] != second.method.partition(":")[0]:
        yield Setting(f"method: {subject.label} against {reference.label}", (MAT, COST))
    texts = [side.temperature_text for side in (subject, reference)]
    if UNKNOWN not in texts and texts[0] != texts[1]:
        yield Setting(f"temperature: {' against '.join(texts)}", (MAT,))
    texts = [side.load_text for side in (subject, reference)]
    if all(texts) and texts[0] != texts[1]:
        # engines draft less under load, so it moves MAT as well
        yield Setting(f"load: {' against '.join(texts)}", _EVERY)


def _version(side: ExplainedSide) -> str:
    environment = side.header.environment
    return f"{environment.specbench}, commit {environment.commit_phrase}"


def _threads(side: ExplainedSide) -> str:
    threads = side.header.threads
    if side.header.cpu_threads is None or threads is None:
        return ""
    num_decoding, num_prefill = threads.of(side.key.method), threads.of_prefill
    return f"{num_decoding} ({num_prefill} for prefills, {threads.num} for vanilla)"


def _server_software(side: ExplainedSide) -> str:
    servers = side.header.servers.values()
    return ", ".join(dict.fromkeys(server.software for server in servers)) or "none"


def _engine_args(side: ExplainedSide) -> str:
    return " ".join(side.header.spec.values.engine_args) or "none"


def _gpu_neighbours(side: ExplainedSide) -> str:
    return str(side.header.gpu.other_processes_most) if side.header.gpu else ""


_TEXTS: Mapping[str, tuple[Callable[[ExplainedSide], str], tuple[str, ...]]] = {
    "CPU threads": (_threads, _MACHINE),
    "engine's version": (_server_software, _EVERY),
    "engine's arguments": (_engine_args, _EVERY),
    "specbench": (_version, (MAT, COST)),
    "other processes on the GPU": (_gpu_neighbours, _NEIGHBOUR),
}
"""Settings beyond the fields of headers: a function for the text (empty if unknown), and the
factors that the setting can move.
"""


def _of_texts(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """Threads, versions and arguments, and other programs on the GPU or the processor.

    Other tools' files name none of them.
    """
    if subject.header.imported or reference.header.imported:
        return
    for name, (text_of, factors) in _TEXTS.items():
        texts = [text_of(subject), text_of(reference)]
        if all(texts) and texts[0] != texts[1]:
            yield Setting(f"{name}: {' against '.join(texts)}", factors)
    first, second = subject.header, reference.header
    # a server in another process counts among the other programs
    if first.cpu and second.cpu and not (first.servers or second.servers):
        shares = first.cpu.share_of_others.mean, second.cpu.share_of_others.mean
        if abs(shares[0] - shares[1]) >= _LEAST_OTHERS:
            text = f"{100 * shares[0]:.0f} % against {100 * shares[1]:.0f} %"
            yield Setting(f"other programs on the processor: {text}", _NEIGHBOUR)


def _of_measurements(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """Measured lengths and sizes whose means differ between the sides.

    `measured` of a side has numbers of each request by name: "tokens of a prompt", "tokens of an
    answer" and "nodes of a step". They are compared on the requests (a turn of a prompt) that both
    sides have or, without any, on all of them.
    """
    compared_turns = subject.turns & reference.turns or subject.turns | reference.turns
    for name in subject.measured:
        means = []
        for side in (subject, reference):
            is_compared = np.array([turn in compared_turns for turn in side.pairs.turns])
            sizes = side.measured[name][is_compared]
            sizes = sizes[np.isfinite(sizes)]  # NaN is an unknown size
            means.append(float(sizes.sum()) / max(len(sizes), 1))  # 0 is unknown
        if min(means) and abs(means[0] - means[1]) > _LEAST_CHANGE * max(means):
            is_of_step = "step" in name  # a prefill has no draft
            factors = (COST,) if is_of_step else (COST, PREFILL)
            yield Setting(f"{name}: {means[0]:.1f} against {means[1]:.1f}", factors)


def _of_counting(
    subject: ExplainedSide, reference: ExplainedSide, product: Product
) -> Iterator[Setting]:
    """Different prompts, counting rules or averages."""
    names = [_ARITHMETICS[side.pairs.arithmetic] for side in (subject, reference)]
    if names[0] != names[1]:
        yield Setting(f"average: {names[0]} against {names[1]}", (AVERAGING,))
    if subject.turns != reference.turns:
        text = f"{len(subject.turns)} against {len(reference.turns)}, {product.num_shared} shared"
        factors = (PROMPTS,) if product.num_shared else (MAT, COST, PREFILL)
        yield Setting(f"prompts and turns: {text}", factors)
        tasks = [{task for task, *_ in side.turns} for side in (subject, reference)]
        if unshared_tasks := sorted(tasks[0] ^ tasks[1]):
            yield Setting(f"tasks on one side only: {', '.join(unshared_tasks)}", (PROMPTS,))
    if subject.counting != reference.counting:
        yield Setting("counting rule", (COUNTING, MAT, COST, PREFILL))
    elif product.effect(COUNTING) != 1:
        yield Setting("token counts: each side uses the counting rule of its source", (COUNTING,))
