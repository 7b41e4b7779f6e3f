"""Order over TLS and WebSocket."""

from tests.scenarios.test_order import *  # noqa: F403
