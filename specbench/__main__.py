"""`python -m specbench`: the command line from a plain checkout."""

from specbench.cli import main

main()
