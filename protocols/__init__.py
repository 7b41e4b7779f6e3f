"""Wire protocols: each is a sans-I/O state machine in its own folder, with thin trio transports around it."""
