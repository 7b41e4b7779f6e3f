"""Words of RabbitMQ, ActiveMQ (Classic) and Artemis: every header and form of a destination that they document for
STOMP, and what becomes of it here. Served, passed on, refused or logged: nothing is ignored.

The page docs/dialects.md is made of these tables, and the log of what has no effect (`sluiceway.foreign_names`) reads
them. A header that is new to them is added here first.

Source: the STOMP pages of RabbitMQ 4, ActiveMQ Classic 6 and Artemis 2, and the tables of headers in their code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import attrs

from .errors import ProtocolError

RABBITMQ: Final = "R"
ACTIVEMQ: Final = "A"
ARTEMIS: Final = "X"


class Fate(Enum):
    """Fate of a word of another broker."""

    SERVED = "served"
    """Done as there, or as the words say."""
    PASSED_ON = "passed on"
    """Consumers get it as the sender wrote it; the broker does nothing about it."""
    ANYWAY = "as it is anyway"
    """Asks for what is done without it."""
    REFUSED = "refused"
    """An ERROR says why, and what to do instead."""
    LOGGED = "logged"
    """No effect; the log has one warning, with what to do instead."""


@attrs.frozen
class Word:
    """One header, or one form of a destination.

    Attributes:
        name: as clients write it.
        of: letters of the brokers that document it; empty: only ours.
        fate: what becomes of it.
        words: how it works here, or what to do instead; Markdown.
    """

    name: str
    of: str
    fate: Fate
    words: str


SENDER: Final = "sluiceway_sender"
"""Header of the SENDs of connections with a no-local subscription. The name is one for selectors."""

SETTING: Final = "set `{}` for the destination, in `[[destinations]]` of the configuration"

QUEUE_ARGUMENTS: Final = {
    "x-message-ttl": "expires_max_ms",
    "x-max-length": "count_max",
    "x-max-length-bytes": "bytes_max",
}
"""Settings of a queue that RabbitMQ's headers of SUBSCRIBE ask for."""

DESTINATIONS: Final = (
    Word("/queue/NAME", "RAX", Fate.SERVED, "a queue"),
    Word("/topic/NAME", "RAX", Fate.SERVED, "a topic"),
    Word("/temp-queue/NAME", "RA", Fate.SERVED, "a queue of this connection"),
    Word("/temp-topic/NAME", "A", Fate.SERVED, "a topic of this connection"),
    Word("/remote-temp-queue/NAME", "A", Fate.SERVED, "what `reply-to` of a MESSAGE names, to answer there"),
    Word("NAME", "X", Fate.SERVED, "the same as `/queue/NAME`"),
    Word("A,B", "A", Fate.SERVED, "a composite: all of them"),
    Word("`*` as a level", "RAX", Fate.SERVED, "one level, of SUBSCRIBE"),
    Word("`>` as the last level", "A", Fate.SERVED, "one level or more, of SUBSCRIBE"),
    Word("`#` as a level of a topic", "RX", Fate.SERVED, "any number of levels, none as well, of SUBSCRIBE"),
    Word("/amq/queue/NAME", "R", Fate.SERVED, "`/queue/NAME`, which MESSAGEs have as their `destination`"),
    Word("/exchange/amq.topic/KEY", "R", Fate.SERVED, "`/topic/KEY`"),
    Word("/exchange/amq.fanout", "R", Fate.SERVED, "`/topic/amq.fanout`, with a key behind it as well"),
    Word(
        "/exchange/NAME/KEY",
        "R",
        Fate.LOGGED,
        "use `/topic/NAME.KEY` for the exchange `NAME`: there are no exchanges, and of several subscribers of this "
        "queue each message goes to one",
    ),
    Word(
        "`reply-to:/temp-queue/NAME` without SUBSCRIBE",
        "R",
        Fate.SERVED,
        "a client that has not subscribed to it a quarter of a second after its SEND is subscribed, with this name as "
        "the `id`, until it does",
    ),
    Word("/reply-queue/NAME", "R", Fate.LOGGED, "use a temporary queue, `/temp-queue/NAME`, or `/queue/NAME`"),
    Word("/dsub/NAME", "", Fate.LOGGED, "SUBSCRIBE to the topic with `durable:true` and an `id`"),
    Word(
        "/queue/NAME?consumer.OPTION=VALUE",
        "A",
        Fate.LOGGED,
        "options are part of the name here: use headers, `activemq.prefetchSize` for `consumer.prefetchSize`",
    ),
    Word(
        "Consumer.A.VirtualTopic.NAME",
        "A",
        Fate.LOGGED,
        "use the topic: SUBSCRIBE to it with `durable:true` and `id:A`, without a client-id, to share what comes",
    ),
    Word(
        "/topic/ActiveMQ.Advisory.…",
        "AX",
        Fate.LOGGED,
        "ask `/sluiceway/stat`, or the admin port: the broker sends nothing to this topic",
    ),
)
"""Forms of destinations."""

