"""The named scenarios: messages, destinations, acknowledgement, and targets.

A name reads PRODUCERS_DESTINATIONS_CONSUMERS-SIZE-ACK, after the stomp-benchmark project of 2011 and the prototype's
`MockBrokerTest`; destinations are queues unless the name starts with `topic-`. Producer i sends to destination i modulo
the number of destinations, and consumer j reads from destination j modulo the same.

A scenario is data. `perf.runner` applies the fields to a broker; nothing here knows a socket.

Source: DESIGN.md sections 11 and 12; the slow-consumer scenarios are the prototype's `2_2_2_SlowConsumer` (think time
50 ms).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal

from attrs import evolve, frozen

Kind = Literal["queue", "topic"]
Ack = Literal["auto", "client", "client-individual"]

KIB = 1024
MIB = 1024 * KIB


@frozen(slots=True)
class Goal:
    """Measure of success of a figure.

    `figure` names a key of `perf.reports.figures.FIGURES`. `against="peers"`: the ratio to the better of the reference
    peers (RabbitMQ and ActiveMQ) must be at least `at_least`; for a figure where lower is better the ratio is turned
    round, so more is always better. `against="itself"`: the figure itself must be at least (where lower is better: at
    most) `at_least`.
    """

    figure: str
    at_least: float
    against: Literal["peers", "itself"] = "peers"


@frozen(slots=True)
class Disturbance:
    """The slow neighbour that joins half-way: consumers that don't keep up, and a producer that floods them.

    `think_seconds` is what a consumer takes for each message before it acknowledges it and reads on; None means that it
    subscribes and never reads its socket again. The flood is as fast as the broker takes it, and ends after
    `flood_count` messages whatever happens, so that a broker that buffers without limit does not take the machine with
    it.
    """

    kind: Kind
    consumer_count: int = 1
    think_seconds: float | None = None
    ack: Ack = "auto"
    body_bytes: int = KIB
    flood_count: int = 2_000_000
    rate_per_second: float = 0.0
    """Rate of the flood; 0: as fast as the broker takes messages."""
    persistent: bool = False
    """Whether the flood is persistent."""
    beside: bool = False
    """Whether the flood's consumers read the destination of the measured load, too; hardly anything is flooded."""
    sustained: bool = False
    """The window beside it takes `Effort.flood_seconds`, and the growth of memory over it is measured."""

    @property
    def pauses(self) -> bool:
        """Whether flood and thinking consumers pause again and again, and each window beside them is compared with the
        ones just before and after it: a consumer that never reads can't be made to pause.
        """
        return self.sustained or self.think_seconds is not None


@frozen(slots=True)
class Backlog:
    """A queue that is filled before it has a reader; see `perf.load.backlogs`.

    `reference_count` is for the reference peers, some of which would take an hour for more. Rates are compared.
    """

    message_count: int
    reference_count: int


