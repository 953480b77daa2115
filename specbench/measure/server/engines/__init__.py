"""Serving engines that specbench can start: one file each, with an `ENGINE`."""
