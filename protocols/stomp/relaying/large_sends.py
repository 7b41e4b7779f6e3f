"""Large SENDs of one client, whose bodies go on in pieces as they arrive: to one home, and as copies of topics."""

from __future__ import annotations

from ..errors import ProtocolError
from ..frames import LargeSendEnd, LargeSendPiece, LargeSendStart
from ..replies import Owed
from .answers import Answers
from .copying import Copying
from .far import Far
from .flows import Away, Flows
from .near import NearSession
from .refusals import no_owner, not_retained
from .routes import HERE, Legs, Routes
from .transactions import FarTransactions


class LargeSends:
    """The large SEND of one client that is under way."""

    def __init__(
        self,
        near: NearSession,
        routes: Routes,
        flows: Flows,
        copying: Copying,
        answers: Answers,
        transactions: FarTransactions,
    ) -> None:
        self._near = near
        self._routes = routes
        self._flows = flows
        self._copying = copying
        self._answers = answers
        self._transactions = transactions
        self._fars: dict[Far, bool] = {}
        """Flows over which the body goes, and whether the hub confirms it."""
        self._is_here = True
        """Whether the body goes to this hub."""

    def begin(self, start: LargeSendStart) -> None:
        """Send the head. Raises ProtocolError."""
        head, receipt = start.head, start.receipt
        if head.retain is not None:
            raise not_retained(head)
        legs, copied = self._legs_of(start)
        if legs is None and not copied:
            self._is_here = True
            self._near.take(start)
            return
        own = self._near.with_global_reply_to(head, None if receipt is None else [receipt])
        confirming = ((HERE, head.destination),) if legs is None else legs
        large = self._open(confirming, copied, head.destination)
        owed = None if receipt is None or len(confirming) < 2 else Owed([receipt], len(confirming))
        for far, names, confirms in large:
            leg = own if len(confirming) + len(copied) < 2 else own.with_headers({"destination": names})
            asked = receipt if owed is None else self._answers.leg(owed, names)
            far.begin_large(leg, asked if confirms else None)
            if not confirms:
                self._copying.copied(far.hub, 1, head.content_length)
        self._fars = {far: confirms for far, _names, confirms in large}
        self._is_here = False
        for hub, names in confirming:
            if hub == HERE:
                self._is_here = True
                leg = head if "," not in head.destination else head.with_headers({"destination": names})
                self._near.take(LargeSendStart(leg, receipt if owed is None else self._answers.leg(owed, names)))
        if not confirming:
            self._near.replies.receipt(receipt)

    def go_on(self, event: LargeSendPiece | LargeSendEnd) -> None:
        """Send a piece of the body, or its end. Raises ProtocolError."""
        is_end = isinstance(event, LargeSendEnd)
        for far in self._fars:
            if isinstance(event, LargeSendPiece):
                far.send(event.data)
            else:
                far.end_large()
        if self._is_here:
            self._near.take(event)
        if is_end:
            self._fars, self._is_here = {}, True

    def lost(self, far: Far) -> bool:
        """Note that a flow is lost. Returns whether a body was under way over it that its hub was to confirm."""
        return self._fars.pop(far, False)

    def close(self) -> None:
        """Send nothing more: the connection is gone."""
        self._fars = {}

    def _legs_of(self, start: LargeSendStart) -> tuple[Legs | None, Legs]:
        head = start.head
        homes = self._routes.homes(head.destination)
        if homes is not None and len(homes) > 1:
            raise ProtocolError(
                "spans-hubs",
                f"{head.destination} lies on several hubs: a large body goes to one",
                "Send it to each.",
            )
        legs, copied = self._routes.of(head.destination)
        if head.transaction is None:
            return legs, copied
        if copied or (legs is not None and len(legs) > 1):
            raise ProtocolError(
                "not-supported",
                f"a large body to {head.destination} in a transaction: subscribers at several hubs are to get it",
                "Send it without a transaction.",
            )
        hub = self._transactions.bind(head.transaction, HERE if homes is None else homes[0][0])
        return (None if hub == HERE else ((hub, head.destination),)), ()

    def _open(self, confirming: Legs, copied: Legs, destination: str) -> list[tuple[Far, str, bool]]:
        """Return the flows over which a body goes, its destinations there, and whether the hub confirms it."""
        try:
            large = [(self._flows.to(hub), names, True) for hub, names in confirming if hub != HERE]
        except Away:
            raise no_owner(destination) from None
        for hub, names in copied:
            try:
                large.append((self._flows.to(hub), names, False))
            except Away:
                self._copying.missed(hub, names, 1)
        return large
