"""SUBSCRIBE with `browser:true`: show the messages of a queue, consume nothing. ActiveMQ's dialect.

The subscription gets the present messages of the queue as MESSAGEs, then one more with an empty body and the header
`browser:end`, then nothing until its UNSUBSCRIBE. queues/browsing.py selects the messages without effect on consumers.

Flow: as many messages and bytes as the subscription's prefetch says may be on their way to the peer (appended to the
outbound buffer, not taken by the kernel yet), and no more than that buffer has room for.

There is nothing to acknowledge, so `ack:auto` is the mode to use. With another mode ACKs and NACKs have no effect; the
window opens without them. (STOMP 1.0 without subscription ids: an ACK names just the message, and settles it if this
connection also consumes it.) A MESSAGE says nothing of redeliveries: browsing does not count as one.

Source: DESIGN section 9 (`browser:true`); ActiveMQ's STOMP queue browser.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ...flow import Account, Flow, SourceController, WindowLimiter
from ...queues.browsing import QueueBrowser
from ...queues.large import up_to_large
from ...queues.names import DestinationName
from ...queues.slices import Slice
from ..outbound import Outbound
from .delivery import SessionTotals, StompSubscription
from .errors import ProtocolError
from .hub import Hub
from .message_renderer import MessageRenderer
from .subscribe_headers import ACK_AUTO, SubscriptionSpec


def wants_to_browse(headers: dict[str, str]) -> bool:
    """Whether the SUBSCRIBE only browses. Raises ProtocolError where the header is unclear: a browser must never
    consume.
    """
    wish = headers.get("browser", "false")
    if wish not in ("true", "false"):
        raise ProtocolError(
            "bad-browser", f"SUBSCRIBE with browser {wish[:40]!r}", "Write browser:true, or leave the header out."
        )
    return wish == "true"


def browsable(name: str, addresses: list[DestinationName]) -> DestinationName:
    """Return the one queue that the addresses name. Raises ProtocolError."""
    address = addresses[0]
    if len(addresses) > 1 or address.wildcard or address.kind.is_topic:
        what = "several destinations" if len(addresses) > 1 else "a wildcard" if address.wildcard else "a topic"
        raise ProtocolError(
            "cannot-browse",
            f"{name[:200]!r} is {what}: browsing is for one queue",
            "SUBSCRIBE with browser:true to one queue by its full name.",
        )
    return address


class BrowsingSubscription(StompSubscription):
    """A viewer of one queue, under one subscription id of one connection."""

    upkeep_bytes = 5 * 1024
    """Bytes of a browser, its cursor included."""

    def __init__(
        self,
        hub: Hub,
        outbound: Outbound,
        spec: SubscriptionSpec,
        totals: SessionTotals,
    ) -> None:
        # Nothing is to be settled, whatever the client will say.
        unsettled = attrs.evolve(spec, ack=ACK_AUTO, prefetch_count=None, prefetch_bytes=None)
        super().__init__(hub, outbound, unsettled, totals)
        self._renderer = MessageRenderer(spec, self.token, outbound.framing, hub.ack_prefix)
        self._next_ordinal = 0
        self._browser: QueueBrowser | None = None
        self._under_way = Account(
            self,
            Flow(f"on its way to {self.name}"),
            WindowLimiter(spec.prefetch_count, spec.prefetch_bytes, clock=hub.clock),
            clock=hub.clock,
            counts_memory=False,
        )

    def browse(self, address: DestinationName) -> None:
        """Begin, with the next dispatch."""
        self._browser = self._hub.registry.browse(address, self, self.selection)

    def detaching(self) -> Iterator[None]:
        yield from super().detaching()
        if self._browser is not None:
            self._browser.close()

    # ------------------------------------------------------------------ the viewer port

    def credit(self) -> tuple[int, int]:
        outbound, window = self._outbound, self._under_way.limiter
        assert isinstance(window, WindowLimiter)
        if self._gate is not None or outbound.controller.limiter.throttled or window.throttled:
            return 0, 0
        return window.room_count(), min(outbound.room_bytes(), window.room_bytes())

    def await_credit(self, source: SourceController) -> None:
        outbound = self._outbound.controller
        (self._gate or (outbound if outbound.limiter.throttled else self._under_way)).wait_in_line(source)

    @property
    def _credited(self) -> Account | None:
        return self._under_way

    def show(self, part: Slice, source: SourceController) -> int:
        if self._bodies is not None and self._bodies.references_count:
            part = up_to_large(part)
        count, wire_bytes = len(part), part.wire_bytes
        first = self._next_ordinal
        self._next_ordinal += count
        self._totals.messages_out_count += count
        self._under_way.charge(count, wire_bytes, source)

        def is_out(_taken: bool) -> None:
            if self.is_open:
                self._under_way.release(count, wire_bytes)

        self._write(part, first, 0, source, is_out)
        return count

    def shown_all(self) -> None:
        number = self._hub.take_numbers(1)
        end = self._renderer.notice(number, [("browser", "end")], ordinal=self._next_ordinal)
        self._outbound.send_control(end)
