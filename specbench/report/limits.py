"""What a report says in words of steps, memory and card, and of how near the baseline comes."""

from collections.abc import Iterable, Mapping

from specbench.analysis.header import RunInfo
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.roofline import EXPERTS, IN_CACHE, LEAST_SHARE, Roofline
from specbench.analysis.stats import Estimate, Missing

STEP_COST = (
    "a step's decode time / that of vanilla's steps, over the completions of all tasks. Draft, "
    "verify, commit and host, where they were measured, are its parts."
)
LIMIT = (
    "MAT * target bytes / (target + draft bytes): the decode speedup if a step took the time to "
    "read its weights from memory, and nothing else."
)


def has_limits(run: RunMetrics) -> bool:
    """Whether the run's table has any limit to explain."""
    return isinstance(run.roofline, Roofline) and run.roofline.why_not is None


def memory_fact(run: RunMetrics) -> str:
    """The run's bandwidth and what follows from it, in a sentence or two; empty if not measured."""
    roofline = run.roofline
    if isinstance(roofline, Missing):
        return ""
    read = _size(roofline.target_bytes)
    speed = f"{_size(roofline.bandwidth)}/s measured"
    if roofline.why_not == IN_CACHE:
        return (
            f"{speed}, but a step of the target reads {read} of weights, which a cache of "
            f"{_size(roofline.cache_bytes)} holds in large part: memory sets no limit here, as it "
            "does for a real model."
        )
    if roofline.why_not == EXPERTS:
        return f"{speed}; which experts a step reads is not known, so that no limit is given."
    shares = [
        f"{share.value * 100:.0f} %"
        + (f" at T={temperature:g}" if len(run.temperatures) > 1 else "")
        for temperature, share in _shares(run, roofline)
    ]
    used = f", vanilla's at {', '.join(shares)} of that speed" if shares else ""
    return (
        f"{speed}; a step of the target reads {read} of weights{used}. Keys and values, "
        f"{roofline.kv_share * 100:.1f} % more, are not counted."
    )


def memory_warnings(run: RunMetrics) -> Iterable[str]:
    """A baseline that is far from what the memory allows."""
    if isinstance(run.roofline, Missing):
        return
    for _, share in _shares(run, run.roofline):
        if share.value < LEAST_SHARE:
            is_gpu = str(run.info.spec.get("device", "")).startswith("cuda")
            pace = "the host sets its pace" if is_gpu else "computing or the host sets its pace"
            yield (
                f"Vanilla uses {share.value * 100:.0f} % of the memory's bandwidth, below "
                f"{LEAST_SHARE * 100:.0f} %: {pace}, and against so slow a baseline every "
                "speedup is inflated."
            )
            return


def gpu_fact(info: RunInfo) -> str:
    """Clocks, heat and power of the card during the run; empty where nobody told."""
    shown = (
        ("sm_clock_mhz", "clock", "MHz"), ("memory_clock_mhz", "memory clock", "MHz"),
        ("temperature_c", "", "°C"), ("power_w", "", "W"),
    )  # fmt: skip
    words = []
    for key, name, unit in shown:
        span = info.gpu.get(key)
        if not isinstance(span, Mapping):
            continue
        low, mean, high = (span.get(name) for name in ("min", "mean", "max"))
        if isinstance(low, int | float) and isinstance(high, int | float):
            ends = f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"
            middle = f" (mean {mean:.0f})" if isinstance(mean, int | float) else ""
            words.append(f"{name} {ends} {unit}{middle if low != high else ''}".strip())
    return ", ".join(words)


def _shares(run: RunMetrics, roofline: Roofline) -> Iterable[tuple[float, Estimate]]:
    """The share of the bandwidth that vanilla uses at each temperature, where times count."""
    for temperature in run.temperatures:
        cost = run.cost(BASELINE, temperature)
        share = roofline.bandwidth_share(cost.step_s)
        if isinstance(share, Estimate) and isinstance(cost.decode_speedup, Estimate):
            yield temperature, share


def _size(num_bytes: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"
