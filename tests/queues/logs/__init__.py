"""The guarantees of queues.logs."""
