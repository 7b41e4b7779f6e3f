"""`python -m perf`."""

from perf.cli import main

main()