CONNECT: Final = (
    Word("accept-version, login, passcode, heart-beat", "RAX", Fate.SERVED, "as the specification has it"),
    Word("host", "RAX", Fate.ANYWAY, "the virtual host; any, where none are configured"),
    Word(
        "client-id",
        "AX",
        Fate.SERVED,
        "owner of durable subscriptions. A second connection with it: as `client_id_in_use` of the configuration says",
    ),
    Word("request-id", "X", Fate.ANYWAY, "CONNECTED is the only answer to CONNECT"),
)
"""Headers of CONNECT and STOMP."""

SEND: Final = (
    Word("content-length, content-type", "RAX", Fate.SERVED, "as the specification has it"),
    Word("receipt, transaction", "RAX", Fate.SERVED, "as the specification has it"),
    Word("persistent", "RAX", Fate.SERVED, "`true`: survives the broker"),
    Word("priority", "RAX", Fate.SERVED, "0 to 9, by default 4. More counts as 9, less as 0"),
    Word("expires", "AX", Fate.SERVED, "a date in milliseconds. 0 and less: never, as there"),
    Word("expiration", "R", Fate.SERVED, "a time to live in milliseconds"),
    Word("reply-to", "RAX", Fate.SERVED, "a temporary destination is rewritten to the name that others can send to"),
    Word("JMSXGroupID", "AX", Fate.SERVED, "the message group; also `group`"),
    Word("JMSXGroupSeq", "A", Fate.PASSED_ON, "groups end by themselves when their consumer has acknowledged all"),
    Word("AMQ_SCHEDULED_DELAY", "AX", Fate.SERVED, "milliseconds before it is delivered; also `delay`"),
    Word("x-delay", "R", Fate.SERVED, "the same, of the plug-in for delayed messages"),
    Word("AMQ_SCHEDULED_TIME", "X", Fate.REFUSED, "a date; send `AMQ_SCHEDULED_DELAY`, in milliseconds from now"),
    Word("AMQ_SCHEDULED_PERIOD", "A", Fate.SERVED, "milliseconds between two deliveries"),
    Word(
        "AMQ_SCHEDULED_REPEAT",
        "A",
        Fate.SERVED,
        "how often it is delivered after the first time, 99 at most: as many messages wait from the beginning",
    ),
    Word("AMQ_SCHEDULED_CRON", "A", Fate.REFUSED, "send it again each time, or give `AMQ_SCHEDULED_REPEAT`"),
    Word(
        "retain",
        "",
        Fate.SERVED,
        "`set` (or MQTT's `true`): the topic keeps it for later subscribers; `remove`: forget it",
    ),
    Word("ActiveMQ.Retain", "A", Fate.SERVED, "`true`: as `retain:set`"),
    Word("transformation", "A", Fate.REFUSED, "bodies are bytes, and go through as they came: leave it out"),
    Word("correlation-id, type, _type", "RAX", Fate.PASSED_ON, ""),
    Word("content-encoding, app-id, timestamp", "R", Fate.PASSED_ON, ""),
    Word("amqp-message-id", "R", Fate.PASSED_ON, "`message-id` of the MESSAGE is the broker's own"),
    Word("user-id", "R", Fate.PASSED_ON, "not compared with the login; the header `user` is, if a listener stamps it"),
    Word("amq-msg-type", "A", Fate.PASSED_ON, "bodies are bytes"),
    Word("ttl", "A", Fate.PASSED_ON, "`expiration` has an effect"),
    Word(
        "destination-type",
        "X",
        Fate.SERVED,
        "`MULTICAST`: a bare name is a topic; `ANYCAST`: a queue. An ERROR if the name says another kind",
    ),
    Word(
        "_AMQ_DUPL_ID",
        "X",
        Fate.SERVED,
        "a message with an id that is known is confirmed and not taken a second time; `duplicate_ids_max` of the "
        "destination is how many are remembered, like `id-cache-size` there",
    ),
    Word(
        "producer-id, producer-sequence",
        "",
        Fate.SERVED,
        "likewise, by the last number of each producer: [sending each message "
        "once](safety.md#sending-each-message-once)",
    ),
    Word("_AMQ_LVQ_NAME, _AMQ_GROUP_ID", "X", Fate.PASSED_ON, "use `JMSXGroupID` for groups"),
    Word("`any other`", "RAX", Fate.PASSED_ON, ""),
)
"""Headers of SEND."""

