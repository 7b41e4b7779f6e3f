"""Every benchmark scenario with ten messages, and the parts of the harness, so that neither can rot."""
