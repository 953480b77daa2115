"""Tests of `specbench.tune.served`."""
