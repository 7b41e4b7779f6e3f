"""Shutdown over TLS and WebSocket."""

from tests.scenarios.test_shutdown import *  # noqa: F403
