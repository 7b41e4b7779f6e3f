"""Rates and totals: counters are read about once a second, while requests for rates come in.

Parts count (added, delivered, sent) and know nothing of rates. A sample walks all destinations and connections in
steps; the differences to the one before, smoothed over some seconds, are the rates. After WATCH_SECONDS without a
request the samples end; the next request waits for two new ones.

Bound: two numbers for each destination, connection, subscription and way between them. A sample that costs much comes
less often: COST_SHARE of the time at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from sluiceway.flow import FlowResource
from sluiceway.flow.graph import Steps
from sluiceway.queues.destination import Destination
from sluiceway.rates import Meter
from sluiceway.views.connections import id_of
from sluiceway.views.destinations import figure
from sluiceway.views.subscriptions import takers_of

if TYPE_CHECKING:
    from sluiceway.connections import Connections
    from sluiceway.shards import Shards
    from sluiceway.steps import StepPace

SAMPLE_SECONDS: Final = 1.0
FIRST_SECONDS: Final = 0.25
"""Time between the first two samples, for which a request waits."""
WATCH_SECONDS: Final = 15.0
TREND_SECONDS: Final = 10.0
"""Forecasts are made of calmer numbers."""
COST_SHARE: Final = 0.05


@attrs.frozen(slots=True)
class Totals:
    """Totals of the whole broker, at one sample."""

    in_per_second: float = 0.0
    out_per_second: float = 0.0
    depth_count: int = 0
    depth_bytes: int = 0
    unsettled_count: int = 0
    connections_count: int = 0
    destinations_count: int = 0
    subscriptions_count: int = 0
    flows_count: int = 0
    """Ways on the map: from connections to destinations, and from those to subscriptions."""


class Sampler:
    """One per admin server. `run` is its task."""

    def __init__(
        self,
        shards: Shards,
        connections: Connections,
        pace: StepPace,
        *,
        contain: Callable[[Exception], None],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """Make a sampler. `contain` is given exceptions of a sample."""
        self._shards = shards
        self._connections = connections
        self._pace = pace
        self._contain = contain
        self._clock = clock
        self._asked = trio.Event()
        self._asked_seconds = -math.inf
        self._sampled = trio.Event()
        """End of the sample under way; a new event for each."""
        self._is_ready = False
        self._has_tried = False
        """Whether a sample was made, or failed: requests do not wait for good ones."""
        self._sampled_seconds = -math.inf
        self.totals = Totals()
        self.taken_in: Meter[str] = Meter()
        """Input by destination."""
        self.put_out: Meter[str] = Meter()
        """Output by destination."""
        self.growth: Meter[int] = Meter(TREND_SECONDS)
        """Messages, by id of the queue's resource: falls, too."""
        self.growth_bytes: Meter[int] = Meter(TREND_SECONDS)
        self.sent: Meter[tuple[int, str]] = Meter()
        """SENDs by lane: id of the connection's resource, name of the destination."""
        self.delivered: Meter[tuple[str, int]] = Meter()
        """Deliveries by way: name of the destination, id of the subscription's resource."""
        self.connection_in: Meter[int] = Meter()
        """Input by id of the connection's resource."""
        self.connection_out: Meter[int] = Meter()

    async def run(self) -> None:
        """Sample while requests come. Ends with its task."""
        while True:
            if self._clock() - self._asked_seconds > WATCH_SECONDS:
                self._asked = trio.Event()
                self._is_ready = self._has_tried = False
                self._sampled_seconds = -math.inf
                await self._asked.wait()
            worked = self._pace.worked_seconds
            began_seconds = self._clock()
            try:
                await self._pace.run(self._sample(began_seconds - self._sampled_seconds))
                self._sampled_seconds = began_seconds
            except Exception as error:  # noqa: BLE001 - the shell of one sample: waiting requests get the last good numbers
                self._contain(error)
            cost_seconds = self._pace.worked_seconds - worked  # or more, if others worked in between
            self._is_ready, self._has_tried, was_first = self._has_tried, True, not self._has_tried
            done, self._sampled = self._sampled, trio.Event()
            done.set()
            await trio.sleep(max(FIRST_SECONDS if was_first else SAMPLE_SECONDS, cost_seconds / COST_SHARE))

    async def ready(self) -> None:
        """Wait for a recent sample, and ask for more of them. Always a checkpoint."""
        self._asked_seconds = self._clock()
        self._asked.set()
        await trio.lowlevel.checkpoint()
        while not self._is_ready:
            await self._sampled.wait()

    def _sample(self, passed_seconds: float) -> Steps[None]:
        shards = self._shards
        depth_count = depth_bytes = unsettled_count = flows_count = 0
        destinations = list(shards.registry.destinations.values())
        for destination in destinations:
            yield
            count, size_bytes, unsettled = yield from self._sample_destination(destination)
            depth_count += count
            depth_bytes += size_bytes
            unsettled_count += unsettled
        for log in () if shards.logs is None else list(shards.logs):
            yield
            self.taken_in.note(log.name, log.records.next_index)
            self.put_out.note(log.name, sum([outlet.delivered_count for outlet in log.outlets]))
            yield from self._sample_takers(log.name, [log])
        subscriptions_count = 0
        connections = list(self._connections)
        for connection in connections:
            session = connection.session
            key = id_of(connection)
            subscriptions_count += len(session.subscriptions.live)
            self.connection_in.note(key, session.totals.messages_in_count)
            self.connection_out.note(key, session.totals.messages_out_count)
            yield
            for lane in list(session.lanes.lanes):
                yield
                self.sent.note((key, lane.target.name), lane.sent_count)
                flows_count += 1
        meters: tuple[Meter[Any], ...] = (
            self.taken_in,
            self.put_out,
            self.sent,
            self.delivered,
            self.connection_in,
            self.connection_out,
        )
        for meter in meters:
            yield from meter.finish_in_steps(passed_seconds)
        yield from self.growth.finish_in_steps(passed_seconds, falls=True)
        yield from self.growth_bytes.finish_in_steps(passed_seconds, falls=True)
        self.totals = Totals(
            in_per_second=sum(self.taken_in.rates.values()),
            out_per_second=sum(self.put_out.rates.values()),
            depth_count=depth_count,
            depth_bytes=depth_bytes,
            unsettled_count=unsettled_count,
            connections_count=len(connections),
            destinations_count=len(destinations),
            subscriptions_count=subscriptions_count,
            flows_count=flows_count + self.delivered.count,
        )

    def _sample_destination(self, destination: Destination) -> Steps[tuple[int, int, int]]:
        name = destination.name
        yield from self._sample_takers(name, destination.queues)
        depth_count, depth_bytes = figure("depth_count", destination), figure("depth_bytes", destination)
        self.taken_in.note(name, figure("added_count", destination))
        self.put_out.note(name, figure("delivered_count", destination))
        for queue in destination.queues:
            yield
            self.growth.note(queue.resource_id, queue.elements.live_count)
            self.growth_bytes.note(queue.resource_id, queue.held_bytes)
        return depth_count, depth_bytes, figure("unsettled_count", destination)

    def _sample_takers(self, name: str, places: Iterable[FlowResource]) -> Steps[None]:
        delivered_counts: dict[int, int] = {}
        for place in places:
            for consumer_id, subscription in takers_of(place):
                yield
                delivered_counts[consumer_id] = delivered_counts.get(consumer_id, 0) + subscription.delivered_count
        for consumer_id, count in delivered_counts.items():
            yield
            self.delivered.note((name, consumer_id), count)
