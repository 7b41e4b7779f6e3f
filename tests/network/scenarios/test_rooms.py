"""Large bodies over TLS and WebSocket, cut anywhere."""

from tests.scenarios.test_rooms import *  # noqa: F403
