"""State of the broker as the admin port tells it, from the overview to the configuration in force.

Numbers are those of `sluiceway.report`, with rates and forecasts beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from sluiceway.admin.errors import not_found
from sluiceway.admin.flowmap import FlowMaps, RowStates, flat_limiters
from sluiceway.admin.nodes import node_id
from sluiceway.admin.sampling import Sampler
from sluiceway.admin.standings import Standing
from sluiceway.admin.tables import PageRequest, Row, page_in_steps
from sluiceway.config import Config
from sluiceway.flow.graph import Steps, at_once
from sluiceway.flow.survey import picture_in_steps
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.stomp.delivery import StompSubscription
from sluiceway.queues.destination import Destination
from sluiceway.queues.logs.log import Log
from sluiceway.queues.names import meant_by
from sluiceway.report import hub_facts, rss_bytes
from sluiceway.steps import StepPace
from sluiceway.version import VERSION
from sluiceway.views.connections import connection_figure, connection_report, id_of
from sluiceway.views.destinations import (
    backlog_count,
    destination_report,
    durable_report,
    figure,
    oldest_seconds,
)
from sluiceway.views.logs import groups_report, log_report
from sluiceway.views.stores import stores_in_steps
from sluiceway.views.subscriptions import Held, live_subscriptions, subscription_figure, subscription_report, takers_of

if TYPE_CHECKING:
    from sluiceway.broker import Broker

SUBSCRIPTIONS_MAX: Final = 100
"""Shown with one destination; all of them are in the list of subscriptions."""

_SORTED_DESTINATIONS: Final = (
    "producers_count",
    "subscriptions_count",
    "depth_count",
    "depth_bytes",
    "memory_bytes",
    "unsettled_count",
    "dead_lettered_count",
    "delayed_count",
    "dropped_count",
    "expired_count",
)
_SORTED_CONNECTIONS: Final = (
    "in_bytes",
    "out_bytes",
    "unsettled_count",
    "subscriptions_count",
    "waiting_bytes",
    "stash_bytes",
    "blocked_seconds",
)
_SORTED_SUBSCRIPTIONS: Final = ("name", "destination", "peer", "unsettled_count", "idle_seconds")
"""Figures that lists may be sorted by."""
_SEARCHED: Final = ("peer", "user", "client_id", "session")
"""Columns of connections that a search looks into."""

_LITTLE_PER_SECOND: Final = 0.01
"""A backlog that shrinks or grows by less stands still: no forecast."""

MayLook = Callable[[str], bool]
"""Function that tells whether the caller may see the contents of this destination, or act on it."""


class StateAnswers:
    """Answers about one broker."""

    def __init__(self, broker: Broker, sampler: Sampler, maps: FlowMaps, pace: StepPace) -> None:
        self._broker = broker
        self._sampler = sampler
        self._maps = maps
        self._pace = pace

    # ------------------------------------------------------------------ all of it

    async def overview(self, *, together: bool = False) -> Row:
        """The broker in some numbers, and what blocks it. `together`: with what joins it with that of other hubs."""
        await self._sampler.ready()
        survey, waits = await self._maps.summary(together=together)
        broker, totals = self._broker, self._sampler.totals
        return {
            "broker": {
                "name": broker.config.broker.name,
                "version": VERSION,
                "uptime_seconds": broker.uptime_seconds,
                "rss_bytes": rss_bytes(),
                "draining": broker.is_draining,
                "listeners": broker.urls,
            },
            "totals": {
                "in_per_second": totals.in_per_second,
                "out_per_second": totals.out_per_second,
                "depth_count": totals.depth_count,
                "depth_bytes": totals.depth_bytes,
                "memory_bytes": survey.used_bytes,
                "unsettled_count": totals.unsettled_count,
                "connections_count": totals.connections_count,
                "destinations_count": totals.destinations_count,
                "subscriptions_count": totals.subscriptions_count,
            },
            **waits,
            "store": (await self.store())["store"],
            **({"hub": hub_facts(broker)} if together else {}),
        }

    # ------------------------------------------------------------------ destinations

    async def destinations(self, page: PageRequest, may_look: MayLook, may_admin: MayLook, *, reveal: bool) -> Row:
        """A page of them, each with whether the caller may act on it; `reveal`: and with its root cause."""
        await self._sampler.ready()
        rows = await self._maps.rows()
        rates_in, rates_out = self._sampler.taken_in.rates, self._sampler.put_out.rates

        items = await self._pace.run(self._seen_by(may_look))
        keys: dict[str, Callable[[Destination], Any]] = {
            "name": lambda d: d.name,
            "kind": lambda d: d.address.kind.value,
            "in_per_second": lambda d: rates_in.get(d.name, 0.0),
            "out_per_second": lambda d: rates_out.get(d.name, 0.0),
            "state": lambda d: (self._standing(rows, d).rank, figure("depth_count", d)),
            "oldest_seconds": lambda d: oldest_seconds(self._broker, d),
            "drain_seconds": lambda d: _or_never(self._forecasts(d)["drain_seconds"]),
            "quota_seconds": lambda d: _or_never(self._forecasts(d)["quota_seconds"]),
            **{name: partial(figure, name) for name in _SORTED_DESTINATIONS},
        }
        return await self._pace.run(
            page_in_steps(
                page,
                items,
                name_of=_name_of,
                keys=keys,
                make=lambda d: self._destination_row(d, rows, reveal=reveal) | {"may_admin": may_admin(d.name)},
                sort="-depth_count",
            )
        )

    def _seen_by(self, may_look: MayLook) -> Steps[list[Destination]]:
        """Deciding about ten thousand names takes longer than messages should wait."""
        seen = []
        for destination in list(self._broker.registry.destinations.values()):
            yield
            if may_look(destination.name):
                seen.append(destination)
        return seen

    def _standing(self, rows: RowStates, destination: Destination) -> Standing:
        rate_in = self._sampler.taken_in.rates.get(destination.name, 0.0)
        rate_out = self._sampler.put_out.rates.get(destination.name, 0.0)
        return rows.standings.of_destination(destination, rate_out, max(rate_in, rate_out))

    def _destination_row(self, destination: Destination, rows: RowStates, *, reveal: bool) -> Row:
        name, policy = destination.name, destination.policy
        return {
            "id": node_id(destination.queues[0].resource_id),
            **destination_report(destination),
            **rows.said(self._standing(rows, destination), reveal=reveal),
            "in_per_second": self._sampler.taken_in.rates.get(name, 0.0),
            "out_per_second": self._sampler.put_out.rates.get(name, 0.0),
            "oldest_seconds": oldest_seconds(self._broker, destination) or None,
            **self._forecasts(destination),
            "bytes_max": destination.queues[0].intake.bytes_max,
            "count_max": policy.count_max,
        }

    def _forecasts(self, destination: Destination) -> Row:
        """Return the times until the destination is empty and until a queue of it is full, at the present rates."""
        growths, growths_bytes = self._sampler.growth.rates, self._sampler.growth_bytes.rates
        growth = sum([growths.get(queue.resource_id, 0.0) for queue in destination.queues])
        drain_seconds = None
        depth_count = figure("depth_count", destination)
        if depth_count and growth < -_LITTLE_PER_SECOND:
            drain_seconds = depth_count / -growth
        ends = []
        for queue in destination.queue.partitions.values():
            growth, growth_bytes = growths.get(queue.resource_id, 0.0), growths_bytes.get(queue.resource_id, 0.0)
            count_max, bytes_max = queue.policy.count_max, queue.intake.bytes_max
            if count_max is not None and growth > _LITTLE_PER_SECOND:
                ends.append(max(0.0, (count_max - queue.elements.live_count) / growth))
            if bytes_max is not None and growth_bytes > _LITTLE_PER_SECOND:
                ends.append(max(0.0, (bytes_max - queue.held_bytes) / growth_bytes))
        return {"drain_seconds": drain_seconds, "quota_seconds": min(ends, default=None)}

    def destination_named(self, name: str) -> Destination:
        """Raises ApiError if there is none, now."""
        found = self._broker.registry.destinations.get(name)
        if found is None:
            remedy = "`sluiceway stat` shows those that are there; the next SEND or SUBSCRIBE makes it."
            if name.startswith("/log/"):
                remedy = "It is a log: ask for /api/v1/log."
            elif meant := meant_by(name):
                remedy = f"Did you mean {meant[:200]}?"
            elif not name.startswith("/"):
                remedy = "Write the whole name, such as /queue/orders or /topic/prices."
            raise not_found(f"there is no destination {name[:200]!r} now", remedy)
        return found

    async def destination(self, name: str, may_admin: MayLook, *, reveal: bool) -> Row:
        """Return one destination: its parts, its policy, its consumers."""
        self.destination_named(name)
        await self._sampler.ready()
        rows = await self._maps.rows()
        destination = self.destination_named(name)
        row = self._destination_row(destination, rows, reveal=reveal)
        row["may_admin"] = may_admin(name)
        row["partitions"] = await self._pace.run(self._partitions(destination))
        row["policy"] = attrs.asdict(destination.policy)
        consumers: dict[int, Row] = {}
        for key, subscription in (taker for queue in destination.queues for taker in takers_of(queue)):
            if len(consumers) == SUBSCRIPTIONS_MAX:
                break
            if key not in consumers:
                consumers[key] = {
                    "id": node_id(key),
                    "name": subscription.consumer.name,
                    "unsettled_count": 0,
                    "delivered_count": 0,
                    "rate_per_second": self._sampler.delivered.rates.get((destination.name, key), 0.0),
                }
                consumer = subscription.consumer
                if isinstance(consumer, StompSubscription):
                    rate = consumers[key]["rate_per_second"]
                    consumers[key] |= rows.said(rows.standings.of_subscription(consumer, rate), reveal=reveal)
            consumers[key]["unsettled_count"] += subscription.unsettled_count
            consumers[key]["delivered_count"] += subscription.delivered_count
        row["subscriptions"] = list(consumers.values())
        return row

    def _partitions(self, destination: Destination) -> Steps[list[Row]]:
        rows = []
        for queue in destination.queues:
            picture = yield from picture_in_steps(queue)
            limiters = [flat for limiter in picture.limiters for flat in flat_limiters(limiter)]
            rows.append(
                {
                    "name": queue.name,
                    "kind": queue.kind,
                    "priority": queue.priority,
                    "limiters": limiters,
                    **attrs.asdict(queue.statistics()),
                }
            )
        return rows

    # ------------------------------------------------------------------ clients

    async def subscriptions(self, page: PageRequest, destination: str = "") -> Row:
        """Return a page of connections; `destination`: only those of that destination."""
        await self._sampler.ready()
        states = await self._maps.rows()
        items = await self._pace.run(live_subscriptions(self._broker.connections, destination))
        rates: dict[int, float] = {}
        for (_name, key), rate in self._sampler.delivered.rates.items():
            rates[key] = rates.get(key, 0.0) + rate

        def standing(held: Held) -> Standing:
            subscription = held.subscription
            return states.standings.of_subscription(subscription, rates.get(subscription.resource_id, 0.0))

        def make(held: Held) -> Row:
            window, key = held.subscription.window, held.subscription.resource_id
            limiters = [] if window is None else flat_limiters(window.limiter.describe())
            return {
                "id": node_id(key),
                **subscription_report(held),
                **states.said(standing(held)),
                "rate_per_second": rates.get(key, 0.0),
                "window": limiters[0] if limiters else None,
            }

        return await self._pace.run(
            page_in_steps(
                page,
                items,
                name_of=lambda held: f"{held.subscription.name} {held.subscription.destination}",
                keys={
                    **{name: partial(subscription_figure, name) for name in _SORTED_SUBSCRIPTIONS},
                    "rate_per_second": lambda held: rates.get(held.subscription.resource_id, 0.0),
                    "state": lambda held: (standing(held).rank, rates.get(held.subscription.resource_id, 0.0)),
                },
                make=make,
                sort="-unsettled_count",
            )
        )

    async def connections(self, page: PageRequest, *, together: bool = False) -> Row:
        """A page of them. `together`: without those whose clients are at other hubs, which list them."""
        await self._sampler.ready()
        states = await self._maps.rows()
        came, went = self._sampler.connection_in.rates, self._sampler.connection_out.rates

        def standing(connection: Connection) -> Standing:
            first = id_of(connection)
            return states.standings.of_connection(first, came.get(first, 0.0) + went.get(first, 0.0))

        def make(connection: Connection) -> Row:
            return {
                "id": node_id(id_of(connection)),
                **connection_report(connection),
                **states.said(standing(connection)),
                "in_per_second": came.get(id_of(connection), 0.0),
                "out_per_second": went.get(id_of(connection), 0.0),
            }

        return await self._pace.run(
            page_in_steps(
                page,
                self._broker.connections.clients if together else list(self._broker.connections),
                name_of=lambda c: " ".join([connection_figure(name, c) or "" for name in _SEARCHED]),
                keys={
                    "peer": partial(connection_figure, "peer"),
                    "user": lambda c: connection_figure("user", c) or "",
                    "in_per_second": lambda c: came.get(id_of(c), 0.0),
                    "state": lambda c: (standing(c).rank, came.get(id_of(c), 0.0)),
                    "out_per_second": lambda c: went.get(id_of(c), 0.0),
                    **{name: partial(connection_figure, name) for name in _SORTED_CONNECTIONS},
                },
                make=make,
                sort="-blocked_seconds",
            )
        )

    # ------------------------------------------------------------------ what stays

    async def durables(self, page: PageRequest) -> Row:
        """A page of durable subscriptions."""
        broker = self._broker
        return await self._pace.run(
            page_in_steps(
                page,
                list(broker.registry.durables),
                name_of=lambda durable: f"{durable.name} {durable.client_id} {durable.destination}",
                keys={
                    "name": _name_of,
                    "destination": lambda durable: durable.destination,
                    "backlog_count": partial(backlog_count, broker),
                },
                make=lambda durable: durable_report(broker, durable),
                sort="-backlog_count",
            )
        )

    async def logs(self, page: PageRequest) -> Row:
        """A page of logs, each with its groups."""
        await self._sampler.ready()
        table = self._broker.logs
        return await self._pace.run(
            page_in_steps(
                page,
                [] if table is None else list(table),
                name_of=_name_of,
                keys={
                    "name": _name_of,
                    "size": lambda log: log.records.next_index - log.records.first_index,
                    "bytes": lambda log: log.records.back_file_size_bytes,
                    "in_per_second": lambda log: self._sampler.taken_in.rates.get(log.name, 0.0),
                },
                make=self._log_row,
                sort="name",
            )
        )

    def _log_row(self, log: Any) -> Row:
        table = self._broker.logs
        assert table is not None, "it has this one"
        return {
            "id": node_id(log.resource_id),
            "name": log.name,
            **at_once(log_report(table, log)),
            "in_per_second": self._sampler.taken_in.rates.get(log.name, 0.0),
            "out_per_second": self._sampler.put_out.rates.get(log.name, 0.0),
        }

    def log_named(self, name: str) -> Log:
        """Return a log by its name, with or without `/log/`. Raises ApiError if there is none."""
        table = self._broker.logs
        found = None if table is None else table.logs.get(name if name.startswith("/log/") else f"/log/{name}")
        if found is None:
            raise not_found(f"there is no log {name[:200]!r}", "Ask for /api/v1/logs.")
        return found

    async def log(self, name: str) -> Row:
        """One log. Raises ApiError if there is none."""
        await self._sampler.ready()
        return self._log_row(self.log_named(name))

    async def groups(self, page: PageRequest) -> Row:
        """A page of the groups of all logs."""
        return await self._pace.run(
            page_in_steps(
                page,
                await self._pace.run(self._all_groups()),
                name_of=lambda row: f"{row['group']} {row['log']}",
                keys={name: _key(name) for name in ("group", "log", "lag", "lag_bytes", "lag_seconds", "unsettled")},
                make=lambda row: row,
                sort="-lag",
            )
        )

    def _all_groups(self) -> Steps[list[Row]]:
        table = self._broker.logs
        rows: list[Row] = []
        for log in () if table is None else list(table):
            yield
            if table is not None and not log.closed:
                groups = yield from groups_report(table, log)
                rows += [{"log": log.name, **group} for group in groups]
        return rows

    async def store(self) -> Row:
        """The store, None without one."""
        return {"store": await self._pace.run(stores_in_steps(self._broker.shards.stores))}

    # ------------------------------------------------------------------ configuration

    def config(self) -> Row:
        """Return the settings in force, with defaults; secrets are not shown."""
        may_change = self._broker.reloading.may_change
        values = list(_section(self._broker.config, Config(), ""))
        for row in values:
            row["live"] = may_change(row["key"])
        return {"file": self._broker.config_file, "values": values}


_name_of: Final = attrgetter("name")


def _key(name: str) -> Callable[[Row], Any]:
    return lambda row: row[name] or 0


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


HIDDEN: Final = "(not shown)"


def _section(values: Any, defaults: Any, prefix: str, *, secret: bool = False) -> Iterator[Row]:
    """Yield each field of a configuration object with its default; `defaults` None: there are none."""
    for attribute in attrs.fields(type(values)):
        key = f"{prefix}{attribute.name}"
        value = getattr(values, attribute.name)
        default = None if defaults is None else getattr(defaults, attribute.name)
        hidden = secret or bool(attribute.metadata.get("secret"))
        if attrs.has(type(value)):
            yield from _section(value, default, f"{key}.", secret=hidden)
        elif isinstance(value, tuple) and value and attrs.has(type(value[0])):
            for place, entry in enumerate(value):
                yield from _section(entry, _default_entry(type(entry)), f"{key}[{place}].", secret=hidden)
        else:
            changed = value != default
            yield {
                "key": key,
                "value": _shown(value, hidden=hidden),
                "default": _shown(default, hidden=hidden),
                "changed": changed,
                "unit": attribute.metadata.get("unit", ""),
                "doc": attribute.metadata.get("doc", ""),
            }


def _default_entry(kind: type[Any]) -> Any:
    try:
        return kind()
    except (TypeError, ValueError):  # it has no default: something must be named, as the pattern of a policy
        return None


def _shown(value: Any, *, hidden: bool) -> Any:
    if hidden and value:
        return HIDDEN
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset | set | tuple):
        return [_shown(item, hidden=hidden) for item in value]
    if attrs.has(type(value)):
        return attrs.asdict(value)
    return value
