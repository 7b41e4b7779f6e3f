"""The guarantees of BigArray: against a list, through crashes, power cuts and faults, from other processes."""
