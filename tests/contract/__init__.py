"""One suite for all implementations of a port."""
