"""Audits for `specbench audit`, which test whether the outputs of a run or method are lossless."""
