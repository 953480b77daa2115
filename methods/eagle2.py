"""EAGLE-2: EAGLE's draft model with a tree that follows the draft's own confidence."""

from specbench.engine.drafter import BuildContext, Drafter, Method
from specbench.methods._dynamic_tree import DynamicDrafter, Options
from specbench.methods._eagle import EagleModel


def build(options: Options, context: BuildContext) -> Drafter:
    """The drafter for a target."""
    return DynamicDrafter(EagleModel("eagle2", context), context, options)


METHOD = Method(
    name="eagle2",
    title="EAGLE-2",
    summary="EAGLE's draft model, the tree grown by its confidence at every step",
    paper="Li et al. 2024, EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
    options=Options,
    build=build,
    weights="eagle",
)
