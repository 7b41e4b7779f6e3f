"""BEGIN, COMMIT and ABORT of one connection.

COMMIT does everything at once: with a store what it settles and its persistent SENDs are one batch, so they go into
their queues together, the last ones over the limit. It waits, like a SEND, while a destination of it blocks, unless its
own ACKs make room there: then waiting could lock the connection up. With a store it is spooled then, which never waits;
without one it parks what has no room. Transactions that are larger than memory are spooled from the start. Checklist
b45-b47.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from protocols.reading import Hold
from protocols.stomp.errors import ProtocolError
from protocols.stomp.frames import Frame, SendRun
from protocols.stomp.head import SendHead
from protocols.stomp.hub import Hub
from protocols.stomp.lanes import Lane
from protocols.stomp.limits import StompLimits
from protocols.stomp.replies import Replies
from protocols.stomp.sending import Sender
from protocols.stomp.spooled_commits import SpooledCommits
from protocols.stomp.spooling import Spooler
from protocols.stomp.spools import Spool
from protocols.stomp.subscribing import Subscriptions
from protocols.stomp.transactions import (
    Commit,
    RoutedRun,
    Transaction,
    Transactions,
    charge_of,
    settle_acks,
    undo_acks,
)
from queues import MESSAGE_OVERHEAD_BYTES, Message
from queues.gate import Run


class Committer:
    """Carries transactions out, or undoes them."""

    __slots__ = (
        "_fail",
        "_hub",
        "_limits",
        "_replies",
        "_sender",
        "_spooled",
        "_spooler",
        "_subscriptions",
        "_transactions",
        "_waiting",
        "_wake",
    )

    def __init__(
        self,
        hub: Hub,
        transactions: Transactions,
        sender: Sender,
        subscriptions: Subscriptions,
        replies: Replies,
        *,
        limits: StompLimits,
        fail: Callable[[ProtocolError], None],
        wake: Callable[[], None],
        hold: Hold,
    ) -> None:
        """`fail`: end the connection with this error; `wake`: something that was parked may go on, look soon;
        `hold`: the connection is not read, too much of open transactions waits for the disk.
        """
        self._hub = hub
        self._limits = limits
        self._transactions = transactions
        self._sender = sender
        self._subscriptions = subscriptions
        self._replies = replies
        self._fail = fail
        self._wake = wake
        self._waiting: deque[Commit] = deque()
        self._spooler = Spooler(hub, limits, transactions, sender, fail=fail, hold=hold)
        self._spooled = SpooledCommits(hub, sender.lanes, replies, wake=wake)

    def close(self) -> None:
        """The connection is gone: undo what is open (b46). A COMMIT that waits was complete and came before the end, so
        it is carried out (b50).
        """
        self.abort_all()
        self._spooler.close()
        while self._waiting:
            try:
                self._carry_out(self._waiting.popleft())
            except ProtocolError:
                # Nobody is left to be told. Nothing of it was done: its deliveries go back with the others.
                continue

    def abort_all(self) -> None:
        """Undo what is open."""
        for transaction in self._transactions.end_all():
            self._undo(transaction)

    def _undo(self, transaction: Transaction) -> None:
        undo_acks(transaction)
        self._transactions.forget_bytes(transaction)
        if transaction.spool is not None:
            self._spooler.abort(transaction.spool)

    @property
    def is_waiting(self) -> bool:
        """A COMMIT waits for its destinations."""
        return bool(self._waiting)

    @property
    def is_moving(self) -> bool:
        """SENDs of spooled transactions are on their way to their queues."""
        return self._spooled.is_moving

    def move_on(self) -> None:
        """See which of them may go on."""
        if self._spooled.is_moving:
            self._spooled.move_on()

    @property
    def must_wait(self) -> bool:
        """Nothing more should be read now: too much of open transactions waits for the disk."""
        return self._spooler.must_wait

    @property
    def waits_for_room(self) -> bool:
        """The disk is nearly full or fails, and that is why."""
        return self._spooler.waits_for_room

    def begin(self, frame: Frame) -> None:
        self._transactions.begin(frame.headers["transaction"])
        self._replies.receipt(frame.headers.get("receipt"))

    def send(self, run: SendRun) -> None:
        assert run.head.transaction is not None
        self._sender.check_for_transaction(run)
        try:
            transaction = self._transactions.add_sends(run.head.transaction, run)
            if transaction.spool is not None or self._transactions.is_over:
                self._spooler.relieve()
                self._check_overfull(run)
        except ProtocolError as error:
            error.identify("SEND", {"destination": run.head.destination, "transaction": run.head.transaction})
            if run.receipts and error.receipt_id is None:
                error.receipt_id = run.receipts[0]
            raise
        self._replies.receipts(run.receipts)

    def _check_overfull(self, run: SendRun) -> None:
        """While the disk is nearly full a connection that holds deliveries is read on, for its ACKs. Raises
        ProtocolError if so much came without them that it may wait for itself for ever.
        """
        limits = self._limits
        over_bytes = self._transactions.used_bytes - charge_of(run) - limits.transaction_bytes_max
        if over_bytes <= limits.stash_overfull_bytes_max or not self._spooler.waits_for_room:
            return
        held_count = self._subscriptions.unsettled_count
        if held_count:
            raise ProtocolError(
                "too-much-waits",
                f"more than {limits.stash_overfull_bytes_max} bytes of transactions wait for the disk",
                f"It is nearly full, or fails. The connection holds {held_count} unacknowledged messages, so it was "
                "read on for ACKs. Acknowledge faster, or send transactions on a connection of their own.",
            )

    def abort(self, frame: Frame) -> None:
        self._undo(self._transactions.end(frame.headers["transaction"]))
        self._subscriptions.forget_settled()
        self._replies.receipt(frame.headers.get("receipt"))

    def commit(self, frame: Frame) -> None:
        transaction = self._transactions.end(frame.headers["transaction"])
        if transaction.spool is not None:
            self._commit_spooled(transaction, transaction.spool, frame)
            return
        self._transactions.forget_bytes(transaction)
        commit = Commit(transaction, frame.headers.get("receipt"), self._routed(transaction, frame))
        self._get_in_line(commit)
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

    def _get_in_line(self, commit: Commit) -> None:
        """One that must not come apart waits in front of its queues as a whole, like any other source."""
        if not commit.is_kept or self._hub.store is None:
            return
        for lane, runs in commit.runs.items():
            if not lane.must_wait and not lane.queue.closed:
                count = sum([len(run.wires) for run, _forwarded in runs])
                persistent = any(run.head.persistent for run, _forwarded in runs)
                lane.queue.must_wait(count, lane.source, persistent=persistent)

    def _commit_spooled(self, transaction: Transaction, spool: Spool, frame: Frame) -> None:
        try:
            while self._waiting:  # they come before it: on the disk, too, should this run end before they go on
                self._carry_out_first()
        except ProtocolError:
            self._spooler.abort(spool)
            self._transactions.forget_bytes(transaction)
            raise
        try:
            self._spooler.write_out(transaction)
            for run in transaction.requests:
                self._sender.route(attrs.evolve(run, receipts=None))
            self._spooled.carry_out(transaction, spool, frame.headers.get("receipt"))
        except ProtocolError as error:
            self._spooler.abort(spool)
            error.command = None
            error.identify(frame.command, frame.headers)
            raise
        finally:
            self._transactions.forget_bytes(transaction)
        self._subscriptions.forget_settled()

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
        all the same they are parked, or spooled. Raises ProtocolError, nothing done, if a queue refuses or too much
        would be parked."""
        waits_for = commit.waits_for()
        if waits_for and self._hub.spools is not None:
            self._spool_out(commit)
            return
        barrier = commit.barrier
        try:
            commit.check_room()
            if waits_for and barrier is None:
                error = self._sender.overfull(commit.transaction.size_bytes)
                if error is not None:
                    raise error
            settle_acks(commit.transaction)
            together = commit.is_kept and self._hub.store is not None
            for lane, runs in commit.runs.items():
                must_wait = lane.queue in waits_for
                if together and not lane.queue.closed:
                    lane.queue.take_together(self._runs_of(runs), lane.source)
                    continue
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
        self._replies.committed(commit.receipt_id, shelves)
        self._subscriptions.forget_settled()

    def _runs_of(self, sends: list[tuple[SendRun, SendHead]]) -> list[Run]:
        runs: list[Run] = []
        for run, forwarded in sends:
            messages, size_bytes = self._sender.messages(run, forwarded)
            runs.append(Run(messages, size_bytes + MESSAGE_OVERHEAD_BYTES * len(messages)))
        return runs

    def _spool_out(self, commit: Commit) -> None:
        """It can't be carried out now and must not wait: its SENDs go to the disk, and from there to their queues.
        Raises ProtocolError, nothing done.
        """
        barrier = commit.barrier
        try:
            commit.check_room()
            runs: dict[Lane, list[tuple[list[Message], int]]] = {}
            for lane, sends in commit.runs.items():
                if lane.queue.closed:
                    self._hub.registry.unheard_count += sum([len(run.wires) for run, _forwarded in sends])
                else:
                    runs[lane] = [self._sender.messages(run, forwarded) for run, forwarded in sends]
            spool = self._spooler.spool_of(runs)
            try:
                self._spooled.carry_out(commit.transaction, spool, commit.receipt_id, instead_of=barrier)
            except ProtocolError:
                self._spooler.abort(spool)
                raise
        finally:
            if barrier is not None:
                commit.barrier = None
                self._sender.lanes.let_go(barrier)
                self._wake()
        self._subscriptions.forget_settled()
