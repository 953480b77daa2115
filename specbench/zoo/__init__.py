"""The embedded model `tiny`, stand-ins made from it, and heads for SmolLM2-135M.

Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

TINY = Path(__file__).resolve().parent / "tiny"
"""The folder of tiny: it has a folder for the target, for SpS's draft model and for each head."""
