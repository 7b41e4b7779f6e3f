"""Transactions of one connection that go by way of the disk: too large for memory, or without room when they COMMIT.

A transaction begins to be *spooled* when all open ones of its connection hold more than `transaction_bytes_max`. From
then on its SENDs leave memory from the front, as they came: PIECE_BYTES of them become one piece for each destination
and priority that they go to. Routes are taken here, so a destination that cannot be is an ERROR now, and not at COMMIT.
Requests to the broker itself stay in memory: they are answered at COMMIT. While too much waits for the disk the
connection is not read. So its memory is that of its transactions and what one read adds to it.

*COMMIT* of a spooled transaction never waits. All that it settles, and the record that it is to be carried out, are one
synced batch: then its RECEIPT goes out, and it will be carried out whatever happens. Its SENDs follow as their queues
have room (`sluiceway.queues.spools`), in its place in the lanes: nothing that the connection sends later to the same
queue overtakes them. ACKs pass as always, so a transaction that is larger than its queue gets through though its
consumer is on the same connection.

Bound: `transaction_spool_bytes_max` of the connection, on the disk; a barrier and a drain for each queue.

Source: seed 002 "Transactions".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Final

import attrs

from ...flow import Flow, SourceController
from ...queues.atomic_offer import PromisedRoom
from ...queues.log_drain import LogDrain
from ...queues.logs.table import PREFIX as LOG_PREFIX
from ...queues.logs.table import LogError
from ...queues.message import MESSAGE_OVERHEAD_BYTES, PRIORITY_DEFAULT, Message
from ...queues.names import split_part
from ...queues.queue import MessageQueue
from ...queues.registry import DestinationLimitError
from ...queues.spools import Spool, SpoolDrain, SpoolTarget, drop, queue_of
from ...queues.storage import Joint
from ...queues.topic import Topic
from ..log import get_logger
from ..reading import Hold
from .errors import ProtocolError
from .frames import SendRun
from .hub import Hub
from .lanes import Barrier, Lane, Lanes, Route
from .limits import StompLimits
from .replies import Replies
from .routing import ADMIN_PREFIX, Router
from .sending import Sender
from .transactions import (
    AT_ONCE_COUNT,
    CHEAP_PER_STEP,
    LANES_PER_STEP,
    Transaction,
    Transactions,
    charge_of,
    parts_of,
    settling,
    some_of,
    steps_for,
)

log_lines = get_logger("sluiceway.store")

PIECE_BYTES: Final = 1 << 20
"""Approximate size of a piece that leaves memory, or comes back: half a millisecond of encoding."""

PIECE_COUNT: Final = 256
"""Number of messages in a piece, if they are small."""

ROUTE_STEPS: Final = 4
"""Number of steps that a destination counts as which may have to be made."""

PLACES_PER_STEP: Final = 64

ROUNDS_MAX: Final = 4
"""Rounds in which deleted queues are looked for in steps, if more are deleted meanwhile."""


class Spooler:
    """Takes the open transactions of one connection out of memory."""

    __slots__ = ("_hold", "_hub", "_lanes", "_limits", "_resume", "_router", "_sender", "_source", "_transactions")

    def __init__(
        self,
        hub: Hub,
        limits: StompLimits,
        transactions: Transactions,
        lanes: Lanes,
        router: Router,
        sender: Sender,
        *,
        resume: Callable[[], None],
        hold: Hold,
    ) -> None:
        """Make a spooler. `resume`: the disk takes more, let `relieving` go on; `hold`: the connection is not read."""
        self._hub = hub
        self._limits = limits
        self._transactions = transactions
        self._lanes = lanes
        self._router = router
        self._sender = sender
        self._resume = resume
        self._hold = hold
        self._source: SourceController | None = None
        """Source that the store blocks; made when it is needed."""

    @property
    def must_wait(self) -> bool:
        """Whether too much waits for the disk: nothing more should be read now."""
        return self._source is not None and self._source.blocked

    @property
    def waits_for_room(self) -> bool:
        """Whether the transaction waits because the disk is nearly full, or fails: ACKs may help."""
        return self.must_wait and self._hub.store is not None and not self._hub.store.accepting

    def close(self) -> None:
        """End with the connection: pieces that are written from now on block no source."""
        if self._source is not None:
            self._source.close()
            self._source = None
            self._hold.release()

    # ------------------------------------------------------------------ open transactions

    def relieving(self) -> Iterator[object]:
        """Take as much out of memory as is due, in steps. Raises ProtocolError if there is no room for it anywhere, or
        about one SEND that can't be sent.
        """
        transactions = self._transactions
        while transactions.is_over:
            largest = transactions.largest
            if largest.spool is None:
                self._begin(largest)
            elif not largest.sends:
                raise self._too_large(f"{self._limits.transaction_bytes_max} bytes of requests", "")
            if not (yield from self._pumping(largest, 0)):
                return
        for transaction in transactions.spooled():
            yield from self._pumping(transaction, PIECE_BYTES)

    def _begin(self, transaction: Transaction) -> None:
        spools = self._hub.spools_of(transaction.shard)
        limits = self._limits
        if spools is None or not limits.transaction_spool_bytes_max:
            raise self._too_large(
                f"{limits.transaction_bytes_max} bytes",
                ", or have a store: with one, larger transactions are spooled" if spools is None else "",
            )
        if self._source is None:
            self._source = self._hold.source(
                self._lanes,
                Flow(f"spooled transactions of {self._lanes.name}"),
                on_resume=self._resume,
                clock=self._hub.clock,
            )
        transaction.spool = spools.begin()

    @staticmethod
    def _too_large(what: str, remedy: str) -> ProtocolError:
        return ProtocolError(
            "transaction-too-large",
            f"open transactions hold more than {what}",
            f"COMMIT more often, or raise transaction_bytes_max of the listener{remedy}.",
        )

    def _pumping(self, transaction: Transaction, keep_bytes: int) -> Generator[object, None, bool]:
        """Take a transaction out of memory, until less than this is left there. False: it has to wait for the disk."""
        source = self._source
        while transaction.sends and transaction.size_bytes > keep_bytes:
            if source is not None and not self._may_write(transaction, source):
                return False
            yield from self._writing_piece(transaction)
        return True

    def _may_write(self, transaction: Transaction, source: SourceController) -> bool:
        store = self._hub.store_of(transaction.shard)
        if not source.blocked and store is not None and not store.accepts(source):
            store.hold_back(source)
        return not source.blocked

    def writing_out(self, transaction: Transaction) -> Iterator[object]:
        """COMMIT: take all that is left of a transaction out of memory, now, in steps. Raises ProtocolError."""
        while transaction.sends:
            yield from self._writing_piece(transaction)

    def _writing_piece(self, transaction: Transaction) -> Iterator[object]:
        size_bytes = count = 0
        by_target: dict[SpoolTarget, list[Message]] = {}
        lanes: dict[SpoolTarget, Lane] = {}
        try:
            while transaction.sends and size_bytes < PIECE_BYTES and count < PIECE_COUNT:
                run = transaction.sends.popleft()
                if run.head.destination.startswith(ADMIN_PREFIX):
                    transaction.requests.append(run)  # still charged
                    continue
                size_bytes += charge_of(run)
                count += len(run.wires)
                # Without its receipts: those went out when the SENDs came.
                route = self._lanes.route(run.head)
                if route is None:
                    route = yield from self._router.finding(attrs.evolve(run, receipts=None))
                    yield None
                if route is None:
                    continue
                yield from self._sender.checking_for_logs(run, route)
                for forwarded, lane in route.targets:
                    target = target_of(lane)
                    lanes[target] = lane
                    for part in parts_of(run):
                        messages, _wire_bytes = self._sender.messages(part, forwarded, lane)
                        by_target.setdefault(target, []).extend(messages)
                        yield from steps_for(len(messages))
        except ProtocolError as error:
            error.command = None
            error.identify("SEND", {"destination": run.head.destination, "transaction": transaction.name})
            raise
        finally:
            self._transactions.release(transaction, size_bytes)
        assert transaction.spool is not None, "it is spooled"
        for target, messages in by_target.items():
            for start in range(0, len(messages), PIECE_COUNT):
                piece = messages[start : start + PIECE_COUNT]
                self._write(transaction.spool, lanes[target], piece)
                yield from steps_for(len(piece))

    def _write(self, spool: Spool, lane: Lane, messages: list[Message]) -> None:
        account, bytes_max = self._lanes.spooled, self._limits.transaction_spool_bytes_max
        begun_at = (lane.log.log_id, lane.log.records.next_index) if lane.is_log else None
        account.charge(0, spool.write(target_of(lane), messages, self._source, begun_at), None)
        if account.limiter.used_bytes > bytes_max:
            raise ProtocolError(
                "transaction-too-large",
                f"transactions of this connection take more than {bytes_max} bytes of the disk",
                "Those that are committed count until their messages are in their queues. COMMIT more often, consume "
                "from full destinations, or raise transaction_spool_bytes_max of the listener.",
            )

    # ------------------------------------------------------------------ COMMITs that must not wait

    def spooling(
        self, transaction: Transaction, routed: Iterable[tuple[SendRun, Route]]
    ) -> Generator[None, None, Spool]:
        """Make a spool of the SENDs of a COMMIT that was in memory, in steps. Raises ProtocolError, with nothing left,
        if the connection has too much on the disk already.
        """
        spools = self._hub.spools_of(transaction.shard)
        assert spools is not None, "only with a store"
        spool = spools.begin()
        pieces: dict[Lane, list[Message]] = {}
        sizes: Counter[Lane] = Counter()
        try:
            for run, route in routed:
                for forwarded, lane in route.targets:
                    for part in parts_of(run):
                        messages, size_bytes = self._sender.messages(part, forwarded, lane)
                        if lane.inlet.closed:
                            self._hub.registry.unheard_count += len(messages)
                            continue
                        pieces.setdefault(lane, []).extend(messages)
                        sizes[lane] += size_bytes + MESSAGE_OVERHEAD_BYTES * len(messages)
                        if sizes[lane] >= PIECE_BYTES or len(pieces[lane]) >= PIECE_COUNT:
                            self._write(spool, lane, pieces.pop(lane))
                            del sizes[lane]
                        yield from steps_for(len(messages))
            for lane, piece in pieces.items():
                self._write(spool, lane, piece)
                yield from steps_for(len(piece))
        except ProtocolError:
            yield from self.aborting(spool)
            raise
        return spool

    def aborting(self, spool: Spool) -> Iterator[None]:
        """Delete a spool that is not committed, in steps."""
        spool.abort()
        for spooled in spool.targets.values():
            places = spooled.places
            for start in range(0, len(places), PLACES_PER_STEP):
                some = places[start : start + PLACES_PER_STEP]
                self._lanes.spooled.release(0, sum([spool.size_of(place) for place in some]))
                yield


def target_of(lane: Lane) -> SpoolTarget:
    """Return the name of a lane's queue or log: when the pieces come back it may name another one."""
    if lane.is_log:
        return lane.log.name, PRIORITY_DEFAULT, False
    return lane.queue.name_on_disk, lane.queue.priority, isinstance(lane.queue, Topic)


