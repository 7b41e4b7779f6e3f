"""Catalogue of all metrics: name, type, labels, meaning. The tables of docs/metrics.md are made from it; the page
itself, the alert rules and the dashboard are tested against it.

Names follow Prometheus: `sluiceway_` in front, the unit last and always a base unit (seconds, bytes), `_total` behind
what only grows. No label has a value for each connection: their number has no bound that a time series database likes.
"""

from __future__ import annotations

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

SECTIONS: Final = (
    Section(
        "Messages, by destination",
        "Counted since the broker started, or since the destination was made. Of a topic, deliveries and "
        "acknowledgements count for each subscriber.",
        (
            Family("sluiceway_messages_accepted_total", "counter", "Messages that came in.", DESTINATION),
            Family(
                "sluiceway_messages_delivered_total",
                "counter",
                "Messages handed to consumers, each time anew.",
                DESTINATION,
            ),
            Family(
                "sluiceway_messages_acknowledged_total",
                "counter",
                "Messages that consumers are done with: acknowledged, or (ack auto) taken by the network.",
                DESTINATION,
            ),
            Family(
                "sluiceway_messages_returned_total",
                "counter",
                "Messages that came back: refused (NACK), or their consumer went away.",
                DESTINATION,
            ),
            Family("sluiceway_messages_expired_total", "counter", "Messages that passed their date.", DESTINATION),
            Family(
                "sluiceway_messages_dropped_total",
                "counter",
                "Messages that went by the full policy, because a subscriber lagged, or for want of a dead-letter "
                "queue.",
                DESTINATION,
            ),
            Family(
                "sluiceway_messages_dead_lettered_total",
                "counter",
                "Messages that were dead-lettered.",
                DESTINATION,
            ),
            Family(
                "sluiceway_messages_rejected_total",
                "counter",
                "Messages that were rejected by the full policy `reject`.",
                DESTINATION,
            ),
            Family(
                "sluiceway_messages_unheard_total",
                "counter",
                "Topics: messages without a subscriber.",
                DESTINATION,
            ),
        ),
    ),
    Section(
        "Destinations now",
        "Contents of a destination, ages and forecasts.",
        (
            Family("sluiceway_destination_messages", "gauge", "Messages in it, unacknowledged ones too.", DESTINATION),
            Family("sluiceway_destination_bytes", "gauge", "Size of these, in memory and on disk.", DESTINATION),
            Family("sluiceway_destination_memory_bytes", "gauge", "The part of it that is in memory.", DESTINATION),
            Family(
                "sluiceway_destination_unacknowledged_messages",
                "gauge",
                "Messages delivered to consumers, not acknowledged yet.",
                DESTINATION,
            ),
            Family(
                "sluiceway_destination_delayed_messages",
                "gauge",
                "Messages that must not be delivered yet.",
                DESTINATION,
            ),
            Family(
                "sluiceway_destination_oldest_seconds",
                "gauge",
                "Age of the oldest message that is not acknowledged; of a delayed one since it was due. 0: there is "
                "none. Messages of an earlier run of the broker count from its start.",
                DESTINATION,
            ),
            Family("sluiceway_destination_consumers", "gauge", "Subscriptions to it.", DESTINATION),
            Family("sluiceway_destination_producers", "gauge", "Connections that send to it.", DESTINATION),
            Family(
                "sluiceway_destination_blocked_seconds_total",
                "counter",
                "Time that senders waited for room in it, all of them added up: its rate is how many wait on average.",
                DESTINATION,
            ),
            Family("sluiceway_destination_blocked_senders", "gauge", "Senders that wait for room now.", DESTINATION),
            Family(
                "sluiceway_destination_drain_seconds",
                "gauge",
                "Time until it is empty, at the rate of the last half minute. +Inf: it does not shrink.",
                DESTINATION,
            ),
            Family(
                "sluiceway_destination_quota_seconds",
                "gauge",
                "Time until it, or the first of its priorities and parts, is at its quota, at the rate of the last "
                "half minute. +Inf: it does not grow. Only of those with a quota.",
                DESTINATION,
            ),
            Family(
                "sluiceway_destination_quota_used_ratio",
                "gauge",
                "How much of its quota (count_max, bytes_max, or memory_bytes where nothing is paged) it uses; the "
                "larger share of the two. Only of those with a quota.",
                DESTINATION,
            ),
            Family("sluiceway_destination_paused", "gauge", "1: an administrator has paused it.", DESTINATION),
            Family("sluiceway_destinations", "gauge", "Destinations that there are."),
            Family("sluiceway_destinations_made_total", "counter", "Destinations made since the start."),
            Family("sluiceway_destinations_deleted_total", "counter", "Destinations deleted since the start."),
        ),
    ),
    Section(
        "Durable subscriptions",
        "Messages of its topic that each has not acknowledged.",
        (
            Family("sluiceway_durable_lag_messages", "gauge", "Messages it has yet to acknowledge.", DURABLE),
            Family(
                "sluiceway_durable_lag_seconds",
                "gauge",
                "Age of the oldest message that it has yet to acknowledge; 0: it has caught up.",
                DURABLE,
            ),
            Family("sluiceway_durable_attached", "gauge", "1: a consumer reads as this subscription.", DURABLE),
            Family(
                "sluiceway_durable_away_seconds",
                "gauge",
                "Time without a consumer; 0 while one is connected.",
                DURABLE,
            ),
        ),
    ),
    Section(
        "Logs and their groups",
        "See [Logs](logs.md).",
        (
            Family("sluiceway_log_records_appended_total", "counter", "Records ever appended to it.", LOG),
            Family("sluiceway_log_records", "gauge", "Records that are in it.", LOG),
            Family("sluiceway_log_bytes", "gauge", "Size on the disk.", LOG),
            Family("sluiceway_log_waiting_records", "gauge", "Records on their way to the disk.", LOG),
            Family("sluiceway_log_gaps", "gauge", "Stretches of records that are missing.", LOG),
            Family(
                "sluiceway_log_blocked_seconds_total",
                "counter",
                "Time that senders waited for it, all of them added up.",
                LOG,
            ),
            Family("sluiceway_log_group_lag_records", "gauge", "Records the group has yet to acknowledge.", GROUP),
            Family(
                "sluiceway_log_group_lag_seconds",
                "gauge",
                "Age of the oldest record that the group has yet to acknowledge; 0: it has caught up.",
                GROUP,
            ),
            Family(
                "sluiceway_log_group_unacknowledged_records",
                "gauge",
                "Records delivered to its consumers, not acknowledged yet.",
                GROUP,
            ),
            Family("sluiceway_log_group_consumers", "gauge", "Consumers of the group.", GROUP),
        ),
    ),
    Section(
        "Blocking and memory",
        "By kind of resource, as on the flow map: queue, topic, log, subscription (its window), outbound (a connection "
        "that does not read), connection (its stash), store.",
        (
            Family(
                "sluiceway_blocked_seconds_total",
                "counter",
                "Total time that sources waited for resources of this kind: its rate is the average number of "
                "waiting sources. A queue that waits for a consumer's prefetch is normal; senders that wait for a"
                " queue, or waits for the store, are not.",
                RESOURCE,
            ),
            Family("sluiceway_blocked_flows", "gauge", "Flows that wait for such resources now.", RESOURCE),
            Family(
                "sluiceway_blocked_longest_seconds",
                "gauge",
                "How long the one that has waited longest for such a resource has waited.",
                RESOURCE,
            ),
            Family("sluiceway_held_bytes", "gauge", "Memory that limiters of such resources hold.", RESOURCE),
            Family("sluiceway_memory_used_bytes", "gauge", "Part of the broker's memory that limiters have leased."),
            Family(
                "sluiceway_memory_limit_bytes", "gauge", "`memory_bytes` of `[broker]`: what all may hold together."
            ),
            Family(
                "sluiceway_memory_held_back",
                "gauge",
                "Destinations, logs and stashes that are throttled because the broker's memory is short.",
            ),
            Family(
                "sluiceway_left_behind_bytes",
                "gauge",
                "SENDs of ended connections that still wait for room.",
            ),
            Family(
                "sluiceway_left_behind_dropped_total",
                "counter",
                "SENDs of ended connections that were dropped, because too much was left behind.",
            ),
        ),
    ),
    Section(
        "Store",
        "Only of a broker with a store.",
        (
            Family("sluiceway_store_messages_written_total", "counter", "Messages written."),
            Family("sluiceway_store_written_bytes_total", "counter", "Bytes written."),
            Family(
                "sluiceway_store_writes_avoided_total",
                "counter",
                "Messages that were acknowledged before they were written, so that they cost no write.",
            ),
            Family(
                "sluiceway_store_write_seconds",
                "summary",
                "Batches written, and the time from hand-over to the word that they are.",
            ),
            Family(
                "sluiceway_store_sync_seconds",
                "summary",
                "Those of them that were synced, because a RECEIPT waited for the disk.",
            ),
            Family(
                "sluiceway_store_messages_paged_out_total",
                "counter",
                "Messages written only to leave memory.",
            ),
            Family("sluiceway_store_messages_paged_in_total", "counter", "Messages read back."),
            Family("sluiceway_store_failures_total", "counter", "Writes that failed, and were tried again."),
            Family("sluiceway_store_corrupt_records_total", "counter", "Records that could not be read."),
            Family("sluiceway_store_messages_lost_total", "counter", "Messages in these."),
            Family("sluiceway_store_failing", "gauge", "1: the last write failed; persistent SENDs wait."),
            Family(
                "sluiceway_store_not_paging",
                "gauge",
                "1: the folder of paged-out messages took nothing the last time; SENDs that are not persistent wait "
                "where a queue has no memory left.",
            ),
            Family(
                "sluiceway_store_disk_guard_shut",
                "gauge",
                "1: the disk is nearly full, or the store at its bytes_max; persistent SENDs wait.",
            ),
            Family("sluiceway_store_bytes", "gauge", "Size of the database; without logs and large bodies."),
            Family("sluiceway_store_bytes_max", "gauge", "The limit on it, if there is one."),
            Family("sluiceway_store_disk_free_bytes", "gauge", "Free space on the disk of the data folder."),
            Family(
                "sluiceway_store_disk_free_min_bytes",
                "gauge",
                "With less free space than this the disk guard shuts.",
            ),
        ),
    ),
    Section(
        "Dispatcher",
        "The loop that moves the messages.",
        (
            Family(
                "sluiceway_dispatcher_lag_seconds",
                "histogram",
                "Delay of the event loop, sampled once a second: the least delay of all work.",
            ),
            Family("sluiceway_dispatcher_turns_total", "counter", "Turns; sockets are served after each."),
            Family("sluiceway_dispatcher_dispatches_total", "counter", "Dispatches in them."),
            Family(
                "sluiceway_dispatcher_busy_seconds_total",
                "counter",
                "Time spent in turns: its rate is the load of the loop, 1 is all of it.",
            ),
            Family(
                "sluiceway_dispatcher_longest_dispatch_seconds",
                "gauge",
                "The longest dispatch since the start.",
            ),
            Family(
                "sluiceway_dispatcher_ready_contexts",
                "gauge",
                "Queues, timers and so on that wait for their dispatch now, by priority.",
                ("priority",),
            ),
            Family("sluiceway_dispatcher_timers", "gauge", "Timers that are set."),
            Family("sluiceway_dispatcher_errors_total", "counter", "Dispatches that failed: bugs of the broker."),
            Family(
                "sluiceway_faults_total",
                "counter",
                "Unexpected exceptions, bugs of the broker, by their cost: a `destination` (closed until "
                "the next start), a `connection`, or, `other`, one request or one turn of periodic work; `shared`: the "
                "broker ends.",
                ("kind",),
            ),
        ),
    ),
    Section(
        "Connections",
        "By listener.",
        (
            Family("sluiceway_connections", "gauge", "Connections now.", LISTENER),
            Family("sluiceway_connections_accepted_total", "counter", "Connections accepted.", LISTENER),
            Family(
                "sluiceway_connections_refused_total",
                "counter",
                "Connections closed at once, because there were connections_max of them.",
                LISTENER,
            ),
            Family("sluiceway_subscriptions", "gauge", "Subscriptions of all connections."),
            Family(
                "sluiceway_unacknowledged_messages",
                "gauge",
                "Messages delivered on all connections, not acknowledged yet.",
            ),
            Family("sluiceway_logins_accepted_total", "counter", "Accepted logins."),
            Family("sluiceway_logins_failed_total", "counter", "Logins that were refused."),
            Family("sluiceway_logins_delayed_total", "counter", "Logins that were made to wait, for earlier failures."),
            Family(
                "sluiceway_permissions_refused_total",
                "counter",
                "Requests without the permission.",
                ("action",),
            ),
            Family(
                "sluiceway_certificate_expires_timestamp_seconds",
                "gauge",
                "When the certificate of the listener expires, in seconds since 1970; `admin` is the admin port.",
                LISTENER,
            ),
        ),
    ),
    Section(
        "Broker and process",
        "",
        (
            Family(
                "sluiceway_build_info",
                "info",
                "1, with what runs here as labels.",
                ("version", "python"),
            ),
            Family("sluiceway_start_timestamp_seconds", "gauge", "When the broker started, in seconds since 1970."),
            Family("sluiceway_draining", "gauge", "1: the broker takes no new work, it stops."),
            Family("process_cpu_seconds_total", "counter", "Processor time of the process."),
            Family("process_resident_memory_bytes", "gauge", "Memory of the process."),
            Family("process_virtual_memory_bytes", "gauge", "Address space of the process."),
            Family("process_open_fds", "gauge", "Open file descriptors: sockets, files."),
            Family("process_max_fds", "gauge", "How many there may be."),
            Family("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970."),
        ),
    ),
)

FAMILIES: Final = {family.name: family for section in SECTIONS for family in section.families}
"""Families by name."""
