"""Tests of `specbench.analysis`."""
