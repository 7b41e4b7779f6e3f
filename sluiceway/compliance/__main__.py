"""`python -m sluiceway.compliance HOST:PORT`: the same as `sluiceway compliance`."""

from __future__ import annotations

from sluiceway.cli.compliance import compliance

if __name__ == "__main__":
    compliance(prog_name="python -m sluiceway.compliance")
