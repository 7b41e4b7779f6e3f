"""Orders for a worker process: plain frozen data, pickled to its standard input.

Slots are places on the `perf.load.board`. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Union

from attrs import evolve, frozen

from perf.scenarios import Ack

if TYPE_CHECKING:
    from perf.logs.plans import LogPlan


@frozen(slots=True)
class Endpoint:
    """Address of a broker, and the headers of CONNECT."""

    host: str
    port: int
    login: str = "guest"
    passcode: str = "guest"
    virtual_host: str = "/"
    transport: str = "plain"
    """`plain` TCP, `tls` or `websocket`; see `perf.load.transports`."""
    authority: str = ""
    """File with the authority of the broker's certificate, for `tls`."""
    ports: tuple[int, ...] = ()
    """Ports of several hubs, which the numbers of streams and subscribers take in turn; empty: there is one broker."""

    def of(self, number: int) -> Endpoint:
        """Return where the client with this number connects."""
        return evolve(self, port=self.ports[number % len(self.ports)], ports=()) if self.ports else self


@frozen(slots=True)
class StreamPlan:
    """One producer connection. `consumer_slots` are the consumers of its destination and `peer_slots` the `sent_slot`s
    of all streams to it (its own too): together they give the number of messages under way.
    """

    number: int
    destination: str
    body_bytes: int
    sent_slot: int
    idle_slot: int
    confirmed_slot: int
    peer_slots: tuple[int, ...]
    consumer_slots: tuple[int, ...]
    topic: bool


@frozen(slots=True)
class ProducerPlan:
    """The streams of one producer process. `window_count` None: only the broker and the quota hold them back."""

    endpoint: Endpoint
    streams: tuple[StreamPlan, ...]
    quota_slot: int
    persistent: bool
    receipt_window_count: int
    receipt_every: int
    rate_per_second: float
    tagged: bool
    high_priority_every: int
    window_count: int | None


@frozen(slots=True)
class SubscriberPlan:
    """One consumer connection. `group` numbers the consumers that share a destination's messages among them: the same
    number for all consumers of a queue, one number each for the subscribers of a topic. `stream_numbers` may arrive
    there."""

    number: int
    destination: str
    body_bytes: int
    delivered_slot: int
    group: int
    stream_numbers: tuple[int, ...]


@frozen(slots=True)
class ConsumerPlan:
    """The subscribers of one consumer process.

    `selector`: of each; `passing_count`: subscriptions beside each with a selector that takes nothing. `naps`: rest a
    little after a read that brought only a few messages. `late`: messages wait already, so a receipt for the
    subscription would come among them; none is asked for. `stalled`: subscribe and never read. `think_seconds`: take so
    long for each message.
    """

    endpoint: Endpoint
    subscribers: tuple[SubscriberPlan, ...]
    ack: Ack
    ack_each: bool
    prefetch_count: int
    tagged: bool
    naps: bool
    selector: str = ""
    passing_count: int = 0
    late: bool = False
    stalled: bool = False
    think_seconds: float | None = None


@frozen(slots=True)
class ReplierPlan:
    """Answers every message of `request_destination` with its own body to `reply_destination`."""

    endpoint: Endpoint
    request_destination: str
    reply_destination: str


@frozen(slots=True)
class RequesterPlan:
    """Sends a request, waits for its answer, and sends the next while the quota allows; counts answers in
    `done_slot`."""

    endpoint: Endpoint
    request_destination: str
    reply_destination: str
    body_bytes: int
    done_slot: int


Plan = Union[ProducerPlan, ConsumerPlan, ReplierPlan, RequesterPlan, "LogPlan"]


@frozen(slots=True)
class Assignment:
    """A plan, its board, and the number of seconds after which the worker ends whatever the board says."""

    plan: Plan
    board: Path
    lifetime_seconds: float


@frozen(slots=True)
class WorkerReport:
    """Report of a worker at its end.

    `latencies_ns` and `high_latencies_ns` hold what arrived within the measured window. `faults` are broken promises of
    the broker in words, and end in "…" where there were too many to list.
    """

    faults: tuple[str, ...] = ()
    latencies_ns: tuple[int, ...] = ()
    high_latencies_ns: tuple[int, ...] = ()
