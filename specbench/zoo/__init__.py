"""The embedded model `tiny`, stand-ins made from it, and heads for SmolLM2-135M.

Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

TINY = Path(__file__).resolve().parent / "tiny"
"""A folder each for the target, for SpS's draft model and for the head of each method."""
