"""Find settings in which the sides of an explanation differ, and the factors that these change."""

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
from specbench.judge.explained_sides import NODES_OF_STEP, ExplainedSide
from specbench.log.difference import Difference
from specbench.log.differences import differences
from specbench.log.header import RunHeader
from specbench.log.machine import UNKNOWN

_BY_MODEL_OR_ENGINE = (MAT, COST, PREFILL, IN_FLIGHT)
_BY_MACHINE = (COST, IN_FLIGHT)
_BY_NEIGHBOURS = (COST, PREFILL, IN_FLIGHT)
_BY_PROMPTS = (MAT, PREFILL)
"""The factors that the model or engine, the machine, other programs and the prompts can change."""
_MOVED_BY_FIELD: Mapping[str, tuple[str, ...]] = {
    "methods.vanilla.*": _BY_MACHINE,
    "methods.*": (MAT, COST),
    "model.template_sha256": _BY_PROMPTS,
    "model.*": _BY_MODEL_OR_ENGINE,
    "prompts.*": _BY_PROMPTS,
    "spec.template": _BY_PROMPTS,
    "spec.max_new_tokens": _BY_PROMPTS,
    "spec.history": _BY_PROMPTS,
    "spec.top_?": (MAT,),
    "spec.seed": (MAT,),
    "spec.backend": _BY_MODEL_OR_ENGINE,
    "spec.serving_engine": _BY_MODEL_OR_ENGINE,
    "num_threads": (),
    "counting": (),
    "spec.*": (),  # method, temperature and load are compared separately
    "*": _BY_MACHINE,
}
"""Pattern of a header's field -> the factors that the field can change. The first match counts."""
_HASHED = {
    "prompts.*": "texts of the prompts",
    "model.files.*": "weights of the model",
    "*.weights.*": "weights of {}",
    "*.tree_sha256": "tree of {}",
    "*_sha256": "text of the chat template",
}
"""Pattern of a field of hashes -> the field's name in words, where "{}" stands for the method."""
_LEAST_CHANGE = 0.005
"""Smallest relative difference of measured lengths and sizes that counts as a cause."""
_LEAST_OTHERS = 0.05
"""Other programs count as a cause if their shares of the processor on the two sides differ by at
least this much.
"""
_ARITHMETICS = {
    "tasks": "mean of the tasks",
    "totals": "all tokens / all seconds",
    "rates": "quotient of mean tokens/s",
    "ratios": "mean of the questions' quotients",
}
"""Ways to average a printed number, in words."""


class Setting(NamedTuple):
    """A setting in which two sides differ."""

    text: str
    """The setting with both values, the subject's first."""
    factors: tuple[str, ...]
    """The factors that it can change."""


def settings_that_differ(
    subject: ExplainedSide, reference: ExplainedSide, product: Product
) -> list[Setting]:
    """The settings that differ and can change a factor, each with both values in words."""
    listed = [
        *_of_keys(subject, reference),
        *_of_headers(subject, reference),
        *_of_texts(subject, reference),
        *_of_measurements(subject, reference),
        *_of_counting(subject, reference, product),
    ]
    # If steps are unknown, a setting that changes MAT or cost changes the seconds per token.
    return [
        Setting(text, (*factors, PER_TOKEN) if {MAT, COST} & {*factors} else factors)
        for text, factors in dict.fromkeys(listed)
    ]


