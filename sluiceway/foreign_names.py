"""Names and headers that mean something to other brokers, and nothing here: the log says so, once for each."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.dialects import DESTINATIONS, QUEUE_ARGUMENTS, SETTING, SUBSCRIBE, form_of, remedies
from sluiceway.queues.destination import Destination
from sluiceway.queues.names import first_segment, is_one_queue, without_host

log = get_logger("sluiceway.destinations")

FORMS: Final = remedies(DESTINATIONS)
"""Forms of names of other brokers, with what to do instead."""

_OF_QUEUES: Final = {name: SETTING.format(key).replace("`", "") for name, key in QUEUE_ARGUMENTS.items()}
HEADERS: Final = remedies(SUBSCRIBE) | _OF_QUEUES
"""Headers of SUBSCRIBE of other brokers that have no effect on queues and topics, with what to do instead."""


class ForeignNames:
    """Log of the forms of other brokers that a broker has met; a form is logged once."""

    def __init__(self, configured: Container[str]) -> None:
        """`configured`: first segments of names in the configuration, which are meant as they are."""
        self.configured = configured
        self._logged: set[str] = set()

    def note_headers(self, destination: str, headers: Mapping[str, str]) -> None:
        """Look at the headers of a SUBSCRIBE to a queue or topic. O(1)."""
        found = headers.keys() & HEADERS.keys() - self._logged
        if found and is_one_queue(destination):
            found -= _OF_QUEUES.keys()
        for name in found:
            self._logged.add(name)
            log.warning(
                "a header of another broker has no effect", header=name, destination=destination, remedy=HEADERS[name]
            )

    def note(self, destination: Destination) -> None:
        """Look at a destination that a client has made. O(1)."""
        name = without_host(destination.name)
        form = form_of(name)
        if not form or form in self._logged or first_segment(name) in self.configured:
            return
        self._logged.add(form)
        log.warning("a name of another broker is a plain one here", destination=destination.name, remedy=FORMS[form])
