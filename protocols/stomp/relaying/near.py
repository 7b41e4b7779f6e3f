"""Session of a client at its own hub, as far as the parts of a relay use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from ....queues.names import DestinationNameError
from ...outbound import Outbound
from ..delivery import SessionTotals
from ..errors import ProtocolError
from ..escaping import Version
from ..frames import Event, SendRun
from ..head import SendHead
from ..hub import Hub
from ..lanes import Lanes
from ..limits import StompLimits
from ..replies import Replies
from ..temporary import LOCAL_PREFIXES, TemporaryDestinations


@attrs.frozen(eq=False, kw_only=True)
class NearSession:
    """Session of a client at this hub, as far as its relay uses it."""

    hub: Hub
    limits: StompLimits
    outbound: Outbound
    temporary: TemporaryDestinations
    replies: Replies
    lanes: Lanes
    totals: SessionTotals
    take: Callable[[Event], None]
    """Lets an event take effect at this hub. Raises ProtocolError."""
    flush: Callable[[], None]
    """Publishes what that has put off, as at the end of a read."""
    fail: Callable[[ProtocolError], None]
    pass_on_error: Callable[[bytes], None]
    """Ends the connection with an ERROR frame of another hub."""
    unsettled: Callable[[], int]
    """Number of deliveries of this hub that are not settled."""
    is_live: Callable[[str], bool]
    """Whether a local subscription has this id."""
    set_credit: Callable[[Mapping[str, str]], dict[str, object]]
    """Has a request about credit take effect at this hub; returns what is in force then. Raises ProtocolError."""
    give_back: Callable[[str], None]
    """Ends a local subscription without the client."""
    client_id: Callable[[], str]
    """Client-id under which durable subscriptions are kept."""
    opening: Callable[[], Mapping[str, object]]
    """Facts about the client for another hub."""

    @property
    def version(self) -> Version:
        """Version that the client speaks."""
        return self.replies.version

    def take_counted(self, head: SendHead, wires: list[bytes], receipts: list[str] | None) -> None:
        """Let SENDs that were counted when they came take effect at this hub, which counts them. Raises
        ProtocolError.
        """
        self.totals.messages_in_count -= len(wires)
        self.take(SendRun(head, wires, sum(map(len, wires)), receipts))

    def with_global_reply_to(self, head: SendHead, receipts: Sequence[str] | None) -> SendHead:
        """Return a head whose reply-to other hubs understand. Raises ProtocolError."""
        if head.reply_to is None or not head.reply_to.startswith(LOCAL_PREFIXES):
            return head
        try:
            return self.temporary.with_global_reply_to(head)
        except DestinationNameError as error:
            refusal = ProtocolError("bad-destination", str(error))
            named = {"destination": head.destination}
            refusal.identify("SEND", {**named, "receipt": receipts[0]} if receipts else named)
            raise refusal from None
