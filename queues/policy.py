"""Limits of a destination, and the action when it is full.

One frozen object per pattern of destinations, merged top to bottom by the configuration. Nothing here acts: queues read
it.
"""

from __future__ import annotations

from typing import Final

import attrs

from .names import DestinationNameError, Kind, parse
from .settings import field, not_negative, one_of, or_none, positive

KIB: Final = 1024
MIB: Final = 1024 * KIB

HEADER_PREFIX: Final = "header:"
FUNCTION_PREFIX: Final = "function:"
"""Prefixes of `partition_by`."""

PARTITIONS_COUNT_MAX: Final = 256
LOG_PARTITIONS_MAX: Final = 128
"""Largest number of partitions of a log: all of them can move to other consumers in one step."""
QUEUE_KINDS: Final = ("queue", "relay")
FULL_ACTIONS: Final = ("block", "drop_oldest", "drop_newest", "reject", "dead_letter")
_OTHER_FULL_ACTIONS: Final = {"drop-head": "drop_oldest", "reject-publish": "reject"}
ORDERS: Final = ("publisher", "total")
SYNC_MODES: Final = ("receipt", "interval", "none")
SLOW_ACTIONS: Final = ("keep", "disconnect")
SLOW_LIMITS: Final = ("slow_after_seconds", "slow_per_second", "slow_share")
"""Settings that say which consumers are slow. Without any of them consumers are not looked at."""
_OTHER_SLOW_ACTIONS: Final = {"abort": "disconnect", "KILL": "disconnect", "NOTIFY": "keep"}
PAGING_MODES: Final = ("throttle", "offload", "page")
LIMITS: Final = ("memory_bytes", "count_max", "bytes_max", "lead_bytes")
"""Limits at which senders wait, or messages are refused or dropped. They may change while a destination exists."""


def _partition_by(_instance: object, _attribute: attrs.Attribute[str], value: str | None) -> None:
    if value is None:
        return
    if value.startswith(FUNCTION_PREFIX):
        module, _colon, name = value.removeprefix(FUNCTION_PREFIX).partition(":")
        if not all(word.isidentifier() for word in (*module.split("."), name)):
            raise ValueError(
                f"partition_by must be {FUNCTION_PREFIX}MODULE:NAME, such as {FUNCTION_PREFIX}shop.parts:by_region, "
                f"got {value!r}"
            )
        return
    name = value.removeprefix(HEADER_PREFIX)
    if not name or name == value or name != name.strip() or any(character in name for character in ":\r\n\0"):
        raise ValueError(
            f"partition_by must be {HEADER_PREFIX}NAME, such as {HEADER_PREFIX}customer, or "
            f"{FUNCTION_PREFIX}MODULE:NAME, got {value!r}"
        )


def _partitions_count(_instance: object, _attribute: attrs.Attribute[int], value: int) -> None:
    if not 2 <= value <= PARTITIONS_COUNT_MAX:
        raise ValueError(
            f"partitions_count must be 2 to {PARTITIONS_COUNT_MAX}, got {value}: for one part leave partition_by out"
        )


