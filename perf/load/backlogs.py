"""A backlog: millions of messages in a queue without a reader, a restart on top of them if they are persistent, and
then one consumer that takes them all.

The steps, each with figures of its own: *fill* (all producers, no consumer, until the broker has confirmed
everything), *restart* on the same data, *first message* to a consumer that comes then, *drain*. Every message must come
exactly once by count; that each is the right one is checked where traffic is small (`perf.runner`).

The consumer of the first message asks for one, does not acknowledge it, and goes; so that message comes again.
"""

from __future__ import annotations

import time
from pathlib import Path

from attrs import evolve

from perf.load import frames
from perf.load.board import LOAD, MODE, QUIT, QUOTA, Board
from perf.load.crew import Crew
from perf.load.links import RawLink
from perf.load.plans import Endpoint
from perf.load.processes import ProcessTree
from perf.load.topology import Layout, measured_load
from perf.load.watching import Watch
from perf.scenarios import Scenario
from perf.started import Started

_SLOWEST_PER_SECOND = 500
"""A broker slower than that does not end in the lifetime of the workers."""
_FIRST_MESSAGE_SECONDS = 120.0


class _Stretch:
    """Time and processor time from its making on."""

    __slots__ = ("_broker", "_broker_from", "_from", "_generator", "_generator_from")

    def __init__(self, broker: ProcessTree, generator: ProcessTree) -> None:
        self._broker = broker
        self._generator = generator
        self._broker_from, self._generator_from = broker.cpu_seconds(), generator.cpu_seconds()
        self._from = time.monotonic()

    def figures(self, what: str, count: int) -> dict[str, float]:
        """Rate and costs of `count` messages until now."""
        seconds = time.monotonic() - self._from
        broker, generator = self._broker.cpu_seconds(), self._generator.cpu_seconds()
        return {
            f"{what}_rate_per_second": count / seconds,
            f"{what}_broker_cpu_us": (broker - self._broker_from) * 1e6 / max(1, count),
            f"{what}_generator_cpu_us": (generator - self._generator_from) * 1e6 / max(1, count),
        }


def fill_and_drain(
    scenario: Scenario,
    message_count: int,
    broker: Started,
    watch: Watch,
    board_path: Path,
    silence_seconds: float,
    cores: frozenset[int] | None,
) -> tuple[dict[str, float], list[str]]:
    """Do all the steps with `message_count` messages; return figures and faults.

    `board_path`: a file to make. `silence_seconds`: when nothing has moved for so long, a step has failed; the next one
    is done with what there is. `cores`: processors for the load. A broker that would forget (it is not durable, or
    the messages are not persistent) is not restarted.

    Raises BrokerFaultError, OSError: the broker could not be used.
    Raises PeerError: it did not come back from its restart.
    """
    layout = Layout()
    load = measured_load(scenario, broker.endpoint, layout)
    each = message_count // scenario.producer_count
    wanted = each * scenario.producer_count
    lifetime_seconds = 2 * silence_seconds + wanted / _SLOWEST_PER_SECOND
    faults: list[str] = []
    figures: dict[str, float] = {"backlog_count": wanted}
    board = Board.create(board_path, layout.slot_count)
    try:
        with Crew(board_path, lifetime_seconds, cores) as crew:
            board[MODE] = LOAD
            crew.hire(evolve(load.producers, window_count=None))
            stretch = _Stretch(broker.tree, ProcessTree(crew.pids))
            board[QUOTA] = each
            sent = watch.wait_for_count(lambda: board.total(load.sent_slots), wanted, silence_seconds)
            confirmed = watch.wait(lambda: board.total(load.idle_slots) == len(load.idle_slots), silence_seconds)
            figures |= stretch.figures("fill", sent)
            if sent < wanted:
                faults.append(f"the fill: the broker took {sent} of {wanted} messages and then nothing")
            elif not confirmed:
                faults.append(f"the fill: receipts are missing after {silence_seconds:g} s of silence")
            board[MODE] = QUIT
            for report in crew.reports():
                faults += report.faults
        figures["filled_rss_bytes"] = watch.sample()
        figures["disk_bytes_per_message"] = broker.disk_bytes() / max(1, sent)
        if broker.peer.durable and scenario.persistent:
            figures["stop_seconds"], figures["ready_seconds"] = broker.restart()
            figures["ready_rss_bytes"] = watch.sample()
        destination = load.consumers.subscribers[0].destination
        figures["first_message_seconds"] = first_message_seconds(broker.endpoint, destination)
        with Crew(board_path, lifetime_seconds, cores) as crew:
            board[MODE] = LOAD
            crew.hire(evolve(load.consumers, endpoint=broker.endpoint, late=True))
            stretch = _Stretch(broker.tree, ProcessTree(crew.pids))
            came_before = board.total(load.delivered_slots)
            came = watch.wait_for_count(lambda: board.total(load.delivered_slots), sent, silence_seconds)
            figures |= stretch.figures("drain", came - came_before)
            # A moment longer, for what should not come.
            watch.let_pass(0.2)
            came = board.total(load.delivered_slots)
            if came != sent:
                faults.append(f"the drain: {came} messages came of the {sent} that were sent")
            board[MODE] = QUIT
            for report in crew.reports():
                faults += report.faults
    finally:
        board.close()
    return figures, faults


def first_message_seconds(endpoint: Endpoint, destination: str) -> float:
    """Return how long a new client waits from opening its connection to its first message of a queue that is not
    empty. It takes one message and gives it back by going.

    Raises BrokerFaultError, OSError: it got something else, or nothing in time.
    """
    began = time.monotonic()
    link = RawLink(endpoint, _FIRST_MESSAGE_SECONDS)
    try:
        link.sock.sendall(frames.subscribe(destination, "first", "client-individual", 1, confirmed=False))
        link.expect(b"MESSAGE")
        return time.monotonic() - began
    finally:
        link.close()
