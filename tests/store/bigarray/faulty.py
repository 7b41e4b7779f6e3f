"""Files that fail on demand: those of simulations."""

from __future__ import annotations

from sluiceway.simulation.faulty_files import FaultyFiles

__all__ = ["FaultyFiles"]