def _log_partitions(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not 1 <= value <= LOG_PARTITIONS_MAX:
        raise ValueError(
            f"{attribute.name} must be from 1 to {LOG_PARTITIONS_MAX}, got {value}: each partition is a log, with "
            "files of its own"
        )


def _share(_instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{attribute.name} must be above 0 and at most 1, got {value}")


def _at_least_one(_instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 1 <= value < 1_000_000:
        raise ValueError(f"{attribute.name} must be 1 or more, got {value}")


AHEAD_COUNT_MAX: Final = 8192
"""Twice as many as the holes that the place of a log's group on disk can have (PLACE_RANGES_MAX)."""


def _ahead_count(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not 1 <= value <= AHEAD_COUNT_MAX:
        raise ValueError(f"{attribute.name} must be from 1 to {AHEAD_COUNT_MAX:,}, got {value}")


def _plain_queue(_instance: object, attribute: attrs.Attribute[str], value: str | None) -> None:
    """Check that `value` names one plain queue: a topic would not keep unread messages."""
    if value is None:
        return
    try:
        address = parse(value)
    except DestinationNameError as error:
        raise ValueError(f"{attribute.name}: {error}") from None
    temporary = address.temporary_local or address.temporary_global
    if address.kind is not Kind.QUEUE or address.wildcard or temporary or "," in value:
        raise ValueError(f"{attribute.name} must name one queue, such as /queue/dead-letters, got {value!r}")


@attrs.frozen
class QueuePolicy:
    """Limits and habits of one destination. Sizes count the message on the wire plus a fixed overhead for its
    bookkeeping.
    """

    kind: str = field(
        "queue",
        "",
        "Queues: `queue` (keeps messages until they are consumed) or `relay` (hands them on to consumers that are "
        "there, and keeps nothing: senders wait while no consumer has room, nothing goes to disk, and what consumers "
        "have not acknowledged when the broker ends is lost; [when to use it](special-queues.md#relays)). A relay has "
        "no `full` but `block`, and `paging`, `disconnected_per_second` and `catch_up_share` have no meaning for it.",
        one_of(QUEUE_KINDS),
    )
    partition_by: str | None = field(
        None,
        "",
        "Queues: `header:NAME` divides a queue into parts by the value of this header of its messages, "
        "`function:MODULE:NAME` by what this Python function makes of their headers. Those with the "
        "same value are in one part, and keep their order also where several consumers share the queue: a part has one"
        " consumer at a time, and parts are spread evenly over the consumers ([partitioned "
        "queues](special-queues.md#partitioned-queues)). Messages without a value are in part 0. None: the queue is"
        " not divided, and its consumers take turns.",
        _partition_by,
    )
    partitions_count: int = field(
        8,
        "count",
        "Number of parts into which `partition_by` divides a queue, and of consumers that can work at a time. Each "
        "part has limits of its own (`memory_bytes`, `count_max` and so on) and costs about 6 KiB. With another number"
        " than before most values belong to another part, and waiting messages are not kept in order with new ones.",
        _partitions_count,
    )
    memory_bytes: int = field(
        64 * MIB,
        "bytes",
        "Memory that the messages of one destination may use, unacknowledged ones included. With `paging` messages "
        "beyond half of it go to disk; without it producers wait (or the `full` action is taken) at this size and "
        "continue at half of it. The default takes a burst of some 300,000 small messages; more rides out longer "
        "bursts, at the price of memory. Holds for each priority level in use: a destination that carries "
        "high-priority messages keeps room for them apart from the backlog.",
        positive,
    )
    count_max: int | None = field(
        None,
        "count",
        "Messages that one destination may hold, unacknowledged ones included, in memory and on disk. None by default:"
        " memory and the disk are the limits that matter.",
        or_none(positive),
    )
    bytes_max: int | None = field(
        None,
        "bytes",
        "Total size of the messages that one destination may hold, in memory and on disk. None by default: a queue is "
        "as long as the disk, and a topic keeps 16 times its `memory_bytes` for those who lag; without a store "
        "`memory_bytes` bounds both.",
        or_none(positive),
    )
    full: str | None = field(
        None,
        "",
        "What happens at the limit: `block` (senders to this destination wait, nothing is lost), `drop_oldest` (the "
        "oldest message that no consumer holds goes), `drop_newest` (the incoming message goes), `reject` (its sender "
        "gets an ERROR), `dead_letter` (queues: like `drop_oldest`, but the message goes to the dead-letter queue; "
        "while that has no room senders wait). What is dropped is counted, and a topic subscriber finds the number in "
        "the `dropped-count` header of the next MESSAGE. Default: `block` for queues. For topics the sender is paced "
        "by the *fastest* subscriber, and one that lags by more than `memory_bytes` behind it loses the oldest "
        "(`drop_oldest`): a slow reader hurts only itself.",
        or_none(one_of(FULL_ACTIONS, _OTHER_FULL_ACTIONS)),
    )
    order: str = field(
        "publisher",
        "",
        "Topics of [several hubs](cluster.md#topics): `publisher` (the hub of each sender sends one copy to each hub "
        "with subscribers; all of them get the messages of one sender in its order) or `total` (all messages go by way "
        "of the hub that owns the topic, so all subscribers get all messages in one order; a message takes one hop "
        "more, and each subscriber at another hub costs a copy over the link). Topics with a `full` other than "
        "`drop_oldest` go by way of their owner, too. Without a cluster, and for queues, it has no meaning.",
        one_of(ORDERS),
    )
    paging: str = field(
        "page",
        "",
        "What happens when messages take more than half of `memory_bytes`, and consumers are away or slow for long "
        "([when](flow-control.md#queues-are-as-long-as-the-disk)), if the broker has a store: `page` (they go to disk, "
        "persistent or not, in blocks of "
        "about a thousand; producers continue until `count_max`, `bytes_max` or the disk is used up), `offload` (like "
        "`page`, but size and date of each message stay in memory, for about 12 bytes: what expires need not be read "
        "for it) or `throttle` (all stays in memory, and producers wait at `memory_bytes`; what is persistent is "
        "stored all the same). Without a store it is always `throttle`.",
        one_of(PAGING_MODES),
    )
    disconnected_per_second: float | None = field(
        None,
        "messages per second",
        "How fast senders may fill a queue without consumers: its backlog has to be read back one day. None: as fast "
        "as they can.",
        or_none(positive),
    )
    catch_up_share: float | None = field(
        None,
        "share",
        "While part of the backlog is on disk and consumers are working on it, senders get this share of the rate at "
        "which it is drained (0.5: half), so that it shrinks until all is in memory again. None: they are not "
        "throttled.",
        or_none(_share),
    )
    lead_bytes: int = field(
        8 * MIB,
        "bytes",
        "Topics: how far senders may run ahead of the fastest subscriber before they wait. The default covers a hiccup"
        " of some milliseconds at full speed; more only adds latency.",
        positive,
    )
    lag_bytes_per_second: int | None = field(
        8 * MIB,
        "bytes",
        "Topics: how fast messages that only slow non-durable subscribers still need may go to the disk. Of a topic "
        "with a higher rate, such a subscriber keeps as much as half of `memory_bytes` holds and loses the oldest: a "
        "stalled one must not slow the others down. Durable subscriptions lose nothing. None: without limit.",
        or_none(positive),
    )
    prefetch_count: int = field(
        1000,
        "count",
        "Messages that a subscription with ack `client` or `client-individual` may hold unacknowledged, if it asks for"
        " no other number (`prefetch-count`, `activemq.prefetchSize`, `credit`). Enough to hide a round trip; lower it"
        " for slow work that should be shared out evenly.",
        positive,
    )
    prefetch_bytes: int = field(
        MIB,
        "bytes",
        "The same limit in bytes; one message always fits. Keeps a thousand large messages from being pushed at once.",
        positive,
    )
    slow_consumer: str = field(
        "keep",
        "",
        "Queues and topics: what becomes of a consumer that one of the next three settings calls slow: `keep` (it is "
        "marked in `stat`, console and metrics, and the log says so) or `disconnect` (it gets an ERROR, `slow-consumer`"
        ", and what it held goes to others; all subscriptions of its connection end). See [slow "
        "consumers](flow-control.md#slow-consumers).",
        one_of(SLOW_ACTIONS, _OTHER_SLOW_ACTIONS),
    )
    slow_after_seconds: float | None = field(
        None,
        "seconds",
        "A consumer is slow when it holds a message unacknowledged for this long, or its client reads nothing of what "
        "waits for it. Noticed a second or a quarter of it later. None: it may take as long as it likes.",
        or_none(positive),
    )
    slow_per_second: float | None = field(
        None,
        "messages per second",
        "A consumer is slow when it takes fewer, though more waits for it all the time. None: as few as it likes.",
        or_none(positive),
    )
    slow_share: float | None = field(
        None,
        "share",
        "A consumer is slow when it takes less than this share of what the other consumers of the destination take on "
        "average, though more waits for it all the time (0.1: a tenth). None: they are not compared.",
        or_none(_share),
    )
    slow_measure_seconds: float = field(
        10.0,
        "seconds",
        "Over which `slow_per_second` and `slow_share` are measured. The default skips a pause to collect garbage"
        ", or one slow query.",
        positive,
    )
    durable_expires_seconds: float | None = field(
        30 * 24 * 3600.0,
        "seconds",
        "Topics: a durable subscription without a consumer for this long is removed, with the messages that only it "
        "still needs. The default is 30 days: longer than any holiday, short enough that a forgotten one does not fill"
        " the disk for ever. None: never.",
        or_none(not_negative),
    )
    expires_max_ms: int | None = field(
        None,
        "ms",
        "Longest life of a message here: a later `expires` is brought forward, a missing one is set. None: as the "
        "sender says.",
        or_none(positive),
    )
    jms_headers: bool = field(
        False,
        "",
        "Queues and topics: whether MESSAGEs say `timestamp` (milliseconds), `priority` and `expires` (0: never) also "
        "where the sender did not, as those of ActiveMQ do. Off: they go through as they came, which is faster: SENDs "
        "of one connection are then taken many at a time.",
    )
    redeliveries_max: int | None = field(
        20,
        "count",
        "How often a message is retried; of a topic each subscription counts separately, of a log each group. Counted "
        "is each time that it was refused (NACK), or that the connection of its consumer broke while it was the first "
        "that this consumer had not acknowledged: messages only prefetched beside it are not charged. One time more, "
        "and it goes to `dead_letter`. The default rides out a consumer that restarts a few times, and gets a message "
        "that no consumer can process out of the way. None: for ever.",
        or_none(not_negative),
    )
    redelivery_delay_ms: int = field(
        0,
        "ms",
        "How long a message that failed waits before it is tried again; later ones pass it meanwhile, but for those of "
        "its group. 0, the default: it is redelivered at once, in its old place, so that order is kept.",
        not_negative,
    )
    redelivery_backoff: float = field(
        2.0,
        "",
        "By which factor `redelivery_delay_ms` grows with each further failure of the same message. 1: not at all.",
        _at_least_one,
    )
    redelivery_delay_max_ms: int = field(
        600_000,
        "ms",
        "Up to which it grows. Ten minutes: a service that is down for an hour is asked a few times, not a thousand.",
        positive,
    )
    dead_letter: str | None = field(
        "/queue/dead-letters",
        "",
        "The queue for dead letters, with headers for the reason (`dead-letter-reason`), the origin "
        "(`dead-letter-destination`), for a topic whose subscription refused it (`dead-letter-subscription`), how "
        "often they had failed (`dead-letter-count`) and when it was (`dead-letter-time`). A queue that is named here "
        "anywhere dead-letters nothing itself. None: such messages are dropped, and counted.",
        _plain_queue,
    )
    dead_letter_expired: bool = field(
        False,
        "",
        "Queues: whether messages past their date go to the dead-letter queue as well. Off: an expiry date means that "
        "they are of no use any more.",
    )
    delayed_count_max: int = field(
        1_000_000,
        "count",
        "Queues: messages that may wait for their time (sent with `delay`, or to be tried again) while later ones are "
        "delivered. Each costs 56 bytes of memory wherever the message itself is. Beyond it the queue stops at the "
        "next delayed message until others are due.",
        positive,
    )
    producers_max: int = field(
        1000,
        "count",
        "Producers that number what they send (`producer-id`, [sending each "
        "message once](safety.md#sending-each-message-once)) and that a queue, topic or log remembers. The one "
        "that was quiet for longest is forgotten for a new one; each takes half a kilobyte of memory, in a log three.",
        positive,
    )
    duplicate_ids_max: int = field(
        10_000,
        "count",
        "Ids of single messages (`_AMQ_DUPL_ID`) that a queue or topic remembers, the last ones.",
        positive,
    )
    producers_keep_seconds: float = field(
        24 * 3600.0,
        "seconds",
        "How long a producer, or the id of a message, is remembered after its last SEND. An empty queue is not "
        "forgotten before. The default rides out a night in which a client can't reach the broker.",
        positive,
    )
    auto_delete_seconds: float | None = field(
        30.0,
        "seconds",
        "An empty destination without consumers and senders is forgotten after this time (it comes back with the next "
        "SEND or SUBSCRIBE). Long enough for a client to reconnect, short enough that thousands of one-off names cost "
        "nothing.",
        or_none(not_negative),
    )

    log_partitions: int = field(
        1,
        "count",
        "Logs: into how many partitions a log is divided. `/log/NAME` is then `/log/NAME/0`, `/log/NAME/1` and so on, "
        "each a log of its own with the settings of `/log/NAME`; the key of a SEND decides to which it goes "
        "([partitions](logs.md#partitions)). For logs that exist the number may only grow, at a restart; a key may "
        "belong to another partition then. 128 at most; not with several shards.",
        _log_partitions,
    )
    log_retention_seconds: float | None = field(
        7 * 24 * 3600.0,
        "seconds",
        "Logs: how long records stay. Whole files go, so some stay longer. The default is a week. None: for ever.",
        or_none(positive),
    )
    log_retention_bytes: int | None = field(
        None,
        "bytes",
        "Logs: about how much of the disk one may take; the oldest files go first, the one that is being written never"
        " does. None: time and the disk are the limits.",
        or_none(positive),
    )
    log_compact: bool = field(
        False,
        "",
        "Logs: whether of the records with one key only the last one is kept. Older ones are removed in the background "
        "from files that are full (`data_page_bytes` of `[logs]`); indexes stay as they are. Records without a key "
        "stay. `log_retention_seconds` and `log_retention_bytes` do not apply then. Not with logs in a database.",
    )
    log_tombstone_seconds: float = field(
        24 * 3600.0,
        "seconds",
        "Logs with `log_compact`: how long an empty record with the header `tombstone:true`, which removes its key, is "
        "kept for readers before it goes, too.",
        not_negative,
    )
    log_sync: str = field(
        "receipt",
        "",
        "Logs: when records are made to survive a power cut. `receipt`: before a RECEIPT says so, many in one sync; "
        "without receipts now and then. `interval`: every `log_sync_seconds`, RECEIPTs do not wait for it "
        "(`durability:memory`). `none`: when the system likes. A crash of the broker alone costs nothing that was "
        "appended in any case.",
        one_of(SYNC_MODES),
    )
    log_sync_seconds: float = field(
        1.0,
        "seconds",
        "Logs: the loss of a power cut for records without a RECEIPT, and for all of them with `interval`.",
        positive,
    )
    log_batch_bytes_max: int = field(
        16 * MIB,
        "bytes",
        "Logs: the largest SEND, one record or a run of batches. Bounds the memory of one of them. Not more than "
        "`data_page_bytes` of `[logs]`.",
        positive,
    )
    log_expanded_bytes_max: int = field(
        64 * MIB,
        "bytes",
        "Logs: maximum expanded size of a compressed batch. A larger one is refused before it is expanded.",
        positive,
    )
    log_ahead_count_max: int = field(
        4096,
        "count",
        "Logs, groups with `order:by-key`: how many records beyond the group's place may be held by its "
        "consumers, set aside for their key, or done. At the bound nothing new is read until the record at the "
        "group's place is done. 8,192 at most: what is done beyond the place is kept on the disk.",
        _ahead_count,
    )
    log_groups_max: int = field(1000, "count", "Logs: groups of one log. Each is a place on disk.", positive)

    @property
    def goes_direct(self) -> bool:
        """Whether messages of a topic may go from the hub of their sender to all hubs with subscribers."""
        return self.order == "publisher" and self.full in (None, "drop_oldest")

    @property
    def limit_bytes(self) -> int:
        """The tighter of the two byte limits."""
        return self.memory_bytes if self.bytes_max is None else min(self.memory_bytes, self.bytes_max)
