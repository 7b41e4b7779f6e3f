"""Acknowledgement over TLS and WebSocket."""

from tests.scenarios.test_acknowledgement import *  # noqa: F403
