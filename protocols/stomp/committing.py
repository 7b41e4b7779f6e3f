"""BEGIN, COMMIT and ABORT of one connection.

COMMIT does everything together: with a store its settlements and its persistent SENDs are one batch. Its SENDs go into
their queues whole, the last ones over the limit. It waits, like a SEND, while a destination of it blocks, unless its
own ACKs make room there: then waiting could lock the connection up. With a store it is spooled then, which never waits;
without one the SENDs without room are parked. None of them is ever dropped, so the RECEIPT does not wait: the client
may have to consume meanwhile. Transactions that are larger than memory are spooled from the start. A COMMIT to several
queues that finds one of them full in its turn in another, VAIN_COUNT_MAX times, is spooled, too, or parked; then its
RECEIPT comes when the queues have all of it.

*In steps.* A large one (AT_ONCE_COUNT) takes effect in steps of the connection's line of work, and what the connection
sent behind it waits. Its routes are found and everything is checked first: up to there an ERROR says that nothing was
done. From the first settlement or SEND on nothing stops the COMMIT: not the end of its connection, which follows in the
line, nor a queue that fills up, is purged or paused. SENDs to a destination that is deleted meanwhile are dropped, and
acknowledgements there are done, as if the deletion had come right after the COMMIT. Other clients may see the first
effects before the last; each queue gets its messages in order, and settlements come first. Nothing of it is written
before its last step, then all of it is in one batch (`sluiceway.queues.storage.Joint`), and the RECEIPT behind that.
Requests to the broker itself are made behind all else: they are checked with the routes, for none is undone.

Checklist b45-b47.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

import attrs

from ...flow.graph import at_once
from ...queues.intake import Run
from ...queues.message import MESSAGE_OVERHEAD_BYTES, Message, size_of
from ...queues.spools import Spool
from ...queues.storage import Joint
from ..reading import Hold
from .errors import ProtocolError
from .frames import Frame, SendRun
from .head import SendHead
from .hub import Hub
from .lanes import Barrier, Lane, Lanes, ParkingLimit, SharedWires
from .limits import StompLimits
from .replies import Replies
from .requesting import SessionRequests
from .routing import ADMIN_PREFIX, Router
from .sending import Sender
from .spooling import SpooledCommits, Spooler
from .subscribing import Subscriptions
from .transactions import (
    AT_ONCE_COUNT,
    Commit,
    Transaction,
    Transactions,
    charge_of,
    dropping,
    join,
    parts_of,
    settling,
    some_of,
    steps_for,
    undoing,
)

T = TypeVar("T")

ROUTES_PER_STEP: Final = 4
"""Number of known routes that are looked up in one step."""

VAIN_COUNT_MAX: Final = 4
"""Number of turns in which a COMMIT to several queues finds one of the others full. After these the COMMIT goes by way
of the disk, or is parked.
"""


class Committer:
    """Carries transactions out, or undoes them."""

    __slots__ = (
        "_fail",
        "_hub",
        "_lanes",
        "_limits",
        "_parking",
        "_replies",
        "_requests",
        "_router",
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
        lanes: Lanes,
        parking: ParkingLimit,
        router: Router,
        requests: SessionRequests,
        sender: Sender,
        subscriptions: Subscriptions,
        replies: Replies,
        *,
        limits: StompLimits,
        fail: Callable[[ProtocolError], None],
        wake: Callable[[], None],
        hold: Hold,
    ) -> None:
        """Make a committer. `fail`: end the connection with this error; `wake`: something parked may continue, look
        soon; `hold`: the connection is not read, too many bytes of open transactions wait for the disk.
        """
        self._hub = hub
        self._limits = limits
        self._transactions = transactions
        self._lanes = lanes
        self._parking = parking
        self._router = router
        self._requests = requests
        self._sender = sender
        self._subscriptions = subscriptions
        self._replies = replies
        self._fail = fail
        self._wake = wake
        self._waiting: deque[Commit] = deque()
        self._under_way_count = 0
        """Number of COMMITs that are carried out in steps now."""
        self._spooler = Spooler(hub, limits, transactions, lanes, router, sender, resume=self._relieve_later, hold=hold)
        self._spooled = SpooledCommits(hub, lanes, replies, wake=wake, do=self._do_later, undo=self._undo)

    def closing(self) -> Iterator[object]:
        """Undo open transactions of an ended connection (b46), in steps. A COMMIT that waits was complete and came
        before the end, so it is carried out (b50).
        """
        yield from self._undoing_all()
        self._spooler.close()
        while self._waiting:
            # After a refusal no client is left to be told. Nothing of it was done: its deliveries are requeued with
            # others.
            yield from self._told("COMMIT", {}, self._carrying_out_first(must_go=True))

    def abort_all(self) -> None:
        """Undo open transactions."""
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
        """Work in steps for this frame; an error ends the connection."""
        lanes = self._lanes
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

    def _do_later(self, work: Iterator[object]) -> None:
        self._subscriptions.work.do_later(self._told("COMMIT", {}, work))

    def _undo(self, spool: Spool, work: Iterator[object]) -> None:
        """A COMMIT of this can't be carried out any more."""
        self._do_later(self._undoing_commit(spool, work))

    def _undoing_commit(self, spool: Spool, work: Iterator[object]) -> Iterator[object]:
        self._fail(
            ProtocolError(
                "destination-failed",
                "a COMMIT was undone: the broker made a mistake with a destination in which it acknowledged messages",
                "Nothing of it was done. They are redelivered when the broker is restarted; its log has the details.",
            )
        )
        yield from work
        yield from self._spooler.aborting(spool)

    @property
    def is_waiting(self) -> bool:
        """A COMMIT waits for its destinations, or is being carried out."""
        return bool(self._waiting or self._under_way_count)

    @property
    def is_moving(self) -> bool:
        """SENDs of spooled transactions are on their way to their queues."""
        return self._spooled.is_moving

    def move_on(self) -> bool:
        """Look which COMMITs may continue. True: there are more to look at."""
        return self._spooled.is_moving and self._lanes.move_on()

    @property
    def must_wait(self) -> bool:
        """Whether to stop reading: too many bytes of open transactions wait for the disk."""
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
            self._router.check_for_transaction(run)
            self._router.bind(self._transactions.get(run.head.transaction), run)
            transaction = self._transactions.add_sends(run.head.transaction, run)
        except ProtocolError as error:
            raise _about(run, error) from None
        if transaction.spool is not None or self._transactions.is_over:
            self._subscriptions.work.do(self._told("SEND", {}, self._relieving(run)))
        self._replies.receipts(run.receipts)

    def _relieve_later(self) -> None:
        """The disk takes more."""
        self._subscriptions.work.do_later(self._told("SEND", {}, self._spooler.relieving()))

    def _relieving(self, run: SendRun) -> Iterator[object]:
        """Spool the surplus of SENDs that just came."""
        try:
            yield from self._spooler.relieving()
            self._check_overfull(run)
        except ProtocolError as error:
            raise _about(run, error) from None

    def _check_overfull(self, run: SendRun) -> None:
        """Check what a connection with unacknowledged deliveries sends while the disk is nearly full: it is read on for
        its ACKs. Raises ProtocolError if so much came without ACKs that the connection may wait for itself for ever.
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
        if not (yield from self._carrying_out(commit, must_go=False)):
            return
        self._waiting.append(commit)
        if not (yield from self._makes_room(transaction)):
            self._transactions.forget_bytes(transaction)
            overfull = self._parking.refusal(transaction.size_bytes)
            if overfull is not None:
                self._waiting.pop()
                raise overfull
            commit.barrier = yield from self._lanes.holding(commit.lanes, transaction.size_bytes)
            if not commit.barrier.waits_for:
                self._wake()  # they let go meanwhile
            return
        # The COMMIT makes room where it, or a COMMIT before it, waits: if it waited too, the connection could lock
        # itself up.
        while self._waiting:
            yield from self._carrying_out_first(must_go=True)

    def _makes_room(self, transaction: Transaction) -> Generator[None, None, bool]:
        """Return whether the ACKs of the transaction make room where one of the waiting COMMITs waits. In steps."""
        if transaction.freed_queues:
            for waiting in tuple(self._waiting):
                if (yield from waiting.waits_for_one_of(transaction.freed_queues)):
                    return True
        return False

    def _routing(self, commit: Commit) -> Iterator[object]:
        """Find where its SENDs go. Raises ProtocolError for a destination that can't be."""
        sends, lanes = commit.transaction.sends, self._lanes
        place = 0
        while sends:
            run = _without_receipts(sends.popleft())
            if run.head.destination.startswith(ADMIN_PREFIX):
                commit.requests.append(run)
                continue
            route = lanes.route(run.head)
            if route is None:
                route = yield from self._router.finding(run)
                yield None
            if route is not None:
                yield from self._sender.checking_for_logs(run, route)
                commit.add(run, route)
            place += 1
            if place % ROUTES_PER_STEP == 0:
                yield None
        yield from self._requests.checking(commit.requests)

    def _carrying_out_first(self, *, must_go: bool) -> Iterator[object]:
        """Let the first waiting COMMIT take effect, unless it has to wait longer. Raises ProtocolError, about that
        COMMIT; those behind it stay waiting.
        """
        commit = self._waiting[0]
        is_over = True
        try:
            is_over = not (yield from self._carrying_out(commit, must_go=must_go))
        except ProtocolError as error:
            error.identify("COMMIT", commit.headers())
            raise
        finally:
            if is_over:
                self._waiting.popleft()

    @property
    def next_place(self) -> Barrier | None:
        """Place of the first COMMIT that waits, if it may take effect now."""
        barrier = self._waiting[0].barrier if self._waiting else None
        return None if barrier is None or barrier.waits_for else barrier

    def commit_waiting(self) -> bool:
        """Carry out the COMMITs that waited and need not any more, in order. True: there was one, and something may
        have waited behind it.
        """
        carried_out = False
        work = self._subscriptions.work  # when it has done what it was given before, its connection looks here again
        while self._waiting and not work.is_busy and self.next_place is not None:
            carried_out = True
            work.do_later(self._told("COMMIT", {}, self._carrying_out_first(must_go=False)))
        return carried_out

    def _carrying_out(self, commit: Commit, *, must_go: bool) -> Generator[object, None, bool]:
        """Carry a COMMIT out, if its queues have room. In steps the COMMIT takes its turn among the others first: room
        that was free before may be taken by then. It keeps the room that it finds then, by the turns of its lanes,
        until it has used it. It holds neither these nor its own turn while it waits for anything else. True: it has to
        wait, nothing is done; not if it `must_go`. Raises ProtocolError, nothing done, if a queue refuses or too much
        would be parked.
        """
        store = self._hub.store_of(commit.transaction.shard)
        joint: Joint | None = None
        in_steps = commit.steps_count > AT_ONCE_COUNT
        if in_steps:
            joint = (store or self._hub.registry.turns).join(self._lanes)
        try:
            if joint is not None and joint.waits:
                yield from commit.ending_turns()
                yield from self._lanes.waiting_for_turn(joint)
            yield None
            for _step in commit.asking_for_room(in_steps=in_steps):
                if in_steps:  # a small one looks and goes in one step
                    yield None
            waits = yield from _in_steps(commit.looking(), in_steps)
            if waits and not must_go and not (yield from _in_steps(self._goes_apart(commit), in_steps)):
                yield from commit.ending_turns()
                return True
            if (waits or commit.has_logs) and self._hub.spools_of(commit.transaction.shard) is not None:
                if joint is not None:
                    joint.end()
                yield from commit.ending_turns()
                yield from self._spooling_out(commit)
            else:
                yield from self._carrying_out_now(commit, joint, parks=waits, in_steps=in_steps)
        finally:
            if joint is not None:
                joint.end()
        return False

    def _goes_apart(self, commit: Commit) -> Generator[None, None, bool]:
        """Whether the parts of a COMMIT wait in each queue separately: by way of the disk, or parked. True if one queue
        had room while another was full, several times in a row, and the connection has room for the parts. In steps.
        """
        if commit.barrier is None or len(commit.lanes) == 1:
            return False
        commit.vain_count += 1
        if commit.vain_count < VAIN_COUNT_MAX:
            return False
        if self._hub.spools_of(commit.transaction.shard) is None:
            return (yield from commit.parked_bytes()) <= self._limits.transaction_bytes_max
        on_disk_bytes = self._lanes.spooled.limiter.used_bytes
        return on_disk_bytes + commit.charge_bytes <= self._limits.transaction_spool_bytes_max

    def _carrying_out_now(self, commit: Commit, joint: Joint | None, *, parks: bool, in_steps: bool) -> Iterator[None]:
        """Carry out a transaction: settlements first, since they make room; then the SENDs. `parks`: park SENDs that
        must wait all the same. Raises ProtocolError, with nothing done.
        """
        try:
            for _step in commit.checking_room():
                if in_steps:
                    yield None
            makes_room = False
            if parks:
                yield from _in_steps(self._checking_parking(commit), in_steps)
                waits_for_itself = commit.waits_for_one_of(commit.transaction.freed_queues)
                makes_room = yield from _in_steps(waits_for_itself, in_steps)
            if not in_steps:
                self._pay(commit, commit.transaction.size_bytes)
            for _step in self._taking_effect(commit, joint, parks=parks, in_steps=in_steps):
                if joint is not None and joint.is_broken:
                    break
                if in_steps:
                    yield None
            if in_steps:
                yield from commit.ending_turns()
            if joint is not None and joint.is_broken:
                return  # and the connection ends, with all that this was about
            if commit.owed.legs_count > 1:  # without a store: nothing of it is to be on the disk
                if makes_room:
                    commit.owed.receipt_ids.clear()
                    self._replies.receipt(commit.receipt_id)
                self._replies.leg_done(commit.owed)
            elif joint is not None:
                self._replies.committed(commit.receipt_id, some_of(joint))
            else:
                changed = commit.changed()
                if (store := self._hub.store_of(commit.transaction.shard)) is not None:
                    store.bind(changed)
                self._replies.committed(commit.receipt_id, changed)
            if joint is not None:
                joint.end()
            yield from self._requesting(commit.requests)
        except ProtocolError:
            yield from commit.ending_turns()
            yield from dropping(commit.routed)
            raise
        finally:
            if joint is not None:
                joint.end()
            self._is_over(commit)
        self._subscriptions.forget_settled()

    def _checking_parking(self, commit: Commit) -> Generator[None, None, None]:
        """Check that the SENDs without room may be parked. Raises ProtocolError if they take more than a transaction
        may have (each destination takes bytes of its own), or more than the connection may park. In steps.
        """
        parked_bytes, bytes_max = (yield from commit.parked_bytes()), self._limits.transaction_bytes_max
        if parked_bytes > bytes_max:
            raise ProtocolError(
                "transaction-too-large",
                f"transaction {commit.transaction.name!r} would hold more than {bytes_max} bytes for destinations that "
                "have no room: none of it was carried out",
                "COMMIT more often, to fewer destinations at once, or raise transaction_bytes_max of the listener.",
            )
        overfull = None if commit.barrier is not None else self._parking.refusal(parked_bytes)
        if overfull is not None:
            raise overfull

    def _requesting(self, requests: list[SendRun]) -> Iterator[None]:
        """Make requests to the broker of a transaction that is carried out. They were checked: if something has changed
        since, the connection ends.
        """
        try:
            for run in requests:
                yield from self._requests.answering(run, is_checked=True)
        except ProtocolError as error:
            self._fail(error)

    def _taking_effect(self, commit: Commit, joint: Joint | None, *, parks: bool, in_steps: bool) -> Iterator[None]:
        yield from settling(commit.transaction, joint)
        while commit.routed:
            run, route = commit.routed.popleft()
            for part in parts_of(run):
                shared = SharedWires(len(run.head.block), part.size_bytes) if len(route.targets) > 1 else None
                for forwarded, lane in route.targets:
                    self._send(commit, part, forwarded, lane, shared, parks=parks)
                    if joint is not None:
                        join(joint, lane.queue)
                    yield from steps_for(len(part.wires))
            if in_steps:
                self._pay(commit, charge_of(run))

    def _send(
        self,
        commit: Commit,
        run: SendRun,
        forwarded: SendHead,
        lane: Lane,
        shared: SharedWires | None,
        *,
        parks: bool,
    ) -> None:
        queue, count = lane.queue, len(run.wires)
        if queue.closed:
            self._hub.registry.unheard_count += count
        elif parks and commit.must_wait(lane):
            self._sender.park_committed(run, forwarded, lane, commit.owed, shared, commit.barrier)
        else:
            messages, size_bytes = self._sender.messages(run, forwarded, lane)
            charge_bytes = size_bytes + MESSAGE_OVERHEAD_BYTES * count
            commit.promise.use(queue, count, charge_bytes)
            if run.head.origin is None:
                queue.intake.take_together([Run(messages, charge_bytes)], lane.source)
            else:
                queue.take_once(messages, partial(_take_together, lane))

    def _pay(self, commit: Commit, size_bytes: int) -> None:
        """Release `size_bytes` of a COMMIT: they are charged elsewhere from now on."""
        if commit.barrier is None:
            self._transactions.release(commit.transaction, min(size_bytes, commit.transaction.size_bytes))
        else:
            self._lanes.ease(commit.barrier, size_bytes)

    def _is_over(self, commit: Commit) -> None:
        """Forget a COMMIT that was carried out or refused."""
        commit.promise.release()
        barrier, commit.barrier = commit.barrier, None
        if barrier is not None:
            self._lanes.end_barrier(barrier)
        else:
            self._transactions.forget_bytes(commit.transaction)
        if barrier is not None or commit.steps_count > AT_ONCE_COUNT:
            self._wake()

    # ------------------------------------------------------------------ by way of the disk

    def _committing_spooled(self, transaction: Transaction, spool: Spool, frame: Frame) -> Iterator[object]:
        try:
            while self._waiting:  # they precede it: on the disk, too, should this run end before they continue
                yield from self._carrying_out_first(must_go=True)
        except ProtocolError:
            yield from self._spooler.aborting(spool)
            self._transactions.forget_bytes(transaction)
            raise
        try:
            yield from self._spooler.writing_out(transaction)
            requests = list(map(_without_receipts, transaction.requests))
            yield from self._requests.checking(requests)
            receipt_id = frame.headers.get("receipt")
            if not (yield from self._spooled.carrying_out(transaction, spool, receipt_id)):
                yield from self._spooler.aborting(spool)
                return
            yield from self._requesting(requests)
        except ProtocolError as error:
            yield from self._spooler.aborting(spool)
            error.command = None
            error.identify(frame.command, frame.headers)
            raise
        finally:
            self._transactions.forget_bytes(transaction)
        self._subscriptions.forget_settled()

    def _spooling_out(self, commit: Commit) -> Iterator[object]:
        """Write the SENDs of a COMMIT to the disk, and from there to their queues: the COMMIT can't be carried out now
        and must not wait. Raises ProtocolError, with nothing done.
        """
        try:
            yield from commit.checking_room()  # again when it is on the disk, and before it is committed
            commit.promise.release()
            spool = yield from self._spooler.spooling(commit.transaction, commit.routed)
            try:
                is_carried_out = yield from self._spooled.carrying_out(
                    commit.transaction,
                    spool,
                    commit.receipt_id,
                    instead_of=commit.barrier,
                )
            except ProtocolError:
                yield from self._spooler.aborting(spool)
                raise
            if not is_carried_out:
                yield from self._spooler.aborting(spool)
                return
            yield from self._requesting(commit.requests)
        finally:
            yield from dropping(commit.routed)
            self._is_over(commit)
        self._subscriptions.forget_settled()


def _in_steps(work: Generator[None, None, T], in_steps: bool) -> Generator[None, None, T]:
    """`work`, all of it in one step if not `in_steps`."""
    return (yield from work) if in_steps else at_once(work)


def _take_together(lane: Lane, messages: list[Message]) -> bool:
    lane.queue.intake.take_together([Run(messages, size_of(messages))], lane.source)
    return True


def _without_receipts(run: SendRun) -> SendRun:
    """Return the run without receipts: they were sent when the SENDs came."""
    return run if run.receipts is None else attrs.evolve(run, receipts=None)


def _about(run: SendRun, error: ProtocolError) -> ProtocolError:
    """Return the error, identified by the SEND that caused it."""
    assert run.head.transaction is not None
    error.identify("SEND", {"destination": run.head.destination, "transaction": run.head.transaction})
    if run.receipts and error.receipt_id is None:
        error.receipt_id = run.receipts[0]
    return error
