"""Tests of `specbench.report`."""
