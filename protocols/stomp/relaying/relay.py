"""Use of other hubs by one client: each event goes to the part that knows what becomes of it.

The relay owns the flows (`FarOwner`): when one is lost or ends it tells the parts, and when hubs come or destinations
move it has them look for homes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...reading import ReadGate
from ..errors import ProtocolError
from ..escaping import Version
from ..frames import AckRun, Event, Frame, LargeSendEnd, LargeSendPiece, LargeSendStart, PassedRun, SendRun
from ..lanes import ParkedRun
from ..placement import Elsewhere, FlowEnd
from ..routing import CREDIT_REQUEST, about_send
from .acks import FarAcks
from .answers import Answers
from .behind import BehindSends
from .copies import CopyLine
from .copying import Copying
from .far import Far
from .flows import Flows
from .large_sends import LargeSends
from .near import NearSession
from .refusals import in_doubt, lost_place, not_retained
from .routes import Routes
from .sends import Sends
from .subscriptions import FarSubscriptions
from .transactions import FarTransactions
from .underway import Underway


class Relay:
    """Use of other hubs by one client."""

    def __init__(self, near: NearSession, elsewhere: Elsewhere, reading: ReadGate) -> None:
        self._near = near
        self._topics = elsewhere.topics
        self._was_on = self._topics.is_on
        self._leaving: Frame | None = None
        """DISCONNECT of the client, which waits for the other hubs."""
        self._is_closed = False
        routes = self._routes = Routes(elsewhere)
        answers = self._answers = Answers(near)
        flows = self._flows = Flows(near, elsewhere, self, self.look)
        self._subscriptions = FarSubscriptions(near, elsewhere, routes, flows, answers, self._send)
        self._underway = Underway(near, reading, lambda: self._subscriptions.acks or bool(near.unsettled()))
        copying = self._copying = Copying(near, self._topics, self._underway)
        self._transactions = FarTransactions(
            near, routes, flows, copying, answers, self._subscriptions.are_at, self._send, self.look
        )
        self._committing = self._transactions.committing
        self._sends = Sends(near, routes, flows, self._underway, copying, answers, self._committing)
        self._large = LargeSends(near, routes, flows, copying, answers, self._transactions)
        self._acks = FarAcks(near, elsewhere, flows, self._subscriptions, self._transactions)
        self._behind = BehindSends(flows, self._sends)
        self.own_receipt = answers.own_receipt
        """See `FarOwner.own_receipt`."""
        self.charge = self._underway.charge
        """Counts bytes that are on their way, or fewer."""
        self.behind = self._behind.behind
        self.goes_elsewhere = routes.goes_elsewhere
        self.may_pass = routes.may_pass
        self._takes: dict[type[Event], Callable[[Any], None]] = {
            SendRun: self._send,
            PassedRun: self._sends.pass_on,
            AckRun: self._acks.take_run,
            Frame: self._take_frame,
            LargeSendStart: self._large.begin,
            LargeSendPiece: self._large.go_on,
            LargeSendEnd: self._large.go_on,
        }
        self._handlers: dict[str, Callable[[Frame], None]] = {
            "SUBSCRIBE": self._subscriptions.subscribe,
            "UNSUBSCRIBE": self._subscriptions.unsubscribe,
            "ACK": self._acks.take,
            "NACK": self._acks.take,
            "BEGIN": self._transactions.begin,
            "COMMIT": self._transactions.finish,
            "ABORT": self._transactions.finish,
            "DISCONNECT": self._disconnect,
        }

    # ------------------------------------------------------------------ what the client says

    def take(self, event: Event) -> None:
        """Let an event take effect, at its hub. Raises ProtocolError."""
        self._takes.get(type(event), self._near.take)(event)

    def _take_frame(self, frame: Frame) -> None:
        try:
            self._handlers[frame.command](frame)
        except ProtocolError as error:
            error.identify(frame.command, frame.headers)
            raise

    def _send(self, run: SendRun) -> None:
        head = run.head
        if head.retain is not None:
            raise about_send(not_retained(head), run)
        if head.transaction is not None:
            self._transactions.send(run)
        elif head.destination == CREDIT_REQUEST:
            self._subscriptions.set_credit(run)
        else:
            self._sends.send(run)

    @property
    def is_full(self) -> bool:
        """Whether as much is on its way to other hubs as may be."""
        return self._underway.is_full

    @property
    def unconfirmed_count(self) -> int:
        """Runs of SENDs that no hub has done yet."""
        return self._sends.homeless_count + sum(far.kept_count for far in self._flows)

    # ------------------------------------------------------------------ FarOwner

    @property
    def version(self) -> Version:
        """Version that the client speaks."""
        return self._near.version

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Do `FarOwner.at_turn_end`."""
        self._near.hub.at_turn_end(callback)

    def copy_line(self, hub: str, flow: FlowEnd) -> CopyLine:
        """Do `FarOwner.copy_line`."""
        return self._copying.line(hub, flow)

    def control(self, far: Far, data: bytes) -> None:
        """Do `FarOwner.control`."""
        self._answers.take(far, data)

    def lost(self, far: Far) -> None:
        """Take back what a lost flow had to do: SENDs and subscriptions look for another home."""
        self._over(far)
        if self._is_closed:
            return
        kept = far.take_kept()
        if self._large.lost(far):
            self._near.fail(in_doubt("a large SEND was under way"))
            return
        if far.in_doubt:
            self._near.fail(in_doubt(f"{next(iter(far.in_doubt.values()))} was not confirmed"))
            return
        place = self._subscriptions.place_lost(far)
        if place is not None and self._leaving is None:
            self._near.fail(lost_place(place))
            return
        self._transactions.lost(far)
        if self._leaving is None:
            self._subscriptions.lost(far)
        self._sends.send_again(kept)
        self.look()

    def refused(self, far: Far, reason: str) -> None:
        """Fail the connection: another flow to that hub would be refused, too."""
        self._over(far)
        if not self._is_closed:
            self._near.fail(
                ProtocolError(
                    "refused-by-hub",
                    f"hub {far.hub!r} serves no flow for this connection: {reason}",
                    "Run the same version of the software on all hubs. What had no RECEIPT was not done.",
                )
            )

    def ended(self, far: Far) -> None:
        """Note that another hub has ended its session in order."""
        self._over(far)
        self._behind.look()
        if not self._is_closed:
            self._leave_if_done()

    def _over(self, far: Far) -> None:
        self._flows.forget(far)
        self._behind.take_marks(far)

    # ------------------------------------------------------------------ lost and found

    def look(self) -> None:
        """Look for homes: a hub has become reachable, or destinations have moved."""
        if self._is_closed:
            return
        try:
            self._look()
            self._near.flush()
        except ProtocolError as error:
            self._near.fail(error)

    def _look(self) -> None:
        if self._topics.is_on is not self._was_on:
            self._was_on = self._topics.is_on
            self._routes.forget()
            self._subscriptions.change_over()
        self._subscriptions.look()
        self._sends.look()
        self._behind.look()
        if not self._subscriptions.need_look and not self._sends.homeless_count:
            self._flows.unwatch()
        if self._leaving is not None:
            self._disconnect_fars(self._leaving)

    def can_let_go(self, shard: int) -> bool:
        """Return whether all that this client has in a shard of this hub can be made again elsewhere."""
        return self._leaving is None and self._subscriptions.can_let_go(shard)

    def let_go(self, shard: int, parked: Sequence[ParkedRun]) -> None:
        """Have subscriptions to a shard of this hub, and SENDs that wait for it, look for another home: it leaves."""
        self._subscriptions.let_go(shard)
        self._sends.let_go(parked)
        self._flows.watch()

    def review(self) -> None:
        """Forget routes: permissions or homes have changed."""
        self._routes.forget()

    # ------------------------------------------------------------------ end

    def _disconnect(self, frame: Frame) -> None:
        """DISCONNECT takes effect here when all other hubs have done what came before."""
        self._leaving = frame
        self._subscriptions.forget_orphans()
        self._disconnect_fars(frame)

    def _disconnect_fars(self, frame: Frame) -> None:
        if self._committing:
            return  # copies are to leave before
        for far in self._flows:
            far.disconnect(frame.headers.get("receipt"))
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._leaving is None or len(self._flows) or self._sends.homeless_count or self._committing:
            return
        frame, self._leaving = self._leaving, None
        self._near.take(frame)

    def close(self) -> None:
        """End all flows: the connection is gone. What was sent takes effect at the other hubs."""
        if self._is_closed:
            return
        self._is_closed = True
        for far in self._flows:
            self._behind.take_marks(far)
        self._flows.close()
        self._sends.close()
        self._behind.look()
        self._subscriptions.close()
        self._transactions.close()
        self._answers.close()
        self._large.close()
        self._underway.close()
        self._copying.close()
