"""The operations that a draft starts one by one. On a GPU, each is a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.execution import Execution
from specbench.engine.layers.ops import Ops
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.types import Request
from tests.support.models import prompts, random_llama
from tests.support.weights import build

NO_KERNELS = {"empty", "empty_like", "new_empty", "empty_strided", "promote_types"}


class Launches(TorchDispatchMode):
    """A mode that keeps the names of torch's operations, except views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in NO_KERNELS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class CountedKernel:
    """A Triton kernel that keeps its name at each launch, and no operations of the interpreter."""

    def __init__(self, kernel: Any, launches: Launches) -> None:
        self._kernel, self._launches = kernel, launches

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            self._launches.names.append(self._kernel.fn.__name__)
            with _disable_current_modes():
                self._kernel[grid](*args, **options)

        return launch


class Watched(Drafter):
    """A drafter that drafts like an EAGLE drafter, and keeps the operations of each draft."""

    def __init__(self, drafter: Drafter, launches: Launches) -> None:
        self.needs, self.tree_sizes = drafter.needs, drafter.tree_sizes
        self.drafts: list[Counter[str]] = []
        self._drafter, self._launches = drafter, launches

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        self._launches.names.clear()
        with self._launches:
            tree = self._drafter.propose(state)
        self.drafts.append(Counter(self._launches.names))
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)


def per_level(name: str, ops: Ops, folder: Path, launches: Launches) -> Counter[str]:
    """The operations of a level: those that three expansions have beyond those of two."""
    heads = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    target = Target(random_llama(8, **heads).float(), Execution(ops))
    counts = []
    for depth in (2, 3):
        drafter = build(name, target, folder, total_tokens=8, depth=depth, top_k=3)
        watched = Watched(drafter, launches)
        decode(target, watched, Request(prompts()[0], 4))
        counts.append(watched.drafts[0])
    assert not counts[0] - counts[1]
    return counts[1] - counts[0]
