"""Receipts and errors over TLS and WebSocket."""

from tests.scenarios.test_receipts_and_errors import *  # noqa: F403
