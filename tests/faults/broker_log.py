"""What the broker logged, for tests that count it and wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import MutableMapping
from typing import Any

import structlog

from tests.interop.raw_client import DEADLINE_SECONDS


class BrokerLog:
    """A structlog processor that keeps every line."""

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._more = threading.Condition()

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        with self._more:
            self._lines.append({**event, "level": method})
            self._more.notify_all()
        raise structlog.DropEvent

    def lines(self, **wanted: object) -> list[dict[str, Any]]:
        """Those with these values, in order; `event` is the text."""
        with self._more:
            return [line for line in self._lines if all(line.get(key) == value for key, value in wanted.items())]

    def wait(self, **wanted: object) -> dict[str, Any]:
        """The first line with these values; waits for it."""
        end = time.monotonic() + DEADLINE_SECONDS
        with self._more:
            while True:
                for line in self._lines:
                    if all(line.get(key) == value for key, value in wanted.items()):
                        return line
                if not self._more.wait(end - time.monotonic()):
                    raise TimeoutError(f"no line {wanted} among {self._lines}")

    def the_end_of(self, peer: str) -> dict[str, Any]:
        """The line about a connection's end, which must be the only one about this peer."""
        line = self.wait(event="connection ended", peer=peer)
        about = self.lines(peer=peer)
        assert about == [line], f"more than one line about {peer}: {about}"
        return line
