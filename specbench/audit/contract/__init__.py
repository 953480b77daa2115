"""The contract of a method as checks that anyone can run: `specbench contract NAME`."""
