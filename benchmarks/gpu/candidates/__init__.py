"""Candidates: kernels that a row of the suite has yet to measure on a GPU.

A candidate that saves 3 % of a whole step moves to `specbench/engine/kernels`. Otherwise it is
removed, and its figures are kept in docs/decisions.md.
"""
