"""Run functions on fake CUDA tensors, to find without a GPU what a graph's capture would refuse.

The tensors have shapes and a CUDA device but no values. Random draws are replaced by tensors of the
same shape, since torch for CPUs has no CUDA generator.
"""

from __future__ import annotations

import copy
import copyreg
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from specbench.engine.graphs.cuda import Graphs, _Captured

DEVICE = torch.device("cuda:0")
Capability = tuple[int, int]
ROOT = Path(__file__).parents[2]
SOURCES = tuple(str(ROOT / folder) + "/" for folder in ("specbench", "methods", "tests"))


class CheckedGraphs(Graphs):
    """Graphs that try every function on fake CUDA tensors before they record it.

    A function is tried once per set of input shapes: `num_checked` counts these, and `refused`
    names what a capture would refuse.
    """

    def __init__(self, *args: Any, capability: Capability = (9, 0), **named: Any) -> None:
        super().__init__(*args, **named)
        self.capability = capability
        self.refused: set[str] = set()
        self._checked: set[Any] = set()

    @property
    def num_checked(self) -> int:
        return len(self._checked)

    def record(self, captured: Any, inputs: tuple[Tensor, ...], named: Any) -> Any:
        others = [argument for argument in named.items() if argument[0] != "cache_span"]
        like = (captured.function, *(x.shape for x in inputs), *others)
        if like not in self._checked:
            self._checked.add(like)
            with self.paused():  # functions that it calls run by themselves
                self.refused |= refusals(
                    captured.function, inputs, named, keep=(self,), capability=self.capability
                )
        return super().record(captured, inputs, named)


def refusals(
    function: Callable[..., Any], inputs: Any, named: Any = None, *, keep: tuple[object, ...] = (),
    capability: Capability = (9, 0),
) -> set[str]:  # fmt: skip
    """Operations of this call that a CUDA graph's capture would refuse, with their lines.

    The GPU is of this compute capability. Every tensor that the function can reach is replaced
    by a fake one, except through `keep`.
    """
    fake = FakeTensorMode()
    memo: dict[int, Any] = {id(tensor): tensor for tensor in keep}
    with _twins(fake):
        function, inputs, named = copy.deepcopy((function, inputs, named or {}), memo)
    with watching(capability, fake) as watch:
        try:
            function(*inputs, **named)
        except Exception as error:  # a value that is asked for, or tensors of two devices
            watch.refuse(f"{type(error).__name__}: {error}".split("\n")[0], error)
    return watch.refused


@contextmanager
def watching(capability: Capability, fake: FakeTensorMode | None = None) -> Iterator[_Watch]:
    """Tensors of any size without values, on a GPU of this compute capability."""
    fake = fake or FakeTensorMode()
    patched = patch.object(torch.cuda, "get_device_capability", lambda *_: capability)
    bindings = _Bindings() if torch.version.cuda is None else nullcontext()
    with patched, torch.inference_mode(), fake, _Watch(capability) as watch, bindings:
        yield watch


@contextmanager
def fake_gpus(devices: Sequence[torch.device], *, free_bytes: int) -> Iterator[None]:
    """Tensors made in this block have no values, and must be on one device to be used together."""
    fake_free = dict.fromkeys(devices, (free_bytes, free_bytes))
    patched = patch.object(torch.cuda, "mem_get_info", fake_free.__getitem__)
    bindings = _CopyingBindings() if torch.version.cuda is None else nullcontext()
    with patched, FakeTensorMode(), torch.inference_mode(), bindings:
        yield


