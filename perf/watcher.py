"""Asks an admin port each second for what an open console shows and for the metrics, until killed.

A process of its own: `python -m perf.watcher PORT`.
"""

from __future__ import annotations

import http.client
import signal
import sys
import time

PATHS = ("/api/v1/overview", "/api/v1/map?limit=60", "/api/v1/destinations?limit=50&sort=-depth_count", "/metrics")
PERIOD_SECONDS = 1.0
_NAP_SECONDS = 0.05


class UnwatchedError(Exception):
    """The admin port does not answer as it should."""


def ask(port: int) -> None:
    """Ask once for everything. Raises UnwatchedError."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for path in PATHS:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise UnwatchedError(f"{path} was answered with {answer.status}: {body[:200]!r}")
        connection.close()
    except OSError as error:
        raise UnwatchedError(f"the admin port {port} does not answer: {error}") from error


def main() -> None:
    """Ask each second; SIGUSR1: rest, SIGUSR2: go on."""
    port = int(sys.argv[1])
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
            time.sleep(_NAP_SECONDS)
            continue
        ask(port)
        due = max(due + PERIOD_SECONDS, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
