"""`python -m sluiceway`: the command line, for where the `sluiceway` script is not on the path."""

from __future__ import annotations

from sluiceway.cli import main

if __name__ == "__main__":
    main(prog_name="sluiceway")
