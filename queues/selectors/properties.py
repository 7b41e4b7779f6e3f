"""Names in selectors: headers of the SEND, or the names of JMS.

A value of the head is looked up once for all messages that share the head; a value of the message (its id, its date) is
looked up for each message, which makes such a selector more expensive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..message import Envelope, Message
from .values import Raw

OfHead = Callable[[Envelope], Raw]
OfMessage = Callable[[Message], Raw]


def _mode(head: Envelope) -> Raw:
    return "PERSISTENT" if head.persistent else "NON_PERSISTENT"


def _priority(head: Envelope) -> Raw:
    return head.priority


def _destination(head: Envelope) -> Raw:
    return head.destination


def _group(head: Envelope) -> Raw:
    return head.group


def _header(name: str) -> OfHead:
    return lambda head: head.header(name)


def _expiration(message: Message) -> Raw:
    return message.expires_at_ms


OF_HEADS: Final[dict[str, OfHead]] = {
    "JMSCorrelationID": _header("correlation-id"),
    "JMSDeliveryMode": _mode,
    "JMSDestination": _destination,
    "JMSPriority": _priority,
    "JMSReplyTo": _header("reply-to"),
    "JMSTimestamp": _header("timestamp"),
    "JMSType": _header("type"),
    "JMSXGroupID": _group,
}

NOT_HERE: Final[dict[str, str]] = {
    "JMSRedelivered": "whether a message was delivered before differs from one delivery to the next",
    "JMSXDeliveryCount": "how often a message was delivered differs from one delivery to the next",
}
"""Names of JMS that can't be selected by, with the reason."""


def of_head(name: str) -> OfHead:
    """Return the lookup of this name in a head."""
    return OF_HEADS.get(name) or _header(name)


def of_message(name: str, message_token: str) -> OfMessage | None:
    """Return the lookup of this name in a message; None for a name of the head. `message_token`: the beginning of
    message-ids.
    """
    if name == "JMSExpiration":
        return _expiration
    if name == "JMSMessageID":
        prefix = message_token + "-"
        return lambda message: f"{prefix}{message.number}"
    return None
