"""State facts about a run as texts to print, or as numbers for notes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from specbench.analysis.drafting import drafts_in_every_step
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.server_counters import LengthShare
from specbench.log.backend import WorkerHeader
from specbench.log.header import PromptsHeader, RunHeader
from specbench.log.machine import UNKNOWN
from specbench.log.methods import MethodHeader
from specbench.log.model import HUB_ID, WeightsHeader
from specbench.log.run import loads_of
from specbench.report.texts import Numbers, make_note

_SOURCES = {
    "bundled": "prompts bundled with specbench, in the style of the tasks",
    "paper": "published prompts",
    "hub": "prompts of the original data sets",
}
"""Words for the prompts from each source."""
_ORIGINAL = "bundled prompts"
"""Words for bundled prompts that do not imitate published ones."""
_WHOLE_SHARE = 0.9995
"""The smallest share of steps that is reported as all steps."""
_MOST_LENGTHS = 4
"""The largest number of draft lengths that a note names."""
_SHORT_HASH = 12
"""The number of characters that are shown of the hash of a commit or file."""


def model_label(info: RunHeader) -> str:
    """Return the model's title, with a mark for a stand-in or an imported run."""
    if info.imported:
        return f"{info.model.label} (imported)"
    return info.model.marked_label


def model_phrase(info: RunHeader) -> str:
    """Return the model's title and number formats."""
    return f"{model_label(info)}, {info.model.precision}"


def model_text(info: RunHeader) -> str:
    """Return the model with the Hub id and commit of its weights, if they are from the Hub.

    A folder is never named, because reports are published and should not show paths of the machine.
    """
    label = model_label(info)
    model = info.model
    if model.source == model.label or not HUB_ID.fullmatch(model.source):
        return label
    commit = f" at {model.revision[:8]}" if model.revision else ""
    return f"{label} ({model.source}{commit})"


def prompts_text(info: RunHeader) -> str:
    """Return the number of prompts from each source in words, or "" if it is unknown."""
    sets: dict[str, list[PromptsHeader]] = defaultdict(list)  # by the words for the source
    for prompts in info.prompts:
        sets[_source(prompts)].append(prompts)
    return ", ".join(_counted(same_source, words) for words, same_source in sets.items())


def _source(prompts: PromptsHeader) -> str:
    if prompts.source == "bundled" and not prompts.is_imitation:
        return _ORIGINAL
    return _SOURCES.get(prompts.source, f"prompts of {prompts.origin}")


def _counted(sets: Sequence[PromptsHeader], words: str) -> str:
    """Return the number of prompts that were used, and the number available if it is larger."""
    used = sum(prompts.num_prompts for prompts in sets)
    available = sum(prompts.num_available for prompts in sets)
    if used != available:
        return f"{used} of {available} {words}"
    return f"{used} {words}" if used != 1 else f"1 {words.replace('prompts', 'prompt', 1)}"


def copied_prompts(info: RunHeader) -> list[dict[str, Any]]:
    """Return the tasks in which a prompt occurs under several ids, with the number of copies."""
    return [
        {"task": prompts.task, "copies": len(prompts.copies), "prompts": prompts.num_prompts}
        for prompts in info.prompts
        if prompts.copies
    ]


def load_text(run: RunMetrics) -> str:
    """Return the requested loads, with the mean and largest number of requests in flight at once.

    These two numbers are left out if no server ever had two requests in flight. The mean is the
    unweighted mean of the servers' means at each temperature. A server that never had two requests
    in flight at a temperature is left out there.
    """
    text = ", ".join(load.text for load in loads_of(run.info.spec.values))
    in_flight = [server.in_flight for server in run.serving.values() if server.in_flight.most > 1]
    if not in_flight:
        return text
    mean = sum(server_in_flight.mean for server_in_flight in in_flight) / len(in_flight)
    most = max(server_in_flight.most for server_in_flight in in_flight)
    return f"{text} (in flight: mean {mean:.1f}, maximum {most})"


def is_on_gpu(info: RunHeader) -> bool:
    """True if the run used a CUDA device."""
    return info.spec.values.device.startswith("cuda")


def workers(info: RunHeader) -> list[dict[str, Any]]:
    """Return the workers with their hardware, bandwidth and clocks. Only a run with --ray has
    workers.
    """
    return [_worker(info, name, worker) for name, worker in info.workers.items()]


def _worker(info: RunHeader, name: str, worker: WorkerHeader) -> dict[str, Any]:
    """Return a worker's machine, memory bandwidth in bytes/s, and mean GPU clock in MHz.

    Unknown numbers are None.
    """
    device = info.spec.values.device
    num_threads = worker.threads.num if worker.threads else None
    clock = worker.gpu.sm_clock_mhz if worker.gpu else None
    roofline = worker.roofline
    return {
        "name": name,
        "node": worker.node,
        "device": worker.environment.device_phrase(device, num_threads),
        "bandwidth": roofline.bandwidth_bytes_per_s if roofline else None,
        "clock_mhz": clock.mean if clock else None,
    }