@frozen(slots=True)
class Scenario:
    """One load. Units are in the names; special meanings of zero and None are stated.

    `window_count` bounds what is under way per destination (sent by producers and not yet counted by every consumer
    that has to get it), so that brokers without back pressure are measured at the rate at which they deliver and not by
    how much they hoard; the producer goes on when half of it is left. It is the same for every peer.
    """

    name: str
    summary: str
    producer_count: int = 1
    destination_count: int = 1
    consumer_count: int = 1
    kind: Kind = "queue"
    body_bytes: int = 100
    other_body_bytes: int = 0
    """Body size of every second destination; 0: as of the others."""
    ack: Ack = "auto"
    ack_each: bool = False
    """Whether consumers with ack `client` send an ACK frame for every message instead of one for each read."""
    persistent: bool = False
    receipt_window_count: int = 0
    """Maximum of messages of a stream that wait for their receipts; 0: no receipts are asked for."""
    receipt_every: int = 1
    """Every so manieth SEND asks for one."""
    consumers_late: bool = False
    """Whether consumers come after the window, and the rate is that of the receipts. Nothing bounds the messages under
    way then.
    """
    beside_memory: bool = False
    """The same load without `persistent` is measured before, on the same broker in the same run."""
    rate_per_second: float = 0.0
    """Messages a second of each producer; 0: as fast as the broker takes them."""
    stamped: bool = False
    """Bodies carry their number and the time they were made; latency is measured and each message checked."""
    high_priority_every: int = 0
    """Every so manieth message carries priority 9 and the rest priority 4; 0: no priority header."""
    window_count: int = 10_000
    unbounded: bool = False
    """Whether only the broker bounds the messages under way: a broker without back pressure is measured by its hoard,
    too.
    """
    prefetch_count: int = 1000
    """Asked for by `prefetch-count` and `activemq.prefetchSize` alike; brokers that know neither use their default."""
    selector: str = ""
    """Selector of all consumers, which selects every message sent. Empty: they have none."""
    passing_count: int = 0
    """Subscriptions of each consumer beside its own, with a selector that takes nothing."""
    disturbance: Disturbance | None = None
    round_trips: bool = False
    """Request and reply between two clients over two queues, one request under way at a time."""
    backlog: Backlog | None = None
    """Backlog to fill, restart and drain; the load as the rest describes it is measured before, on queues that stay
    near empty.
    """
    idle_count: int = 0
    """Connections that are opened and held without traffic; nothing else is done then."""
    heart_beat_ms: int = 0
    """Heart-beat interval of both sides of each idle connection; 0: no heart-beats. Held for two intervals at least."""
    fresh_broker: bool = False
    """Start the broker anew for each run, since a run leaves it full."""
    settings: str = ""
    """TOML that Sluiceway is started with, besides its defaults."""
    targets: tuple[Goal, ...] = ()

    def body_bytes_of(self, destination: int) -> int:
        """Return the size of the bodies for the destination with this number."""
        return self.other_body_bytes if self.other_body_bytes and destination % 2 else self.body_bytes

    @property
    def tagged(self) -> bool:
        """Whether every message has to carry its own number also at full load."""
        return self.stamped

    @property
    def needs_disk(self) -> bool:
        """Whether a broker without durability would be measured at something else than the name says."""
        return (
            self.persistent or self.backlog is not None or (self.disturbance is not None and self.disturbance.sustained)
        )


def _rate(at_least: float) -> tuple[Goal, ...]:
    return (Goal("rate_per_second", at_least),)


_THROTTLED = '[[destinations]]\nmatch = "/>"\npaging = "throttle"\n'
_PAGED = '[[destinations]]\nmatch = "/>"\npaging = "page"\n'

# A queue holds 64 MiB by default and so does a connection's share; twice that for CPython's overhead on small objects.
_STALLED_TARGETS = (
    Goal("retained_ratio", 0.95, "itself"),
    Goal("rss_growth_bytes", 256 * MIB, "itself"),
)

_PAGED_QUEUE = Disturbance("queue", flood_count=100_000_000, rate_per_second=5000.0, sustained=True)


