"""EAGLE-3: features of three target layers, a head over a draft vocabulary, EAGLE-2's tree."""

from specbench.engine.drafter import BuildContext, Drafter, Method
from specbench.methods._dynamic_tree import DynamicDrafter, Options
from specbench.methods._eagle import Eagle3Model


def build(options: Options, context: BuildContext) -> Drafter:
    """The drafter for a target."""
    return DynamicDrafter(Eagle3Model("eagle3", context), context, options)


METHOD = Method(
    name="eagle3",
    title="EAGLE-3",
    summary="features of three layers, trained on its own outputs; EAGLE-2's dynamic tree",
    paper="Li et al. 2025, EAGLE-3: Scaling up Inference Acceleration via Training-Time Test",
    options=Options,
    build=build,
    weights="eagle3",
)
