"""Keep hidden states of a model that runs its own forward, with hooks on its modules."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.forward import Needs
from specbench.engine.model_parts import decoder, decoder_layers

States = dict[int | str, Tensor]
"""The final hidden states under "hidden", and the inputs of layers under the layers' indices."""


def keep_states(model: PreTrainedModel, needs: Needs, states: States) -> list[Any]:
    """Register hooks that write to `states` in each forward, and return the hooks' handles.

    Only the modules that `needs` names get a hook.
    """
    layers = decoder_layers(model)
    handles = []
    if needs.hidden:
        hook = partial(_keep_output, states, "hidden")
        handles.append(decoder(model).register_forward_hook(hook))
    for index in needs.layer_inputs:
        if index == len(layers):
            hook = partial(_keep_output, states, index)
            handles.append(layers[-1].register_forward_hook(hook))
        else:
            hook = partial(_keep_input, states, index)
            handles.append(layers[index].register_forward_pre_hook(hook, with_kwargs=True))
    return handles


def _keep_input(
    states: States, index: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    states[index] = args[0] if args else kwargs["hidden_states"]


def _keep_output(
    states: States, key: int | str, module: nn.Module, args: object, output: Any
) -> None:
    states[key] = output if isinstance(output, Tensor) else output[0]
