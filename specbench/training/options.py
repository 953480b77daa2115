"""The options of a training, which `specbench train` and the recipes of the zoo set."""

from dataclasses import dataclass

from specbench.training.optimizers import Schedule

_DECAY = 0.5
"""The learning rate falls during the last steps, which are this share of all steps.

Until then, a run can be extended.
"""
_MOST_WARMUP = 50


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of one training. To resume it, the same options have to be given."""

    num_steps: int = 2000

    num_rows: int = 8
    """Rows that a step trains on."""

    length: int = 1024
    """The most tokens that a row may have."""

    request_weight: float = 0.3
    """Weight of a request's tokens in the loss. An answer's tokens have the weight 1."""

    seed: int = 1

    matrix_lr: float = 0.02
    """Peak learning rate of Muon."""

    other_lr: float = 0.002
    """Peak learning rate of AdamW."""

    num_heads: int = 4
    """Number of heads of Medusa and Hydra."""

    num_unrolled: int = 6
    """Number of depths that EAGLE-3 is trained on."""

    draft_vocab: int | None = None
    """Number of frequent tokens that EAGLE's heads draft. None: 32,000 for EAGLE-3, else all."""

    num_tokens: int = 1_000_000
    """Number of answer tokens that the target writes, if it writes the text itself."""

    openings: list[str] | None = None
    """Beginnings of the requests that the target writes, or None to let it write them whole."""

    is_mixed: bool = True
    """True for matrix products in bfloat16. Weights, losses and optimizers stay in float32."""

    @property
    def schedule(self) -> Schedule:
        warmup = min(_MOST_WARMUP, self.num_steps // 10)
        return Schedule(self.num_steps, warmup=warmup, decay=_DECAY)
