"""Plans of the workers of a scenario: senders, readers, and their slots of the board."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import count

from attrs import evolve, frozen

from perf.load.board import FIRST_FREE, FLOOD_QUOTA, QUOTA
from perf.load.plans import ConsumerPlan, Endpoint, ProducerPlan, StreamPlan, SubscriberPlan
from perf.scenarios import Disturbance, Scenario

_PATIENT_WINDOW_COUNT = 1000
"""Number of outstanding receipts with which a producer does not notice a consumer's naps."""


@frozen(slots=True)
class Load:
    """One producer process and one consumer process, with their slots for the runner."""

    producers: ProducerPlan
    consumers: ConsumerPlan

    @property
    def sent_slots(self) -> tuple[int, ...]:
        """Slots with the number of messages that each stream has handed to the kernel."""
        return tuple(stream.sent_slot for stream in self.producers.streams)

    @property
    def idle_slots(self) -> tuple[int, ...]:
        """Whether each stream rests at its quota."""
        return tuple(stream.idle_slot for stream in self.producers.streams)

    @property
    def confirmed_slots(self) -> tuple[int, ...]:
        """Slots with the number of messages of each stream that the broker has confirmed with a receipt."""
        return tuple(stream.confirmed_slot for stream in self.producers.streams)

    @property
    def delivered_slots(self) -> tuple[int, ...]:
        """Slots with the number of messages that each consumer has got."""
        return tuple(subscriber.delivered_slot for subscriber in self.consumers.subscribers)

    def expected_count(self, sent_by_stream: tuple[int, ...]) -> int:
        """Return the number of deliveries, over all consumers, for these numbers of messages."""
        expected = 0
        for stream, sent in zip(self.producers.streams, sent_by_stream, strict=True):
            expected += sent * (len(stream.consumer_slots) if stream.topic else 1)
        return expected


class Layout:
    """Hands out slots and destination names. The names are unique, so that leftovers of earlier runs do no harm."""

    def __init__(self) -> None:
        self._slots: Iterator[int] = count(FIRST_FREE)
        self._token = secrets.token_hex(4)
        self.slot_count = FIRST_FREE

    def slot(self) -> int:
        """Return a free slot."""
        slot = next(self._slots)
        self.slot_count = slot + 1
        return slot

    def destination(self, kind: str, what: str) -> str:
        """Return an unused destination."""
        return f"/{kind}/perf-{self._token}-{what}"


def measured_load(scenario: Scenario, endpoint: Endpoint, layout: Layout) -> Load:
    """Plan the load whose deliveries are counted."""
    return _load(
        scenario,
        endpoint,
        layout,
        name="load",
        quota_slot=QUOTA,
        window_count=None if scenario.consumers_late or scenario.unbounded else scenario.window_count,
        stalled=False,
        think_seconds=None,
    )


def disturbing_load(
    scenario: Scenario, disturbance: Disturbance, endpoint: Endpoint, layout: Layout, measured: Load
) -> Load:
    """Plan the slow neighbour: consumers that don't keep up, and a producer whom nothing but the broker holds back."""
    neighbour = Scenario(
        name=f"{scenario.name}: the neighbour",
        summary="the slow neighbour",
        consumer_count=disturbance.consumer_count,
        kind=disturbance.kind,
        body_bytes=disturbance.body_bytes,
        persistent=disturbance.persistent,
        rate_per_second=disturbance.rate_per_second,
        ack=disturbance.ack,
        prefetch_count=scenario.prefetch_count,
    )
    load = _load(
        neighbour,
        endpoint,
        layout,
        name="flood",
        quota_slot=FLOOD_QUOTA,
        window_count=None,
        stalled=disturbance.think_seconds is None,
        think_seconds=disturbance.think_seconds,
    )
    if not disturbance.beside:
        return load
    destination = measured.producers.streams[0].destination
    beside = [evolve(each, destination=destination) for each in load.consumers.subscribers]
    return evolve(load, consumers=evolve(load.consumers, subscribers=tuple(beside)))


def _load(
    scenario: Scenario,
    endpoint: Endpoint,
    layout: Layout,
    *,
    name: str,
    quota_slot: int,
    window_count: int | None,
    stalled: bool,
    think_seconds: float | None,
) -> Load:
    destination_count = scenario.destination_count
    topic = scenario.kind == "topic"
    destinations = [layout.destination(scenario.kind, f"{name}-{index}") for index in range(destination_count)]
    sizes = [scenario.body_bytes_of(index) for index in range(destination_count)]
    sent_slots = [layout.slot() for _ in range(scenario.producer_count)]
    idle_slots = [layout.slot() for _ in range(scenario.producer_count)]
    confirmed_slots = [layout.slot() for _ in range(scenario.producer_count)]
    delivered_slots = [layout.slot() for _ in range(scenario.consumer_count)]
    streams = tuple(
        StreamPlan(
            number=number,
            destination=destinations[number % destination_count],
            body_bytes=sizes[number % destination_count],
            sent_slot=sent_slots[number],
            idle_slot=idle_slots[number],
            confirmed_slot=confirmed_slots[number],
            peer_slots=tuple(sent_slots[number % destination_count :: destination_count]),
            consumer_slots=tuple(delivered_slots[number % destination_count :: destination_count]),
            topic=topic,
        )
        for number in range(scenario.producer_count)
    )
    subscribers = tuple(
        SubscriberPlan(
            number=number,
            destination=destinations[number % destination_count],
            body_bytes=sizes[number % destination_count],
            delivered_slot=delivered_slots[number],
            group=number if topic else number % destination_count,
            stream_numbers=tuple(range(number % destination_count, scenario.producer_count, destination_count)),
        )
        for number in range(scenario.consumer_count)
    )
    return Load(
        ProducerPlan(
            endpoint=endpoint,
            streams=streams,
            quota_slot=quota_slot,
            persistent=scenario.persistent,
            receipt_window_count=scenario.receipt_window_count,
            receipt_every=scenario.receipt_every,
            rate_per_second=scenario.rate_per_second,
            tagged=scenario.tagged,
            high_priority_every=scenario.high_priority_every,
            window_count=window_count,
        ),
        ConsumerPlan(
            endpoint=endpoint,
            subscribers=subscribers,
            ack=scenario.ack,
            ack_each=scenario.ack_each,
            prefetch_count=scenario.prefetch_count,
            selector=scenario.selector,
            passing_count=scenario.passing_count,
            tagged=scenario.tagged,
            # A producer that waits for receipts may be waiting for an acknowledgement in truth.
            naps=not scenario.tagged and not 0 < scenario.receipt_window_count < _PATIENT_WINDOW_COUNT,
            late=scenario.consumers_late,
            stalled=stalled,
            think_seconds=think_seconds,
        ),
    )
