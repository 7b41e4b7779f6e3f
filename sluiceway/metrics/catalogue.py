"""Catalogue of all metrics: name, type, labels, meaning. The tables of docs/metrics.md are made from it; the page
itself, the alert rules and the dashboard are tested against it.

Names follow Prometheus: `sluiceway_` in front, the unit last and always a base unit (seconds, bytes), `_total` behind
what only grows. No label has a value for each connection: their number has no bound that a time series database likes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]

UNITS: Final = ("seconds", "bytes", "ratio")

OTHERS: Final = "(others)"
"""Label of the sum of all things without series of their own."""

TEMPORARY: Final = "(temporary)"
"""Label of the sum of all temporary destinations. Each lives as long as a connection."""


@attrs.frozen
class Family:
    """One metric."""

    name: str
    """Name in the text format and in queries; of a histogram or summary without `_bucket`, `_count`, `_sum`."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def base_name(self) -> str:
        """Name without the suffix of its type, as OpenMetrics and prometheus_client have it."""
        if self.kind == "counter":
            return self.name.removesuffix("_total")
        return self.name.removesuffix("_info") if self.kind == "info" else self.name

    @property
    def unit(self) -> str:
        """ "seconds", "bytes", "ratio" or empty: a count."""
        return next((unit for unit in UNITS if self.base_name.endswith(f"_{unit}")), "")

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Names that a query may use."""
        if self.kind == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum")
        if self.kind == "summary":
            return (f"{self.name}_count", f"{self.name}_sum")
        return (self.name,)


@attrs.frozen
class Section:
    """Metrics that belong together."""

    title: str
    about: str
    families: tuple[Family, ...]


DESTINATION: Final = ("destination",)
DURABLE: Final = ("destination", "client_id", "subscription")
LOG: Final = ("log",)
GROUP: Final = ("log", "group")
RESOURCE: Final = ("kind",)
LISTENER: Final = ("listener",)

_KINDS: Final[Mapping[str, Kind]] = {
    "sluiceway_store_write_seconds": "summary",
    "sluiceway_store_sync_seconds": "summary",
    "sluiceway_dispatcher_lag_seconds": "histogram",
    "sluiceway_build_info": "info",
}
"""Types of metrics whose names do not tell the type: a name in `_total` is that of a counter, others are gauges."""


def _section(title: str, about: str, *rows: tuple[str, str] | tuple[str, str, tuple[str, ...]]) -> Section:
    """Return a section of metrics: name, meaning, and labels if there are any."""
    families = []
    for name, meaning, *labels in rows:
        kind = _KINDS.get(name, "counter" if name.endswith("_total") else "gauge")
        families.append(Family(name, kind, meaning, *labels))
    return Section(title, about, tuple(families))


SECTIONS: Final = (
    _section(
        "Messages, by destination",
        "Counted since the broker started, or since the destination was made. Of a topic, deliveries and "
        "acknowledgements count for each subscriber.",
        ("sluiceway_messages_accepted_total", "Messages that came in.", DESTINATION),
        ("sluiceway_messages_delivered_total", "Messages handed to consumers, each time anew.", DESTINATION),
        (
            "sluiceway_messages_acknowledged_total",
            "Messages that consumers are done with: acknowledged, or (ack auto) taken by the network.",
            DESTINATION,
        ),
        (
            "sluiceway_messages_returned_total",
            "Messages that came back: refused (NACK), or their consumer went away.",
            DESTINATION,
        ),
        ("sluiceway_messages_expired_total", "Messages that passed their date.", DESTINATION),
        (
            "sluiceway_messages_dropped_total",
            "Messages that went by the full policy, because a subscriber lagged, or for want of a dead-letter queue.",
            DESTINATION,
        ),
        ("sluiceway_messages_dead_lettered_total", "Messages that were dead-lettered.", DESTINATION),
        ("sluiceway_messages_rejected_total", "Messages that were rejected by the full policy `reject`.", DESTINATION),
        (
            "sluiceway_messages_duplicate_total",
            "Messages that were confirmed and not taken: their producer had sent them before.",
            DESTINATION,
        ),
        ("sluiceway_messages_unheard_total", "Topics: messages without a subscriber.", DESTINATION),
    ),
    _section(
        "Destinations now",
        "Contents of a destination, ages and forecasts.",
        ("sluiceway_destination_messages", "Messages in it, unacknowledged ones too.", DESTINATION),
        ("sluiceway_destination_bytes", "Size of these, in memory and on disk.", DESTINATION),
        ("sluiceway_destination_memory_bytes", "The part of it that is in memory.", DESTINATION),
        (
            "sluiceway_destination_unacknowledged_messages",
            "Messages delivered to consumers, not acknowledged yet.",
            DESTINATION,
        ),
        ("sluiceway_destination_delayed_messages", "Messages that must not be delivered yet.", DESTINATION),
        (
            "sluiceway_destination_oldest_seconds",
            "Age of the oldest message that is not acknowledged; of a delayed one since it was due. 0: there is none."
            " Messages of an earlier run of the broker count from its start.",
            DESTINATION,
        ),
        ("sluiceway_destination_consumers", "Subscriptions to it.", DESTINATION),
        ("sluiceway_destination_producers", "Connections that send to it.", DESTINATION),
        (
            "sluiceway_destination_blocked_seconds_total",
            "Time that senders waited for room in it, all of them added up: its rate is how many wait on average.",
            DESTINATION,
        ),
        ("sluiceway_destination_blocked_senders", "Senders that wait for room now.", DESTINATION),
        (
            "sluiceway_destination_drain_seconds",
            "Time until it is empty, at the rate of the last half minute. +Inf: it does not shrink.",
            DESTINATION,
        ),
        (
            "sluiceway_destination_quota_seconds",
            "Time until it, or the first of its priorities and parts, is at its quota, at the rate of the last half "
            "minute. +Inf: it does not grow. Only of those with a quota.",
            DESTINATION,
        ),
        (
            "sluiceway_destination_quota_used_ratio",
            "How much of its quota (count_max, bytes_max, or memory_bytes where nothing is paged) it uses; the larger"
            " share of the two. Only of those with a quota.",
            DESTINATION,
        ),
        ("sluiceway_destination_paused", "1: an administrator has paused it.", DESTINATION),
        ("sluiceway_destinations", "Destinations that there are."),
        ("sluiceway_destinations_made_total", "Destinations made since the start."),
        ("sluiceway_destinations_deleted_total", "Destinations deleted since the start."),
    ),
    _section(
        "Durable subscriptions",
        "Messages of its topic that each has not acknowledged.",
        ("sluiceway_durable_lag_messages", "Messages it has yet to acknowledge.", DURABLE),
        (
            "sluiceway_durable_lag_seconds",
            "Age of the oldest message that it has yet to acknowledge; 0: it has caught up.",
            DURABLE,
        ),
        ("sluiceway_durable_attached", "1: a consumer reads as this subscription.", DURABLE),
        ("sluiceway_durable_away_seconds", "Time without a consumer; 0 while one is connected.", DURABLE),
    ),
    _section(
        "Logs and their groups",
        "See [Logs](logs.md).",
        ("sluiceway_log_records_appended_total", "Records ever appended to it.", LOG),
        ("sluiceway_log_records", "Records that are in it.", LOG),
        ("sluiceway_log_bytes", "Size on the disk.", LOG),
        ("sluiceway_log_waiting_records", "Records on their way to the disk.", LOG),
        ("sluiceway_log_gaps", "Stretches of records that are missing.", LOG),
        ("sluiceway_log_compacted_records_total", "Records that compaction has removed since the start.", LOG),
        ("sluiceway_log_compacted_bytes_total", "Bytes of records that it has removed from files.", LOG),
        ("sluiceway_log_blocked_seconds_total", "Time that senders waited for it, all of them added up.", LOG),
        ("sluiceway_log_group_lag_records", "Records the group has yet to acknowledge.", GROUP),
        (
            "sluiceway_log_group_lag_seconds",
            "Age of the oldest record that the group has yet to acknowledge; 0: it has caught up.",
            GROUP,
        ),
        (
            "sluiceway_log_group_unacknowledged_records",
            "Records delivered to its consumers, not acknowledged yet.",
            GROUP,
        ),
        ("sluiceway_log_group_consumers", "Consumers of the group.", GROUP),
    ),
    _section(
        "Blocking and memory",
        "By kind of resource, as on the flow map: queue, topic, log, subscription (its window), outbound (a "
        "connection that does not read), connection (its stash), store.",
        (
            "sluiceway_blocked_seconds_total",
            "Total time that sources waited for resources of this kind: its rate is the average number of waiting "
            "sources. A queue that waits for a consumer's prefetch is normal; senders that wait for a queue, or waits"
            " for the store, are not.",
            RESOURCE,
        ),
        ("sluiceway_blocked_flows", "Flows that wait for such resources now.", RESOURCE),
        (
            "sluiceway_blocked_longest_seconds",
            "How long the one that has waited longest for such a resource has waited.",
            RESOURCE,
        ),
        (
            "sluiceway_blocked_senders",
            "Senders that have waited for such a resource for a second or longer. Above 0 while console, `stat` and "
            "`top` name a bottleneck.",
            RESOURCE,
        ),
        ("sluiceway_held_bytes", "Memory that limiters of such resources hold.", RESOURCE),
        ("sluiceway_memory_used_bytes", "Part of the broker's memory that limiters have leased."),
        ("sluiceway_memory_limit_bytes", "`memory_bytes` of `[broker]`: what all may hold together."),
        (
            "sluiceway_memory_held_back",
            "Destinations, logs and stashes that are throttled because the broker's memory is short.",
        ),
        ("sluiceway_left_behind_bytes", "SENDs of ended connections that still wait for room."),
        (
            "sluiceway_left_behind_dropped_total",
            "SENDs of ended connections that were dropped, because too much was left behind.",
        ),
    ),
    _section(
        "Store",
        "Only of a broker with a store.",
        ("sluiceway_store_messages_written_total", "Messages written."),
        ("sluiceway_store_written_bytes_total", "Bytes written."),
        (
            "sluiceway_store_writes_avoided_total",
            "Messages that were acknowledged before they were written, so that they cost no write.",
        ),
        ("sluiceway_store_write_seconds", "Batches written, and the time from hand-over to the word that they are."),
        ("sluiceway_store_sync_seconds", "Those of them that were synced, because a RECEIPT waited for the disk."),
        ("sluiceway_store_messages_paged_out_total", "Messages written only to leave memory."),
        ("sluiceway_store_messages_paged_in_total", "Messages read back."),
        ("sluiceway_store_failures_total", "Writes that failed, and were tried again."),
        ("sluiceway_store_corrupt_records_total", "Records that could not be read."),
        ("sluiceway_store_messages_lost_total", "Messages in these."),
        ("sluiceway_store_failing", "1: the last write failed; persistent SENDs wait."),
        (
            "sluiceway_store_not_paging",
            "1: the folder of paged-out messages took nothing the last time; SENDs that are not persistent wait where"
            " a queue has no memory left.",
        ),
        (
            "sluiceway_store_disk_guard_shut",
            "1: the disk is nearly full, or the store at its bytes_max; persistent SENDs wait.",
        ),
        ("sluiceway_store_bytes", "Size of the database; without logs and large bodies."),
        ("sluiceway_store_bytes_max", "The limit on it, if there is one."),
        ("sluiceway_store_disk_free_bytes", "Free space on the disk of the data folder."),
        ("sluiceway_store_disk_free_min_bytes", "With less free space than this the disk guard shuts."),
    ),
    _section(
        "Dispatcher",
        "The loop that moves the messages.",
        (
            "sluiceway_dispatcher_lag_seconds",
            "Delay of the event loop, sampled once a second: the least delay of all work.",
        ),
        ("sluiceway_dispatcher_turns_total", "Turns; sockets are served after each."),
        ("sluiceway_dispatcher_dispatches_total", "Dispatches in them."),
        (
            "sluiceway_dispatcher_busy_seconds_total",
            "Time spent in turns: its rate is the load of the loop, 1 is all of it.",
        ),
        ("sluiceway_dispatcher_longest_dispatch_seconds", "The longest dispatch since the start."),
        (
            "sluiceway_dispatcher_ready_contexts",
            "Queues, timers and so on that wait for their dispatch now, by priority.",
            ("priority",),
        ),
        ("sluiceway_dispatcher_timers", "Timers that are set."),
        ("sluiceway_dispatcher_errors_total", "Dispatches that failed: bugs of the broker."),
        (
            "sluiceway_faults_total",
            "Unexpected exceptions, bugs of the broker, by their cost: a `destination` (closed until the next start),"
            " a `connection`, or, `other`, one request or one turn of periodic work; `shared`: the broker ends.",
            RESOURCE,
        ),
    ),
    _section(
        "Connections",
        "By listener.",
        ("sluiceway_connections", "Connections now.", LISTENER),
        ("sluiceway_connections_accepted_total", "Connections accepted.", LISTENER),
        (
            "sluiceway_connections_refused_total",
            "Connections closed at once, because there were connections_max of them.",
            LISTENER,
        ),
        ("sluiceway_subscriptions", "Subscriptions of all connections."),
        ("sluiceway_unacknowledged_messages", "Messages delivered on all connections, not acknowledged yet."),
        (
            "sluiceway_stalled_consumers",
            "Consumers at their prefetch limit that have acknowledged nothing for five seconds, or read nothing.",
        ),
        ("sluiceway_slow_consumers", "Consumers that are slow now, as the policy of a destination has it."),
        ("sluiceway_slow_consumers_found_total", "Consumers that were found to be slow."),
        ("sluiceway_slow_consumers_disconnected_total", "Slow consumers that were disconnected."),
        ("sluiceway_logins_accepted_total", "Accepted logins."),
        ("sluiceway_logins_failed_total", "Logins that were refused."),
        ("sluiceway_logins_refused_total", "Logins that were refused, by reason.", ("reason",)),
        ("sluiceway_logins_delayed_total", "Logins that were made to wait, for earlier failures."),
        ("sluiceway_permissions_refused_total", "Requests without the permission.", ("action",)),
        (
            "sluiceway_certificate_expires_timestamp_seconds",
            "When the certificate of the listener expires, in seconds since 1970; `admin` is the admin port.",
            LISTENER,
        ),
    ),
    _section(
        "Broker and process",
        "",
        ("sluiceway_build_info", "1, with what runs here as labels.", ("version", "python")),
        ("sluiceway_start_timestamp_seconds", "When the broker started, in seconds since 1970."),
        ("sluiceway_draining", "1: the broker takes no new work, it stops."),
        ("process_cpu_seconds_total", "Processor time of the process."),
        ("process_resident_memory_bytes", "Memory of the process."),
        ("process_virtual_memory_bytes", "Address space of the process."),
        ("process_open_fds", "Open file descriptors: sockets, files."),
        ("process_max_fds", "How many there may be."),
        ("process_start_time_seconds", "When the process started, in seconds since 1970."),
    ),
    _section(
        "Several hubs",
        "One scrape has the metrics of all hubs of a host (`serve --hubs`), each with the label `hub`. Hubs on several "
        "machines have a page each.",
        (
            "sluiceway_hub_up",
            "1: the hub has answered, or (on several machines) is in the cluster; 0: it is missing.",
            ("hub",),
        ),
        ("sluiceway_link_up", "1: there is a link to this hub, which is in the cluster; 0: there is none.", ("peer",)),
        ("sluiceway_link_copies_total", "Messages of topics sent to this hub, for its subscribers.", ("peer",)),
        ("sluiceway_link_copies_bytes_total", "Size of these messages.", ("peer",)),
        (
            "sluiceway_link_copies_missed_total",
            "Messages of topics that this hub may not have got: it lagged, or there was no link.",
            ("peer",),
        ),
        ("sluiceway_shards_open", "Shards that are open at this hub."),
        ("sluiceway_shards_without_owner", "Shards that no hub has, as far as this one knows: all of it waits."),
    ),
)

FAMILIES: Final = {family.name: family for section in SECTIONS for family in section.families}
"""Families by name."""
