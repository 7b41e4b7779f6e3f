"""Retained messages on their way to a new subscriber, before all that is sent from then on.

The subscription delivers nothing else meanwhile (`StompSubscription.hold`). MESSAGEs are marked with `retained:true`;
there is nothing to acknowledge: an ACK of one is accepted and does nothing, and the window does not count them. As many
are on their way as the outbound buffer has room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from ...flow import Account, Flow, FlowResource, SourceController, WindowLimiter
from ...queues.browsing import QueueBrowser
from ...queues.environment import QueueEnvironment
from ...queues.retained import Place
from ...queues.selectors import Selection
from ...queues.slices import Slice
from ..outbound import Outbound

SHOW_BYTES: Final = 5 * 1024
"""Memory of a show, beside its list of places."""
PLACE_BYTES: Final = 160


class ShownSubscription(Protocol):
    """Subscription, as far as a show uses it."""

    unsubscribed: bool
    selection: Selection | None

    @property
    def label(self) -> str:
        """Name of the subscription, for people."""

    @property
    def is_paused(self) -> bool:
        """Whether the client wants no deliveries for now."""

    @property
    def outbound(self) -> Outbound:
        """Bytes on their way to the client."""

    def show_retained(self, part: Slice, source: SourceController) -> None:
        """Write retained messages."""

    def shown_retained(self) -> None:
        """Deliver the rest: all retained messages are on their way."""


class RetainedShow:
    """Shows the retained messages to one subscription. Satisfies `Viewer` of queues."""

    def __init__(
        self,
        subscription: ShownSubscription,
        resource: FlowResource,
        places: list[Place],
        environment: QueueEnvironment,
    ) -> None:
        """Begins with the next dispatch; calls `subscription.shown_retained` when all are shown. `resource`: the
        subscription as a resource, which keeps the memory and waits while it is paused.
        """
        self._subscription = subscription
        self._resource = resource
        self._kept_bytes = SHOW_BYTES + PLACE_BYTES * len(places)
        resource.keep(self._kept_bytes)
        self._pause: Account | None = None
        self._clock = environment.clock
        self._browser = QueueBrowser(
            "retained messages", (), self, environment, subscription.selection, places=_in_order(places)
        )

    @property
    def label(self) -> str:
        return self._subscription.label

    def close(self) -> None:
        """Show no more. A second call does nothing."""
        self._browser.close()
        self.resume()
        self._resource.keep(-self._kept_bytes)
        self._kept_bytes = 0

    def resume(self) -> None:
        """Continue: the client has ended its pause."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.release(1, 0)
            pause.close()

    def credit(self) -> tuple[int, int]:
        subscription = self._subscription
        if subscription.is_paused or subscription.unsubscribed or subscription.outbound.controller.limiter.throttled:
            return 0, 0
        return 1 << 30, subscription.outbound.room_bytes()

    def await_credit(self, source: SourceController) -> None:
        subscription = self._subscription
        outbound = subscription.outbound.controller
        if outbound.limiter.throttled and not subscription.is_paused:
            outbound.wait_in_line(source)
            return
        if self._pause is None:
            limiter = WindowLimiter(1, None, clock=self._clock)
            flow = Flow(f"retained messages of {self._resource.name}")
            self._pause = Account(self._resource, flow, limiter, clock=self._clock, counts_memory=False)
            self._pause.charge(1, 0, None)
        self._pause.wait_in_line(source)

    def show(self, part: Slice, source: SourceController) -> int:
        self._subscription.show_retained(part, source)
        return len(part)

    def shown_all(self) -> None:
        self._subscription.shown_retained()


def _in_order(places: Iterable[Place]) -> Iterator[Place]:
    return (place for place in places if not place[0].closed)
