"""The options of a training, which `specbench train` and the recipes of the zoo set."""

from dataclasses import dataclass

from specbench.training.optimizers import Schedule

_DECAY = 0.5
"""Share of the steps, at the end, with a falling learning rate. A run can be extended before this
decay.
"""
_MOST_WARMUP = 50


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of one training. A resumed training has to repeat them."""

    num_steps: int = 2000

    num_rows: int = 8
    """Rows that a step trains on."""

    length: int = 1024
    """Most tokens of a row."""

    request_weight: float = 0.3
    """Weight of a request's tokens in the loss; an answer's have 1."""

    seed: int = 1

    matrix_lr: float = 0.02
    """Peak learning rate of Muon."""

    other_lr: float = 0.002
    """Peak learning rate of AdamW."""

    num_heads: int = 4
    """Heads of Medusa and Hydra."""

    num_unrolled: int = 6
    """Depths that EAGLE-3 is trained on."""

    draft_vocab: int | None = None
    """Most frequent tokens that EAGLE's heads draft; None: 32,000 for EAGLE-3, else all."""

    num_tokens: int = 1_000_000
    """Tokens of answers to write, if the target writes the text itself."""

    openings: list[str] | None = None
    """Beginnings of the requests that the target writes; None: it writes them whole."""

    is_mixed: bool = True
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""

    @property
    def schedule(self) -> Schedule:
        warmup = min(_MOST_WARMUP, self.num_steps // 10)
        return Schedule(self.num_steps, warmup=warmup, decay=_DECAY)
