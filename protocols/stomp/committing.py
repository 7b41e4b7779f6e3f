"""BEGIN, COMMIT and ABORT of one connection.

COMMIT does everything at once. It waits, like a SEND, while a destination of it blocks, unless its own ACKs make room
there: then waiting could lock the connection up. Checklist b45-b47.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from protocols.stomp.errors import ProtocolError
from protocols.stomp.frames import Frame, SendRun
from protocols.stomp.hub import Hub
from protocols.stomp.replies import Replies
from protocols.stomp.sending import Sender
from protocols.stomp.subscribing import Subscriptions
from protocols.stomp.transactions import Commit, RoutedRun, Transaction, Transactions, settle_acks, undo_acks


class Committer:
    """Carries transactions out, or undoes them."""

    __slots__ = ("_fail", "_hub", "_replies", "_sender", "_subscriptions", "_transactions", "_waiting", "_wake")

    def __init__(
        self,
        hub: Hub,
        transactions: Transactions,
        sender: Sender,
        subscriptions: Subscriptions,
        replies: Replies,
        *,
        fail: Callable[[ProtocolError], None],
        wake: Callable[[], None],
    ) -> None:
        """`fail`: end the connection with this error; `wake`: something that was parked may go on, look soon."""
        self._hub = hub
        self._transactions = transactions
        self._sender = sender
        self._subscriptions = subscriptions
        self._replies = replies
        self._fail = fail
        self._wake = wake
        self._waiting: deque[Commit] = deque()

    def close(self) -> None:
        """The connection is gone: undo what is open (b46). A COMMIT that waits was complete and came before the end, so
        it is carried out (b50).
        """
        self.abort_all()
        while self._waiting:
            try:
                self._carry_out(self._waiting.popleft())
            except ProtocolError:
                # Nobody is left to be told. Nothing of it was done: its deliveries go back with the others.
                continue

    def abort_all(self) -> None:
        """Undo what is open."""
        for transaction in self._transactions.end_all():
            undo_acks(transaction)
            self._transactions.forget_bytes(transaction)

    @property
    def is_waiting(self) -> bool:
        """A COMMIT waits for its destinations."""
        return bool(self._waiting)

    def begin(self, frame: Frame) -> None:
        self._transactions.begin(frame.headers["transaction"])
        self._replies.receipt(frame.headers.get("receipt"))

    def send(self, run: SendRun) -> None:
        assert run.head.transaction is not None
        try:
            self._transactions.add_sends(run.head.transaction, run)
        except ProtocolError as error:
            error.identify("SEND", {"destination": run.head.destination, "transaction": run.head.transaction})
            if run.receipts:
                error.receipt_id = run.receipts[0]
            raise
        self._replies.receipts(run.receipts)

    def abort(self, frame: Frame) -> None:
        transaction = self._transactions.end(frame.headers["transaction"])
        undo_acks(transaction)
        self._transactions.forget_bytes(transaction)
        self._subscriptions.forget_settled()
        self._replies.receipt(frame.headers.get("receipt"))

    def commit(self, frame: Frame) -> None:
        transaction = self._transactions.end(frame.headers["transaction"])
        self._transactions.forget_bytes(transaction)
        commit = Commit(transaction, frame.headers.get("receipt"), self._routed(transaction, frame))
        waits_for = commit.waits_for()
        if not waits_for:
            self._carry_out(commit)
            return
        for other in self._waiting:
            waits_for |= other.waits_for()
        self._waiting.append(commit)
        if waits_for.isdisjoint(transaction.freed_queues()):
            error = self._sender.overfull(transaction.size_bytes)
            if error is not None:
                self._waiting.pop()
                raise error
            commit.barrier = self._sender.lanes.hold(commit.runs, transaction.size_bytes)
            return
        # It makes room where it, or a COMMIT before it, waits: if it waited too, the connection could lock itself up.
        while self._waiting:
            self._carry_out_first()

    def _carry_out_first(self) -> None:
        """The first of those that wait. Raises ProtocolError, about that COMMIT; those behind it wait on."""
        commit = self._waiting.popleft()
        try:
            self._carry_out(commit)
        except ProtocolError as error:
            error.identify("COMMIT", commit.headers())
            raise

    def _routed(self, transaction: Transaction, frame: Frame) -> list[RoutedRun]:
        """Where its SENDs go. Raises ProtocolError, about the COMMIT, for a destination that can't be."""
        routed: list[RoutedRun] = []
        for run in transaction.sends:
            try:
                # Without its receipts: those went out when the SENDs came.
                route = self._sender.route(attrs.evolve(run, receipts=None))
            except ProtocolError as error:
                error.command = None
                error.identify(frame.command, frame.headers)
                raise
            if route is not None:
                routed.extend((run, forwarded, lane) for forwarded, lane in route.targets)
        return routed

    def commit_waiting(self) -> bool:
        """Carry out the COMMITs that waited and need not any more, in order. True: there was one, and something may
        have waited behind it.
        """
        carried_out = False
        while self._waiting and not self._waiting[0].waits_for():
            carried_out = True
            try:
                self._carry_out_first()
            except ProtocolError as error:
                self._fail(error)
        return carried_out

    def _carry_out(self, commit: Commit) -> None:
        """Everything of a transaction at once: settlements first, they make room; then the SENDs. Where these must wait
        all the same they are parked. Raises ProtocolError, nothing done, if a queue refuses or too much would be
        parked."""
        barrier = commit.barrier
        try:
            commit.check_room()
            waits_for = commit.waits_for()
            if waits_for and barrier is None:
                error = self._sender.overfull(commit.transaction.size_bytes)
                if error is not None:
                    raise error
            settle_acks(commit.transaction)
            for lane, runs in commit.runs.items():
                must_wait = lane.queue in waits_for
                for run, forwarded in runs:
                    messages, size_bytes = self._sender.messages(run, forwarded)
                    if lane.queue.closed:
                        self._hub.registry.unheard_count += len(messages)
                        continue
                    must_wait = must_wait or not self._sender.publish(lane, messages, size_bytes, None)
                    if must_wait:
                        self._sender.lanes.park(lane, messages, size_bytes, None, before=barrier)
            shelves = commit.shelves()
            if self._hub.store is not None:
                self._hub.store.bind(shelves)
        finally:
            if barrier is not None:
                commit.barrier = None
                self._sender.lanes.let_go(barrier)
                self._wake()
        if commit.receipt_id is not None:
            self._replies.receipt_after(commit.receipt_id, shelves)
        self._subscriptions.forget_settled()
