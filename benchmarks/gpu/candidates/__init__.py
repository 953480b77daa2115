"""Kernels that wait for a measurement on a GPU, by a row of the suite.

With a gain of 3 % on a whole step, a candidate enters `specbench/engine/kernels`. Otherwise it goes,
and its figures go to docs/decisions.md.
"""
