"""Generate seeded text in six families, one per benchmark task.

This package knows nothing about tokens or models.
"""

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.sampler import FAMILIES, sample, stream

__all__ = ["FAMILIES", "Dialogue", "Turn", "sample", "stream"]
