"""Run headers from plain values, with plausible defaults."""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from specbench.log.header import RunHeader, header_values

BASE: dict[str, Any] = {
    "schema": 1,
    "id": "unnamed",
    "status": "complete",
    "created": "2026-11-20T12:00:00+00:00",
    "spec": {"values": {"device": "cpu", "dtype": "float32", "max_new_tokens": 128}},
    "environment": {
        "specbench": "0.1.0",
        "git": {"commit": "0123456789abcdef", "is_dirty": False},
        "python": "3.11.9",
        "os": "Linux",
        "cpu": {
            "model": "Example CPU 9000", "num_cores": 2, "num_threads": 2,
            "num_usable_threads": 2, "memory_bytes": 8 * 2**30,
        },
        "gpus": [],
        "torch": {
            "version": "2.13.0", "cuda": None, "devices": [], "num_threads": 2,
            "float32_matmul_precision": "highest",
        },
        "transformers": "5.17.0",
    },
    "model": {"name": "tiny", "label": "tiny", "source": "embedded", "dtype": "float32"},
    "methods": {},
    "columns": {},
}  # fmt: skip

_METHOD = {"options": {}, "is_lossless": True, "weights": None}
_WEIGHTS: dict[str, Any] = {"revision": None, "files": {}}
_PROMPTS = {
    "title": "", "source": "bundled", "origin": "", "file_sha256": None, "num_available": 8,
    "num_prompts": 8, "sha256": "",
}  # fmt: skip
_ROOFLINE = {"cache_bytes": 0, "kv_bytes_per_token": 0, "is_mixture_of_experts": False}
_SPANS = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "memory_used_bytes")
_GPU: dict[str, Any] = {
    "num_samples": 10, "interval_s": 0.1, **dict.fromkeys(_SPANS), "throttled": {},
    "percent_busy_before": 0, "other_processes_before": 0, "other_processes_most": 0,
    "energy_source": None, "is_partition": False, "is_lost": False,
}  # fmt: skip


def make_header(given: Mapping[str, Any] | None = None) -> RunHeader:
    """The header with these values, as `run.json` nests them."""
    values = merged(BASE, given or {})
    for name, about in values["methods"].items():
        bare_name = name.partition(":")[0]
        values["methods"][name] = {"name": bare_name, "title": bare_name, **_METHOD, **about}
        if about.get("weights"):
            values["methods"][name]["weights"] = {**_WEIGHTS, **about["weights"]}
    values["prompts"] = [{**_PROMPTS, **prompts} for prompts in values.get("prompts", ())]
    for part, base in (("gpu", _GPU), ("roofline", _ROOFLINE)):
        if values.get(part):
            values[part] = {**base, **values[part]}
    for about in (values.get("kernels"), *values.get("execution", {}).values()):
        if about:
            about.setdefault("reason", None)
    return msgspec.convert(values, RunHeader)


def values_of(header: RunHeader) -> dict[str, Any]:
    """The header as plain values that can be changed."""
    return copy.deepcopy(header_values(header))


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those of a change, level by level."""
    both = copy.deepcopy(dict(base))
    for key, part in given.items():
        is_part = isinstance(part, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merged(both[key], part) if is_part else copy.deepcopy(part)
    return both
