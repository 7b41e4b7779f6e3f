"""Large messages over TLS and WebSocket."""

from tests.scenarios.test_large_messages import *  # noqa: F403
