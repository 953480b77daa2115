"""Bytes of weights read by a pass over a model.

Rows of an embedding table and buffers such as rotary tables are negligible and not counted.
"""

from collections.abc import Iterator

from torch import Tensor, nn

_STATES = ("quant_state", "state2", "state")
"""Attributes in which weights and layers of bitsandbytes keep their scales."""


def weight_bytes(*holders: nn.Module | Tensor | None) -> int:
    """Bytes of these tensors and modules' stored tensors, if any; shared memory counts once.

    Quantised weights count as they are held, with their scales. Modules are not asked for
    their `state_dict`: bitsandbytes repacks 4-bit weights of a CPU for it, and they then give
    other values.
    """
    tensors = {}
    for holder in (one for one in holders if one is not None):
        held = (holder,) if isinstance(holder, Tensor) else _held(holder)
        for tensor in (part for one in held for part in _stored(one)):
            tensors[tensor.data_ptr()] = tensor.nbytes
    return sum(tensors.values())


def stored_tensors(module: nn.Module) -> list[Tensor]:
    """The tensors that hold a module's weights, in order. Some may share memory."""
    return [part for held in _held(module) for part in _stored(held)]


def _held(module: nn.Module) -> Iterator[Tensor]:
    """The parameters and stored buffers of a module and those in it."""
    for one in module.modules():
        unsaved = one._non_persistent_buffers_set
        yield from one.parameters(recurse=False)
        yield from (tensor for name, tensor in one._buffers.items()
                    if tensor is not None and name not in unsaved)  # fmt: skip
        yield from _scales(one)


def _stored(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors in memory that a tensor consists of: several, if it is quantised."""
    yield from _scales(tensor)
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, Tensor):
            yield from _stored(part)


def _scales(holder: object) -> Iterator[Tensor]:
    """The tensors of a holder's state of quantisation, and of the state in that."""
    for state in (getattr(holder, name, None) for name in _STATES):
        if hasattr(state, "__dict__"):
            yield from (part for part in vars(state).values() if isinstance(part, Tensor))
            yield from _scales(state)
