"""Asks an admin port each second for what an open console shows and for the metrics, until killed: on two connections
that stay, as a browser and Prometheus have them.

A process of its own: `python -m perf.probes.watcher PORT`.
"""

from __future__ import annotations

import http.client
import signal
import sys
import time

CONSOLE = ("/api/v1/overview", "/api/v1/map?limit=30")
"""Requests of the console's first page."""
METRICS = ("/metrics",)
PERIOD_SECONDS = 1.0
_NAP_SECONDS = 0.05


class UnwatchedError(Exception):
    """The admin port does not answer as it should."""


class Watcher:
    """Polling clients: a console and a Prometheus."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._asked = [
            (http.client.HTTPConnection("127.0.0.1", port, timeout=30), paths) for paths in (CONSOLE, METRICS)
        ]

    def ask(self) -> None:
        """Ask once for everything. Raises UnwatchedError."""
        try:
            for connection, paths in self._asked:
                for path in paths:
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    body = answer.read()
                    if answer.status != 200:
                        raise UnwatchedError(f"{path} was answered with {answer.status}: {body[:200]!r}")
        except OSError as error:
            raise UnwatchedError(f"the admin port {self._port} does not answer: {error}") from error

    def close(self) -> None:
        """Leave."""
        for connection, _paths in self._asked:
            connection.close()


def main() -> None:
    """Ask each second; SIGUSR1: rest, SIGUSR2: continue."""
    watcher = Watcher(int(sys.argv[1]))
    resting = False

    def told(number: int, _frame: object) -> None:
        nonlocal resting
        resting = number == signal.SIGUSR1

    signal.signal(signal.SIGUSR1, told)
    signal.signal(signal.SIGUSR2, told)
    print("ready", flush=True)
    due = time.monotonic()
    while True:
        if resting:
            watcher.close()  # idle ones are ended after a while; `http.client` connects again by itself
            time.sleep(_NAP_SECONDS)
            continue
        watcher.ask()
        due = max(due + PERIOD_SECONDS, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
