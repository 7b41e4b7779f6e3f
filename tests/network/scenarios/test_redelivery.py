"""Redelivery over TLS and WebSocket."""

from tests.scenarios.test_redelivery import *  # noqa: F403
