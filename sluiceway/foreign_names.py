"""Names that mean something to other brokers, and are plain queues here: the log says so, once for each form."""

from __future__ import annotations

from collections.abc import Container
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


class ForeignNames:
    """Log of the forms of other brokers that a broker has met; a form is logged once."""

    def __init__(self, configured: Container[str]) -> None:
        """`configured`: first segments of names in the configuration, which are meant as they are."""
        self.configured = configured
        self._logged: set[str] = set()

    def note(self, destination: Destination) -> None:
        """Look at a destination that a client has made. O(1)."""
        segment = first_segment(destination.name)
        remedy = FORMS.get(segment)
        if remedy is None or segment in self._logged or segment in self.configured:
            return
        self._logged.add(segment)
        log.warning("a name of another broker is that of a plain queue", destination=destination.name, remedy=remedy)
