"""Vanilla decoding, the baseline of speedups: one token per step, in the loop of all methods."""

from dataclasses import dataclass

from specbench.engine.drafter import BuildContext, Drafter, Method, State
from specbench.engine.method_options import MethodOptions
from specbench.engine.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Vanilla has no options."""


class Vanilla(Drafter):
    """Proposes only the pending token."""

    profile = "text"
    tree_sizes = (1,)

    def __init__(self, options: Options, context: BuildContext) -> None:
        pass

    def propose(self, state: State) -> DraftTree:
        return state.chain()


METHOD = Method(
    name="vanilla",
    title="Vanilla",
    summary="autoregressive decoding, one token per step",
    paper="",
    options=Options,
    build=Vanilla,
    paper_order=0,
)