SUBSCRIBE: Final = (
    Word("id, receipt", "RAX", Fate.SERVED, "as the specification has it"),
    Word("ack", "RAX", Fate.SERVED, "in any case of letters: `AUTO` is `auto`. Another word is an ERROR"),
    Word("selector", "AX", Fate.SERVED, "SQL-92"),
    Word("prefetch-count", "R", Fate.SERVED, "messages that may be unacknowledged; 0: no limit"),
    Word("activemq.prefetchSize", "AX", Fate.SERVED, "likewise; 0: one at a time"),
    Word("paused", "", Fate.SERVED, "`true`: nothing is delivered until a SEND to `/sluiceway/credit` resumes it"),
    Word("durable, persistent", "R", Fate.SERVED, "on a topic: a durable subscription, named by `id`"),
    Word("activemq.subscriptionName", "AX", Fate.SERVED, "a durable subscription of the `client-id`"),
    Word("exclusive", "R", Fate.SERVED, "an exclusive consumer; a queue of one connection is a `/temp-queue/NAME`"),
    Word("activemq.exclusive", "A", Fate.SERVED, "an exclusive consumer"),
    Word("browser", "A", Fate.SERVED, "looks at a queue without taking anything"),
    Word(
        "auto-delete",
        "R",
        Fate.SERVED,
        "`true`, of one queue: it is deleted, with its messages, some seconds after its last consumer has left. It "
        "takes the permission `create`",
    ),
    Word("x-stream-offset", "R", Fate.LOGGED, "SUBSCRIBE to a log, `/log/NAME`: it keeps its records, and knows it"),
    Word(
        "x-queue-name",
        "R",
        Fate.LOGGED,
        "each subscriber gets every message. With `durable:true` it is the name of a durable subscription, which "
        "consumers share",
    ),
    Word("x-queue-type", "R", Fate.ANYWAY, "`classic` or `quorum`: a queue. A stream is a log, `/log/NAME`"),
    *(
        Word(
            header,
            "R",
            Fate.SERVED,
            f"of one queue: its `{setting}`, at most as configured, as long as it exists, and until another SUBSCRIBE "
            "says another. It takes the permission `create`",
        )
        for header, setting in QUEUE_ARGUMENTS.items()
    ),
    Word("x-overflow", "R", Fate.LOGGED, SETTING.format("full")),
    Word("x-expires", "R", Fate.LOGGED, SETTING.format("auto_delete_seconds")),
    Word("x-dead-letter-exchange", "R", Fate.LOGGED, SETTING.format("dead_letter")),
    Word("x-dead-letter-routing-key", "R", Fate.LOGGED, SETTING.format("dead_letter")),
    Word("x-max-priority", "R", Fate.ANYWAY, "every queue has ten priorities"),
    Word("x-max-age", "R", Fate.LOGGED, "set `log_retention_seconds` for the log"),
    Word("x-stream-max-segment-size-bytes", "R", Fate.LOGGED, "segments of logs have a size of their own"),
    Word("x-stream-filter", "R", Fate.LOGGED, "use a `selector`"),
    Word("x-stream-filter-size-bytes", "R", Fate.LOGGED, "use a `selector`"),
    Word("x-stream-match-unfiltered", "R", Fate.LOGGED, "use a `selector`"),
    Word(
        "x-priority, activemq.priority",
        "RA",
        Fate.SERVED,
        "of a queue: consumers with the highest number get messages first, others when those have no credit left. "
        "Consumers with a `selector`, and messages of a group, have their turns all the same",
    ),
    Word(
        "no-local, noLocal, activemq.noLocal",
        "AX",
        Fate.SERVED,
        f"`true`, on topics: what this connection sends from then on is left out, marked with the header `{SENDER}`",
    ),
    Word(
        "activemq.retroactive",
        "A",
        Fate.LOGGED,
        "send with `retain:set` to give later subscribers the last message, or use a log, `/log/NAME`",
    ),
    Word(
        "retroactive",
        "A",
        Fate.LOGGED,
        "send with `retain:set` to give later subscribers the last message, or use a log, `/log/NAME`",
    ),
    Word("activemq.dispatchAsync", "A", Fate.ANYWAY, "senders never wait for the socket of a subscriber"),
    Word(
        "activemq.maximumPendingMessageLimit",
        "A",
        Fate.LOGGED,
        "set `lead_bytes` and `full` for the topic: slow subscribers lose the oldest",
    ),
    Word(
        "durable-subscription-name, durable-subscriber-name, activemq.subcriptionName",
        "AX",
        Fate.SERVED,
        "the same as `activemq.subscriptionName`, which comes first",
    ),
    Word("subscription-type, destination-type", "X", Fate.SERVED, "as `destination-type` of SEND"),
    Word("consumer-window-size", "X", Fate.SERVED, "bytes that may be unacknowledged; 0: one message, -1: no limit"),
    Word("transformation", "A", Fate.REFUSED, "bodies are bytes, and go through as they came: leave it out"),
)
"""Headers of SUBSCRIBE."""

