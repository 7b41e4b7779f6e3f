"""BEGIN, COMMIT and ABORT of one connection.

COMMIT does everything together: with a store what it settles and its persistent SENDs are one batch, so they go into
their queues whole, the last ones over the limit. It waits, like a SEND, while a destination of it blocks, unless its
own ACKs make room there: then waiting could lock the connection up. With a store it is spooled then, which never waits;
without one it parks what has no room. Transactions that are larger than memory are spooled from the start.

*In steps.* A large one (AT_ONCE_COUNT) takes effect in steps of the connection's line of work, and what the connection
sent behind it waits. Its routes are found and everything is checked first: up to there an ERROR says that nothing was
done. From the first thing that it settles or sends on nothing stops it: not the end of its connection, which comes
behind it in the line, nor a queue that fills up, is purged or paused. What was to go to a destination that is deleted
meanwhile is dropped, and what was acknowledged there is done, as if that had come right after the COMMIT. Others may
see what is done before the rest is; each queue gets its messages in order, and settlements come first. Nothing of it
is written before its last step, then all of it is in one batch (`queues.storage.Joint`), and the RECEIPT behind that.

Checklist b45-b47.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

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
    AT_ONCE_COUNT,
    Commit,
    Transaction,
    Transactions,
    charge_of,
    dropping,
    join,
    parts_of,
    settling,
    steps_for,
    undoing,
)
from queues import MESSAGE_OVERHEAD_BYTES
from queues.gate import Run
from queues.steps import Waiting
from queues.storage import Joint

ROUTES_PER_STEP: Final = 4
"""Of those that are known."""

LANES_PER_STEP: Final = 8


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
        "_under_way_count",
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
        self._under_way_count = 0
        """What is done in steps now."""
        self._spooler = Spooler(hub, limits, transactions, sender, resume=self._relieve_later, hold=hold)
        self._spooled = SpooledCommits(hub, sender.lanes, replies, wake=wake)

    def closing(self) -> Iterator[object]:
        """The connection is gone: undo what is open (b46), in steps. A COMMIT that waits was complete and came before
        the end, so it is carried out (b50).
        """
        yield from self._undoing_all()
        self._spooler.close()
        while self._waiting:
            # If it is refused nobody is left to be told. Nothing of it was done: its deliveries go back with others.
            yield from self._told("COMMIT", {}, self._carrying_out_first())

    def abort_all(self) -> None:
        """Undo what is open."""
        self._subscriptions.work.do(self._undoing_all())

    def _undoing_all(self) -> Iterator[None]:
        for transaction in self._transactions.end_all():
            yield from self._undoing(transaction)

    def _undoing(self, transaction: Transaction) -> Iterator[None]:
        yield from undoing(transaction)
        self._transactions.forget_bytes(transaction)
        if transaction.spool is not None:
            yield from self._spooler.aborting(transaction.spool)

    def _told(self, command: str, headers: Mapping[str, str], work: Iterator[object]) -> Iterator[object]:
        """Work in steps for this frame; what is wrong with it ends the connection."""
        lanes = self._sender.lanes
        lanes.in_use_count += 1
        self._under_way_count += 1
        try:
            yield from work
        except ProtocolError as error:
            error.identify(command, headers)
            self._fail(error)
        finally:
            lanes.in_use_count -= 1
            self._under_way_count -= 1

    def _do(self, frame: Frame, work: Iterator[object]) -> None:
        self._subscriptions.work.do(self._told(frame.command, frame.headers, work))

    @property
    def is_waiting(self) -> bool:
        """A COMMIT waits for its destinations, or is being carried out."""
        return bool(self._waiting or self._under_way_count)

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
        try:
            self._sender.check_for_transaction(run)
            transaction = self._transactions.add_sends(run.head.transaction, run)
        except ProtocolError as error:
            raise _about(run, error) from None
        if transaction.spool is not None or self._transactions.is_over:
            self._subscriptions.work.do(self._told("SEND", {}, self._relieving(run)))
        self._replies.receipts(run.receipts)

    def _relieve_later(self) -> None:
        """The disk takes more."""
        self._subscriptions.work.do_later(self._told("SEND", {}, self._spooler.relieving()))

    def _relieving(self, run: SendRun) -> Iterator[None]:
        """Take out of memory what is too much since these came."""
        try:
            yield from self._spooler.relieving()
            self._check_overfull(run)
        except ProtocolError as error:
            raise _about(run, error) from None

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
        self._do(frame, self._aborting(self._transactions.end(frame.headers["transaction"]), frame))

    def _aborting(self, transaction: Transaction, frame: Frame) -> Iterator[None]:
        yield from self._undoing(transaction)
        self._subscriptions.forget_settled()
        self._replies.receipt(frame.headers.get("receipt"))

    # ------------------------------------------------------------------ COMMIT

    def commit(self, frame: Frame) -> None:
        transaction = self._transactions.end(frame.headers["transaction"])
        if transaction.spool is None:
            self._do(frame, self._committing(transaction, frame))
        else:
            self._do(frame, self._committing_spooled(transaction, transaction.spool, frame))

    def _committing(self, transaction: Transaction, frame: Frame) -> Iterator[object]:
        commit = Commit(transaction, frame.headers.get("receipt"))
        try:
            yield from self._routing(commit)
        except ProtocolError as error:
            self._transactions.forget_bytes(transaction)
            error.command = None
            error.identify(frame.command, frame.headers)
            yield from dropping(commit.routed)
            yield from dropping(transaction.sends)
            raise
        if commit.is_kept and self._hub.store is not None:
            yield from self._getting_in_line(commit)
        yield from commit.looking()
        waits_for = commit.waits_for()
        if not waits_for:
            yield from self._carrying_out(commit)
            return
        for other in self._waiting:
            waits_for |= other.waits_for()
        self._waiting.append(commit)
        if waits_for.isdisjoint(transaction.freed_queues()):
            self._transactions.forget_bytes(transaction)
            overfull = self._sender.overfull(transaction.size_bytes)
            if overfull is not None:
                self._waiting.pop()
                raise overfull
            commit.barrier = self._sender.lanes.hold(commit.lanes, transaction.size_bytes)
            return
        # It makes room where it, or a COMMIT before it, waits: if it waited too, the connection could lock itself up.
        while self._waiting:
            yield from self._carrying_out_first()

    def _routing(self, commit: Commit) -> Iterator[None]:
        """Find where its SENDs go. Raises ProtocolError for a destination that can't be."""
        sends, lanes = commit.transaction.sends, self._sender.lanes
        place = 0
        while sends:
            run = sends.popleft()
            # Without its receipts: those went out when the SENDs came.
            route = lanes.route(run.head) or (yield from self._sender.finding_route(attrs.evolve(run, receipts=None)))
            if route is not None:
                commit.add(run, route)
            place += 1
            if place % ROUTES_PER_STEP == 0:
                yield

    @staticmethod
    def _getting_in_line(commit: Commit) -> Iterator[None]:
        """One that must not come apart waits in front of its queues as a whole, like any other source."""
        for place, (lane, share) in enumerate(commit.lanes.items(), 1):
            if not lane.must_wait and not lane.queue.closed:
                lane.queue.must_wait(share.count, lane.source, persistent=share.persistent)
            if place % LANES_PER_STEP == 0:
                yield

    def _carrying_out_first(self) -> Iterator[object]:
        """The first of those that wait. Raises ProtocolError, about that COMMIT; those behind it wait on."""
        commit = self._waiting.popleft()
        try:
            yield from self._carrying_out(commit)
        except ProtocolError as error:
            error.identify("COMMIT", commit.headers())
            raise

    def commit_waiting(self) -> bool:
        """Carry out the COMMITs that waited and need not any more, in order. True: there was one, and something may
        have waited behind it.
        """
        carried_out = False
        work = self._subscriptions.work  # when it has done what it was given before, its connection looks here again
        while self._waiting and not work.is_busy and not self._waiting[0].waits_for():
            carried_out = True
            work.do_later(self._told("COMMIT", {}, self._carrying_out_first()))
        return carried_out

    def _carrying_out(self, commit: Commit) -> Iterator[object]:
        """Everything of a transaction: settlements first, they make room; then the SENDs. Where these must wait all the
        same they are parked, or spooled. Raises ProtocolError, nothing done, if a queue refuses or too much would be
        parked.
        """
        yield from commit.looking()
        waits_for = commit.waits_for()
        if waits_for and self._hub.spools is not None:
            yield from self._spooling_out(commit)
            return
        joint: Joint | None = None
        try:
            yield from commit.checking_room()
            if waits_for and commit.barrier is None:
                overfull = self._sender.overfull(commit.transaction.size_bytes)
                if overfull is not None:
                    raise overfull
            in_steps = commit.steps_count > AT_ONCE_COUNT
            if not in_steps:
                self._pay(commit, commit.transaction.size_bytes)
            elif self._hub.store is not None and (commit.is_kept or commit.transaction.acks):
                joint = self._hub.store.join()
                if joint.waits:
                    yield Waiting(joint.begin)
            for _step in self._taking_effect(commit, joint, in_steps=in_steps):
                if joint is not None and joint.is_broken:
                    return  # and the connection ends, with all that this was about
                if in_steps:
                    yield None
            if joint is not None:
                yield from self._answering(commit.receipt_id, joint)
            else:
                shelves = commit.shelves()
                if self._hub.store is not None:
                    self._hub.store.bind(shelves)
                self._replies.committed(commit.receipt_id, shelves)
        except ProtocolError:
            yield from dropping(commit.routed)
            raise
        finally:
            if joint is not None:
                joint.end()
            self._is_over(commit)
        self._subscriptions.forget_settled()

    def _taking_effect(self, commit: Commit, joint: Joint | None, *, in_steps: bool) -> Iterator[None]:
        yield from settling(commit.transaction, joint)
        together = commit.is_kept and self._hub.store is not None
        while commit.routed:
            run, route = commit.routed.popleft()
            for forwarded, lane in route.targets:
                for part in parts_of(run):
                    # Where it is carried out in steps, the room that was there may be gone: it was promised.
                    self._send(commit, part, forwarded, lane, together or (in_steps and lane.queue.rejects))
                    if joint is not None:
                        join(joint, lane.queue)
                    yield from steps_for(len(part.wires))
            if in_steps:
                self._pay(commit, charge_of(run))

    def _send(self, commit: Commit, run: SendRun, forwarded: SendHead, lane: Lane, together: bool) -> None:
        messages, size_bytes = self._sender.messages(run, forwarded)
        if lane.queue.closed:
            self._hub.registry.unheard_count += len(messages)
        elif together:
            charge_bytes = size_bytes + MESSAGE_OVERHEAD_BYTES * len(messages)
            lane.queue.take_together([Run(messages, charge_bytes)], lane.source)
        elif commit.must_wait(lane) or not self._sender.publish(lane, messages, size_bytes, None):
            self._sender.lanes.park(lane, messages, size_bytes, None, before=commit.barrier)

    def _answering(self, receipt_id: str | None, joint: Joint) -> Iterator[None]:
        """What it has changed is to be on disk before anything says so."""
        shelves = list(joint.shelves)
        if receipt_id is None or not shelves:
            self._replies.committed(receipt_id, shelves)
            return
        one_done = self._replies.later_than(receipt_id, len(shelves))
        for place, shelf in enumerate(shelves, 1):
            shelf.when_settled(one_done)
            if place % LANES_PER_STEP == 0:
                yield

    def _pay(self, commit: Commit, size_bytes: int) -> None:
        """So much of it is charged elsewhere from now on."""
        if commit.barrier is None:
            self._transactions.release(commit.transaction, min(size_bytes, commit.transaction.size_bytes))
        else:
            self._sender.lanes.ease(commit.barrier, size_bytes)

    def _is_over(self, commit: Commit) -> None:
        """It is carried out, or was refused."""
        barrier, commit.barrier = commit.barrier, None
        if barrier is not None:
            self._sender.lanes.let_go(barrier)
        else:
            self._transactions.forget_bytes(commit.transaction)
        if barrier is not None or commit.steps_count > AT_ONCE_COUNT:
            self._wake()

    # ------------------------------------------------------------------ by way of the disk

    def _committing_spooled(self, transaction: Transaction, spool: Spool, frame: Frame) -> Iterator[object]:
        try:
            while self._waiting:  # they come before it: on the disk, too, should this run end before they go on
                yield from self._carrying_out_first()
        except ProtocolError:
            yield from self._spooler.aborting(spool)
            self._transactions.forget_bytes(transaction)
            raise
        try:
            yield from self._spooler.writing_out(transaction)
            for run in transaction.requests:
                yield from self._sender.finding_route(attrs.evolve(run, receipts=None))
            yield from self._spooled.carrying_out(transaction, spool, frame.headers.get("receipt"))
        except ProtocolError as error:
            yield from self._spooler.aborting(spool)
            error.command = None
            error.identify(frame.command, frame.headers)
            raise
        finally:
            self._transactions.forget_bytes(transaction)
        self._subscriptions.forget_settled()

    def _spooling_out(self, commit: Commit) -> Iterator[object]:
        """It can't be carried out now and must not wait: its SENDs go to the disk, and from there to their queues.
        Raises ProtocolError, nothing done.
        """
        try:
            yield from commit.checking_room()
            spool = yield from self._spooler.spooling(commit.routed)
            try:
                yield from self._spooled.carrying_out(
                    commit.transaction,
                    spool,
                    commit.receipt_id,
                    instead_of=commit.barrier,
                )
            except ProtocolError:
                yield from self._spooler.aborting(spool)
                raise
        finally:
            yield from dropping(commit.routed)
            self._is_over(commit)
        self._subscriptions.forget_settled()


def _about(run: SendRun, error: ProtocolError) -> ProtocolError:
    """This error, which names the SEND that it is about."""
    assert run.head.transaction is not None
    error.identify("SEND", {"destination": run.head.destination, "transaction": run.head.transaction})
    if run.receipts and error.receipt_id is None:
        error.receipt_id = run.receipts[0]
    return error
