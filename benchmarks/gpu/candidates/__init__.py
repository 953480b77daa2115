"""Kernels that wait for a measurement on a GPU, by a row of the suite.

A candidate that saves 3 % of a whole step enters `specbench/engine/kernels`. Otherwise it is
removed, and its figures go to docs/decisions.md.
"""
