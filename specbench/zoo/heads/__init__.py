"""Trainable heads: what Medusa, Hydra, EAGLE and EAGLE-3 add to a frozen target, and their recipes.

Importing this package imports neither torch nor transformers.
"""