def listed_facts(info: RunHeader) -> list[tuple[str, str]]:
    """Return pairs of a label and a text with the facts about the machine and the run, in order."""
    prompts = [
        f"{prompts.title}: {prompts.num_prompts} {prompts.source}, sha256 {prompts.sha256[:12]}"
        for prompts in info.prompts
    ]
    facts = {
        "Machine": info.device_phrase,
        "Workers": make_note("workers", workers=workers(info)).text,
        "Operating system": info.environment.os,
        "Software": info.environment.software_phrase,
        "CUDA": info.environment.torch.cuda,
        "Commit": info.environment.commit_phrase,
        "Model": f"{info.model.label}, {info.model.precision}",
        "Prompts": "; ".join(prompts),
        "Run": f"{info.id}, {info.status}",
        "From": info.created,
        "To": info.finished,
    }
    return [(name, text) for name, text in facts.items() if text]


def prompt_offsets(run: RunMetrics) -> list[Numbers]:
    """Return the differences between the servers' and our token counts of the same prompts.

    There is an entry for each method on a server at each temperature. A difference is the server's
    count of a prompt's tokens minus ours. `offset` gives the smallest and the largest difference of
    all prompts as text, such as "-1 to +12", or "+12" if the two are equal. Servers that do not
    count, or count as we do, are left out.
    """
    offsets: list[Numbers] = []
    for (method, temperature), server in run.serving.items():
        # The smallest and the largest difference, once if they are equal. 0 without a count.
        distinct_ends = dict.fromkeys((server.prompts.least_offset, server.prompts.most_offset))
        ends_as_texts = [f"{offset:+,}" if offset else "0" for offset in distinct_ends]
        if ends_as_texts != ["0"]:
            offset_text = " to ".join(ends_as_texts)
            offsets.append({"method": method, "temperature": temperature, "offset": offset_text})
    return offsets


def drafting_shares(run: RunMetrics) -> list[Numbers]:
    """Return the shares of steps in which methods on servers drafted.

    There is an entry for each method and temperature. `share` is the number of steps with a draft /
    the number of all steps. `lengths` has the shares of the `_MOST_LENGTHS` most frequent draft
    lengths, and the share of all other lengths. It is empty if all drafts have the same length, or
    if the server does not list its drafts. Three kinds of methods are left out: vanilla, methods
    with an unknown share, and methods that drafted in every step, as they should, with empty
    `lengths`.
    """
    methods: list[Numbers] = []
    for (method, temperature), server in run.serving.items():
        share = server.drafting_share  # from 0 to 1, or None if it is unknown
        if method == BASELINE or share is None:
            continue
        # The lengths of drafts with their shares. A single length is not shown.
        lengths = server.draft_lengths if len(server.draft_lengths) > 1 else ()
        is_whole = share >= _WHOLE_SHARE
        # The method's name and the server's schedule tell whether it should draft in every step.
        if is_whole and drafts_in_every_step(run.info, method) and not lengths:
            continue
        methods.append(
            {
                "method": method,
                "temperature": temperature,
                "share": share,
                "lengths": _shares_by_length(lengths),
            }
        )
    return methods


def _shares_by_length(lengths: Sequence[LengthShare]) -> list[Numbers]:
    """Return the shares of the most frequent draft lengths, and the share of all other lengths."""
    shares: list[Numbers] = [
        {"tokens": length.num_tokens, "share": length.share} for length in lengths[:_MOST_LENGTHS]
    ]
    if share_of_others := sum(length.share for length in lengths[_MOST_LENGTHS:]):
        shares.append({"tokens": "others", "share": share_of_others})
    return shares


def is_baseline_unseen(run: RunMetrics) -> bool:
    """True if a server answered for vanilla and no count shows whether it drafts."""
    has_baseline = BASELINE in run.info.servers and BASELINE in run.methods
    return has_baseline and run.baseline_drafts is None


def options_text(method: MethodHeader | None) -> str:
    """Return the options of a method that are in effect, in words."""
    options: dict[str, Any] = method.options if method else {}
    texts = [f"{name}={option}" for name, option in options.items() if option not in ("", None)]
    return ", ".join(texts) or "none"


def draft_weights(info: RunHeader) -> list[dict[str, Any]]:
    """Return facts about the output layers and rotary embeddings in the methods' checkpoints."""
    return [
        {"method": spelling, "facts": [*execution.weights_facts]}
        for spelling, execution in info.execution.items()
        if execution.weights_facts
    ]


def weights_text(weights: WeightsHeader | None) -> str:
    """Return the version of a method's draft weights in words.

    It is the revision on the Hub. Without one, it is the name of the largest file and the beginning
    of its hash. `weights` is None for a method without draft weights.
    """
    if weights is None:
        return "none"
    if weights.revision:  # a commit on the Hub; None for a local folder
        return f"revision {weights.revision[:_SHORT_HASH]}"
    if not weights.files:
        return UNKNOWN
    # `files` has the size (`bytes`) and the hash of each file, by name.
    name, largest_file = max(weights.files.items(), key=lambda named_file: named_file[1].bytes)
    return f"{name}, sha256 {(largest_file.sha256 or UNKNOWN)[:_SHORT_HASH]}"


def thinking(info: RunHeader) -> dict[str, Any]:
    """Return the thinking mode for a note, or an empty dict if the model has none.

    If the template can switch the mode, `state` is "on" or "off", and `values` are the values of
    its switches. Otherwise `state` is "fixed" or "unknown" (see `ThinkingHeader`).
    """
    mode = info.model.chat and info.model.chat.thinking
    if not mode:
        return {}
    if mode.state != "switched":
        return {"state": mode.state}
    values = [f"{name}={value}" for name, value in mode.values.items()]
    return {"state": "on" if mode.is_on else "off", "values": values}