class _Watch(TorchDispatchMode):
    """A mode that finds host copies, mixed devices and unseeded draws.

    `most_bytes` is the size of the largest result.
    """

    def __init__(self, capability: Capability = (9, 0)) -> None:
        super().__init__()
        self._capability = capability
        self.most_bytes = 0
        self.refused: set[str] = set()

    def refuse(self, what: str, error: Exception | None = None) -> None:
        stack = traceback.extract_tb(error.__traceback__) if error else traceback.extract_stack()
        frames = [f for f in stack if f.filename.startswith(SOURCES) and f.filename != __file__]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        self.refused.add(f"{where}: {what}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        is_inert = "attention" in name or (name == "dropout" and not args[2])  # not in training
        if torch.Tag.nondeterministic_seeded in func.tags and not is_inert:
            if kwargs.get("generator") is None:
                self.refuse(f"{name} draws from the global generator")
            elif name.endswith("_"):
                return args[0]
            else:
                kwargs["generator"] = None
        if name == "_grouped_mm" and self._capability < (9, 0):
            self.refuse(f"{name} copies the groups' sizes to the host")
        out = func(*args, **kwargs)
        if not func.is_view:
            sizes = [x.nbytes for x in tree_leaves(out) if isinstance(x, Tensor)]
            self.most_bytes = max([self.most_bytes, *sizes])
        kinds = {x.device.type for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)}
        # A number that fills a tensor is passed to the kernel.
        if len(kinds) > 1 and name not in ("fill_", "fill"):
            self.refuse(f"{name} of tensors on {' and '.join(sorted(kinds))}")
        if name.startswith("index_put") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        ):
            self.refuse(f"{name} by a mask waits for the device")
        return out


class _Bindings(TorchFunctionMode):
    """Imitates Python's bindings for CUDA tensors in a torch without CUDA.

    A number assigned to a single element is a copy from the host, one assigned to several
    elements is not.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = _UNGUARDED.get(func, func)
        if func is Tensor.__getitem__:
            return _part(*args)
        if func is Tensor.__setitem__:
            x, index, filling = args
            if not isinstance(filling, Tensor):
                filling = torch.tensor(filling, dtype=x.dtype)
            part = _part(x, index)
            fill = torch.ops.aten.fill_.Tensor if part.dim() and not filling.dim() else None
            return (fill or torch.ops.aten.copy_.default)(part, filling)
        return func(*args, **(kwargs or {}))


class _CopyingBindings(_Bindings):
    """Also copies values from the host, which a capture would refuse."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tensor and kwargs and kwargs.get("device"):
            device = kwargs.pop("device")
            drawn = torch.tensor(*args, **kwargs)
            return torch.empty(drawn.shape, dtype=drawn.dtype, device=device)
        return super().__torch_function__(func, types, args, kwargs)


_UNGUARDED = {
    Tensor.copy_: torch.ops.aten.copy_.default,
    Tensor.contiguous: torch.ops.aten.contiguous.default,
    Tensor.__invert__: torch.bitwise_not,
}


def _part(x: Tensor, index: Any) -> Tensor:
    """`x[index]` of tensors that have only a shape."""
    indices = index if isinstance(index, tuple) else (index,)
    tensors = [part_index for part_index in indices if isinstance(part_index, (Tensor, list))]
    for part_index in tensors:
        if not isinstance(part_index, Tensor) or part_index.device != x.device:
            raise TypeError("an index on the host is copied to the device")
        if part_index.dtype == torch.bool:
            raise TypeError("an index by a mask waits for the device")
    with unset_fake_temporarily(), _disable_current_modes():
        part = _shape_only(x)[tree_map(_shape_only, indices)]
    if tensors:
        return x.new_empty(part.shape)
    offset = x.storage_offset() + part.storage_offset()
    return x.as_strided(part.shape, part.stride(), offset)


def _shape_only(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


class _FakeGenerator(torch.Generator):
    device = DEVICE


@contextmanager
def _twins(fake: FakeTensorMode) -> Iterator[None]:
    """Within this context, a deep copy has fake CUDA tensors and generators."""

    def twin(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if id(tensor) not in memo:
            with fake:
                memo[id(tensor)] = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE
                )
        return memo[id(tensor)]

    def function_of(captured: _Captured, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(captured.function, memo)

    reduced = {
        torch.device: lambda device: (torch.device, (str(DEVICE),)),
        torch.Generator: lambda generator: (_FakeGenerator, ()),
    }
    with (
        patch.dict(copyreg.dispatch_table, reduced),
        patch.object(Tensor, "__deepcopy__", twin),
        patch.object(nn.Parameter, "__deepcopy__", twin),
        patch.object(_Captured, "__deepcopy__", function_of, create=True),
    ):
        yield
