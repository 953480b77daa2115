"""Count the bytes of weights that a pass over a model reads.

Rows of an embedding table, and buffers such as rotary tables, are negligible and do not count.
"""

from collections.abc import Iterator

from torch import Tensor, nn

_STATES = ("quant_state", "state2", "state")
"""Attributes in which weights and layers of bitsandbytes keep their scales."""


def weight_bytes(*holders: nn.Module | Tensor | None) -> int:
    """Bytes of tensors, and of the tensors stored in modules. Shared memory counts once.

    Quantised weights count as they are in memory, with their scales. `state_dict` is not used: on a
    CPU, bitsandbytes repacks 4-bit weights to make it, and then they have other values.
    """
    nbytes_by_address = {
        stored.data_ptr(): stored.nbytes
        for holder in holders
        if holder is not None
        for stored in stored_tensors(holder)
    }
    return sum(nbytes_by_address.values())


def stored_tensors(holder: nn.Module | Tensor) -> list[Tensor]:
    """The tensors that hold a module's or a tensor's weights, in order. Some may share memory."""
    tensors = (holder,) if isinstance(holder, Tensor) else _held(holder)
    return [stored for tensor in tensors for stored in _stored(tensor)]


def _held(module: nn.Module) -> Iterator[Tensor]:
    """The parameters and stored buffers of a module and its submodules."""
    for submodule in module.modules():
        yield from submodule.parameters(recurse=False)
        for name, buffer in submodule._buffers.items():
            if buffer is not None and name not in submodule._non_persistent_buffers_set:
                yield buffer
        yield from _scales(submodule)


def _stored(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors in memory that a tensor consists of. A quantised tensor has several."""
    yield from _scales(tensor)
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        inner = getattr(tensor, name)
        if isinstance(inner, Tensor):
            yield from _stored(inner)


def _scales(holder: object) -> Iterator[Tensor]:
    """The tensors in a holder's quantisation state, and in states that are nested in it."""
    for name in _STATES:
        state = getattr(holder, name, None)
        if hasattr(state, "__dict__"):
            yield from (scale for scale in vars(state).values() if isinstance(scale, Tensor))
            yield from _scales(state)
