"""Open transactions of one connection: SENDs that no queue has seen yet, and ACKs and NACKs that are held in their ledgers.

Nothing takes effect before COMMIT, then everything does in one step, in the order it came. ABORT, DISCONNECT and a lost connection undo all of it (b46): the
SENDs are dropped, the deliveries are unsettled again. A message acknowledged in a transaction opens the window at once, so that a transaction can be
larger than the prefetch; an abort takes that credit back.

Bounds: `transactions_max`, `transaction_bytes_max` over all open ones, the window for what is held.
"""

from __future__ import annotations

from protocols.stomp.delivery import StompSubscription
from protocols.stomp.errors import ProtocolError
from protocols.stomp.frames import SendRun
from protocols.stomp.ledger import Portion
from protocols.stomp.limits import StompLimits
from queues import MessageQueue


class Transaction:
    """One open transaction."""

    __slots__ = ("acks", "name", "sends", "size_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sends: list[SendRun] = []
        self.acks: list[tuple[StompSubscription, Portion, bool]] = []
        self.size_bytes = 0

    def freed_queues(self) -> set[MessageQueue]:
        """Where its ACKs make room."""
        return {portion.subscription.queue for _subscription, portion, nack in self.acks if not nack}


class Transactions:
    """The open transactions of one connection, by name."""

    __slots__ = ("_limits", "_open", "size_bytes")

    def __init__(self, limits: StompLimits) -> None:
        self._limits = limits
        self._open: dict[str, Transaction] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, name: str) -> None:
        """Open one. Raises ProtocolError for a name in use (b47) or too many."""
        if name in self._open:
            raise ProtocolError(
                "transaction-exists",
                f"transaction {name!r} is open already",
                "COMMIT or ABORT it first, or choose another name.",
            )
        if len(self._open) >= self._limits.transactions_max:
            raise ProtocolError(
                "too-many-transactions",
                f"more than {self._limits.transactions_max} open transactions",
                "COMMIT or ABORT some; transactions_max of the listener is the limit.",
            )
        self._open[name] = Transaction(name)

    def get(self, name: str) -> Transaction:
        """The open transaction of this name. Raises ProtocolError."""
        transaction = self._open.get(name)
        if transaction is None:
            raise ProtocolError(
                "unknown-transaction",
                f"transaction {name!r} is not open",
                "BEGIN it first; a transaction ends with COMMIT, ABORT or its connection.",
            )
        return transaction

    def add_sends(self, name: str, run: SendRun) -> None:
        """Keep these until COMMIT. Raises ProtocolError when all open transactions together would hold too much."""
        transaction = self.get(name)
        if self.size_bytes + run.size_bytes > self._limits.transaction_bytes_max:
            raise ProtocolError(
                "transaction-too-large",
                f"open transactions hold more than {self._limits.transaction_bytes_max} bytes",
                "COMMIT more often, or raise transaction_bytes_max of the listener.",
            )
        transaction.sends.append(run)
        transaction.size_bytes += run.size_bytes
        self.size_bytes += run.size_bytes

    def add_acks(self, name: str, subscription: StompSubscription, portions: list[Portion], *, nack: bool) -> None:
        """Keep these until COMMIT; their deliveries are held in the ledger already."""
        transaction = self.get(name)
        transaction.acks.extend((subscription, portion, nack) for portion in portions)
        for portion in portions:
            subscription.refill(len(portion.sequences), portion.wire_bytes)

    def end(self, name: str) -> Transaction:
        """Take it out, to be carried out or undone. Raises ProtocolError if it is not open."""
        transaction = self.get(name)
        del self._open[name]
        return transaction

    def forget_bytes(self, transaction: Transaction) -> None:
        """Its SENDs are published or dropped."""
        self.size_bytes -= transaction.size_bytes

    def end_all(self) -> list[Transaction]:
        """Take all out (the connection ends)."""
        left = list(self._open.values())
        self._open.clear()
        return left


def settle_acks(transaction: Transaction) -> None:
    """COMMIT: what was acknowledged is settled, what was refused goes back."""
    for subscription, portion, nack in transaction.acks:
        assert subscription.ledger is not None
        subscription.ledger.finish_held(portion)
        if nack:
            portion.subscription.give_back(portion.sequences, attempted=True)
        else:
            portion.subscription.settle(portion.sequences, portion.wire_bytes)


def undo_acks(transaction: Transaction) -> None:
    """ABORT: the deliveries are unsettled again, and count against the window."""
    for subscription, portion, _nack in transaction.acks:
        assert subscription.ledger is not None
        subscription.ledger.release_held(portion)
        subscription.take_back_credit(len(portion.sequences), portion.wire_bytes)
