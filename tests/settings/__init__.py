"""Tests of `specbench.settings`."""
