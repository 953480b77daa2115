"""EAGLE-3: features of three target layers, a head over a draft vocabulary, EAGLE-2's tree."""

from dataclasses import dataclass, field

from specbench.engine.drafter import BuildContext, Drafter, Method
from specbench.methods._dynamic_tree import DynamicDrafter
from specbench.methods._eagle import Eagle3Model


@dataclass(frozen=True, slots=True)
class Options:
    """Options of EAGLE-3."""

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
    model = Eagle3Model("eagle3", context)
    return DynamicDrafter(model, options.top_k, options.depth, options.total_tokens)


METHOD = Method(
    name="eagle3",
    title="EAGLE-3",
    summary="features of three layers, trained on its own outputs; EAGLE-2's dynamic tree",
    paper="Li et al. 2025, EAGLE-3: Scaling up Inference Acceleration via Training-Time Test",
    options=Options,
    build=build,
    weights="eagle3",
)
