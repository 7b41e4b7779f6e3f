"""The last hour of the numbers that the console draws: one point every STEP_SECONDS, in rings of a fixed size.

The broker as a whole has one ring for each of its numbers, and each of the DESTINATIONS_MAX destinations and logs that
did something last has rings of its own; where more are busy, those that were first keep theirs. Longer history is the
task of Prometheus. The rings, and the counts of all destinations, are charged to an account that counts as memory of
the broker; a walk is made in steps.

A ring holds rates as they were between two points. A walk that takes long makes the next point late: then the points
between are NaN, as before a destination was known.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from sluiceway.flow.graph import Steps
from sluiceway.flow.kinds import ResourceKind
from sluiceway.flow.survey import MemorySum
from sluiceway.views.destinations import figure
from sluiceway.views.stores import stores_in_steps

if TYPE_CHECKING:
    from sluiceway.connections import Connections
    from sluiceway.shards import Shards
    from sluiceway.steps import StepPace

STEP_SECONDS: Final = 10.0
POINTS_COUNT: Final = 360
DESTINATIONS_MAX: Final = 250
OF_DESTINATIONS: Final = ("in_per_second", "out_per_second", "depth_count")
OF_BROKER: Final = (*OF_DESTINATIONS, "unsettled_count", "memory_bytes", "connections_count")
OF_STORE: Final = ("written_count", "cancelled_count", "syncs_count", "paged_out_count", "loaded_count")
"""Counters of the store's report; kept as rates."""
OBJECTS_BYTES: Final = 1024
"""Bytes that a destination's rings take beside their points."""
COUNTS_BYTES: Final = 256
"""Bytes that the counts of a destination take beside its name."""


class Rings:
    """Several numbers over the same time, the point of a tick at `tick % POINTS_COUNT`.

    Attributes:
        moved_tick: the last tick at which something came in or went out.
    """

    __slots__ = ("_numbers", "_tick", "moved_tick")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.moved_tick = 0
        self._numbers = {name: array("f", [math.nan]) * POINTS_COUNT for name in names}
        self._tick: int | None = None

    def note(self, tick: int, numbers: Mapping[str, float]) -> None:
        """Put in the numbers of a tick. What was not noted since the last one is NaN."""
        first = tick - POINTS_COUNT + 1 if self._tick is None else max(self._tick + 1, tick - POINTS_COUNT + 1)
        self._tick = tick
        for name, ring in self._numbers.items():
            for missed in range(first, tick):
                ring[missed % POINTS_COUNT] = math.nan
            ring[tick % POINTS_COUNT] = numbers.get(name, math.nan)

    def read_in_steps(self, tick: int) -> Steps[dict[str, list[float | None]]]:
        """Return the points up to a tick, the oldest first; None where nothing is known."""
        last = tick if self._tick is None else self._tick
        found: dict[str, list[float | None]] = {}
        for name, ring in self._numbers.items():
            yield
            points = [
                math.nan if at > last or at <= last - POINTS_COUNT else ring[at % POINTS_COUNT]
                for at in range(tick - POINTS_COUNT + 1, tick + 1)
            ]
            yield
            found[name] = [None if math.isnan(point) else round(point, 3) for point in points]
        return found


RING_BYTES: Final = POINTS_COUNT * array("f").itemsize