def _backlog(name: str, summary: str, body_bytes: int, backlog: Backlog, *, persistent: bool = True) -> Scenario:
    restart = " a restart," if persistent else ""
    # Large ones in small numbers, so that a broker without back pressure does not fill the machine before it begins.
    window_count = min(10_000, max(64, 64 * MIB // body_bytes))
    return Scenario(
        name,
        f"{summary} without a consumer,{restart} then one consumer for all of them",
        body_bytes=body_bytes,
        persistent=persistent,
        window_count=window_count,
        receipt_window_count=window_count,
        receipt_every=min(100, window_count // 8),
        ack="client",
        backlog=backlog,
        fresh_broker=True,
        settings=_PAGED,
        # However long the backlog: its memory is that of what is near a consumer, and of ranges for the rest.
        targets=(Goal("rss_peak_bytes", 200_000_000, "itself"),),
    )


def _sustained(size: str, body_bytes: int, prefetch_count: int = 1000) -> tuple[Scenario, Scenario]:
    """One pair whose producer nothing but the broker holds back; in memory, and persistent."""
    scenario = Scenario(
        f"sustained-{size}",
        f"one pair, {size} bodies, nothing but the broker holds the producer back",
        body_bytes=body_bytes,
        unbounded=True,
        prefetch_count=prefetch_count,
        fresh_broker=True,
        targets=_rate(2.0),
    )
    return scenario, evolve(
        scenario, name=f"{scenario.name}-persistent", summary=f"{scenario.summary}; persistent", persistent=True
    )


def _drains(size: str, body_bytes: int, message_count: int, reference_count: int) -> tuple[Scenario, Scenario]:
    """A backlog that is written to the disk and read back, persistent or not."""
    backlog = Backlog(message_count, reference_count)
    body = f"{body_bytes // KIB} KiB" if body_bytes < MIB else f"{body_bytes // MIB} MiB"
    return (
        _backlog(f"drain-{size}", f"{message_count:,} messages of {body}", body_bytes, backlog, persistent=False),
        _backlog(f"drain-{size}-persistent", f"{message_count:,} persistent messages of {body}", body_bytes, backlog),
    )


CATALOGUE: tuple[Scenario, ...] = (
    Scenario("1_1_1-20b-auto", "one pair, one queue, tiny bodies", body_bytes=20, targets=_rate(4.0)),
    Scenario("1_1_1-1k-auto", "one pair, one queue, 1-KiB bodies", body_bytes=KIB, targets=_rate(4.0)),
    Scenario("1_1_1-100b-client", "one pair, cumulative acks, one per read", ack="client", targets=_rate(3.0)),
    Scenario("1_1_1-100b-client-each", "one pair, cumulative acks, one per message", ack="client", ack_each=True),
    Scenario("1_1_1-100b-individual", "one pair, an individual ack per message", ack="client-individual"),
    Scenario("1_1_1-1k-individual", "the same with 1-KiB bodies", body_bytes=KIB, ack="client-individual"),
    Scenario("1_1_1-64k-auto", "one pair, 64-KiB bodies", body_bytes=64 * KIB, window_count=500, targets=_rate(2.5)),
    Scenario("1_1_1-1m-auto", "one pair, 1-MiB bodies", body_bytes=MIB, window_count=50, targets=_rate(2.5)),
    Scenario(
        "10_10_10-mixed-auto",
        "ten pairs, each on its own queue; 20-byte bodies on five of them, 64 KiB on the others",
        producer_count=10,
        destination_count=10,
        consumer_count=10,
        body_bytes=20,
        other_body_bytes=64 * KIB,
        window_count=500,
        targets=_rate(2.0),
    ),
    Scenario(
        "10_10_10-100b-auto",
        "ten pairs, each on its own queue",
        producer_count=10,
        destination_count=10,
        consumer_count=10,
        window_count=1000,
        targets=_rate(3.0),
    ),
    Scenario(
        "topic-1_1_10-100b-auto", "one producer, ten subscribers", kind="topic", consumer_count=10, targets=_rate(3.0)
    ),
    Scenario(
        "topic-1_1_10-100b-selectors",
        "one producer, ten subscribers with a selector that takes all, each beside nine that pass all over",
        kind="topic",
        consumer_count=10,
        selector="absent IS NULL",
        passing_count=9,
    ),
    Scenario("topic-1_1_1-100b-auto", "one producer, one subscriber", kind="topic"),
    Scenario("10_1_1-100b-auto", "fan-in: ten producers, one queue", producer_count=10),
    Scenario("1_1_10-100b-auto", "one queue shared by ten consumers", consumer_count=10),
    Scenario("10_1_10-100b-auto", "ten producers and ten consumers on one queue", producer_count=10, consumer_count=10),
    Scenario(
        "persistent-window",
        "persistent, every SEND with a receipt, 100 in flight, cumulative acks",
        persistent=True,
        receipt_window_count=100,
        ack="client",
        targets=_rate(4.0),
    ),
    Scenario(
        "persistent-sync",
        "persistent, ten producers that wait for the receipt of every SEND",
        producer_count=10,
        persistent=True,
        receipt_window_count=1,
        ack="client",
        targets=_rate(2.0),
    ),
    Scenario(
        "persistent-sync-stored",
        "the same without a consumer: every receipt means the disk",
        producer_count=10,
        persistent=True,
        receipt_window_count=1,
        consumers_late=True,
        ack="client",
    ),
    Scenario(
        "persistent-keep-up",
        "persistent without receipts, a consumer that keeps up; beside the same without persistence",
        persistent=True,
        beside_memory=True,
        ack="client",
    ),
    Scenario(
        "1_1_1-1k-persistent",
        "persistent without receipts, cumulative acks",
        persistent=True,
        body_bytes=KIB,
        ack="client",
    ),
    Scenario(
        "latency-1000ps-100b",
        "one pair at 1,000 messages/s: how long a message takes",
        rate_per_second=1000.0,
        stamped=True,
        targets=(Goal("p99_us", 1.0),),
    ),
    Scenario("request-reply-100b", "request and reply over two queues, one at a time", round_trips=True),
    Scenario(
        "priority-mixed",
        "every third message has priority 9, the rest 4: does a backlog let it pass",
        stamped=True,
        high_priority_every=3,
        ack="client-individual",
    ),
    Scenario(
        "stalled-queue-consumer",
        "a fast pair beside a queue that is flooded and whose consumer never reads",
        disturbance=Disturbance("queue"),
        fresh_broker=True,
        settings=_THROTTLED,
        targets=_STALLED_TARGETS,
    ),
    Scenario(
        "stalled-topic-subscriber",
        "a fast pair beside a topic that is flooded and whose subscriber never reads",
        disturbance=Disturbance("topic"),
        fresh_broker=True,
        settings=_THROTTLED,
        targets=_STALLED_TARGETS,
    ),
    Scenario(
        "sleepy-consumers-50ms",
        "a fast pair beside a flooded queue whose ten consumers take 50 ms a message",
        disturbance=Disturbance("queue", consumer_count=10, think_seconds=0.05, ack="client-individual"),
        fresh_broker=True,
        settings=_THROTTLED,
        targets=_STALLED_TARGETS,
    ),
    Scenario(
        "flood-paging-queue",
        "a fast pair beside a queue that grows at 5,000 messages/s, onto the disk, for its consumer never reads",
        disturbance=_PAGED_QUEUE,
        fresh_broker=True,
        settings=_PAGED,
        targets=_STALLED_TARGETS,
    ),
    Scenario(
        "flood-to-quota",
        "the same with 1 GiB of disk for the queue, which is full after some three minutes: its sender is held then",
        disturbance=_PAGED_QUEUE,
        fresh_broker=True,
        settings=_PAGED + "bytes_max = 1073741824\n",
        targets=_STALLED_TARGETS,
    ),
    Scenario(
        "flood-paging-topic",
        "a fast pair beside a topic of 5,000 messages/s, kept on the disk for a subscriber that never reads",
        disturbance=evolve(_PAGED_QUEUE, kind="topic"),
        fresh_broker=True,
        settings=_PAGED,
        targets=_STALLED_TARGETS,
    ),
    Scenario(
        "stalled-beside-topic",
        "a topic's fast subscriber beside one of the same topic that never reads; what that one lacks goes to the disk",
        kind="topic",
        disturbance=Disturbance("topic", rate_per_second=1.0, beside=True),
        fresh_broker=True,
        settings=_PAGED,
        targets=(Goal("retained_ratio", 0.9, "itself"),),
    ),
    _backlog("backlog-100b", "ten million persistent messages", 100, Backlog(10_000_000, 500_000)),
    _backlog("backlog-1k", "two million persistent 1-KiB messages", KIB, Backlog(2_000_000, 200_000)),
    *_sustained("100b", 100),
    *_sustained("1k", KIB),
    *_sustained("64k", 64 * KIB),
    *_sustained("1m", MIB, prefetch_count=50),
    # Messages of 1 KiB in three numbers: whether the rate of draining depends on the backlog.
    *_drains("1k-10k", KIB, 10_000, 10_000),
    *_drains("1k-100k", KIB, 100_000, 100_000),
    *_drains("1k-1m", KIB, 1_000_000, 200_000),
    *_drains("64k", 64 * KIB, 20_000, 20_000),
    *_drains("1m", MIB, 1_000, 1_000),
    Scenario(
        "idle-10000",
        "10,000 connections held without traffic: what each costs",
        idle_count=10_000,
        fresh_broker=True,
        targets=(Goal("idle_held_ratio", 1.0, "itself"),),
    ),
    Scenario(
        "idle-heartbeat-10k",
        "10,000 connections whose both sides beat every 10 s: what of a processor that takes",
        idle_count=10_000,
        heart_beat_ms=10_000,
        fresh_broker=True,
        targets=(Goal("idle_held_ratio", 1.0, "itself"), Goal("idle_cpu_share", 0.1, "itself")),
    ),
)

BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}


class UnknownScenarioError(ValueError):
    """A scenario was asked for that the catalogue does not have."""


def choose(names: Iterable[str]) -> list[Scenario]:
    """Return the scenarios of those names in that order; the words `all`, `targets` and `persistence` stand for all,
    for those judged, and for those that need a disk.

    Raises UnknownScenarioError: a name is not in the catalogue; the message offers the nearest ones.
    """
    chosen: dict[str, Scenario] = {}
    for name in names:
        if name == "all":
            found: Iterable[Scenario] = CATALOGUE
        elif name == "targets":
            found = [scenario for scenario in CATALOGUE if scenario.targets]
        elif name == "persistence":
            found = [scenario for scenario in CATALOGUE if scenario.needs_disk]
        elif name in BY_NAME:
            found = [BY_NAME[name]]
        else:
            near = get_close_matches(name, BY_NAME, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}?" if near else "`python -m perf list` shows them"
            raise UnknownScenarioError(f"no scenario is called {name!r}: {hint}")
        chosen.update((scenario.name, scenario) for scenario in found)
    return list(chosen.values())
