"""The embedded model `tiny`, stand-ins that are made from it, and heads for SmolLM2-135M.

Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

TINY = Path(__file__).resolve().parent / "tiny"
"""The folder of tiny, with one folder for the target, SpS's draft model and each head."""
