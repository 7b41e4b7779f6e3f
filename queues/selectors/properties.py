"""What the names in a selector stand for: a header of the SEND as it is, or what JMS calls it.

What belongs to a head is looked up once for all messages that share it; what belongs to a message (its id, its date) is
looked up for each, which makes such a selector dearer.
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
"""What JMS has and nothing can be selected by, and why."""


def of_head(name: str) -> OfHead:
    """How this name is looked up in a head, if it is not one of a message."""
    return OF_HEADS.get(name) or _header(name)


def of_message(name: str, message_token: str) -> OfMessage | None:
    """How this name is looked up in a message; None: in its head. `message_token`: the first part of message-ids."""
    if name == "JMSExpiration":
        return _expiration
    if name == "JMSMessageID":
        prefix = message_token + "-"
        return lambda message: f"{prefix}{message.number}"
    return None
