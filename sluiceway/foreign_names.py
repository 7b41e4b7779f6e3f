"""Names and headers that mean something to other brokers, and nothing here: the log says so, once for each."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from sluiceway.protocols.log import get_logger
from sluiceway.queues.destination import Destination
from sluiceway.queues.names import first_segment

log = get_logger("sluiceway.destinations")

FORMS: Final = {
    "exchange": "use /topic/NAME.KEY for the exchange NAME, and /topic/KEY for amq.topic: there are no exchanges, and "
    "of several subscribers of this queue each message goes to one",
    "amq": "use /queue/NAME: this is another queue",
    "reply-queue": "use a temporary queue, /temp-queue/NAME, or /queue/NAME",
    "dsub": "SUBSCRIBE to the topic with durable:true and an id",
}
"""First segments of RabbitMQ, with what to do instead."""


_SETTING: Final = "set {} for the destination, in [[destinations]] of the configuration"
HEADERS: Final = {
    "x-queue-name": "each subscriber gets every message: to share the messages of a topic, SUBSCRIBE with durable:true "
    "and the same id, or use a queue",
    "x-message-ttl": _SETTING.format("expires_max_ms"),
    "x-max-length": _SETTING.format("count_max"),
    "x-max-length-bytes": _SETTING.format("bytes_max"),
    "x-overflow": _SETTING.format("full"),
    "x-expires": _SETTING.format("auto_delete_seconds"),
    "x-dead-letter-exchange": _SETTING.format("dead_letter"),
    "x-dead-letter-routing-key": _SETTING.format("dead_letter"),
    "x-stream-offset": "SUBSCRIBE to a log, /log/NAME: it keeps its records, and knows x-stream-offset",
}
"""Headers of SUBSCRIBE of RabbitMQ that have no effect on queues and topics, with what to do instead."""


class ForeignNames:
    """Log of the forms of other brokers that a broker has met; a form is logged once."""

    def __init__(self, configured: Container[str]) -> None:
        """`configured`: first segments of names in the configuration, which are meant as they are."""
        self.configured = configured
        self._logged: set[str] = set()

    def note_headers(self, destination: str, headers: Mapping[str, str]) -> None:
        """Look at the headers of a SUBSCRIBE to a queue or topic. O(1)."""
        for name, remedy in HEADERS.items():
            if name in headers and name not in self._logged:
                self._logged.add(name)
                log.warning(
                    "a header of another broker has no effect", header=name, destination=destination, remedy=remedy
                )

    def note(self, destination: Destination) -> None:
        """Look at a destination that a client has made. O(1)."""
        segment = first_segment(destination.name)
        remedy = FORMS.get(segment)
        if remedy is None or segment in self._logged or segment in self.configured:
            return
        self._logged.add(segment)
        log.warning("a name of another broker is that of a plain queue", destination=destination.name, remedy=remedy)
