"""Connections that are opened and held without traffic: whether they live, and the cost of each for the broker."""

from __future__ import annotations

import resource
import select
import time
from collections import deque

from perf.load import frames
from perf.load.links import BrokerFaultError, RawLink
from perf.load.plans import Endpoint
from perf.load.processes import ProcessTree

_PER_SOURCE_COUNT = 20_000
"""Connections from one loopback address: below the 28,000 ports that Linux hands out for one pair of addresses."""
_AT_ONCE_COUNT = 50
"""Number of connections that are opened before their CONNECTED is waited for: less than any broker's backlog."""
_PROBES = 20
_SPARE_DESCRIPTORS = 500
_BEAT_SHARE = 0.8
"""Share of the heart-beat interval after which a beat is sent, as clients do, so that none is late."""
_BEAT_STEP_SECONDS = 0.02


def raise_descriptor_limit() -> int:
    """Allow this process, and brokers that it starts from now on, as many open files as the system lets it; return
    how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def hold_idle(
    endpoint: Endpoint, broker: ProcessTree, wanted_count: int, hold_seconds: float, heart_beat_ms: int = 0
) -> tuple[dict[str, float], list[str]]:
    """Open so many connections, hold them, probe some with a message to themselves, close all. `heart_beat_ms`: both
    sides of each beat so often; 0: neither does.

    Returns figures and faults. Every connection is checked for a close by the broker, and a few for being of use.

    Raises OSError, BrokerFaultError: a connection was refused; those opened before are closed.
    """
    allowed = raise_descriptor_limit() - _SPARE_DESCRIPTORS
    if allowed < wanted_count:
        raise OSError(
            f"{wanted_count} connections need as many open files and the system allows {allowed}: raise `ulimit -Hn`"
        )
    faults: list[str] = []
    links: list[RawLink] = []
    beats = _Beats(links, heart_beat_ms / 1000 * _BEAT_SHARE)
    rss_from = broker.rss_bytes()
    try:
        began = time.monotonic()
        for number in range(wanted_count):
            source = None if number < _PER_SOURCE_COUNT else f"127.0.0.{1 + number // _PER_SOURCE_COUNT}"
            links.append(RawLink(endpoint, source_host=source, wait=False, heart_beat_ms=heart_beat_ms))
            beats.beat()
            if len(links) % _AT_ONCE_COUNT == 0 or len(links) == wanted_count:
                for link in links[-_AT_ONCE_COUNT:]:
                    if not link.greeting:
                        link.await_connected()
        opened_seconds = time.monotonic() - began
        rss_peak, cpu_from, window_from = broker.rss_bytes(), broker.cpu_seconds(), time.monotonic()
        while (left := window_from + hold_seconds - time.monotonic()) > 0:
            time.sleep(min(left, _BEAT_STEP_SECONDS if heart_beat_ms else 0.2))
            beats.beat()
            rss_peak = max(rss_peak, broker.rss_bytes())
        cpu_seconds, window_seconds = broker.cpu_seconds() - cpu_from, time.monotonic() - window_from
        closed = _closed_count(links)
        if closed:
            faults.append(f"the broker closed {closed} of {wanted_count} idle connections")
        else:
            faults += _probe(links)
    finally:
        for link in links:
            link.close()
    figures = {
        "idle_held_ratio": (wanted_count - closed) / wanted_count,
        "idle_bytes_per_connection": (rss_peak - rss_from) / wanted_count,
        "idle_cpu_seconds": cpu_seconds,
        "idle_cpu_share": cpu_seconds / window_seconds,
        "window_seconds": window_seconds,
        "connects_per_second": wanted_count / opened_seconds,
    }
    return figures, faults


class _Beats:
    """Sends the heart-beats of all links, evenly spread over the interval. What the broker beats stays unread: a byte
    each.
    """

    def __init__(self, links: list[RawLink], every_seconds: float) -> None:
        self._links = links
        self._every_seconds = every_seconds
        self._due: deque[tuple[float, RawLink]] = deque()
        self._seen_count = 0

    def beat(self) -> None:
        """Send the heart-beats that are due."""
        if not self._every_seconds:
            return
        now = time.monotonic()
        for link in self._links[self._seen_count :]:
            self._due.append((now + self._every_seconds, link))
        self._seen_count = len(self._links)
        while self._due and self._due[0][0] <= now:
            due, link = self._due.popleft()
            try:
                link.sock.send(b"\n")
            except OSError:
                continue  # it was closed, which is found out and told at the end
            self._due.append((due + self._every_seconds, link))


def _closed_count(links: list[RawLink]) -> int:
    poll = select.poll()
    by_descriptor = {link.sock.fileno(): link for link in links}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    closed = 0
    for descriptor, _ in poll.poll(0):
        try:
            heard = by_descriptor[descriptor].sock.recv(4096)
        except ConnectionResetError:
            heard = b""
        closed += not heard
    return closed


def _probe(links: list[RawLink]) -> list[str]:
    """Send a message from some of the connections to themselves."""
    faults = []
    step = max(1, len(links) // _PROBES)
    for number in range(0, len(links), step):
        link, destination = links[number], f"/queue/perf-probe-{time.monotonic_ns()}-{number}"
        try:
            link.subscribe(destination, "probe", "auto", 1)
            body = frames.tagged_body(0, number, 0, 40)
            link.sock.sendall(f"SEND\ndestination:{destination}\n\n".encode() + body + b"\0")
            if body not in link.expect(b"MESSAGE"):
                faults.append(f"idle connection {number} got another message than it sent")
        except (BrokerFaultError, OSError) as error:
            faults.append(f"idle connection {number} was of no use: {error}")
    return faults
