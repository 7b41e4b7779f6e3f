"""COMMITs of one connection whose SENDs are on the disk.

Such a COMMIT never waits. What it settles, and the record that it is to be carried out, are one synced batch: then its
RECEIPT goes out, and it will be carried out whatever happens. Its SENDs follow as their queues have room
(spool_drain.py), in its place in the lanes: nothing that the connection sends later to the same queue overtakes it.
ACKs pass as always, so a transaction that is larger than its queue gets through though its consumer is on the same
connection.

Bound: `transaction_spool_bytes_max` of the connection, on the disk; a barrier and a leg for each queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from itertools import repeat
from typing import Final

from ...queues.atomic_offer import PromisedRoom
from ...queues.message import MESSAGE_OVERHEAD_BYTES
from ...queues.names import parse
from ...queues.queue import MessageQueue
from ...queues.registry import DestinationLimitError, DestinationRegistry
from ...queues.storage import Joint
from .errors import ProtocolError
from .hub import Hub
from .lanes import Barrier, Lane, Lanes
from .replies import Replies
from .spool_drain import SpoolDrain, drop
from .spooling import ROUTE_STEPS
from .spools import Spool, Target
from .transactions import AT_ONCE_COUNT, CHEAP_PER_STEP, LANES_PER_STEP, Transaction, settling, some_of

ROUNDS_MAX: Final = 4
"""So often queues that were deleted are looked for in steps, if more are deleted meanwhile."""


class _Flag:
    """Whether the disk knows of a COMMIT."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class SpooledCommits:
    """Those of one connection that are not all in their queues."""

    __slots__ = ("_do", "_dropping_count", "_hub", "_lanes", "_legs", "_replies", "_undo", "_wake")

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
        """`wake`: something that was parked may go on, look soon; `do` this in steps, for the connection; `undo`: this
        COMMIT can't be carried out, for the broker made a mistake: end the connection, do this, and abort the spool.
        """
        self._do = do
        self._undo = undo
        self._hub = hub
        self._lanes = lanes
        self._replies = replies
        self._wake = wake
        self._legs: dict[SpoolDrain, None] = {}
        self._dropping_count = 0
        """COMMITs whose pieces for destinations that were gone are being deleted."""

    @property
    def is_moving(self) -> bool:
        """Some of them have not left the lanes yet."""
        return bool(self._legs or self._dropping_count)

    @property
    def left_count(self) -> int:
        """Pieces that are not in their queues yet."""
        return sum(leg.left_count for leg in self._legs)

    def carrying_out(
        self,
        transaction: Transaction,
        spool: Spool,
        receipt_id: str | None,
        *,
        instead_of: Barrier | None = None,
    ) -> Generator[object, None, bool]:
        """COMMIT: from now on nothing holds it up. In steps.
        `instead_of`: its place in the lanes, if it has one already. Raises ProtocolError, nothing done, if a queue
        refuses or there can't be one. False: the broker made a mistake with a queue of it, nothing of it will be on the
        disk; the connection ends, and the spool is to be aborted.
        """
        lanes, gone = yield from self._finding_lanes(spool)
        wanted: dict[MessageQueue, tuple[int, int]] = {}
        for place, (target, lane) in enumerate(lanes.items(), 1):
            if lane.queue.rejects:
                spooled = spool.targets[target]
                charge_bytes = spooled.wire_bytes + MESSAGE_OVERHEAD_BYTES * spooled.count
                wanted[lane.queue] = spooled.count, charge_bytes
            if place % CHEAP_PER_STEP == 0:
                yield None
        promise = PromisedRoom()
        joint: Joint | None = None
        is_promised = False
        try:
            yield from transaction.checking_room(wanted, promise)
            if transaction.acks_steps_count + len(lanes) > AT_ONCE_COUNT and self._hub.store is not None:
                joint = self._hub.store.join(self._lanes)
                yield from self._lanes.waiting_for_turn(joint)
            is_durable = _Flag()
            places: dict[SpoolDrain, Barrier] = {}
            for _step in self._taking_effect(transaction, spool, lanes, instead_of, is_durable, joint, promise, places):
                if joint is not None:
                    if joint.is_broken:
                        break
                    yield None
            closed = yield from self._finding_closed(lanes, in_steps=joint is not None)
            if joint is not None and joint.is_broken:
                yield from self._taking_out(places)
                return False
            is_promised = True
            storages = transaction.storages() if joint is None else some_of(joint)
            if spool.targets:
                answer = self._replies.later(receipt_id)
                durable = partial(self._durable, spool, lanes.values(), gone, is_durable, answer)
                undone = partial(self._undone, spool, places, promise, receipt_id)
                spool.commit(storages, durable, undone, deleted=[*gone, *closed])
            else:  # none of its SENDs had anywhere to go
                if self._hub.store is not None:
                    self._hub.store.bind(storages)
                self._replies.committed(receipt_id, storages)
            return True
        finally:
            if joint is not None:
                joint.end()
            if not is_promised:
                promise.let_go()

    def _taking_effect(
        self,
        transaction: Transaction,
        spool: Spool,
        lanes: dict[Target, Lane],
        instead_of: Barrier | None,
        is_durable: _Flag,
        joint: Joint | None,
        promise: PromisedRoom,
        places: dict[SpoolDrain, Barrier],
    ) -> Iterator[None]:
        yield from settling(transaction, joint)
        for target, lane in lanes.items():
            leg, barrier = self._add_leg(spool, target, lane, instead_of, lambda: is_durable.is_set, promise)
            places[leg] = barrier
            yield

    def _finding_closed(self, lanes: dict[Target, Lane], *, in_steps: bool) -> Generator[None, None, list[Target]]:
        """Targets whose queues were deleted since their lanes were found: all of them, as of the last step."""
        registry = self._hub.registry
        for round_number in range(ROUNDS_MAX + 1):
            closed: list[Target] = []
            deleted_count = registry.deleted_count
            for place, (target, lane) in enumerate(lanes.items(), 1):
                if lane.queue.closed:
                    closed.append(target)
                if in_steps and round_number < ROUNDS_MAX and place % CHEAP_PER_STEP == 0:
                    yield
            if registry.deleted_count == deleted_count:
                break
        return closed

    def _undone(
        self, spool: Spool, places: dict[SpoolDrain, Barrier], promise: PromisedRoom, receipt_id: str | None
    ) -> None:
        """The broker made a mistake with a queue in which it has settled something: the disk will never know of it."""

        def undoing() -> Iterator[None]:
            promise.let_go()
            yield from self._taking_out(places)
            self._replies.forgo(receipt_id)

        self._undo(spool, undoing())

    def _taking_out(self, places: dict[SpoolDrain, Barrier]) -> Iterator[None]:
        """These legs never go: what is parked behind them does. In steps."""
        for leg, barrier in places.items():
            del self._legs[leg]
            self._lanes.let_go(barrier)
            yield
        self._wake()

    def _durable(
        self,
        spool: Spool,
        lanes: Collection[Lane],
        gone: list[Target],
        is_durable: _Flag,
        answer: Callable[[], None],
    ) -> None:
        """The disk knows that it is to be carried out."""
        is_durable.is_set = True
        self._do(self._looking_at(lanes))
        if gone:
            self._dropping_count += 1
            pieces = ((spool, place) for target in gone for place in spool.targets[target].places)
            drop(pieces, dropped=self._dropped, done=self._all_dropped)
            self._unheard(sum([spool.targets[target].count for target in gone]))
        self._wake()
        answer()

    def _looking_at(self, lanes: Collection[Lane]) -> Iterator[None]:
        """What waits there may go on. In steps."""
        for place, lane in enumerate(list(lanes), 1):
            self._lanes.look_at(lane)
            if place % LANES_PER_STEP == 0:
                yield
        self._wake()

    def _finding_lanes(self, spool: Spool) -> Generator[None, None, tuple[dict[Target, Lane], list[Target]]]:
        """Lanes to where it goes, and what of that is gone. In steps."""
        lanes: dict[Target, Lane] = {}
        gone: list[Target] = []
        registry = self._hub.registry
        for target in spool.targets:
            steps_count = 1 if target[0] in registry.destinations else ROUTE_STEPS
            try:
                queue = queue_of(target, registry)
            except DestinationLimitError as error:
                raise ProtocolError(error.code, str(error)) from None
            if queue is None:
                gone.append(target)
            else:
                lanes[target] = self._lanes.lane(registry.destinations[target[0]], queue)
            yield from repeat(None, steps_count)
        return lanes, gone

    def _add_leg(
        self,
        spool: Spool,
        target: Target,
        lane: Lane,
        instead_of: Barrier | None,
        is_durable: Callable[[], bool],
        promise: PromisedRoom,
    ) -> tuple[SpoolDrain, Barrier]:
        spooled = spool.targets[target]
        in_place = instead_of if instead_of is not None and lane in instead_of.lanes else None

        def go() -> None:
            if not leg.go():
                lane.source.end_turn()

        barrier = self._lanes.hold_turns(lane, go, instead_of=in_place)

        def left(spool: Spool, place: int, count: int, charge_bytes: int) -> None:
            self._lanes.spooled.release(0, spool.size_of(place))
            promise.use(lane.queue, count, charge_bytes)
            if not leg.left_count:
                promise.use(lane.queue, spooled.count, 0)  # what was damaged
                del self._legs[leg]
                self._lanes.let_go(barrier)
                self._wake()

        leg = SpoolDrain(
            [(spool, place) for place in spooled.places],
            lane.queue,
            lane.source,
            count=spooled.count,
            may_go=lambda: is_durable() and lane.parked[0] is barrier,
            left=left,
            unheard=self._unheard,
        )
        self._legs[leg] = None
        return leg, barrier

    def _dropped(self, spool: Spool, place: int) -> None:
        self._lanes.spooled.release(0, spool.size_of(place))

    def _all_dropped(self) -> None:
        self._dropping_count -= 1
        self._wake()

    def _unheard(self, count: int) -> None:
        self._hub.registry.unheard_count += count


def queue_of(target: Target, registry: DestinationRegistry, *, is_stored: bool = False) -> MessageQueue | None:
    """The queue of a target as it is now, made if need be. None: a temporary destination that is gone. Raises
    DestinationLimitError, but not for what `is_stored`: committed by an earlier run.
    """
    name, priority, topic = target
    address = parse(name)
    if address.temporary_global and name not in registry.destinations:
        return None
    return registry.get(address, is_stored=is_stored).stored_queue(priority, topic=topic)
