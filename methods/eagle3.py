"""EAGLE-3: a head that reads features of three target layers, with EAGLE-2's dynamic tree."""

from dataclasses import dataclass

from specbench.engine.drafter import BuildContext, Drafter, Method
from specbench.methods._captured_layers import LAYERS_HELP
from specbench.methods._dynamic_tree import DynamicDrafter
from specbench.methods._dynamic_tree import Options as TreeOptions
from specbench.methods._eagle import Eagle3Model
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(TreeOptions):
    """Options of EAGLE-3, whose tree has eight levels."""

    layers: str = option("", LAYERS_HELP)
    rope_theta: float | None = option(None, "rotary base; by default the config's", min=1)


def build(options: Options, context: BuildContext) -> Drafter:
    """Build the drafter for a target."""
    model = Eagle3Model("eagle3", context, options.layers, options.rope_theta)
    return DynamicDrafter(model, context, options)


METHOD = Method(
    name="eagle3",
    title="EAGLE-3",
    summary="a head that reads features of three target layers, with EAGLE-2's dynamic tree",
    paper="Li et al. 2025, EAGLE-3: Scaling up Inference Acceleration via Training-Time Test",
    options=Options,
    build=build,
    weights="eagle3",
    head="eagle3",
    paper_order=8,
    colour="#232192",
)
