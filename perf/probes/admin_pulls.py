"""Cost of polling the admin port of a large broker: a fast pair beside many subscriptions, with a client that asks for
everything once a second, and without.

    python -m perf.probes.admin_pulls [--subscriptions 10000] [--seconds 6] [--rounds 3]

The broker is a process of its own. Its subscriptions are live, ten to a connection, each to a queue of its own; so are
the pair (messages of 100 bytes, at full speed, ack auto) and the polling client. Both ways are measured in turns. The
probe prints their medians: rate of the pair, the longest pause of its consumer while messages were waiting, and the
time of the slowest answer.
"""

from __future__ import annotations

import argparse
import http.client
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Final

import attrs

from perf.load.idling import raise_descriptor_limit
from perf.load.links import BrokerFaultError, RawLink
from perf.load.plans import Endpoint
from perf.probes.watcher import CONSOLE, METRICS

PER_CONNECTION: Final = 10
IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
ALL_PATHS: Final = (
    *CONSOLE,
    *METRICS,
    "/api/v1/destinations?limit=50&sort=-depth_count",
    "/api/v1/subscriptions?limit=100",
    "/api/v1/connections?limit=100",
    "/api/v1/destinations?limit=100&sort=-in_per_second",
)


@attrs.frozen
class Phase:
    """Observations of one phase."""

    per_second: float
    longest_gap_ms: float
    slowest_answer_ms: float


class Asker:
    """Asks for everything once a second, in a thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.slowest_seconds = 0.0
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._ended.is_set():
            due = time.monotonic() + 1.0
            for path in ALL_PATHS:
                began = time.monotonic()
                connection.request("GET", path)
                answer = connection.getresponse()
                body = answer.read()
                assert answer.status == 200, (path, answer.status, body[:200])
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
            self._ended.wait(max(0.0, due - time.monotonic()))

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._thread.join()


def run_pair(sender: RawLink, receiver: RawLink, seconds: float) -> tuple[float, float]:
    """Send and receive as fast as it goes; returns messages per second and the longest gap in seconds."""
    frame = b"SEND\ndestination:/queue/pair\ncontent-length:100\n\n" + b"x" * 100 + b"\0"
    batch = frame * 200
    unsent = memoryview(b"")
    sent_count = received_count = 0
    longest = 0.0
    end = time.perf_counter() + seconds
    last = time.perf_counter()
    while (now := time.perf_counter()) < end:
        wants = [sender.sock] if (sent_count - received_count) * len(frame) < IN_FLIGHT_BYTES else []
        readable, writable, _ = select.select([receiver.sock], wants, [], 1.0)
        if writable:
            if not unsent:
                unsent = memoryview(batch)
                sent_count += 200
            try:
                unsent = unsent[sender.sock.send(unsent) :]
            except BlockingIOError:
                continue
        if readable:
            received_count += receiver.sock.recv(1 << 20).count(0)
            now = time.perf_counter()
            longest = max(longest, now - last)
            last = now
    rate = received_count / seconds
    sender.sock.setblocking(True)
    sender.sock.sendall(unsent)
    sender.sock.setblocking(False)
    while received_count < sent_count:
        if not select.select([receiver.sock], [], [], 10.0)[0]:
            raise BrokerFaultError("the pair's messages do not come")
        received_count += receiver.sock.recv(1 << 20).count(0)
    return rate, longest


def main() -> None:
    """Measure, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sluiceway", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with subprocess.Popen(
            [*command, "--data", folder, "--log-level", "error"], stdout=subprocess.PIPE, text=True
        ) as broker:
            try:
                assert broker.stdout is not None
                port, admin_port = (int(broker.stdout.readline().rpartition(":")[2]) for _ in range(2))
                measure(Endpoint("127.0.0.1", port), admin_port, options)
            finally:
                broker.terminate()


def measure(endpoint: Endpoint, admin_port: int, options: argparse.Namespace) -> None:
    """Measure a running broker."""
    idle = []
    for place in range(options.subscriptions // PER_CONNECTION):
        link = RawLink(endpoint)
        for number in range(PER_CONNECTION):
            link.subscribe(f"/queue/idle.{place}.{number}", str(number), "auto", 100)
        idle.append(link)
    sender, receiver = RawLink(endpoint), RawLink(endpoint)
    receiver.subscribe("/queue/pair", "p", "auto", 1000)
    sender.release()
    receiver.release()
    run_pair(sender, receiver, 2.0)
    phases: dict[bool, list[Phase]] = {False: [], True: []}
    for _ in range(options.rounds):
        for pulled in (False, True):
            asker = Asker(admin_port) if pulled else None
            per_second, gap_seconds = run_pair(sender, receiver, options.seconds)
            slowest_ms = 0.0
            if asker is not None:
                asker.stop()
                slowest_ms = asker.slowest_seconds * 1000
            phase = Phase(per_second, gap_seconds * 1000, slowest_ms)
            phases[pulled].append(phase)
            print(
                f"{'pulled' if pulled else 'alone':6}  {per_second:9,.0f}/s"
                f"  longest gap {phase.longest_gap_ms:6.1f} ms  slowest answer {slowest_ms:7.0f} ms",
                flush=True,
            )
    alone, pulled_ = (statistics.median([phase.per_second for phase in phases[each]]) for each in (False, True))
    print(f"{options.subscriptions:,} subscriptions: the pair keeps {pulled_ / alone:.1%} of its rate")
    for link in idle:
        link.sock.close()


if __name__ == "__main__":
    main()
