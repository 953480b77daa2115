"""A language model that drafts for another one with the same vocabulary."""

from torch import Tensor
from torch.nn.functional import pad

from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.errors import UserError


def load_draft_model(method: str, context: BuildContext) -> Target:
    """The draft model of a method, in the target's dtype and execution.

    Raises:
        UserError: the method has no checkpoint.
        CheckpointError: the checkpoint does not load.
    """
    if context.weights is None:
        raise UserError(
            f"{method} has no draft model for this target.",
            f"Name one: --method {method}:weights=DIR_OR_HUB_ID",
        )
    target = context.target
    return load_target(
        context.weights, dtype=target.dtype, device=target.device, execution=target.execution
    )


def fit_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """Draft logits [..., draft vocabulary], cut or padded to the target's padded vocabulary."""
    return pad(logits, (0, vocab_size - logits.shape[-1]), value=float("-inf"))
