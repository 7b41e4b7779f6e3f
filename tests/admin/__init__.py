"""The admin port: what it tells, what it does, who may, and what it refuses."""
