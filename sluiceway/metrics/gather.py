"""One page: values of a broker, read in steps, then written.

Requests while a page is made, or shortly after, get that page: making pages takes a tenth of the time at most
(`rest_seconds`), however often they are requested. In between nothing is done, and only the counters of deleted
destinations are kept.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from sluiceway.flow import Account, FlowResource
from sluiceway.flow.graph import Steps
from sluiceway.flow.kinds import ResourceKind
from sluiceway.metrics.catalogue import OTHERS
from sluiceway.metrics.destinations import Destinations
from sluiceway.metrics.exposition import Exposition, Gathered
from sluiceway.metrics.outside import SystemValues, look
from sluiceway.metrics.series import Joined
from sluiceway.steps import StepPace, rest_seconds
from sluiceway.version import VERSION
from sluiceway.views.destinations import durable_report, lag_seconds
from sluiceway.views.logs import groups_report, log_figures
from sluiceway.views.stores import stores_in_steps
from sluiceway.views.subscriptions import why_stalled
from sluiceway.views.waits import SENDERS, is_lasting

if TYPE_CHECKING:
    from sluiceway.broker import Broker

HUB_UP: Final = "sluiceway_hub_up"
DURABLE_FAMILIES: Final = (
    "sluiceway_durable_lag_messages",
    "sluiceway_durable_lag_seconds",
    "sluiceway_durable_attached",
    "sluiceway_durable_away_seconds",
)
LOG_FAMILIES: Final = {
    "sluiceway_log_records_appended_total": "next",
    "sluiceway_log_records": "size",
    "sluiceway_log_bytes": "bytes",
    "sluiceway_log_waiting_records": "waiting",
    "sluiceway_log_gaps": "gaps",
    "sluiceway_log_compacted_records_total": "compacted_count",
    "sluiceway_log_compacted_bytes_total": "compacted_bytes",
}
LOG_BLOCKED_FAMILY: Final = "sluiceway_log_blocked_seconds_total"
GROUP_FAMILIES: Final = {
    "sluiceway_log_group_lag_records": "lag",
    "sluiceway_log_group_lag_seconds": "lag_seconds",
    "sluiceway_log_group_unacknowledged_records": "unsettled",
    "sluiceway_log_group_consumers": "consumers",
}
STORE_FAMILIES: Final = {
    "sluiceway_store_messages_written_total": "written_count",
    "sluiceway_store_written_bytes_total": "written_bytes",
    "sluiceway_store_messages_paged_out_total": "paged_out_count",
    "sluiceway_store_messages_paged_in_total": "loaded_count",
    "sluiceway_store_failures_total": "failures_count",
    "sluiceway_store_corrupt_records_total": "corrupt_count",
    "sluiceway_store_messages_lost_total": "lost_count",
    "sluiceway_store_bytes": "size_bytes",
}
"""Families by figure of the view."""


LOOK_SECONDS: Final = 5.0
"""Time for which values of the operating system are reused: a look takes a thread, and lists all open files."""


class Metrics:
    """The metrics of one broker."""

    def __init__(self, broker: Broker, clock: Callable[[], float] = time.perf_counter) -> None:
        """The broker is started: its registry is there. `clock` in seconds: of this machine, not of a simulation, for
        it measures work.
        """
        self._broker = broker
        self._clock = clock
        self._started_at = broker.now_ms() / 1000  # once: a difference of two clocks would be another each time
        self._destinations = Destinations(broker, lambda: broker.config.metrics.destinations_max)
        self._exposition: Exposition | None = None
        self._pace = StepPace(lambda: broker.dispatcher.statistics().turns_count, clock)
        self._making = trio.Lock()
        self._outside: SystemValues | None = None
        self._look_again_at = 0.0
        self._pages: dict[bool, bytes] = {}
        self._good_until = 0.0
        self._said: dict[tuple[str, str], float] = {}
        """Sums over connections and other things that may end during a look: they never decrease."""

    async def page(self, *, openmetrics: bool = False) -> bytes:
        """Return the page: Prometheus' text format, or OpenMetrics. Perhaps the same that other requests got."""
        async with self._making:
            if self._clock() >= self._good_until:
                self._pages.clear()
            page = self._pages.get(openmetrics)
            if page is None:
                page = self._pages[openmetrics] = await self._make(openmetrics)
            return page

    async def _make(self, openmetrics: bool) -> bytes:
        worked_before = self._pace.worked_seconds
        outside = await self._look()
        page = await self._pace.run(self.page_in_steps(outside, openmetrics=openmetrics))
        worked_seconds = self._pace.worked_seconds - worked_before
        self._good_until = self._clock() + rest_seconds(worked_seconds)
        return page

    async def _look(self) -> SystemValues:
        """Return the values of the system, perhaps some moments old: reading them needs a thread."""
        if self._outside is None or self._clock() >= self._look_again_at:
            self._outside = await trio.to_thread.run_sync(look, self._broker.data_folder)
            self._look_again_at = self._clock() + LOOK_SECONDS
        return self._outside

    def page_in_steps(self, outside: SystemValues, *, openmetrics: bool) -> Steps[bytes]:
        """The page, in steps of a millisecond at most."""
        gathered = Gathered()
        yield from self._destinations.gather(gathered)
        yield from self._gather_durables(gathered)
        yield from self._gather_logs(gathered)
        yield from self._gather_waits(gathered)
        yield from self._gather_store(gathered, outside)
        self._gather_dispatcher(gathered)
        yield from self._gather_connections(gathered)
        self._gather_hubs(gathered)
        self._gather_process(gathered, outside)
        if self._exposition is None:
            self._exposition = Exposition()
        return (yield from self._exposition.write(gathered, openmetrics=openmetrics))

    # ------------------------------------------------------------------ parts

    def _gather_durables(self, gathered: Gathered) -> Steps[None]:
        broker = self._broker
        rows = _Rows(gathered, DURABLE_FAMILIES, broker.config.metrics.destinations_max)
        for durable in list(broker.registry.durables):
            yield
            row = durable_report(broker, durable)
            values = row["backlog_count"], lag_seconds(broker, durable), float(row["attached"]), row["away_seconds"]
            rows.put(values, durable.destination, durable.client_id, durable.name)
        rows.finish(self._never_less)

    def _gather_logs(self, gathered: Gathered) -> Steps[None]:
        broker, table = self._broker, self._broker.logs
        names_max = broker.config.metrics.destinations_max
        logs = _Rows(gathered, (*LOG_FAMILIES, LOG_BLOCKED_FAMILY), names_max)
        groups = _Rows(gathered, GROUP_FAMILIES, names_max)
        now_seconds = broker.clock()
        for log in [] if table is None else list(table):
            yield
            if table is None or log.closed:
                continue
            figures = log_figures(table, log)
            logs.put([*[figures[name] for name in LOG_FAMILIES.values()], _held_up_seconds(log, now_seconds)], log.name)
            for group in (yield from groups_report(table, log)):
                groups.put([group[name] for name in GROUP_FAMILIES.values()], log.name, group["group"])
        logs.finish(self._never_less)
        groups.finish(self._never_less)

    def _gather_waits(self, gathered: Gathered) -> Steps[None]:
        """One walk over all resources: who waits for what kind, and what their limiters hold."""
        manager = self._broker.manager
        blocked = dict(manager.gone_held_up_seconds)
        flows: dict[ResourceKind, int] = {}
        longest: dict[ResourceKind, float] = {}
        senders: dict[ResourceKind, int] = {}
        held: dict[ResourceKind, int] = {}
        seen_limiters: set[int] = set()
        for resource in manager.resources:
            yield
            kind = resource.kind
            if resource.held_up_seconds:
                blocked[kind] = blocked.get(kind, 0.0) + resource.held_up_seconds
            now_seconds = manager.clock()
            for controller in resource.controllers:
                yield  # a connection has one for each lane, a topic one for each reader
                if controller.waits:
                    is_sender = kind in SENDERS
                    for sink, since in controller.blocked_by.items():
                        sink_kind = sink.resource.kind
                        waited_seconds = max(0.0, now_seconds - since)
                        flows[sink_kind] = flows.get(sink_kind, 0) + 1
                        longest[sink_kind] = max(longest.get(sink_kind, 0.0), waited_seconds)
                        blocked[sink_kind] = blocked.get(sink_kind, 0.0) + waited_seconds
                        if is_sender and is_lasting(waited_seconds):
                            senders[sink_kind] = senders.get(sink_kind, 0) + 1
                if isinstance(controller, Account) and controller.counts_memory:
                    limiter = controller.limiter
                    held_bytes = controller.unaccounted_bytes
                    if id(limiter) not in seen_limiters:
                        seen_limiters.add(id(limiter))
                        held_bytes += limiter.used_bytes
                    held[kind] = held.get(kind, 0) + held_bytes
        for kind in sorted(blocked):
            gathered.put("sluiceway_blocked_seconds_total", self._never_less("blocked", kind, blocked[kind]), kind)
            gathered.put("sluiceway_blocked_flows", flows.get(kind, 0), kind)
            gathered.put("sluiceway_blocked_longest_seconds", longest.get(kind, 0.0), kind)
            gathered.put("sluiceway_blocked_senders", senders.get(kind, 0), kind)
        for kind in sorted(held):
            gathered.put("sluiceway_held_bytes", held[kind], kind)
        budget = self._broker.memory.budget
        gathered.put("sluiceway_memory_used_bytes", budget.used_bytes)
        gathered.put("sluiceway_memory_limit_bytes", budget.capacity_bytes)
        gathered.put("sluiceway_memory_held_back", budget.waiting_count)
        left_behind = self._broker.left_behind
        gathered.put("sluiceway_left_behind_bytes", left_behind.used_bytes)
        gathered.put("sluiceway_left_behind_dropped_total", left_behind.dropped_count)
        registry = self._broker.registry.statistics()
        gathered.put("sluiceway_destinations", registry.destinations_count)
        gathered.put("sluiceway_destinations_made_total", registry.made_count)
        gathered.put("sluiceway_destinations_deleted_total", registry.deleted_count)

    def _gather_store(self, gathered: Gathered, outside: SystemValues) -> Steps[None]:
        stores, config = self._broker.shards.stores, self._broker.config.store
        figures = yield from stores_in_steps(stores)
        if figures is None:
            return
        put = gathered.put
        gathered.put_all(STORE_FAMILIES, [figures[name] for name in STORE_FAMILIES.values()])
        put("sluiceway_store_writes_avoided_total", self._never_less("avoided", "", figures["cancelled_count"]))
        gathered.put_summary("sluiceway_store_write_seconds", figures["batches_count"], figures["write_seconds"])
        gathered.put_summary("sluiceway_store_sync_seconds", figures["syncs_count"], figures["sync_seconds"])
        put("sluiceway_store_failing", float(any(store.is_failing for store in stores)))
        put("sluiceway_store_not_paging", float(any(store.paged.fault is not None for store in stores)))
        put("sluiceway_store_disk_guard_shut", float(any(store.disk_is_low for store in stores)))
        put("sluiceway_store_bytes_max", config.bytes_max)
        put("sluiceway_store_disk_free_bytes", outside.disk_free_bytes)
        if outside.disk_free_bytes is not None:
            put("sluiceway_store_disk_free_min_bytes", config.disk_free_min_bytes)

    def _gather_dispatcher(self, gathered: Gathered) -> None:
        statistics, lag = self._broker.dispatcher.statistics(), self._broker.pulse.lag
        gathered.put_histogram("sluiceway_dispatcher_lag_seconds", lag.bounds, lag.counts, lag.sum)
        gathered.put("sluiceway_dispatcher_turns_total", statistics.turns_count)
        gathered.put("sluiceway_dispatcher_dispatches_total", statistics.dispatches_count)
        gathered.put("sluiceway_dispatcher_busy_seconds_total", statistics.busy_seconds)
        gathered.put("sluiceway_dispatcher_longest_dispatch_seconds", statistics.longest_dispatch_seconds)
        for priority, count in enumerate(statistics.ready_count):
            gathered.put("sluiceway_dispatcher_ready_contexts", count, str(priority))
        gathered.put("sluiceway_dispatcher_timers", statistics.timers_count)
        gathered.put("sluiceway_dispatcher_errors_total", statistics.errors_count)
        for kind, count in self._broker.faults.counts.items():
            gathered.put("sluiceway_faults_total", count, kind)

    def _gather_connections(self, gathered: Gathered) -> Steps[None]:
        broker = self._broker
        subscriptions_count = unsettled_count = stalled_count = 0
        for connection in list(broker.connections):
            yield
            for subscription in list(connection.session.subscriptions.live.values()):
                yield
                stalled_count += why_stalled(subscription, connection.session) is not None
            subscriptions_count += len(connection.session.subscriptions.live)
            unsettled_count += connection.session.unsettled_count
        gathered.put("sluiceway_subscriptions", subscriptions_count)
        gathered.put("sluiceway_unacknowledged_messages", unsettled_count)
        gathered.put("sluiceway_stalled_consumers", stalled_count)
        gathered.put("sluiceway_slow_consumers", len(broker.slow_consumers.marked))
        gathered.put("sluiceway_slow_consumers_found_total", broker.slow_consumers.found_count)
        gathered.put("sluiceway_slow_consumers_disconnected_total", broker.slow_consumers.disconnected_count)
        for label, counts in broker.listening.counts().items():
            gathered.put("sluiceway_connections", counts.now_count, label)
            gathered.put("sluiceway_connections_accepted_total", counts.accepted_count, label)
            gathered.put("sluiceway_connections_refused_total", counts.refused_count, label)
        for label, not_after in dict(broker.certificates()).items():
            gathered.put("sluiceway_certificate_expires_timestamp_seconds", not_after, label)
        gate = broker.admission.gate.statistics()
        gathered.put("sluiceway_logins_accepted_total", gate.accepted_count)
        gathered.put("sluiceway_logins_failed_total", gate.refused_count)
        gathered.put("sluiceway_logins_delayed_total", gate.delayed_count)
        for reason, count in gate.refused_counts.items():
            gathered.put("sluiceway_logins_refused_total", count, reason)
        for action, count in gate.forbidden_counts.items():
            gathered.put("sluiceway_permissions_refused_total", count, action)

    def _gather_hubs(self, gathered: Gathered) -> None:
        links, member = self._broker.links, self._broker.member
        if links is None:
            return
        unlinked, peers = links.unlinked_seconds(), links.seat.peers()
        for peer in sorted(peers):
            gathered.put("sluiceway_link_up", float(peer not in unlinked), peer)
        for peer, copies in sorted(links.topics.copies.items()):
            gathered.put("sluiceway_link_copies_total", copies.messages_count, peer)
            gathered.put("sluiceway_link_copies_bytes_total", copies.bytes_count, peer)
            gathered.put("sluiceway_link_copies_missed_total", copies.missed_count, peer)
        if member is None:
            return
        gathered.put("sluiceway_shards_open", len(member.open_shards))
        gathered.put("sluiceway_shards_without_owner", member.ownerless_count)
        if links.seat.admin_secret is None:  # at the one port of all hubs those have it that have answered
            for hub in sorted({links.seat.hub, *peers}):
                gathered.put(HUB_UP, 1.0, hub)
            for hub in member.gone():
                gathered.put(HUB_UP, 0.0, hub)

    def _gather_process(self, gathered: Gathered, outside: SystemValues) -> None:
        broker = self._broker
        gathered.put("sluiceway_build_info", 1, VERSION, platform.python_version())
        gathered.put("sluiceway_start_timestamp_seconds", self._started_at)
        gathered.put("sluiceway_draining", float(broker.is_stopping or broker.is_draining))
        for name, value in outside.process.items():
            gathered.put(name, value)

    def _never_less(self, what: str, key: str, value: float) -> float:
        """Return the value, or the last one if that was greater: a resource that closed during the walk may be missing
        once.
        """
        said = self._said[what, key] = max(value, self._said.get((what, key), 0.0))
        return said