class History(FlowResource):
    """One per admin server. `run` is its task."""

    def __init__(
        self,
        manager: FlowManager,
        shards: Shards,
        connections: Connections,
        pace: StepPace,
        *,
        contain: Callable[[Exception], None],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """`contain` is given what one walk raised."""
        super().__init__("admin history", ResourceKind.CACHE, manager)
        self._manager = manager
        self._shards = shards
        self._connections = connections
        self._pace = pace
        self._contain = contain
        self._clock = clock
        self._began_seconds = clock()
        self._tick = 0
        self._broker = Rings(OF_BROKER)
        self._store = Rings(OF_STORE)
        self._destinations: OrderedDict[str, Rings] = OrderedDict()
        """The one that did something last is the last."""
        self._counts: dict[str, tuple[int, int]] = {}
        """Counts of what came in and went out, of each destination that ever did anything, at the last tick."""
        self._counts_bytes = 0
        self._counts_charged = (0, 0)
        """Destinations and bytes of the counts, as they are charged."""
        self._stored: dict[str, float] = {}
        self._last_seconds: float | None = None
        self._held = Account(
            self,
            Flow("the last hour of numbers"),
            SizeLimiter(
                (DESTINATIONS_MAX + 2) * (RING_BYTES * len(OF_BROKER) + OBJECTS_BYTES)
                + shards.registry.destinations_max * 2 * COUNTS_BYTES,
                clock=manager.clock,
            ),
            clock=manager.clock,
        )

    def start(self) -> None:
        """Be a part of the flow map, with what the rings of the broker take."""
        self.open()
        self._held.charge(1, RING_BYTES * (len(OF_BROKER) + len(OF_STORE)) + OBJECTS_BYTES, None)

    def stop(self) -> None:
        """Give back what was charged, and close."""
        self._held.release(1, RING_BYTES * (len(OF_BROKER) + len(OF_STORE)) + OBJECTS_BYTES)
        while self._destinations:
            self._forget()
        self._held.release(*self._counts_charged)
        self.close()

    async def run(self) -> None:
        """Note a point every STEP_SECONDS. Ends with its task."""
        while True:
            try:
                await self._pace.run(self.note_in_steps())
            except Exception as error:  # noqa: BLE001 - the shell of one walk: the next one is in ten seconds
                self._contain(error)
            await trio.sleep_until(self._began_seconds + (self._now_tick() + 1) * STEP_SECONDS)

    def _now_tick(self) -> int:
        return int((self._clock() - self._began_seconds) // STEP_SECONDS)

    # ------------------------------------------------------------------ one point

    def note_in_steps(self) -> Steps[None]:
        """Walk once, and note what was found as the point of now."""
        now = self._clock()
        passed_seconds = None if self._last_seconds is None else max(0.001, now - self._last_seconds)
        self._last_seconds, self._tick = now, self._now_tick()
        totals = dict.fromkeys(OF_BROKER, 0.0)
        known, self._counts, self._counts_bytes = self._counts, {}, 0
        for destination in list(self._shards.registry.destinations.values()):
            yield
            counts = figure("added_count", destination), figure("delivered_count", destination)
            depth_count = figure("depth_count", destination)
            totals["unsettled_count"] += figure("unsettled_count", destination)
            before = known.get(destination.name)
            self._note_one(destination.name, counts, before, depth_count, passed_seconds, totals)
        for log in () if self._shards.logs is None else list(self._shards.logs):
            yield
            counts = log.records.next_index, sum([outlet.delivered_count for outlet in log.outlets])
            self._note_one(log.name, counts, known.get(log.name), 0, passed_seconds, totals)
        self._held.release(*self._counts_charged)
        self._counts_charged = len(self._counts), self._counts_bytes
        self._held.charge(*self._counts_charged, None)
        memory = MemorySum()
        for resource in list(self._manager.resources):
            yield from memory.take_in_steps(resource)
        totals["memory_bytes"] = memory.used_bytes
        totals["connections_count"] = len(self._connections)
        self._broker.note(self._tick, totals if passed_seconds is not None else {**totals, **_NO_RATES})
        yield from self._note_store(passed_seconds)

    def _note_one(
        self,
        name: str,
        counts: tuple[int, int],
        before: tuple[int, int] | None,
        depth_count: int,
        passed_seconds: float | None,
        totals: dict[str, float],
    ) -> None:
        totals["depth_count"] += depth_count
        rings = self._destinations.get(name)
        if rings is None and not (depth_count or any(counts)):
            return  # never did anything
        self._counts[name] = counts
        self._counts_bytes += COUNTS_BYTES + len(name)
        numbers: dict[str, float] = {"depth_count": depth_count}
        moved = before is None or before != counts
        if before is not None and passed_seconds is not None:
            came, went = (max(0, now - then) / passed_seconds for now, then in zip(counts, before, strict=True))
            numbers |= {"in_per_second": came, "out_per_second": went}
            totals["in_per_second"] += came
            totals["out_per_second"] += went
        if rings is None:
            if not self._has_place(moved=moved):
                return
            rings = self._destinations[name] = Rings(OF_DESTINATIONS)
            self._held.charge(1, _bytes_of(name), None)
        elif moved:
            self._destinations.move_to_end(name)
        if moved:
            rings.moved_tick = self._tick
        rings.note(self._tick, numbers)

    def _has_place(self, *, moved: bool) -> bool:
        """Make a place for one more destination that `moved` since the last point; False: there is none, for all that
        have one did something at this point or at the last.
        """
        if len(self._destinations) < DESTINATIONS_MAX:
            return True
        if not moved:
            return False
        oldest = next(iter(self._destinations.values()))
        if oldest.moved_tick >= self._tick - 1:
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        name, _rings = self._destinations.popitem(last=False)
        self._held.release(1, _bytes_of(name))

    def _note_store(self, passed_seconds: float | None) -> Steps[None]:
        report = yield from stores_in_steps(self._shards.stores)
        if report is None:
            return
        stored = {name: float(report.get(name) or 0) for name in OF_STORE}
        if passed_seconds is not None and self._stored:
            rates = {name: max(0.0, stored[name] - self._stored[name]) / passed_seconds for name in OF_STORE}
            self._store.note(self._tick, rates)
        self._stored = stored

    # ------------------------------------------------------------------ reading

    def read_in_steps(self, name: str = "") -> Steps[dict[str, Any]]:
        """Return the last hour of a destination or a log, or without a name of the broker and its store."""
        tick = self._tick
        series: dict[str, list[float | None]] = {}
        if not name:
            series |= yield from self._broker.read_in_steps(tick)
            stored = yield from self._store.read_in_steps(tick)
            series |= {f"store_{key}": points for key, points in stored.items()}
        elif (rings := self._destinations.get(name)) is not None:
            series |= yield from rings.read_in_steps(tick)
        age_seconds = max(0.0, self._clock() - self._began_seconds - tick * STEP_SECONDS)
        return {"step_seconds": STEP_SECONDS, "age_seconds": age_seconds, "series": series}


_NO_RATES: Final = {"in_per_second": math.nan, "out_per_second": math.nan}


def _bytes_of(name: str) -> int:
    return RING_BYTES * len(OF_DESTINATIONS) + OBJECTS_BYTES + len(name)