UNSUBSCRIBE: Final = (
    Word("id, destination", "RAX", Fate.SERVED, "as the specification has it"),
    Word("durable, persistent", "R", Fate.SERVED, "removes the durable subscription named by `id`"),
    Word(
        "activemq.subscriptionName, activemq.subcriptionName, durable-subscription-name, durable-subscriber-name",
        "AX",
        Fate.SERVED,
        "removes the durable subscription",
    ),
    Word("x-queue-name", "R", Fate.SERVED, "with `durable:true`: its name, in place of `id`"),
)
"""Headers of UNSUBSCRIBE."""

SETTLING: Final = (
    Word("id, message-id, subscription, transaction", "RAX", Fate.SERVED, "as the specification has it"),
    Word("requeue", "R", Fate.SERVED, "of NACK: `false` gives the message up; it is dead-lettered"),
)
"""Headers of ACK and NACK."""

MESSAGE: Final = (
    Word("destination, message-id, subscription, ack", "RAX", Fate.SERVED, "as the specification has it"),
    Word("redelivered", "RAX", Fate.SERVED, "`true` if so, and absent otherwise; RabbitMQ writes `false`"),
    Word(
        "priority, expires, timestamp",
        "AX",
        Fate.SERVED,
        "as the sender wrote them. If not: absent, or with `jms_headers` of `[[destinations]]` what that comes to",
    ),
    Word("persistent", "RAX", Fate.SERVED, "as the sender wrote it; absent if it did not"),
    Word(
        "content-length",
        "RAX",
        Fate.SERVED,
        "as the sender wrote it, and for 1.2 always: to clients of JMS it says that the body is no text",
    ),
    Word("JMSXUserID", "AX", Fate.SERVED, "called `user`, if the listener stamps it"),
    Word(
        "originalDestination, JMSXDeliveryCount", "A", Fate.SERVED, "called `dead-letter-destination`, `delivery-count`"
    ),
)
"""Headers that clients look for in a MESSAGE."""