def _of_headers(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """A setting for each field, known in both headers, that differs and can change a factor.

    Only vanilla and the explained method count. The methods of both sides get the subject's name,
    so that different methods are compared field by field.
    """
    method_name = subject.key.method.partition(":")[0]  # "NAME:OPTIONS" without options
    title = subject.header.method(subject.key.method).title
    sides = (subject, reference)
    headers = [_header_of_method(side.header, side.key.method, method_name) for side in sides]
    for difference in sorted(differences(*headers), key=_rank_of_field):
        factors = next(
            factors
            for pattern, factors in _MOVED_BY_FIELD.items()
            if fnmatchcase(difference.field, pattern)
        )
        both_values = words(difference, title)  # with the field's name
        if difference.field == f"methods.{method_name}.options":
            options = [header.methods[method_name].options for header in headers]
            both_values = f"{title}: {_options_text(*options)}"
        if factors:  # fields that change none, or that are compared elsewhere, have no factors
            yield Setting(both_values, factors)


def words(difference: Difference, title: str = "a method") -> str:
    """A difference in words, with both values unless they are hashes. `title` names the method."""
    for pattern, name_in_words in _HASHED.items():
        if fnmatchcase(difference.field, pattern):
            return name_in_words.format(title)
    return f"{difference.what}: {difference.first} against {difference.second}"


def _rank_of_field(difference: Difference) -> int:
    """The sort key of a difference. The most frequent causes come first, and versions last."""
    patterns = ("methods.*", "hardware", "model.*", "spec.*", "prompts.*", "kernels.*", "*")
    return next(
        rank for rank, pattern in enumerate(patterns) if fnmatchcase(difference.field, pattern)
    )


def _header_of_method(header: RunHeader, spelling: str, name: str) -> RunHeader:
    """The header reduced to vanilla and the method of this spelling, renamed to `name`."""

    def only(by_method: Mapping[str, Any]) -> dict[str, Any]:
        """The values of these two methods, by method. A method without a value is left out."""
        # A header may list a method by its spelling or by its name.
        of_method = by_method.get(spelling) or by_method.get(spelling.partition(":")[0])
        renamed = {BASELINE: by_method.get(BASELINE), name: of_method}
        return {key: of_key for key, of_key in renamed.items() if of_key is not None}

    return structs.replace(
        header,
        methods=only(header.methods),
        execution=only(header.execution),
        servers=only(header.servers),
    )


def _options_text(subject: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """The options that differ, with both values: "6 levels against 8".

    `subject` and `reference` map names of options to their values. Options that only one of them
    has are left out.
    """
    texts = []
    for option in sorted(subject.keys() & reference.keys()):
        if subject[option] != reference[option]:
            if option == "depth" and "total_tokens" in subject:  # of a tree: levels - 1
                texts.append(f"{subject[option] + 1} levels against {reference[option] + 1}")
            else:
                texts.append(f"{option} {subject[option]} against {reference[option]}")
    return ", ".join(texts)


def _of_keys(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """Settings for the method, the temperature and the load, if these are known and differ."""
    sides = (subject, reference)
    names = [side.key.method.partition(":")[0] for side in sides]  # "NAME:OPTIONS" without options
    if names[0] != names[1]:
        yield Setting(f"method: {subject.label} against {reference.label}", (MAT, COST))
    temperatures = [side.temperature_text for side in sides]
    if UNKNOWN not in temperatures and temperatures[0] != temperatures[1]:
        yield Setting(f"temperature: {' against '.join(temperatures)}", (MAT,))
    loads = [side.load_text for side in sides]  # empty if unknown
    if all(loads) and loads[0] != loads[1]:
        # Engines draft less under load, so the load changes MAT as well.
        yield Setting(f"load: {' against '.join(loads)}", _BY_MODEL_OR_ENGINE)


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
    software = dict.fromkeys(server.software for server in side.header.servers.values())
    return ", ".join(software) or "none"


def _engine_args(side: ExplainedSide) -> str:
    return " ".join(side.header.spec.values.engine_args) or "none"


def _gpu_neighbours(side: ExplainedSide) -> str:
    return str(side.header.gpu.other_processes_most) if side.header.gpu else ""


_TEXTS: Mapping[str, tuple[Callable[[ExplainedSide], str], tuple[str, ...]]] = {
    "CPU threads": (_threads, _BY_MACHINE),
    "engine's version": (_server_software, _BY_MODEL_OR_ENGINE),
    "engine's arguments": (_engine_args, _BY_MODEL_OR_ENGINE),
    "specbench": (_version, (MAT, COST)),
    "other processes on the GPU": (_gpu_neighbours, _BY_NEIGHBOURS),
}
"""Name of a setting in words -> the function that writes a side's value, or an empty text if it is
unknown, and the factors that the setting can change. `_of_headers` does not compare these.
"""


def _of_texts(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """A setting for each entry of `_TEXTS` that differs, and one for other programs' CPU use.

    Nothing is compared if a side is imported, since the files of other tools name none of these.
    """
    headers = subject.header, reference.header
    if any(header.imported for header in headers):
        return
    for name, (write_value, factors) in _TEXTS.items():
        texts = [write_value(subject), write_value(reference)]
        if all(texts) and texts[0] != texts[1]:  # both are known
            yield Setting(f"{name}: {' against '.join(texts)}", factors)
    # `cpu` says how busy the processor was. It is None if unknown. Servers count as other programs.
    if all(header.cpu and not header.servers for header in headers):
        # mean shares of the processor that other programs took, 0 to 1
        shares = [header.cpu.share_of_others.mean for header in headers if header.cpu]
        if abs(shares[0] - shares[1]) >= _LEAST_OTHERS:
            percents = f"{100 * shares[0]:.0f} % against {100 * shares[1]:.0f} %"
            yield Setting(f"other programs on the processor: {percents}", _BY_NEIGHBOURS)


def _of_measurements(subject: ExplainedSide, reference: ExplainedSide) -> Iterator[Setting]:
    """A setting for each measured size whose mean differs between the sides.

    The sizes are "tokens of a prompt", "tokens of an answer" and "nodes of a step". Means are over
    the turns of prompts that both sides have. If they share none, means are over all turns.
    """
    compared_turns = subject.turns & reference.turns or subject.turns | reference.turns
    for name in subject.measured:
        means = []  # of the subject, then of the reference; 0 if no size is known
        # all arrays are [requests] of a side
        for side in (subject, reference):
            is_compared = np.array([turn in compared_turns for turn in side.pairs.turns])
            sizes = side.measured[name][is_compared]
            known_sizes = sizes[np.isfinite(sizes)]  # NaN is an unknown size
            means.append(float(known_sizes.sum()) / max(len(known_sizes), 1))
        are_both_known = min(means) > 0
        if are_both_known and abs(means[0] - means[1]) > _LEAST_CHANGE * max(means):
            # A prefill has no draft, so nodes of a step cannot change it.
            factors = (COST,) if name == NODES_OF_STEP else (COST, PREFILL)
            yield Setting(f"{name}: {means[0]:.1f} against {means[1]:.1f}", factors)


def _of_counting(
    subject: ExplainedSide, reference: ExplainedSide, product: Product
) -> Iterator[Setting]:
    """A setting for each of these that differs: the average that gives the printed number, the
    prompts and turns, the tasks, and the counting rule for tokens. A rule that both sides share is
    also a setting if it is not specbench's and changes the ratio.

    `product` has the factors of the ratio of the sides' printed numbers (speedups or speeds).
    """
    sides = (subject, reference)
    averages = [_ARITHMETICS[side.pairs.arithmetic] for side in sides]  # in words
    if averages[0] != averages[1]:
        yield Setting(f"average: {averages[0]} against {averages[1]}", (AVERAGING,))
    if subject.turns != reference.turns:
        counts = f"{len(subject.turns)} against {len(reference.turns)}, {product.num_shared} shared"
        # If no turn is shared, MAT, cost and prefill of the sides are over different prompts.
        factors = (PROMPTS,) if product.num_shared else (MAT, COST, PREFILL)
        yield Setting(f"prompts and turns: {counts}", factors)
        tasks = [{turn.task for turn in side.turns} for side in sides]
        if unshared_tasks := sorted(tasks[0] ^ tasks[1]):
            yield Setting(f"tasks on one side only: {', '.join(unshared_tasks)}", (PROMPTS,))
    if subject.counting != reference.counting:  # rules in words
        yield Setting("counting rule", (COUNTING, MAT, COST, PREFILL))
    elif product.effect(COUNTING) != 1:  # the same rule, which is not specbench's
        yield Setting("token counts: each side uses the counting rule of its source", (COUNTING,))
