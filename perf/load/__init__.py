"""The load generator: worker processes, what they are told, and how they are started and watched."""
