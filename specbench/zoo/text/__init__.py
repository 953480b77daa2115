"""Seeded text in six families, one per benchmark task. Knows nothing about tokens or models."""

from specbench.zoo.text.dialogue import FAMILIES, Dialogue, Turn
from specbench.zoo.text.sampler import sample, stream

__all__ = ["FAMILIES", "Dialogue", "Turn", "sample", "stream"]
