"""The guarantees of the store package."""
