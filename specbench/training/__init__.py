"""Train the heads of Medusa, Hydra, EAGLE and EAGLE-3 for a frozen target.

Importing this package imports neither torch nor transformers.
"""
