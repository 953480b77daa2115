"""Find the numbers for the note about methods that are slower than vanilla on a CPU."""

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.overall import MethodMetrics
from specbench.analysis.stats.estimates import Estimate
from specbench.methods import described
from specbench.report import facts
from specbench.report.texts import Numbers


def slow_on_cpu(run: RunMetrics) -> Numbers:
    """Return the numbers for a note about methods that accept drafts, but are slow on a CPU.

    `is_slower` is True if there is such a method. `methods` has an entry for each of these methods
    and its temperature, if the method's description says why it is rarely faster than vanilla on a
    CPU. The result is empty on a GPU and for servers.
    """
    if facts.is_on_gpu(run.info) or run.info.servers:
        return {}
    slow = [  # the speedup is below 1, and the MAT above 1
        (method, temperature)
        for (method, temperature), overall in run.overall.items()  # numbers over all tasks
        if _is_slow_though_accepting(overall)
    ]
    # why a method is rarely faster, by its name without options; empty for most methods
    reason_by_name = {name: description.slow_on_cpu for name, description in described().items()}
    slow_by_design: list[Numbers] = []
    for method, temperature in slow:
        reason = reason_by_name.get(method.partition(":")[0])
        if not reason:
            continue
        # the cost of a step, over all tasks; `mat` and `relative` may be missing
        cost = run.cost(method, temperature)
        slow_by_design.append(
            {
                "method": method,
                "temperature": temperature,
                "why": reason,
                "mat": cost.mat,
                "cost": cost.relative,  # seconds of a step / vanilla's
            }
        )
    return {"is_slower": bool(slow), "methods": slow_by_design}


def _is_slow_though_accepting(overall: MethodMetrics) -> bool:
    speedup, mat = overall.speedup, overall.mat
    if not isinstance(speedup, Estimate) or not isinstance(mat, Estimate):
        return False
    return speedup.value < 1 < mat.value
