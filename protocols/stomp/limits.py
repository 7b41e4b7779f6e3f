"""Limits of one STOMP listener for its peers: a limit on everything (b14), each with its reason.

The parser enforces the sizes, the session the counts and times. Each field's ``metadata["doc"]`` is the documentation
that the sample configuration is printed from; ``metadata["unit"]`` is its unit. An exceeded limit is a
`ProtocolError` that names the limit.
"""

from __future__ import annotations

from typing import Any

import attrs
from attrs import validators

_KIB = 1024
_MIB = 1024 * 1024
_GIB = 1024 * 1024 * 1024


def _limit(default: Any, unit: str, doc: str, *, least: float = 1) -> Any:
    return attrs.field(default=default, validator=validators.ge(least), metadata={"unit": unit, "doc": doc})


@attrs.frozen(kw_only=True, slots=True)
class StompLimits:
    """Limits of one listener. Every field has a default that serves ordinary clients; raise one only for a known
    need."""

    header_count_max: int = _limit(
        256,
        "headers",
        "Header lines in one frame (the `receipt` of a SEND comes on top). Real clients send fewer than 30;"
        " parsing costs time per line.",
    )
    header_line_bytes_max: int = _limit(
        16 * _KIB,
        "bytes",
        "Length of one header line. Long enough for a token or a selector; longer data belongs into the body.",
    )
    header_block_bytes_max: int = _limit(
        64 * _KIB,
        "bytes",
        "Command and all header lines of one frame. Also bounds the memory that a peer can take without ever"
        " ending its headers.",
    )
    body_bytes_max: int = _limit(
        128 * _MIB,
        "bytes",
        "Body of one SEND that is held whole in memory, so this times the number of connections is what peers may"
        " claim. A larger one goes to a file where large bodies are staged (see `large_body_bytes`), and is refused"
        " elsewhere.",
    )
    large_body_bytes: int = _limit(
        _MIB,
        "bytes",
        "A body larger than this (or than `body_bytes_max`) is written to a file while it arrives, and handed out from"
        " there piece by piece: it never sits in memory as a whole. 0: never, every body is held in memory. Lower"
        " saves memory, higher saves the way over the disk.",
        least=0,
    )
    large_body_bytes_max: int = _limit(
        4 * _GIB,
        "bytes",
        "Body of one SEND that goes to a file. Bounds the disk space of a single message, and the time for which it"
        " delays others behind it on one consumer's connection.",
    )
    connect_frame_bytes_max: int = _limit(
        16 * _KIB,
        "bytes",
        "Command, headers and body of any frame before CONNECTED. Room for a bearer token; unknown clients get"
        " no megabytes.",
    )
    stash_bytes_max: int = _limit(
        _MIB,
        "bytes",
        "SENDs parked for blocked destinations of one connection, and bytes held while CONNECT is being decided."
        " Larger keeps ACKs flowing past more blocked SENDs, at that much memory per connection.",
    )
    stash_overfull_bytes_max: int = _limit(
        64 * _MIB,
        "bytes",
        "A connection that holds unacknowledged messages is read on, slowly, past a full stash, because its ACKs"
        " may be what frees the destination. This is where that ends with an ERROR. Larger than what kernel"
        " buffers hold, so that clients that do acknowledge never meet it.",
    )
    outbound_bytes_max: int = _limit(
        512 * _KIB,
        "bytes",
        "Bytes waiting to be written to one connection before its queues are blocked."
        " Larger means fewer, bigger writes; smaller means less memory behind a peer that does not read.",
    )
    receipts_pending_max: int = _limit(
        1000,
        "receipts",
        "Receipts owed to one connection before the broker stops reading it. Apollo's number; a client that"
        " reads never meets it.",
    )
    subscriptions_max: int = _limit(
        1000,
        "subscriptions",
        "Subscriptions of one connection, live ones and those that ended with messages unacknowledged. Each costs a"
        " cursor; wildcards serve those who need more.",
    )
    attachments_max: int = _limit(
        20_000,
        "attachments",
        "Attachments of the subscriptions of one connection: one for each destination that a SUBSCRIBE names or its"
        " wildcard matches, and one more for each further priority in use there. Each takes up to 3 KiB and 0.1 ms, so"
        " that the default is 60 MiB. A SUBSCRIBE beyond it is refused; new destinations that lead beyond it end the"
        " connection.",
    )
    credit_bytes_max: int = _limit(
        64 * _MIB,
        "bytes",
        "The most that `credit:messages,bytes` of a SUBSCRIBE can ask for; more than this counts as this. Larger lets"
        " one consumer sit on more of a queue.",
    )
    transactions_max: int = _limit(
        100, "transactions", "Open transactions of one connection. Clients have one or two; the rest are leaks."
    )
    transaction_bytes_max: int = _limit(
        64 * _MIB,
        "bytes",
        "SENDs held in the memory of open transactions of one connection, unseen by every queue, until COMMIT. Beyond"
        " it they are spooled, see `transaction_spool_bytes_max`. Also how far one COMMIT may fill a queue beyond its"
        " limit, so that it never comes apart.",
    )
    transaction_spool_bytes_max: int = _limit(
        4 * _GIB,
        "bytes",
        "Disk space of the transactions of one connection, with a store: larger ones than memory has room"
        " for, and committed ones whose messages are not all in their queues yet. 0: they are never larger than"
        " `transaction_bytes_max`.",
        least=0,
    )
    transaction_acks_max: int = _limit(
        100_000,
        "messages",
        "Messages of one subscription that open transactions hold acknowledged. Their credit is returned at once, so"
        " this, and not the prefetch, limits a consumer before it must COMMIT.",
    )
    connect_timeout_seconds: float = _limit(
        10.0,
        "seconds",
        "Time from accept to a complete CONNECT. Frees the resources of a silent or half-open peer.",
        least=0.0,
    )
    linger_seconds: float = _limit(
        1.0,
        "seconds",
        "How long a connection stays open after the broker's last frame, so that the peer can read it."
        " A client that closes first ends it at once, so this costs only with clients that do not.",
        least=0.0,
    )
    heart_beat_min_ms: int = _limit(
        1000,
        "milliseconds",
        "Shortest heart-beat that the broker offers and asks for. Shorter ones find dead peers sooner and wake up idle"
        " connections more often.",
        least=0,
    )
    heart_beat_max_ms: int = _limit(
        3_600_000,
        "milliseconds",
        "Longest heart-beat that is worth a timer: a client that promises less is not watched, one that asks for"
        " less gets this rate.",
    )
    heart_beat_grace_factor: float = _limit(
        2.0,
        "times the agreed interval",
        "Silence after which a peer counts as dead. Others use 1.5 to 2; below that, a garbage collection"
        " looks like death.",
    )
