"""The guarantees of the flow package."""