TABLES: Final[Mapping[str, tuple[Word, ...]]] = {
    "Destinations": DESTINATIONS,
    "CONNECT": CONNECT,
    "SEND": SEND,
    "SUBSCRIBE": SUBSCRIBE,
    "UNSUBSCRIBE": UNSUBSCRIBE,
    "ACK and NACK": SETTLING,
    "MESSAGE": MESSAGE,
}
"""All tables, by their headings."""


_BY_SEGMENT: Final = {
    "exchange": "/exchange/NAME/KEY",
    "reply-queue": "/reply-queue/NAME",
    "dsub": "/dsub/NAME",
}


def form_of(canonical: str) -> str:
    """Return the form of DESTINATIONS that a name has which means nothing here; empty: none. O(length)."""
    segment, _slash, name = canonical[1:].partition("/")
    if segment not in ("queue", "topic"):
        return _BY_SEGMENT.get(segment, "")
    if "?consumer." in name:
        return "/queue/NAME?consumer.OPTION=VALUE"
    if name.startswith("Consumer.") and ".VirtualTopic." in name:
        return "Consumer.A.VirtualTopic.NAME"
    return "/topic/ActiveMQ.Advisory.…" if name.startswith("ActiveMQ.Advisory.") else ""


def remedies(table: tuple[Word, ...]) -> dict[str, str]:
    """Return what to do in place of the words of a table that have no effect, by name, without marks of Markdown."""
    return {word.name: word.words.replace("`", "") for word in table if word.fate is Fate.LOGGED}


TRANSFORMATION: Final = "transformation"
_AS_IT_IS: Final = frozenset({"", "jms-byte"})
"""Transformations that change nothing."""


def refuse_transformation(value: str) -> None:
    """Raise ProtocolError for a transformation that ActiveMQ would do."""
    if value.strip().lower() not in _AS_IT_IS:
        raise ProtocolError(
            "not-supported",
            f"transformation {value[:40]!r} is not available: bodies are bytes",
            "Leave the header transformation out: a body goes to its consumers as it came.",
        )


RETAIN_NAMES: Final = ("retain", "ActiveMQ.Retain")
_RETAIN_WORDS: Final = {"set": "set", "true": "set", "remove": "remove", "false": None}


def retain_of(headers: Mapping[str, str]) -> str | None:
    """Return what a SEND wishes of its topic's retained message, `set` or `remove`; None: nothing. Raises
    ProtocolError.
    """
    for name in RETAIN_NAMES:
        if name in headers:
            word = headers[name].strip().lower()
            if word not in _RETAIN_WORDS:
                raise ProtocolError(
                    "bad-retain",
                    f"header {name} is {word[:40]!r}",
                    "Send retain:set or retain:remove, or leave it out.",
                )
            return _RETAIN_WORDS[word]
    return None


def refuse_date_of_delivery() -> None:
    """Raise ProtocolError for a date of delivery."""
    raise ProtocolError(
        "not-supported",
        "a date of delivery (AMQ_SCHEDULED_TIME) is not available in this version",
        "Send AMQ_SCHEDULED_DELAY, in milliseconds from now.",
    )


_FOREIGN_BEGINNINGS: Final = ("/amq/queue/", "/exchange/amq.topic/", "/exchange/amq.fanout")


def is_foreign(destination: str) -> bool:
    """Return whether `known_as` has another name for a destination header, or part of it."""
    # Asked for each new head of a SEND: names without these letters cost one look.
    return "/amq" in destination and any(beginning in destination for beginning in _FOREIGN_BEGINNINGS)


def known_as(destination: str) -> str:
    """Return a destination header with RabbitMQ's forms as the names that they have here. O(length)."""
    return ",".join(map(_known_as, destination.split(","))) if is_foreign(destination) else destination


def _known_as(written: str) -> str:
    name = written.strip()
    if name.startswith("/amq/queue/"):
        return "/queue/" + name.removeprefix("/amq/queue/")
    if name.startswith("/exchange/amq.topic/"):
        return "/topic/" + name.removeprefix("/exchange/amq.topic/")
    if name == FANOUT or name.startswith(FANOUT + "/"):
        return "/topic/amq.fanout"  # it looks at no key
    return written


