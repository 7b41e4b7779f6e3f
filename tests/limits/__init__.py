"""The general law at the limits of the default configuration: bounded steps, counted memory."""
