"""The proof by faults: what was promised to clients holds however the process, the machine or the disk fails."""
