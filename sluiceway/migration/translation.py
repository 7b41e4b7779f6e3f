"""Messages of other brokers: how to subscribe, which headers go on under which names, and what a message is known by.

Headers that the other broker writes for one delivery are left out. Others that mean something there and nothing here,
or the other way round, go on with `original-` in front, so that nothing a program may look for is lost.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

import attrs

from sluiceway.migration.ledger import EXACT
from sluiceway.protocols.stomp.dialects import known_as
from sluiceway.protocols.stomp.frames import Frame
from sluiceway.protocols.stomp.head import FORGEABLE_HEADERS
from sluiceway.queues.names import DestinationNameError, parse

ORIGINAL: Final = "original-"
DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
"""Header with an id of a message, by which a queue here takes it once."""
_OF_DELIVERY: Final = frozenset(
    {"subscription", "ack", "destination", "content-length", "receipt", "transaction", "message-id", "redelivered"}
)
"""Headers of one delivery, or of the SEND that it came from."""
_VOLATILE: Final = _OF_DELIVERY | {"x-delivery-count", "delivery-count", "JMSXDeliveryCount"}
"""Headers that differ when the same message comes again."""
_ORDERS: Final = frozenset(
    {
        "AMQ_SCHEDULED_CRON",
        "AMQ_SCHEDULED_DELAY",
        "AMQ_SCHEDULED_PERIOD",
        "AMQ_SCHEDULED_REPEAT",
        "AMQ_SCHEDULED_TIME",
        DUPLICATE_ID,
        "ActiveMQ.Retain",
        "delay",
        "destination-type",
        "producer-id",
        "producer-sequence",
        "retain",
        "transformation",
        "x-delay",
    }
)
"""Headers that this broker would act upon, or refuse: what they ask for has been done there."""
_TEMPORARY: Final = ("/temp-queue/", "/temp-topic/", "/remote-temp-queue/", "/remote-temp-topic/", "/reply-queue/")
_KEY_BYTES: Final = 12
"""Two of 10 million messages have the same key with a probability of one in 10^15."""


@attrs.frozen
class Translation:
    """Habits of one kind of broker."""

    broker: str
    subscription: str
    """Beginning of the name that a queue is subscribed by."""
    credit: str
    """Header of SUBSCRIBE for the number of messages that may be unacknowledged."""
    can_browse: bool
    """Whether a queue can be looked at."""
    wildcard: str | None
    """Name for all queues; None: there is none."""
    foreign: frozenset[str]
    """Headers without a meaning there that have one here."""
    id_header: str | None
    """Header with an id that no two messages share, the same at each delivery; None: there is none."""

    def destination(self, queue: str) -> str:
        """Return the destination to subscribe to."""
        # RabbitMQ reads a slash in a name as the end of it.
        return self.subscription + (queue.replace("/", "%2F") if self.subscription == "/amq/queue/" else queue)

    def headers(self, received: Mapping[str, str], *, persistent: bool = False) -> dict[str, str]:
        """Return the headers to send on. `persistent`: ask for it whatever the message says."""
        made: dict[str, str] = {}
        renamed: dict[str, str] = {}
        for name, value in received.items():
            if name == "message-id":
                if self.id_header == name:
                    renamed[ORIGINAL + name] = value
            elif name == "redelivered":
                if value == "true":
                    renamed[ORIGINAL + name] = value
            elif name in _OF_DELIVERY or (name == "expires" and value == "0"):
                continue
            elif self._is_foreign(name, value):
                renamed[ORIGINAL + name] = value
            elif name == "reply-to":
                made[name] = known_as(value)
            else:
                made[name] = value
        if persistent:
            made["persistent"] = "true"
        return renamed | made

    def _is_foreign(self, name: str, value: str) -> bool:
        if name == "reply-to":
            return value.startswith(_TEMPORARY)
        return name in _ORDERS or name in self.foreign or name in FORGEABLE_HEADERS

    def key(self, frame: Frame) -> str:
        """Return what the message is known by: see `ledger`."""
        if self.id_header is not None and (unique := frame.headers.get(self.id_header)):
            return EXACT + _digest([unique.encode()])
        pairs = sorted((name, value) for name, value in frame.headers.items() if name not in _VOLATILE)
        lengths = (f"{len(name)},{len(value)};{name}{value}".encode() for name, value in pairs)
        return "~" + _digest([*lengths, b"\0", frame.body])


RABBITMQ: Final = Translation(
    broker="RabbitMQ",
    subscription="/amq/queue/",  # as it is, whatever arguments it was declared with
    credit="prefetch-count",
    can_browse=False,
    wildcard=None,
    foreign=frozenset({"expires"}),
    id_header=None,  # message-id is one of the session
)
ACTIVEMQ: Final = Translation(
    broker="ActiveMQ",
    subscription="/queue/",
    credit="activemq.prefetchSize",
    can_browse=True,
    wildcard=">",
    foreign=frozenset({"expiration"}),
    id_header="message-id",
)


def queue_here(name: str) -> str:
    """Return the destination that a queue of that name has here. Raises ValueError: it means something else here."""
    wanted = f"/queue/{name}"
    try:
        address = parse(wanted)
    except DestinationNameError as error:
        raise ValueError(f"queue {name!r}: {error}") from None
    if address.wildcard or address.canonical != wanted or "," in name:
        raise ValueError(f"queue {name!r}: its name means something else here")
    return wanted


def _digest(parts: Iterable[bytes]) -> str:
    digest = blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        digest.update(part)
    return base64.b64encode(digest.digest()).decode()
