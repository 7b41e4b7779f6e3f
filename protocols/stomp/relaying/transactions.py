"""Transactions of one client: each belongs to the hub of the first destination that a frame of it names.

It is carried out at the home of its topics; copies of its SENDs for the subscribers of other hubs leave behind the
RECEIPT of its COMMIT, and what the client sends to these topics meanwhile (`committing`) leaves behind them.

What promises nothing over a restart may be in any transaction: requests to the broker, and SENDs to temporary
destinations, such as the answers to requests that the transaction acknowledges. Where these are not at its hub they are
kept aside, and leave behind that RECEIPT, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from ....queues.names import DestinationNameError, parse_composite
from ..errors import ProtocolError
from ..frames import Frame, SendRun
from ..head import SendHead
from ..routing import ADMIN_PREFIX, CREDIT_REQUEST
from .answers import Answers
from .copying import Copying
from .far import Far
from .flows import Away, Flows
from .kept import ENTRY_BYTES, Kept, rewritten
from .near import NearSession
from .refusals import lost_transaction, no_owner
from .routes import HERE, NOWHERE, Legs, Routes


@attrs.define(eq=False)
class _Transaction:
    """One open transaction. `hub`: the one to which it belongs; None: no frame of it has named a destination."""

    begin: Frame
    hub: str | None = None
    generation: int = 0
    """Generation of the placement (`Placement.generation`) when it got its hub."""
    acknowledges: bool = False
    """Whether an ACK made it one of its hub, by the flow of a delivery."""
    is_lost: bool = False
    copies: list[Kept] = attrs.field(factory=list)
    """SENDs to topics with subscribers at other hubs."""
    asides: list[SendRun] = attrs.field(factory=list)
    """SENDs that leave when it is carried out, unless they are for the hub to which it belongs."""

    def destinations(self) -> list[str]:
        """Return the destinations of what leaves behind its COMMIT."""
        return [kept.head.destination for kept in self.copies] + [run.head.destination for run in self.asides]


class FarTransactions:
    """Open transactions of one client."""

    def __init__(
        self,
        near: NearSession,
        routes: Routes,
        flows: Flows,
        copying: Copying,
        answers: Answers,
        is_subscribed_at: Callable[[str], bool],
        send: Callable[[SendRun], None],
        look: Callable[[], None],
    ) -> None:
        """`is_subscribed_at`: whether a hub has a part of a live subscription; `send`: sends what was kept aside,
        wherever it goes, and raises ProtocolError; `look`: called when SENDs that waited behind a COMMIT may go.
        """
        self._send_plain = send
        self._near = near
        self._routes = routes
        self._flows = flows
        self._copying = copying
        self._answers = answers
        self._is_subscribed_at = is_subscribed_at
        self._look = look
        self._open: dict[str, _Transaction] = {}
        self.committing: dict[str, int] = {}
        """Destinations of COMMITs under way whose copies are still here, with the number of SENDs."""
        self._held_bytes = 0
        """Bytes of SENDs of open transactions, for their copies."""
        self._is_closed = False

    def begin(self, frame: Frame) -> None:
        """Take BEGIN. Raises ProtocolError."""
        name = frame.headers["transaction"]
        if name in self._open:
            raise ProtocolError(
                "transaction-exists",
                f"transaction {name!r} is open already",
                "COMMIT or ABORT it first, or choose another name.",
            )
        transactions_max = self._near.limits.transactions_max
        if len(self._open) >= transactions_max:
            raise ProtocolError(
                "too-many-transactions",
                f"more than {transactions_max} open transactions",
                "COMMIT or ABORT some; transactions_max of the listener is the limit.",
            )
        self._near.replies.receipt(frame.headers.get("receipt"))
        self._open[name] = _Transaction(Frame("BEGIN", {"transaction": name}))

    def bind(self, name: str, hub: str, *, acknowledges: bool = False) -> str:
        """Make a transaction one of this hub if it is none of another one; returns the hub. `acknowledges`: it is the
        hub of a delivery, in place of a destination. Raises ProtocolError.
        """
        transaction = self._open.get(name)
        if transaction is None:
            return hub  # the ERROR is made there
        if transaction.is_lost:
            raise lost_transaction(name)
        if transaction.hub is None:
            if hub.startswith(NOWHERE):
                raise no_owner(f"transaction {name!r}")
            transaction.hub, transaction.generation = hub, self._routes.generation
            transaction.acknowledges = acknowledges
            if hub == HERE:
                self._near.take(transaction.begin)
                self._take_asides(name, transaction)
            else:
                try:
                    self._flows.to(hub).send_frame(transaction.begin, self._near.version)
                except Away:
                    transaction.hub = None
                    raise no_owner(f"transaction {name!r}") from None
                self._take_asides(name, transaction)
        elif transaction.hub != hub:
            if hub.startswith(NOWHERE):
                raise no_owner(f"transaction {name!r}")
            if self._may_have_moved(transaction, hub, acknowledges=acknowledges):
                raise lost_transaction(name)  # begun again, it may have one hub
            raise ProtocolError(
                "transaction-spans-shards",
                f"transaction {name!r} would span several hubs",
                "Destinations of one transaction need the same part in braces, such as /queue/{orders}.new and "
                "/queue/{orders}.done, to lie on one shard.",
            )
        return hub

    def send(self, run: SendRun) -> None:
        """Take SENDs of a transaction. Raises ProtocolError."""
        head = run.head
        assert head.transaction is not None, "asked for before"
        legs = self._routes.homes(head.destination)
        try:
            if self._is_aside(head, legs):
                self._keep_aside(self._open[head.transaction], run)
                return
            if legs is not None and len(legs) > 1:
                raise ProtocolError(
                    "transaction-spans-shards",
                    f"{head.destination} lies on several hubs",
                    "Destinations of one transaction need the same part in braces, such as /queue/{orders}.new.",
                )
            hub = self.bind(head.transaction, HERE if legs is None else legs[0][0])
            if hub != HERE:
                own = self._near.with_global_reply_to(head, run.receipts)
                wires = run.wires if own is head else rewritten(run.wires, head, own)
                self._flows.to(hub).send_in_transaction(own, wires, run.receipts, head.transaction)
                self._keep_copies(head.transaction, own, wires)
                return
            self._keep_copies(head.transaction, head, run.wires)
        except Away:
            raise no_owner(head.destination) from None
        except ProtocolError as error:
            error.identify("SEND", {"destination": head.destination, "transaction": head.transaction})
            raise
        self._near.take(run)

    def finish(self, frame: Frame) -> None:
        """Take COMMIT or ABORT. Raises ProtocolError."""
        name = frame.headers["transaction"]
        if name in self._open and self._open[name].asides and frame.command == "COMMIT":
            self._belong_somewhere(name)
        transaction = self._open.pop(name, None)
        if transaction is not None and (transaction.copies or transaction.asides):
            if frame.command == "COMMIT" and not transaction.is_lost:
                frame = self._commit_with_copies(transaction, frame)
            else:
                self._drop_copies(transaction)
        if transaction is None:
            self._near.take(frame)
        elif transaction.is_lost:
            if frame.command == "COMMIT":
                raise lost_transaction(name)
            self._near.replies.receipt(frame.headers.get("receipt"))
        elif transaction.hub is None or transaction.hub == HERE:
            if transaction.hub is None:
                self._near.take(transaction.begin)
            self._near.take(frame)
        else:
            far = self._flows.at(transaction.hub)
            assert far is not None, "else it is lost"
            far.send_frame(frame, self._near.version)

    def lost(self, far: Far) -> None:
        """Give up the transactions of a hub whose flow is lost."""
        for transaction in self._open.values():
            if transaction.hub == far.hub:
                transaction.is_lost = True

    def close(self) -> None:
        """Forget all: the connection is gone."""
        self._is_closed = True
        self._open.clear()

    def _may_have_moved(self, transaction: _Transaction, hub: str, *, acknowledges: bool) -> bool:
        """Return whether the frames that name two hubs may be for one now: a home has changed since the first of them,
        or one acknowledges what a hub has delivered whose shard, and with it the subscription, has gone elsewhere.
        """
        if transaction.generation != self._routes.generation:
            return True
        by_delivery = [transaction.hub] if transaction.acknowledges else []
        if acknowledges:
            by_delivery.append(hub)
        return not all(self._is_subscribed_at(each or HERE) for each in by_delivery)

    def _is_aside(self, head: SendHead, legs: Legs | None) -> bool:
        """Return whether a SEND can be in any transaction, and is not for the hub of this one."""
        transaction = self._open.get(head.transaction or "")
        if transaction is None or transaction.is_lost or transaction.hub == _only_hub(legs):
            return False
        return _promises_nothing(head.destination)

    def _keep_aside(self, transaction: _Transaction, run: SendRun) -> None:
        """Keep SENDs until the transaction is carried out. Raises ProtocolError."""
        self._hold(_size_of(run))
        transaction.asides.append(SendRun(run.head, run.wires, run.size_bytes, None))
        self._near.replies.receipts(run.receipts)

    def _take_asides(self, name: str, transaction: _Transaction) -> None:
        """Make what was kept aside a part of the transaction if it is for its hub. Raises ProtocolError."""
        asides, transaction.asides = transaction.asides, []
        for run in asides:
            if _only_hub(self._routes.homes(run.head.destination)) == transaction.hub:
                self._hold(-_size_of(run))
                self.send(run)
            else:
                transaction.asides.append(run)

    def _belong_somewhere(self, name: str) -> None:
        """Make a transaction that names nothing else one of this hub. Raises ProtocolError."""
        if not self._open[name].is_lost:
            self.bind(name, self._open[name].hub or HERE)

    def _hold(self, size_bytes: int) -> None:
        """Count bytes of open transactions that are kept, or fewer. Raises ProtocolError with nothing counted."""
        bytes_max = self._near.limits.transaction_bytes_max
        if size_bytes > 0 and self._held_bytes + size_bytes > bytes_max:
            raise ProtocolError(
                "transaction-too-large",
                f"open transactions hold more than {bytes_max} bytes for topics and temporary queues of other hubs",
                "COMMIT more often, or raise transaction_bytes_max of the listener.",
            )
        self._held_bytes += size_bytes
        self._copying.charge(size_bytes)

    def _keep_copies(self, name: str, head: SendHead, wires: list[bytes]) -> None:
        """Keep SENDs of a transaction, of which copies leave when it is carried out. Raises ProtocolError."""
        transaction = self._open.get(name)
        if transaction is None or self._routes.of(head.destination) == (self._routes.homes(head.destination), ()):
            return
        size_bytes = sum(map(len, wires)) + ENTRY_BYTES
        self._hold(size_bytes)
        plain = head.with_headers({"transaction": None})
        transaction.copies.append(Kept(plain, rewritten(wires, head, plain), None, size_bytes))

    def _commit_with_copies(self, transaction: _Transaction, frame: Frame) -> Frame:
        """Return the COMMIT, behind whose RECEIPT copies leave."""
        asked = frame.headers.get("receipt")
        for destination in transaction.destinations():
            self.committing[destination] = self.committing.get(destination, 0) + 1
        done = partial(self._committed, transaction, asked)
        is_here = transaction.hub == HERE
        receipt_id = self._answers.told_here(asked, done) if is_here else self._answers.told_by_hub(done)
        return Frame("COMMIT", {**frame.headers, "receipt": receipt_id})

    def _committed(self, transaction: _Transaction, asked: str | None) -> None:
        """Send the copies of a transaction that was carried out at its hub."""
        if self._is_closed:
            return
        for destination in transaction.destinations():
            self.committing[destination] -= 1
            if not self.committing[destination]:
                del self.committing[destination]
        for kept in transaction.copies:
            destination = kept.head.destination
            legs, copied = self._routes.of(destination)
            for hub, _names in ((HERE, destination),) if legs is None else legs:
                if hub == HERE != transaction.hub:
                    self._near.take_counted(kept.head, kept.wires, None)
            others = tuple(leg for leg in copied if leg[0] != transaction.hub)
            self._copying.send(self._flows, others, kept, is_begun=True)
        asides = tuple(transaction.asides)
        self._drop_copies(transaction)
        try:
            for run in asides:
                plain = run.head.with_headers({"transaction": None})
                wires = rewritten(run.wires, run.head, plain)
                self._send_plain(SendRun(plain, wires, sum(map(len, wires)), None))
        except ProtocolError as error:
            self._near.replies.receipt(asked)  # the transaction was carried out
            error.identify("SEND", {"destination": run.head.destination})
            self._near.fail(error)
            return
        self._near.replies.receipt(asked)
        self._look()

    def _drop_copies(self, transaction: _Transaction) -> None:
        """Forget the copies of a transaction that has ended."""
        size_bytes = sum(kept.charge_bytes for kept in transaction.copies) + sum(map(_size_of, transaction.asides))
        transaction.copies.clear()
        transaction.asides.clear()
        self._hold(-size_bytes)


def _size_of(run: SendRun) -> int:
    return sum(map(len, run.wires)) + ENTRY_BYTES


def _only_hub(legs: Legs | None) -> str | None:
    """Return the hub of a destination header; None: it has several."""
    if legs is None:
        return HERE
    return legs[0][0] if len(legs) == 1 else None


def _promises_nothing(destination: str) -> bool:
    """Return whether a SEND is a request to the broker, or to temporary destinations alone."""
    if destination.startswith(ADMIN_PREFIX):
        return destination != CREDIT_REQUEST  # refused, as at one hub
    try:
        return "temp-" in destination and all(address.is_temporary for address in parse_composite(destination))
    except DestinationNameError:
        return False