FANOUT: Final = "/exchange/amq.fanout"
_KINDS: Final = {"anycast": "/queue/", "multicast": "/topic/"}


def typed(destination: str, headers: Mapping[str, str], name: str) -> str:
    """Return a destination header whose kind a header of Artemis tells: a bare name gets its prefix. Raises
    ProtocolError for a kind that is none, and for a name of another kind.
    """
    said = headers.get(name)
    if said is None:
        return destination
    prefix = _KINDS.get(said.strip().lower())
    if prefix is None:
        raise ProtocolError(
            f"bad-{name}", f"{name} {said[:40]!r} is no kind of destination", "There are ANYCAST and MULTICAST."
        )
    parts = [part.strip() for part in destination.split(",")]
    other = next((each for each in parts if each.startswith(tuple(_KINDS.values())) and prefix not in each[:7]), None)
    if other is not None:
        raise ProtocolError(
            "bad-destination",
            f"{other[:200]!r} is not what {name}:{said} says",
            f"Name one that begins with {prefix}, or leave the header out.",
        )
    return ",".join(each if each.startswith("/") else prefix + each for each in parts)


_NAMED: Final = "activemq.subscriptionName"
_OTHER_NAMES: Final = ("activemq.subcriptionName", "durable-subscription-name", "durable-subscriber-name")


def _name_durable(headers: dict[str, str]) -> None:
    """Say the name of a durable subscription in one way."""
    if _NAMED in headers:
        return
    name = next((headers[each] for each in _OTHER_NAMES if each in headers), None)
    if name is None and "x-queue-name" in headers and is_durable(headers):
        name = headers.pop("x-queue-name")
    if name is not None:
        headers[_NAMED] = name


def is_durable(headers: Mapping[str, str]) -> bool:
    """Return whether RabbitMQ's headers ask for a durable subscription."""
    return any(headers.get(header) in ("true", "True") for header in ("durable", "persistent"))


_NO_LOCAL: Final = ("no-local", "noLocal", "activemq.noLocal")


def leave_own_out(headers: dict[str, str], sender: str, *, lasts: bool) -> bool:
    """Make a SUBSCRIBE to topics that wants none of its own messages one with a selector, if it is one: they have
    the header SENDER with this value. Returns whether it is. `lasts`: whether the client has this value the next time,
    too. Raises ProtocolError if a durable subscription would need that.
    """
    if not any(headers.get(name, "").strip().lower() == "true" for name in _NO_LOCAL):
        return False
    destination = known_as(typed(headers.get("destination", ""), headers, "subscription-type"))
    if not all(part.strip().startswith("/topic/") for part in destination.split(",")):
        return False
    if not lasts and (is_durable(headers) or any(name in headers for name in (_NAMED, *_OTHER_NAMES))):
        raise ProtocolError(
            "durable-without-name",
            "no-local of a durable subscription, without a client-id that tells its own messages",
            "Give a client-id in CONNECT, or leave no-local out.",
        )
    for name in _NO_LOCAL:
        headers.pop(name, None)
    others = f"({SENDER} IS NULL OR {SENDER} <> '{sender}')"
    selector = headers.get("selector")
    headers["selector"] = others if selector is None else f"({selector}) AND {others}"
    return True


def subscribe_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a SUBSCRIBE in the words of this broker. Raises ProtocolError for what is refused."""
    destination = headers["destination"]
    for name in ("subscription-type", "destination-type"):
        destination = typed(destination, headers, name)
    headers["destination"] = known_as(destination)
    _name_durable(headers)
    ack = headers.get("ack")
    if ack is not None and not ack.islower():
        headers["ack"] = ack.lower()
    if TRANSFORMATION in headers:
        refuse_transformation(headers[TRANSFORMATION])
    return headers


def unsubscribe_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of an UNSUBSCRIBE in the words of this broker."""
    destination = headers.get("destination")
    if destination:
        for name in ("subscription-type", "destination-type"):
            destination = typed(destination, headers, name)
        headers["destination"] = known_as(destination)
    _name_durable(headers)
    return headers
