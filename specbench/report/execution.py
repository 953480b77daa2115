"""How a run's steps were run, as a fact to print."""

from collections import defaultdict
from collections.abc import Mapping

from specbench.analysis.header import RunInfo

_MODES = {"graph": "CUDA graphs", "eager": "one by one"}


def execution_fact(info: RunInfo) -> str:
    """As CUDA graphs or one by one, with which kernels, and why not otherwise; empty if unknown."""
    methods = defaultdict(list)
    for spelling, about in info.execution.items():
        if isinstance(about, Mapping) and about.get("mode") in _MODES:
            methods[about["mode"], about.get("reason")].append(info.method(spelling).label)
    words: list[str] = []
    for (mode, reason), labels in sorted(methods.items(), key=lambda item: -len(item[1])):
        who = f" for {', '.join(labels)}" if words else ""
        words.append(f"{_MODES[mode]}{who}{_why(reason)}")
    if words and "name" in info.kernels:
        words.append(f"layers by {info.kernels['name']}{_why(info.kernels.get('reason'))}")
    return "; ".join(words)


def _why(reason: object) -> str:
    return f" ({reason})" if reason else ""
