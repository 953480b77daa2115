"""The helpers by which GPU tests detect fallbacks."""

from __future__ import annotations

from typing import Any

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.execution import Eager
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.layers.ops import Ops
from specbench.engine.target import Target
from specbench.registry import get
from specbench.types import Request
from tests.support.fallbacks import fallbacks
from tests.support.models import prompts, random_llama
from tests.support.recorders import rerun


class Kernels(Ops):
    name = "kernels"


def refuse(*given: Any, **named: Any) -> Any:
    raise RuntimeError("no")


def ran(execution: Any) -> list[str]:
    """Fallbacks of vanilla under this execution."""
    target = Target(random_llama(2), execution)
    method = get("vanilla")
    decode(target, method.build(method.options(), BuildContext(target)), Request(prompts()[0], 3))
    return fallbacks(target)


def test_every_way_to_fall_back_is_found() -> None:
    assert ran(Graphs(rerun, Kernels())) == []
    assert ran(Eager()) == ["torch's operations were used", "nothing was recorded"]
    refused = ran(Graphs(refuse, Kernels()))
    assert refused[-1] == "nothing was recorded" and any("_tree_step: no" in r for r in refused)
    assert ran(Graphs(rerun, Ops("too old"))) == ["too old", "torch's operations were used"]
    late = Graphs(rerun, Kernels())
    late.close()
    assert ran(late) == ["3 steps were recorded late"]
    unknown = Target(random_llama(2), Graphs(rerun, Kernels()))
    unknown.unfused_reason = "Other is run by transformers' own forward"
    assert fallbacks(unknown) == [unknown.unfused_reason, "nothing was recorded"]
