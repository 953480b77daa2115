"""The serving engines that specbench can start. Each has a file, with its description `ENGINE`."""
