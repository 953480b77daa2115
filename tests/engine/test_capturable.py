"""Captured functions neither copy from the host nor wait for the device.

The helpers by which GPU tests detect fallbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.execution import Execution
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.layers.ops import Ops
from specbench.engine.target import Target
from specbench.registry import get, names
from specbench.types import Request, Sampling
from tests.methods.building import build_random
from tests.support.fake_cuda import CheckedGraphs, refusals
from tests.support.fallbacks import fallbacks
from tests.support.models import prompts, random_llama
from tests.support.recorders import rerun
from tests.support.weights import build

SAMPLINGS = [Sampling(), Sampling(1.0)]
WARPED = Sampling(0.7, top_p=0.9, top_k=20)


def checked(name: str, sampling: Sampling, folder: Path, **options: Any) -> CheckedGraphs:
    """The graphs that a short completion captured; `arch` is an option of the checkpoint."""
    graphs = CheckedGraphs(rerun)
    target = Target(random_llama(), graphs)
    if arch := options.pop("arch", None):
        drafter = build_random(name, target, folder, {"arch": arch})
    else:
        drafter = build(name, target, folder, **options)
    decode(target, drafter, Request(prompts()[3], 8, sampling))
    assert graphs.failures == set()
    return graphs


@pytest.mark.parametrize(
    ("name", "options", "sampling"),
    [
        *((name, {}, SAMPLINGS[place % 2]) for place, name in enumerate(names(), 1)),
        ("hydra", {"arch": "prefix-mlp"}, Sampling()),
        ("medusa", {"acceptance": "typical"}, Sampling(1.0)),
        ("eagle", {}, WARPED),
    ],
    ids=str,
)
def test_every_captured_function_can_be_captured(
    name: str, options: dict[str, str], sampling: Sampling, tmp_path: Path
) -> None:
    graphs = checked(name, sampling, tmp_path, **options)
    assert graphs.num_checked >= 2
    assert graphs.refused == set()


@pytest.mark.parametrize(
    "planted",
    [
        lambda x: x.__setitem__(0, 1.0),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x + torch.ones(3, device="cpu"),
        lambda x: torch.where(x > 0, x, torch.zeros((), device="cpu")),
        lambda x: x.cpu(),
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.__setitem__(x > 0, 1.0),
        lambda x: x.index_put_((x > 0,), torch.ones((), device=x.device)),
        lambda x: x[[0, 1]],
        lambda x: x[torch.arange(2)],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: torch.rand(3, device=x.device),
        lambda x: x.exponential_(),
    ],
)
def test_what_a_capture_refuses_is_found(planted: Callable[[Tensor], object]) -> None:
    (refused,) = refusals(planted, (torch.ones(3),))
    assert refused.startswith("test_capturable.py:")


def test_what_a_capture_allows_is_not_refused() -> None:
    generator = torch.Generator()

    def allowed(x: Tensor, rows: Tensor, *, generator: torch.Generator) -> Tensor:
        x[:1], x[rows] = 1.0, x[rows]
        x[-1], x[1:] = x[0], x[:-1]
        drawn = torch.rand(3, generator=generator, device=x.device)
        drawn += torch.empty_like(drawn).exponential_(generator=generator)
        return torch.where(x > 0, drawn, 2.0)[None, ..., 1:].mul(3)

    inputs = torch.ones(3), torch.arange(2)
    assert refusals(allowed, inputs, {"generator": generator}) == set()


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
    assert ran(Execution()) == ["torch's operations were used", "nothing was recorded"]
    refused = ran(Graphs(refuse, Kernels()))
    assert refused[-1] == "nothing was recorded" and any("_tree_step: no" in r for r in refused)
    assert ran(Graphs(rerun, Ops("too old"))) == ["too old", "torch's operations were used"]
    late = Graphs(rerun, Kernels())
    late.close()
    assert ran(late) == ["3 steps were recorded late"]
    unknown = Target(random_llama(2), Graphs(rerun, Kernels()))
    unknown.unfused_reason = "Other is run by transformers' own forward"
    assert fallbacks(unknown) == [unknown.unfused_reason, "nothing was recorded"]
