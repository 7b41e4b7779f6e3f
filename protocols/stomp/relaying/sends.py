"""SENDs of one client: over flows, at this hub, or, without a home, kept here in order until there is one.

What follows a SEND to the same destination waits behind it (*homeless*); so does what is sent to a topic while a
transaction with SENDs to it is carried out at another hub.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from functools import partial

from ....flow.latch import Latch
from ..frames import PassedRun, SendRun
from ..head import SendHead
from ..lanes import ParkedRun
from ..replies import Owed
from .answers import Answers
from .copying import Copying
from .flows import Away, Flows
from .kept import ENTRY_BYTES, Kept, rewritten
from .near import NearSession
from .routes import HERE, Legs, Routes, is_pattern
from .underway import Underway


class Sends:
    """SENDs without a transaction."""

    def __init__(
        self,
        near: NearSession,
        routes: Routes,
        flows: Flows,
        underway: Underway,
        copying: Copying,
        answers: Answers,
        committing: Collection[str],
    ) -> None:
        """`committing`: destinations of transactions that are being carried out, behind which SENDs wait."""
        self._near = near
        self._routes = routes
        self._flows = flows
        self._underway = underway
        self._copying = copying
        self._answers = answers
        self._committing = committing
        self._homeless: deque[Kept] = deque()
        self._homeless_names: set[str] = set()

    @property
    def homeless_count(self) -> int:
        """Runs that have no home now."""
        return len(self._homeless)

    def waits_for(self, hub: str) -> bool:
        """Return whether a SEND that waits may be for a hub."""
        return any(self._routes.goes_to(hub, name) for name in self._homeless_names)

    def send(self, run: SendRun) -> None:
        """Let SENDs go where they belong. Raises ProtocolError."""
        near, head = self._near, run.head
        legs, copied = self._routes.of(head.destination)
        if legs is None and not copied and not self._committing:
            near.take(run)
            return
        if is_pattern(head.destination):
            near.take(run)  # its ERROR is made here
            return
        near.totals.messages_in_count += len(run.wires)
        kept = Kept(near.with_global_reply_to(head, run.receipts), run.wires, run.receipts, 0)
        if kept.head is not head:
            kept.wires = rewritten(run.wires, head, kept.head)
        if self._must_wait(head.destination):
            self._shelter(kept)
            return
        try:
            self._send_on(legs, copied, kept)
        except Away:
            self._shelter(kept)

    def pass_on(self, run: PassedRun) -> None:
        """Send SENDs as they lie, if that can still be. Raises ProtocolError."""
        head = run.head
        if self._routes.may_pass(head) and not self._must_wait(head.destination):
            legs, _copied = self._routes.of(head.destination)
            assert legs is not None, "it may pass"
            try:
                far = self._flows.to(legs[0][0])
            except Away:
                pass
            else:
                self._near.totals.messages_in_count += run.count
                far.send_passed(run)
                return
        self.send(run.cut())

    def send_again(self, runs: Iterable[Kept]) -> None:
        """Have SENDs wait for a home, before those that wait already."""
        waiting = list(self._homeless)
        self._homeless.clear()
        for kept in (*runs, *waiting):
            self._shelter(kept)

    def let_go(self, parked: Iterable[ParkedRun]) -> None:
        """Have SENDs that wait for a destination of this hub look for another home."""
        self.send_again(map(self._kept_of, parked))

    def look(self) -> None:
        """Send what has a home now. Raises ProtocolError."""
        homeless, self._homeless = self._homeless, deque()
        self._homeless_names.clear()
        while homeless:
            kept = homeless.popleft()
            destination = kept.head.destination
            if self._must_wait(destination):
                self._shelter(kept)
                continue
            legs, copied = (self._routes.homes(destination), ()) if kept.is_part else self._routes.of(destination)
            charge_bytes, kept.charge_bytes = kept.charge_bytes, 0
            try:
                self._send_on(legs, copied, kept.marked())
            except Away:
                kept.charge_bytes = charge_bytes
                self._shelter(kept)
            else:
                self._underway.charge(-charge_bytes)

    def close(self) -> None:
        """Forget what waits: the connection is gone."""
        self._homeless.clear()
        self._homeless_names.clear()

    def _must_wait(self, destination: str) -> bool:
        return destination in self._homeless_names or destination in self._committing

    def _shelter(self, kept: Kept) -> None:
        """Keep SENDs that have no home, in order."""
        if not kept.charge_bytes:
            kept.charge_bytes = sum(map(len, kept.wires)) + ENTRY_BYTES
            self._underway.charge(kept.charge_bytes)
        self._homeless.append(kept)
        self._homeless_names.add(kept.head.destination)
        self._flows.watch()

    def _send_on(self, legs: Legs | None, copied: Legs, kept: Kept) -> None:
        """Send what is kept to all hubs that are to have it. Raises Away with nothing sent."""
        if legs is None:
            self._near.take_counted(kept.head, kept.wires, kept.receipts)
        elif legs:
            self._send_to(legs, kept)
        else:
            self._near.replies.receipts(kept.receipts)
        if copied:
            self._copying.send(self._flows, copied, kept, is_begun=legs != ())

    def _send_to(self, legs: Legs, kept: Kept) -> None:
        """Send what is kept over flows. Raises Away with nothing sent."""
        near = self._near
        if len(legs) == 1:
            hub = legs[0][0]
            if hub == HERE:
                near.take_counted(kept.head, kept.wires, kept.receipts)
            else:
                self._flows.to(hub).send_run(kept)
            return
        fars = [None if hub == HERE else self._flows.to(hub) for hub, _name in legs]
        owed = [Owed([receipt_id], len(legs)) for receipt_id in kept.receipts or ()]
        parts = sorted(zip(fars, legs, strict=True), key=lambda part: part[0] is not None)
        for far, (_hub, name) in parts:  # this hub first: what it refuses goes nowhere
            own = kept.head.with_headers({"destination": name})
            wires = rewritten(kept.wires, kept.head, own)
            asked = [self._answers.leg(each, name) for each in owed] if owed else None
            if far is None:
                near.take_counted(own, wires, asked)
                near.flush()
            else:
                far.send_run(Kept(own, wires, asked, 0, kept.in_doubt))

    def _kept_of(self, run: ParkedRun) -> Kept:
        messages = run.messages if run.shared is None else run.shared.rewritten(run.messages)[0]
        head = messages[0].head
        assert isinstance(head, SendHead), "it came in a SEND"
        receipts: list[str] | None = None
        owed = run.owed
        if owed is not None:
            receipts = owed.receipt_ids
            if not owed.is_single:
                done = Latch(len(messages), partial(self._near.replies.leg_done, owed))
                receipts = [self._answers.told_by_hub(done) for _message in messages]
        return Kept(head, [message.wire for message in messages], receipts, 0, is_part=True)
