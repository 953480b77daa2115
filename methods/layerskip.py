"""LayerSkip: the target's own first layers draft a chain, on the target's cache."""

from dataclasses import dataclass, replace
from typing import Self

from specbench.engine.drafter import BuildContext, Drafter, Method, State
from specbench.engine.method_options import MethodOptions
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.errors import UserError
from specbench.methods.sps import SCHEDULE_HELP, Schedule, SpeculativeSampling
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of LayerSkip."""

    exit_layer: int = option(0, "layers that draft; 0: a quarter of the target's", min=0)
    num_tokens: int = option(6, "draft tokens per step", min=1)
    schedule: Schedule = option("constant", SCHEDULE_HELP)

    def most_nodes(self) -> int:
        return self.num_tokens + 1 if self.schedule == "constant" else 0

    def profiled(self) -> Self:
        """A copy of the options for an acceptance profile, with a draft token at every position."""
        return self.chained(1)

    def chained(self, num_tokens: int) -> Self:
        """A copy of the options with a chain of `num_tokens` draft tokens in every step."""
        return replace(self, num_tokens=num_tokens, schedule="constant")


class LayerSkip(SpeculativeSampling):
    """Drafts a chain with the target's first layers, final norm and head.

    The target itself computes these layers' keys and values of committed tokens. So the draft model
    needs no cache and no prefill. Early exit works best with models that were trained with
    LayerSkip.

    Source: Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative
    Decoding"; behaviour checked against facebookresearch/LayerSkip, self_speculation.

    Deviation: the target computes the first layers of the draft tokens again. The official code
    keeps their results. This saves arithmetic but no weight reads, since the last draft token still
    needs these layers. The official code takes 8 of Llama-2 7B's 32 layers and ends a draft at EOS.
    """

    def start(self, state: State, prefill: Forward) -> None:
        self._num_tokens = self._first_num_tokens

    def propose(self, state: State) -> DraftTree:
        tree = super().propose(state)
        self._model.crop(state.num_committed)  # the draft tokens' rows are in the target's cache
        return tree


def build(options: Options, context: BuildContext) -> Drafter:
    """Build the drafter for a target.

    Raises:
        UserError: the target has no layer after `exit_layer`.
    """
    target, num_layers = context.target, len(context.target.layers)
    exit_layer = options.exit_layer or max(num_layers // 4, 1)
    if exit_layer >= num_layers:
        raise UserError(
            f"layerskip cannot exit after layer {exit_layer} of a target with {num_layers}.",
            "Choose an exit_layer below the number of layers, or a target with more layers.",
        )
    model, vocab_size = target.first_layers(exit_layer), target.vocab_size
    return LayerSkip(model, vocab_size, options.num_tokens, options.schedule)


METHOD = Method(
    name="layerskip",
    title="LayerSkip",
    summary="self-speculation: the target's own first layers propose a chain",
    paper="Elhoushi et al. 2024, LayerSkip: Enabling Early Exit Inference and Self-Speculative"
    " Decoding",
    options=Options,
    build=build,
    is_default=False,
    colour="#F4CDA0",
)
