"""Scenarios of the broker over TLS and WebSocket: what is promised does not depend on what carries it."""