def _held_up_seconds(resource: FlowResource, now_seconds: float) -> float:
    """Return the time for which the resource has blocked senders, current waits included."""
    return resource.held_up_seconds + sum(
        now_seconds - since
        for controller in resource.controllers
        if isinstance(controller, Account)
        for since in controller.waiting_since()
    )


class _Rows:
    """Series of many things of one kind: a limited number by name, all others joined."""

    __slots__ = ("_families", "_gathered", "_left_count", "_others", "_others_labels")

    def __init__(self, gathered: Gathered, families: Iterable[str], names_max: int) -> None:
        self._gathered = gathered
        self._families = tuple(families)
        self._left_count = names_max
        self._others = Joined(self._families)
        self._others_labels: list[str] = []
        """Empty: all have a name."""

    def put(self, values: Sequence[float], *labels: str) -> None:
        """Put the samples of one thing, in the order of the families."""
        if self._left_count:
            self._left_count -= 1
            self._gathered.put_all(self._families, values, *labels)
        else:
            self._others_labels = [OTHERS] * len(labels)
            self._others.add(values)

    def finish(self, never_less: Callable[[str, str, float], float]) -> None:
        """Put the others. Their counters never go back."""
        for family, value in self._others.values.items() if self._others_labels else ():
            told = never_less(family, OTHERS, value) if family.endswith("_total") else value
            self._gathered.put(family, told, *self._others_labels)
