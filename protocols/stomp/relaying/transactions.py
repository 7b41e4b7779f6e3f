"""Transactions of one client: each belongs to the hub of the first destination that a frame of it names.

It is carried out at the home of its topics; copies of its SENDs for the subscribers of other hubs leave behind the
RECEIPT of its COMMIT, and what the client sends to these topics meanwhile (`committing`) leaves behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from ..errors import ProtocolError
from ..frames import Frame, SendRun
from ..head import SendHead
from .answers import Answers
from .copying import Copying
from .far import Far
from .flows import Away, Flows
from .kept import ENTRY_BYTES, Kept, rewritten
from .near import NearSession
from .refusals import lost_transaction, no_owner
from .routes import HERE, NOWHERE, Routes


@attrs.define(eq=False)
class _Transaction:
    """One open transaction. `hub`: the one to which it belongs; None: no frame of it has named a destination."""

    begin: Frame
    hub: str | None = None
    is_lost: bool = False
    copies: list[Kept] = attrs.field(factory=list)
    """SENDs to topics with subscribers at other hubs."""


class FarTransactions:
    """Open transactions of one client."""

    def __init__(
        self,
        near: NearSession,
        routes: Routes,
        flows: Flows,
        copying: Copying,
        answers: Answers,
        look: Callable[[], None],
    ) -> None:
        """`look`: called when SENDs that waited behind a COMMIT may go."""
        self._near = near
        self._routes = routes
        self._flows = flows
        self._copying = copying
        self._answers = answers
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

    def bind(self, name: str, hub: str) -> str:
        """Make a transaction one of this hub if it is none of another one; returns the hub. Raises ProtocolError."""
        transaction = self._open.get(name)
        if transaction is None:
            return hub  # the ERROR is made there
        if transaction.is_lost:
            raise lost_transaction(name)
        if transaction.hub is None:
            if hub.startswith(NOWHERE):
                raise no_owner(f"transaction {name!r}")
            transaction.hub = hub
            if hub == HERE:
                self._near.take(transaction.begin)
            else:
                try:
                    self._flows.to(hub).send_frame(transaction.begin, self._near.version)
                except Away:
                    transaction.hub = None
                    raise no_owner(f"transaction {name!r}") from None
        elif transaction.hub != hub:
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
        transaction = self._open.pop(name, None)
        if transaction is not None and transaction.copies:
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

    def _keep_copies(self, name: str, head: SendHead, wires: list[bytes]) -> None:
        """Keep SENDs of a transaction, of which copies leave when it is carried out. Raises ProtocolError."""
        transaction = self._open.get(name)
        if transaction is None or self._routes.of(head.destination) == (self._routes.homes(head.destination), ()):
            return
        size_bytes = sum(map(len, wires)) + ENTRY_BYTES
        bytes_max = self._near.limits.transaction_bytes_max
        if self._held_bytes + size_bytes > bytes_max:
            raise ProtocolError(
                "transaction-too-large",
                f"open transactions hold more than {bytes_max} bytes for topics with subscribers at other hubs",
                "COMMIT more often, or raise transaction_bytes_max of the listener.",
            )
        self._held_bytes += size_bytes
        self._copying.charge(size_bytes)
        plain = head.with_headers({"transaction": None})
        transaction.copies.append(Kept(plain, rewritten(wires, head, plain), None, size_bytes))

    def _commit_with_copies(self, transaction: _Transaction, frame: Frame) -> Frame:
        """Return the COMMIT, behind whose RECEIPT copies leave."""
        asked = frame.headers.get("receipt")
        for kept in transaction.copies:
            destination = kept.head.destination
            self.committing[destination] = self.committing.get(destination, 0) + 1
        done = partial(self._committed, transaction, asked)
        is_here = transaction.hub == HERE
        receipt_id = self._answers.told_here(asked, done) if is_here else self._answers.told_by_hub(done)
        return Frame("COMMIT", {**frame.headers, "receipt": receipt_id})

    def _committed(self, transaction: _Transaction, asked: str | None) -> None:
        """Send the copies of a transaction that was carried out at its hub."""
        if self._is_closed:
            return
        for kept in transaction.copies:
            destination = kept.head.destination
            self.committing[destination] -= 1
            if not self.committing[destination]:
                del self.committing[destination]
            legs, copied = self._routes.of(destination)
            for hub, _names in ((HERE, destination),) if legs is None else legs:
                if hub == HERE != transaction.hub:
                    self._near.take_counted(kept.head, kept.wires, None)
            others = tuple(leg for leg in copied if leg[0] != transaction.hub)
            self._copying.send(self._flows, others, kept, is_begun=True)
        self._drop_copies(transaction)
        self._near.replies.receipt(asked)
        self._look()

    def _drop_copies(self, transaction: _Transaction) -> None:
        """Forget the copies of a transaction that has ended."""
        size_bytes = sum(kept.charge_bytes for kept in transaction.copies)
        transaction.copies.clear()
        self._held_bytes -= size_bytes
        self._copying.charge(-size_bytes)