class SpooledCommit:
    """A COMMIT whose SENDs are on the disk."""

    __slots__ = ("answer", "drains", "gone", "is_durable", "lanes", "left_in_logs", "promise", "receipt_id", "spool")

    def __init__(self, spool: Spool, receipt_id: str | None) -> None:
        self.spool = spool
        self.receipt_id = receipt_id
        self.lanes: dict[SpoolTarget, Lane] = {}
        self.gone: list[SpoolTarget] = []
        """Targets whose destinations were gone when lanes were searched."""
        self.promise = PromisedRoom()
        self.drains: dict[SpoolDrain | LogDrain, Barrier] = {}
        """Drains to its queues and logs, with their places in the lanes."""
        self.left_in_logs = 0
        """Number of pieces for logs that are not safe there yet."""
        self.answer: Callable[[], None] | None = None
        """Answers the COMMIT, which waits for its logs: who has the RECEIPT finds the records."""
        self.is_durable = False
        """Whether the disk knows of the COMMIT."""

    def safe_in_log(self) -> None:
        """Note that a piece is safe in its log, or not wanted there any more."""
        self.left_in_logs -= 1
        if not self.left_in_logs and self.answer is not None:
            answer, self.answer = self.answer, None
            answer()

    def wanting(self) -> Generator[None, None, dict[MessageQueue, tuple[int, int]]]:
        """Return the room that it needs in queues that may refuse, in steps."""
        wanted: dict[MessageQueue, tuple[int, int]] = {}
        for place, (target, lane) in enumerate(self.lanes.items(), 1):
            if lane.inlet.rejects:
                spooled = self.spool.targets[target]
                wanted[lane.queue] = spooled.count, spooled.wire_bytes + MESSAGE_OVERHEAD_BYTES * spooled.count
            if place % CHEAP_PER_STEP == 0:
                yield None
        return wanted


