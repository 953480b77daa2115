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
    header = merged(BASE, given or {})
    for label, method in header["methods"].items():
        name = label.partition(":")[0]
        header["methods"][label] = {"name": name, "title": name, **_METHOD, **method}
        if weights := method.get("weights"):
            header["methods"][label]["weights"] = {**_WEIGHTS, **weights}
    header["prompts"] = [{**_PROMPTS, **prompts} for prompts in header.get("prompts", ())]
    for field, defaults in (("gpu", _GPU), ("roofline", _ROOFLINE)):
        if header.get(field):
            header[field] = {**defaults, **header[field]}
    for execution in (header.get("kernels"), *header.get("execution", {}).values()):
        if execution:
            execution.setdefault("reason", None)
    return msgspec.convert(header, RunHeader)


def values_of(header: RunHeader) -> dict[str, Any]:
    """The header as plain values, which can be changed."""
    return copy.deepcopy(header_values(header))


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those of a change, level by level."""
    both = copy.deepcopy(dict(base))
    for key, change in given.items():
        if isinstance(change, Mapping) and isinstance(both.get(key), Mapping):
            both[key] = merged(both[key], change)
        else:
            both[key] = copy.deepcopy(change)
    return both
