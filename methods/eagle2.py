"""EAGLE-2: EAGLE's draft model with a tree grown by the draft's confidence."""

from dataclasses import dataclass

from specbench.engine.drafter import BuildContext, Drafter, Method
from specbench.methods._dynamic_tree import DynamicDrafter
from specbench.methods._dynamic_tree import Options as TreeOptions
from specbench.methods._eagle import EagleModel
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(TreeOptions):
    """Options of EAGLE-2, whose tree has six levels."""

    depth: int = option(5, "expansions after the first level", min=0)


def build(options: Options, context: BuildContext) -> Drafter:
    """Build the drafter for a target."""
    return DynamicDrafter(EagleModel("eagle2", context), context, options)


METHOD = Method(
    name="eagle2",
    title="EAGLE-2",
    summary="EAGLE's draft model, whose confidence decides how the tree grows in each step",
    paper="Li et al. 2024, EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
    options=Options,
    build=build,
    weights="eagle",
    head="eagle",
    paper_order=7,
    colour="#6E323C",
)
