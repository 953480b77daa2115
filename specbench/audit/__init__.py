"""Audits for `specbench audit`, which test if the outputs of a run or a method are lossless."""