class SpooledCommits:
    """COMMITs of one connection whose SENDs are not all in their queues."""

    __slots__ = ("_do", "_drains", "_dropping_count", "_hub", "_lanes", "_replies", "_undo", "_wake")

    def __init__(
        self,
        hub: Hub,
        lanes: Lanes,
        replies: Replies,
        *,
        wake: Callable[[], None],
        do: Callable[[Iterator[object]], None],
        undo: Callable[[Spool, Iterator[object]], None],
    ) -> None:
        """Make the table. `wake`: something parked may continue, look soon; `do` this in steps, for the connection;
        `undo`: this COMMIT can't be carried out because of a bug: end the connection, do this, and abort the spool.
        """
        self._do = do
        self._undo = undo
        self._hub = hub
        self._lanes = lanes
        self._replies = replies
        self._wake = wake
        self._drains: dict[SpoolDrain | LogDrain, None] = {}
        self._dropping_count = 0
        """Number of COMMITs whose pieces for deleted destinations are being deleted."""

    @property
    def is_moving(self) -> bool:
        """Whether some of them have not left the lanes yet."""
        return bool(self._drains or self._dropping_count)

    def carrying_out(
        self, transaction: Transaction, spool: Spool, receipt_id: str | None, *, instead_of: Barrier | None = None
    ) -> Generator[object, None, bool]:
        """COMMIT: from now on nothing holds it up. In steps. `instead_of`: its place in the lanes, if it has one
        already. Raises ProtocolError, nothing done, if a queue refuses or there can't be one. False: the broker made a
        mistake with a queue of it, nothing of it will be on the disk; the connection ends, and the spool is to be
        aborted.
        """
        commit = SpooledCommit(spool, receipt_id)
        yield from self._finding_lanes(commit)
        store = self._hub.store_of(transaction.shard)
        joint: Joint | None = None
        is_promised = False
        try:
            yield from transaction.checking_room((yield from commit.wanting()), commit.promise)
            if transaction.acks_steps_count + len(commit.lanes) > AT_ONCE_COUNT and store is not None:
                joint = store.join(self._lanes)
                yield from self._lanes.waiting_for_turn(joint)
            for _step in self._taking_effect(transaction, commit, instead_of, joint):
                if joint is not None:
                    if joint.is_broken:
                        break
                    yield None
            closed = yield from self._finding_closed(commit.lanes, in_steps=joint is not None)
            if joint is not None and joint.is_broken:
                yield from self._taking_out(commit)
                return False
            is_promised = True
            changed = transaction.changed() if joint is None else some_of(joint)
            if spool.targets:
                durable = partial(self._durable, commit, self._replies.later(receipt_id))
                spool.commit(changed, durable, partial(self._undone, commit), deleted=[*commit.gone, *closed])
            else:  # none of its SENDs had anywhere to go
                if store is not None:
                    store.bind(changed)
                self._replies.committed(receipt_id, changed)
            return True
        finally:
            if joint is not None:
                joint.end()
            if not is_promised:
                commit.promise.release()

    def _finding_lanes(self, commit: SpooledCommit) -> Iterator[None]:
        """Find lanes to the targets, and note deleted ones. In steps."""
        registry = self._hub.registry
        for target in commit.spool.targets:
            if target[0].startswith(LOG_PREFIX):
                self._find_log(commit, target)
                yield from repeat(None, ROUTE_STEPS)
                continue
            name, _part = split_part(target[0])
            steps_count = 1 if name in registry.destinations else ROUTE_STEPS
            try:
                queue = queue_of(target, registry)
            except DestinationLimitError as error:
                raise ProtocolError(error.code, str(error)) from None
            if queue is None:
                commit.gone.append(target)
            else:
                commit.lanes[target] = self._lanes.lane(registry.destinations[name], queue)
            yield from repeat(None, steps_count)

    def _find_log(self, commit: SpooledCommit, target: SpoolTarget) -> None:
        try:
            assert self._hub.logs is not None, "a piece is for a log"
            log = self._hub.logs.get(target[0])
        except LogError as error:
            raise ProtocolError(error.code, str(error)) from None
        commit.lanes[target] = self._lanes.lane(log, log)

    def _taking_effect(
        self, transaction: Transaction, commit: SpooledCommit, instead_of: Barrier | None, joint: Joint | None
    ) -> Iterator[None]:
        yield from settling(transaction, joint)
        for target, lane in commit.lanes.items():
            self._add_drain(commit, target, lane, instead_of)
            yield

    def _add_drain(self, commit: SpooledCommit, target: SpoolTarget, lane: Lane, instead_of: Barrier | None) -> None:
        spooled = commit.spool.targets[target]
        in_place = instead_of if instead_of is not None and lane in instead_of.lanes else None

        def go() -> None:
            if not drain.go():
                lane.source.end_turn()

        barrier = self._lanes.hold_turns(lane, go, instead_of=in_place)

        def may_go() -> bool:
            return commit.is_durable and lane.parked[0] is barrier

        def all_left() -> None:
            del self._drains[drain]
            self._lanes.end_barrier(barrier)
            self._wake()

        def left_for_log(spool: Spool, place: int) -> None:
            self._release(spool, place)
            if not drain.left_count:
                all_left()

        pieces = [(commit.spool, place) for place in spooled.places]
        drain: SpoolDrain | LogDrain
        if lane.is_log:
            commit.left_in_logs += len(pieces)
            drain = LogDrain(
                pieces,
                lane.log,
                lane.source,
                may_go=may_go,
                left=left_for_log,
                done=commit.safe_in_log,
                warn=log_lines.warning,
            )
            self._drains[drain] = None
            commit.drains[drain] = barrier
            return

        def left(spool: Spool, place: int, count: int, charge_bytes: int) -> None:
            self._release(spool, place)
            commit.promise.use(lane.queue, count, charge_bytes)
            if not drain.left_count:
                commit.promise.use(lane.queue, spooled.count, 0)  # what was damaged
                all_left()

        drain = SpoolDrain(
            pieces,
            lane.queue,
            lane.source,
            count=spooled.count,
            may_go=may_go,
            left=left,
            unheard=self._unheard,
        )
        self._drains[drain] = None
        commit.drains[drain] = barrier

    def _finding_closed(
        self, lanes: dict[SpoolTarget, Lane], *, in_steps: bool
    ) -> Generator[None, None, list[SpoolTarget]]:
        """Return targets whose queues were deleted since their lanes were found: all of them, as of the last step."""
        registry = self._hub.registry
        for round_number in range(ROUNDS_MAX + 1):
            closed: list[SpoolTarget] = []
            deleted_count = registry.deleted_count
            for place, (target, lane) in enumerate(lanes.items(), 1):
                if lane.inlet.closed:
                    closed.append(target)
                if in_steps and round_number < ROUNDS_MAX and place % CHEAP_PER_STEP == 0:
                    yield
            if registry.deleted_count == deleted_count:
                break
        return closed

    def _undone(self, commit: SpooledCommit) -> None:
        """Undo a COMMIT of which the disk will never know: the broker made a mistake with a queue that it changed."""

        def undoing() -> Iterator[None]:
            commit.promise.release()
            yield from self._taking_out(commit)
            self._replies.forgo(commit.receipt_id)

        self._undo(commit.spool, undoing())

    def _taking_out(self, commit: SpooledCommit) -> Iterator[None]:
        """Remove the drains of a COMMIT that will never move; runs parked behind them may continue. In steps."""
        for drain, barrier in commit.drains.items():
            del self._drains[drain]
            self._lanes.end_barrier(barrier)
            yield
        self._wake()

    def _durable(self, commit: SpooledCommit, answer: Callable[[], None]) -> None:
        """Send the messages on: the disk has recorded that the COMMIT is to be carried out."""
        commit.is_durable = True
        self._do(self._looking_at(list(commit.lanes.values())))
        targets = commit.spool.targets
        if commit.gone:
            self._dropping_count += 1
            pieces = ((commit.spool, place) for target in commit.gone for place in targets[target].places)
            drop(pieces, dropped=self._release, done=self._all_dropped)
            self._unheard(sum([targets[target].count for target in commit.gone]))
        self._wake()
        if commit.left_in_logs:
            commit.answer = answer
        else:
            answer()

    def _looking_at(self, lanes: list[Lane]) -> Iterator[None]:
        """Look at these lanes anew, in steps."""
        for place, lane in enumerate(lanes, 1):
            self._lanes.look_at(lane)
            if place % LANES_PER_STEP == 0:
                yield
        self._wake()

    def _release(self, spool: Spool, place: int) -> None:
        self._lanes.spooled.release(0, spool.size_of(place))

    def _all_dropped(self) -> None:
        self._dropping_count -= 1
        self._wake()

    def _unheard(self, count: int) -> None:
        self._hub.registry.unheard_count += count
