"""EAGLE-2: EAGLE's draft model with a tree that follows the draft's own confidence."""

from dataclasses import dataclass, field

from specbench.engine.drafter import BuildContext, Drafter, Method
from specbench.methods._dynamic_tree import DynamicDrafter
from specbench.methods._eagle import EagleModel


@dataclass(frozen=True, slots=True)
class Options:
    """Options of EAGLE-2."""

    total_tokens: int = field(
        default=60, metadata={"help": "nodes of the tree, the root included", "min": 2}
    )
    depth: int = field(
        default=7, metadata={"help": "expansions below the first level of guesses", "min": 1}
    )
    top_k: int = field(
        default=10, metadata={"help": "nodes expanded at a level, and children of each", "min": 1}
    )
    weights: str = field(default="", metadata={"help": "checkpoint, a folder or hub id"})


def build(options: Options, context: BuildContext) -> Drafter:
    """The drafter for a target."""
    model = EagleModel("eagle2", context)
    return DynamicDrafter(model, options.top_k, options.depth, options.total_tokens)


METHOD = Method(
    name="eagle2",
    title="EAGLE-2",
    summary="EAGLE's draft model, the tree grown by its confidence at every step",
    paper="Li et al. 2024, EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
    options=Options,
    build=build,
    weights="eagle",
)
