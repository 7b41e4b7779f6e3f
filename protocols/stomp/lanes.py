"""Ways of the SENDs of one connection: lanes to queues, and the stash for those that must wait.

A *lane* is one flow of the connection: to one queue (a destination at one priority). When that queue has no room, SENDs
of this lane are parked in the connection: so the memory of a queue stays within its limit however many connections send
to it. Other traffic of the connection continues. Parked SENDs are charged to the *stash*, whose limit decides whether
the connection may be read from at all. Runs of a lane are parked and sent on in order.

A *route* says for one head which lanes it goes to (several for a composite) and how the head must read there. The plain
case, one lane and nothing to be rewritten, is one look-up by destination and priority (and part); other routes are kept
by head object, which the parser shares between SENDs with the same header block.

Bounds: ROUTES_MAX; LANES_MAX, or LANES_FEW while the upkeep is full, to which `trim` leads back between reads (the
oldest lanes that hold nothing go; those that hold something are bounded by the stash); the stash's limiter.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Final

import attrs

from ...flow import Account, Flow, FlowManager, FlowResource, SizeLimiter, SourceController, WaitEdge
from ...flow.kinds import ResourceKind
from ...queues.destination import Destination
from ...queues.large import LargeMessage
from ...queues.logs.log import Log
from ...queues.logs.partitions import LogPartitions
from ...queues.message import MESSAGE_OVERHEAD_BYTES, Message, wire_bytes_of
from ...queues.message_sink import MessageSink, SinkOwner
from ...queues.observer import Fate
from ...queues.parts import Partitioning
from ...queues.queue import MessageQueue
from ...queues.steps import Waiting
from ...queues.storage import Joint
from ...queues.topic import Topic
from ..reading import Hold
from .errors import ProtocolError
from .head import SendHead
from .replies import Owed
from .temporary import LOCAL_PREFIXES

ROUTES_MAX: Final = 1024
LANES_MAX: Final = 1024
LANES_KEPT: Final = 768
"""Number of lanes that stay when there were too many: a client that sends to many destinations should not pay for the
removal at each SEND.
"""
LANES_FEW: Final = 16
"""Number of lanes that stay while the upkeep of the broker is full."""
MOVES_PER_TURN: Final = 128
"""Number of users of lane turns that continue in one dispatch."""
PLACES_PER_STEP: Final = 32
"""Number of lanes in which a COMMIT takes its place in one step, where long work is counted (queues/steps.py)."""
DROPPED_PER_STEP: Final = 8
"""Runs that are dropped in one."""
RUN_COST: Final = 16
"""Cost of sending one run on, in messages: the run may be the first of its queue."""
PLACES_PER_TURN: Final = 256
"""Number of places that a barrier leaves in one go."""
TRIM_COUNT: Final = 256
"""Number of lanes that are dropped at a time; fewer can be made between two times."""
PARKED_OVERHEAD_BYTES: Final = 128
LANE_BYTES: Final = 1600
"""Memory of a lane (tracemalloc, CPython 3.11)."""
ROUTE_BYTES: Final = 400
TARGET_BYTES: Final = 160
PLAIN_BYTES: Final = ROUTE_BYTES + TARGET_BYTES


@attrs.frozen
class ParkedRun:
    """SENDs that wait for their queue. `size_bytes`: of their wires."""

    messages: list[Message]
    size_bytes: int
    owed: Owed | None
    charge_bytes: int
    shared: SharedWires | None = None

    @property
    def is_committed(self) -> bool:
        """Whether the run is a part of a COMMIT, which must not be split: no queue drops or refuses the run."""
        return self.owed is not None and self.owed.is_commit

    @property
    def is_owed_whole(self) -> bool:
        """Whether each message of the run has a RECEIPT to come."""
        return self.owed is not None and len(self.owed.receipt_ids) >= len(self.messages)

    def leave(self) -> int:
        """Return the number of bytes to release for a run that leaves the stash."""
        if self.shared is None:
            return self.charge_bytes
        self.shared.legs_count -= 1
        return self.charge_bytes + (0 if self.shared.legs_count else self.shared.size_bytes)


class SharedWires:
    """Wires of a composite SEND as they came: its parked legs in several lanes share them, and each leg is rewritten
    when it is sent on. Charged once, until the last leg has gone.
    """

    __slots__ = ("block_bytes", "legs_count", "size_bytes")

    def __init__(self, block_bytes: int, size_bytes: int) -> None:
        """`block_bytes`: of the header block, with which each wire begins; `size_bytes`: of all wires."""
        self.block_bytes = block_bytes
        self.size_bytes = size_bytes
        self.legs_count = 0

    def rewritten(self, messages: list[Message]) -> tuple[list[Message], int]:
        """Messages with the header block of their heads, and the bytes of their wires."""
        start = self.block_bytes
        made = [
            Message(message.head, _block_of(message) + message.wire[start:], message.number) for message in messages
        ]
        return made, wire_bytes_of(made)


def _block_of(message: Message) -> bytes:
    head = message.head
    assert isinstance(head, SendHead)
    return head.block


class Barrier:
    """Place of a waiting COMMIT in its lanes: runs that are parked later stay behind it, so that nothing overtakes.

    The lanes that block it are noted as they change, never searched for: there may be thousands. Runs put in its place
    are kept here until the COMMIT is over, for a hundred thousand runs may be before it in a lane.
    """

    __slots__ = ("charge_bytes", "go", "is_over", "lanes", "waits_for")

    def __init__(self, charge_bytes: int, go: Callable[[], None] | None = None) -> None:
        self.lanes: dict[Lane, deque[ParkedRun | Barrier] | None] = {}
        """Lanes that the barrier has not left, each with the runs that are put in its place there."""
        self.waits_for: dict[Lane, None] = {}
        """Lanes that block this place: blocked ones, or those with runs in front. A deleted queue blocks nothing."""
        self.charge_bytes = charge_bytes
        self.go = go
        """Callback of the holder of this place: it uses the turns of its lane, or ends them (see `SpooledCommits`)."""
        self.is_over = False
        """Whether no lane has this place any more."""

    def must_wait(self, lane: Lane) -> bool:
        """Whether a run that is sent to the lane from this place must wait now."""
        return lane.source.blocked or lane.parked[0] is not self or bool(self.lanes[lane])

    def look(self, lane: Lane) -> None:
        """See anew whether the lane blocks this place."""
        if lane.parked[0] is self and (lane.inlet.closed or not lane.source.blocked):
            self.waits_for.pop(lane, None)
        else:
            self.waits_for[lane] = None

    def put(self, lane: Lane, parked: ParkedRun | Barrier) -> None:
        """Put a run or barrier in this place of the lane, behind earlier ones."""
        in_place = self.lanes[lane]
        if in_place is None:
            in_place = self.lanes[lane] = deque()
        in_place.append(parked)


class Lane:
    """One flow of the connection, to one queue."""

    __slots__ = ("adds_headers", "inlet", "is_log", "parked", "sent_count", "source", "take_numbers", "target", "topic")

    def __init__(self, target: SinkOwner, inlet: MessageSink, source: SourceController) -> None:
        self.target = target
        self.inlet = inlet
        self.is_log = not isinstance(inlet, MessageQueue)
        self.topic = inlet if isinstance(inlet, Topic) else None
        self.adds_headers = isinstance(target, Destination) and target.policy.jms_headers
        """Whether messages get headers that their senders left out: see `forwarded`."""
        self.take_numbers = inlet.environment.take_numbers
        self.source = source
        self.parked: deque[ParkedRun | Barrier] = deque()
        self.sent_count = 0
        """Messages that went this way, but for those of transactions."""

    @property
    def queue(self) -> MessageQueue:
        """The queue, where it can't be a log."""
        assert isinstance(self.inlet, MessageQueue)
        return self.inlet

    @property
    def log(self) -> Log:
        """The log, where the lane `is_log`."""
        assert isinstance(self.inlet, Log)
        return self.inlet

    @property
    def destination(self) -> Destination:
        """Destination of the queue."""
        assert isinstance(self.target, Destination)
        return self.target

    def forwarded(self, head: SendHead) -> SendHead:
        """Return a head as it reads in the destination. For each run anew: it may say when that came."""
        if not self.adds_headers:
            return head
        return head.with_jms_headers(self.inlet.environment.now_ms(), self.destination.policy.expires_max_ms)

    @property
    def must_wait(self) -> bool:
        """A SEND of this lane has to be parked."""
        return self.source.blocked or bool(self.parked)


@attrs.frozen
class Route:
    """Lanes for one head, each with the head as it reads there."""

    targets: tuple[tuple[SendHead, Lane], ...]
    plain: bool = False
    """One lane, and the head goes there as it came: then all heads with this destination and priority share the lane,
    or those of one part."""
    divided: LogPartitions | None = None
    """Partitions of the log that the head names; None: it names none, or several destinations."""

    @property
    def is_stale(self) -> bool:
        """A destination of it was deleted."""
        return any(lane.inlet.closed for _head, lane in self.targets)


class Lanes(FlowResource):
    """All lanes of one connection, its routes and its stash. The connection as a producer, on the flow map."""

    passes_through = False
    upkeep_bytes = 24 * 1024
    """Upkeep of a whole connection with one subscription or two."""

    def __init__(
        self,
        name: str,
        *,
        stash_bytes_max: int,
        transaction_bytes_max: int,
        spool_bytes_max: int,
        unfinished_bytes_max: int,
        manager: FlowManager,
        clock: Callable[[], float],
        on_resume: Callable[[], None],
        full: Hold,
    ) -> None:
        """`full`: the connection is not read, its stash has too much."""
        super().__init__(name, ResourceKind.CONNECTION, manager)
        self._clock = clock
        self._on_resume = on_resume
        self._lanes: dict[int, Lane] = {}
        self._idle: OrderedDict[int, Lane] = OrderedDict()
        """Lanes without parked runs, the last used one last."""
        self._routes: dict[SendHead, Route] = {}
        self._plain: dict[tuple[str, int] | tuple[str, int, int], Lane] = {}
        """Lanes by destination and priority, and by part if the destination has parts."""
        self._divided: dict[str, Partitioning | LogPartitions] = {}
        """Partitioning of each destination with parts."""
        self._routes_bytes = 0
        self.stash = Account(
            self,
            Flow(f"stash of {name}"),
            SizeLimiter(stash_bytes_max, clock=clock),
            clock=clock,
            yields=True,
        )
        self._transaction_bytes_max = transaction_bytes_max
        self._spool_bytes_max = spool_bytes_max
        self._unfinished_bytes_max = unfinished_bytes_max
        self._unfinished_bytes = 0
        self._gate = full.source(self, Flow(f"socket of {name}"), clock=clock)
        self.parked_count = 0
        """Messages parked."""
        self.committed_count = 0
        """Runs of them that are parts of COMMITs."""
        self.barriers_count = 0
        """Places of COMMITs, and those that have not left all of their lanes."""
        self._over: deque[list[Lane]] = deque()
        """Lanes of barriers that are over, which have not been examined since."""
        self._ready: OrderedDict[Lane, None] = OrderedDict()
        """Lanes where a parked run may continue, or a turn is of no use: `unpark` looks at them."""
        self._changed: dict[Lane, None] = {}
        """Lanes whose turns a barrier uses, and where it may be able to continue."""
        self._is_handed_over = False
        self.in_use_count = 0
        """Number of transactions that are carried out in steps: no lane is dropped meanwhile."""
        self.waiting_for = ""
        """Reason why the session does not read, for people."""
        self._joint: Joint | None = None
        """Joint write of a COMMIT that waits for its turn."""
        self.open()

    # An idle connection has none of these.

    @cached_property
    def transactions(self) -> Account:
        """Account of open transactions."""
        return self._account(f"transactions of {self.name}", self._transaction_bytes_max)

    @cached_property
    def spooled(self) -> Account:
        """Account of transactions on the disk."""
        return self._account(f"spooled transactions of {self.name}", self._spool_bytes_max, counts_memory=False)

    @cached_property
    def unfinished(self) -> Account:
        """Frames that have not come whole."""
        return self._account(f"unfinished frames of {self.name}", self._unfinished_bytes_max)

    def note_unfinished(self, size_bytes: int) -> None:
        """Note the memory of incomplete frames."""
        more_bytes = size_bytes - self._unfinished_bytes
        if more_bytes and self.is_open:
            self._unfinished_bytes = size_bytes
            if more_bytes > 0:
                self.unfinished.charge(0, more_bytes, None)
            else:
                self.unfinished.release(0, -more_bytes)

    def _account(self, name: str, bytes_max: int, *, counts_memory: bool = True) -> Account:
        """A place on the flow map for memory (or disk) whose limit others see to."""
        return Account(
            self,
            Flow(name),
            SizeLimiter(max(1, bytes_max), clock=self._clock),
            clock=self._clock,
            counts_memory=counts_memory,
        )

    @property
    def stash_is_full(self) -> bool:
        return self.stash.limiter.throttled

    @property
    def stash_bytes(self) -> int:
        return self.stash.limiter.used_bytes

    @property
    def lanes(self) -> Collection[Lane]:
        """All lanes. A live view."""
        return self._lanes.values()

    def blocked_queues(self) -> Container[object]:
        """Return the queues that block this connection. A live view."""
        return _BlockedQueues(self._lanes)

    def route(self, head: SendHead) -> Route | None:
        """The route made for this head before, unless it went stale."""
        lane = self.plain_lane(head)
        if lane is not None:
            return Route(((head, lane),), plain=True)
        route = self._routes.get(head)
        if route is not None and route.is_stale:
            self._forget_stale()
            return None
        return route

    def plain_lane(self, head: SendHead) -> Lane | None:
        """The lane of a head that goes to one queue as it came, if one was made before. The hot path of every SEND."""
        lane = self._plain.get((head.destination, head.priority))
        if lane is None:
            by = self._divided.get(head.destination) if self._divided else None
            lane = None if by is None else self._plain.get((head.destination, head.priority, by.part_of(head)))
            if lane is None:
                return None
        if head.delay_ms or (head.reply_to is not None and head.reply_to.startswith(LOCAL_PREFIXES)):
            return None
        if lane.inlet.closed:
            self._forget_stale()
            return None
        return lane

    def keep_route(self, head: SendHead, route: Route) -> None:
        """Remember it for SENDs with the same head; a plain one also for all to its destination at its priority."""
        if len(self._routes) + len(self._plain) >= ROUTES_MAX:
            self._forget_routes()
        if route.plain:
            lane = route.targets[0][1]
            key: tuple[str, int] | tuple[str, int, int] = (head.destination, head.priority)
            if route.divided is not None and lane.log.partition is not None:
                self._divided[head.destination] = self._divided.get(head.destination, route.divided)
                key = (head.destination, head.priority, lane.log.partition)
            elif not lane.is_log and (by := lane.destination.partitioning) is not None:
                self._divided[head.destination] = by
                key = (head.destination, head.priority, by.part_of(head))
            new_bytes = PLAIN_BYTES if key not in self._plain else 0
            self._plain[key] = lane
        else:
            new_bytes = _bytes_of(route) - (_bytes_of(self._routes[head]) if head in self._routes else 0)
            self._routes[head] = route
        self._keep_routes(self._routes_bytes + new_bytes)

    def forget_routes(self) -> None:
        """Routes are found anew: where SENDs may go has changed."""
        self._forget_routes()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._plain.clear()
        self._divided.clear()
        self._keep_routes(0)

    def _keep_routes(self, size_bytes: int) -> None:
        """Count the memory of all routes together."""
        self.keep(size_bytes - self._routes_bytes)
        self._routes_bytes = size_bytes

    def lane(self, target: SinkOwner, inlet: MessageSink) -> Lane:
        """The lane to this queue or log, made if need be."""
        known = self._lanes.get(id(inlet))
        if known is not None:
            if not known.parked:
                self._idle.move_to_end(id(inlet))
            return known
        source = SourceController(
            self,
            Flow(target.name),
            on_block=lambda _sink: self._lane_blocked(lane),
            on_resume=lambda _sink: self._lane_resumed(lane),
            clock=self._clock,
        )
        lane = self._lanes[id(inlet)] = self._idle[id(inlet)] = Lane(target, inlet, source)
        target.producers_count += 1
        self.keep(LANE_BYTES)
        return lane

    def _lane_blocked(self, lane: Lane) -> None:
        if lane.parked and isinstance(front := lane.parked[0], Barrier):
            front.look(lane)

    def _lane_resumed(self, lane: Lane) -> bool:
        """Note that a lane may send again. True: the queue keeps the turn of the lane, which has parked runs, until
        `unpark` runs.
        """
        self.look_at(lane)
        self._on_resume()
        return bool(lane.parked)

    def look_at(self, lane: Lane) -> None:
        """Note a change: `unpark` and `move_on` see whether the front of this lane may continue."""
        if not lane.parked:
            return
        self._ready[lane] = None
        if isinstance(front := lane.parked[0], Barrier):
            front.look(lane)
            if front.go is not None:
                self._changed[lane] = None

    def move_on(self) -> bool:
        """Let some users of lane turns continue where something has changed, or end their turns. Returns True if there
        are more.
        """
        for lane in list(islice(self._changed, MOVES_PER_TURN)):
            del self._changed[lane]
            front = lane.parked[0] if lane.parked else None
            if isinstance(front, Barrier) and front.go is not None:
                front.go()
        return bool(self._changed)

    def trim(self) -> None:
        """Drop surplus lanes, the oldest empty ones first. Call between reads only: a batch that is being collected
        holds lanes, and so does a transaction that is carried out in steps.
        """
        count = len(self._lanes)
        surplus_count = count - LANES_KEPT if count > LANES_MAX else 0
        if not surplus_count and count > LANES_FEW and (upkeep := self.manager.upkeep) is not None and upkeep.full:
            surplus_count = count - LANES_FEW
        if not surplus_count or self.in_use_count:
            return
        idle = self._idle
        dropped = False
        for _ in range(min(surplus_count, TRIM_COUNT, len(idle))):
            key, lane = idle.popitem(last=False)
            if lane.source.blocked:
                idle[key] = lane
            else:
                self._drop(key, lane)
                dropped = True
        if dropped:
            self._forget_routes()

    def _forget_stale(self) -> None:
        """Drop routes to deleted destinations, and their lanes. Parked runs there are still owed their receipts:
        `unpark` serves them. O(routes), never of the lanes.
        """
        stale = {head: route for head, route in self._routes.items() if route.is_stale}
        closed = {place: lane for place, lane in self._plain.items() if lane.inlet.closed}
        for head in stale:
            del self._routes[head]
        for place in closed:
            del self._plain[place]
            self._divided.pop(place[0], None)
        self._keep_routes(self._routes_bytes - sum(map(_bytes_of, stale.values())) - PLAIN_BYTES * len(closed))
        lanes = [lane for route in stale.values() for _head, lane in route.targets] + list(closed.values())
        for lane in lanes:
            key = id(lane.inlet)
            if lane.inlet.closed and not lane.parked and self._lanes.get(key) is lane:
                self._drop(key, lane)

    def _drop(self, key: int, lane: Lane) -> None:
        del self._lanes[key]
        self._idle.pop(key, None)
        self.keep(-LANE_BYTES)
        lane.target.producers_count -= 1
        lane.source.close()

    def give_away(self, shard: int) -> list[ParkedRun] | None:
        """Drop the lanes to queues of a shard, and return what was parked there, in order within each lane. None: part
        of it belongs to a COMMIT, a log or a large body, and nothing has changed.
        """
        lanes = [(key, lane) for key, lane in self._lanes.items() if lane.inlet.environment.shard == shard]
        for _key, lane in lanes:
            if lane.parked and (lane.is_log or self.in_use_count):
                return None
            for run in lane.parked:
                if isinstance(run, Barrier) or run.is_committed or any(map(_is_large, run.messages)):
                    return None
        given: list[ParkedRun] = []
        for key, lane in lanes:
            while lane.parked:
                run = lane.parked.popleft()
                assert isinstance(run, ParkedRun), "looked at before"
                self._unparked(run)
                given.append(run)
            self._ready.pop(lane, None)
            lane.source.end_turn()
            self._drop(key, lane)
        if lanes:
            self._forget_routes()
        return given

    # ------------------------------------------------------------------ the stash

    def park(
        self,
        lane: Lane,
        messages: list[Message],
        size_bytes: int,
        owed: Owed | None,
        *,
        before: Barrier | None = None,
        shared: SharedWires | None = None,
    ) -> None:
        """Park SENDs until their lane can send: behind all others, or at the place of COMMIT `before`."""
        charge_bytes = MESSAGE_OVERHEAD_BYTES * len(messages) + PARKED_OVERHEAD_BYTES
        if shared is None:
            charge_bytes += size_bytes
        if owed is not None:
            charge_bytes += owed.size_bytes
        run = ParkedRun(messages, size_bytes, owed, charge_bytes, shared)
        if shared is not None:
            if not shared.legs_count:
                charge_bytes += shared.size_bytes
            shared.legs_count += 1
        if before is None:
            self._append(lane, run)
        else:
            before.put(lane, run)
        self.parked_count += len(messages)
        self.committed_count += run.is_committed
        if lane.inlet.observer is not None:
            lane.inlet.observer.outside(Fate.PARKED, messages, f"it has no room: held back in {self.name}")
        self.stash.charge(0, charge_bytes, self._gate)

    def _append(self, lane: Lane, parked: ParkedRun | Barrier) -> None:
        """Append a run or barrier behind all others."""
        if not lane.parked:
            self._idle.pop(id(lane.inlet), None)
        lane.parked.append(parked)
        if not lane.source.blocked:
            self._ready[lane] = None

    def holding(self, lanes: Iterable[Lane], size_bytes: int) -> Generator[None, None, Barrier]:
        """Park a COMMIT to these lanes: it is charged to the stash, and later runs stay behind it, until
        `end_barrier`. In steps.
        """
        barrier = Barrier(size_bytes)
        self.barriers_count += 1
        self.stash.charge(0, size_bytes, self._gate)
        for place, lane in enumerate(lanes, 1):
            barrier.lanes[lane] = None
            self._append(lane, barrier)
            barrier.look(lane)
            if place % PLACES_PER_STEP == 0:
                yield
        return barrier

    def hold_turns(self, lane: Lane, go: Callable[[], None], *, instead_of: Barrier | None = None) -> Barrier:
        """Add a place for an independent user of the lane's source: behind parked runs, or at the place of
        `instead_of`. No charge: its messages are not in memory. `go`: called after a change, to see whether the user
        may continue.
        """
        barrier = Barrier(0, go)
        barrier.lanes[lane] = None
        self.barriers_count += 1
        if instead_of is None:
            self._append(lane, barrier)
        else:
            instead_of.put(lane, barrier)
        return barrier

    def end_barrier(self, barrier: Barrier) -> None:
        """Release a COMMIT that is carried out. `unpark` is due: runs may have waited behind it, and its places are
        left in steps if there are many.
        """
        barrier.is_over = True
        self._over.append(list(barrier.lanes))
        self._leave(PLACES_PER_TURN)
        if barrier.charge_bytes:
            self.stash.release(0, barrier.charge_bytes)

    def _leave(self, count: int) -> None:
        """Leave up to `count` lanes of barriers that are over. Where a run is in front of a barrier, the barrier leaves
        when that run has gone.
        """
        while self._over:
            lanes = self._over[0]
            if not lanes:
                self._over.popleft()
            elif count > 0:
                count -= 1
                lane = lanes.pop()
                self._come_forward(lane)
                lane.source.end_turn()
            else:
                break

    def leaving(self) -> Iterator[None]:
        """Leave all lanes of barriers that are over, in steps."""
        while self._over:
            self._leave(PLACES_PER_STEP)
            yield

    def _come_forward(self, lane: Lane) -> None:
        """Advance a lane whose front has gone or is over."""
        parked = lane.parked
        while parked and isinstance(front := parked[0], Barrier) and front.is_over:
            parked.popleft()
            parked.extendleft(reversed(front.lanes.pop(lane) or ()))
            self.barriers_count -= not front.lanes
        if parked:
            self.look_at(lane)
        elif self._lanes.get(id(lane.inlet)) is lane:
            self._idle[id(lane.inlet)] = lane

    def ease(self, barrier: Barrier, size_bytes: int) -> None:
        """Release `size_bytes` of a COMMIT that are charged elsewhere by now."""
        size_bytes = min(size_bytes, barrier.charge_bytes)
        barrier.charge_bytes -= size_bytes
        self.stash.release(0, size_bytes)

    def unpark(self, budget: int, send_on: Callable[[Lane, ParkedRun], bool], next_place: Barrier | None) -> bool:
        """Send on what may go now: in order within each lane, one run of each lane in turn, about `budget` messages.
        `send_on` returns False for what must wait on. `next_place`: of the COMMIT that may go now, which keeps the
        turns of its lanes. True: there is more.
        """
        if self._is_handed_over:
            return False
        self._leave(PLACES_PER_TURN)
        ready = self._ready
        held_up: list[Lane] = []
        while ready and budget > 0:
            lane = ready.popitem(last=False)[0]
            budget -= RUN_COST
            if not lane.parked or (lane.source.blocked and not lane.inlet.closed):
                continue
            run = lane.parked[0]
            if isinstance(run, Barrier):
                if run.go is None and run is not next_place:
                    lane.source.end_turn()
                continue
            budget -= len(run.messages)
            went = True
            try:
                went = send_on(lane, run)
            finally:  # only now: what is under way is charged somewhere at any time
                if went:
                    lane.parked.popleft()
                    self._unparked(run)
                    self._come_forward(lane)
                lane.source.end_turn()  # one run per turn
            if not went and not lane.source.blocked:
                held_up.append(lane)
        more = bool(ready or self._over)
        ready.update(dict.fromkeys(held_up))
        return more

    def _unparked(self, run: ParkedRun) -> None:
        self.parked_count -= len(run.messages)
        self.committed_count -= run.is_committed
        self.stash.release(0, run.leave())

    def hand_over(self) -> None:
        """Hand parked runs over to the lanes of ended sessions, which send them on and are charged for them. No COMMIT
        waits, no part of one is parked, and nothing is parked here afterwards.
        """
        assert not self.barriers_count and not self.committed_count, "a COMMIT belongs to its session"
        self.parked_count = 0
        self._is_handed_over = True
        self.stash.release(0, self.stash_bytes)

    def giving_up(self) -> Generator[None, None, int]:
        """Drop all parked runs, in steps: no client waits for them, and there is no space for them. No COMMIT waits,
        and no part of one is parked. Returns the number of messages.
        """
        assert not self.barriers_count and not self.committed_count, "a COMMIT must not come apart"
        given_up_count = place = 0
        for lane in [lane for lane in self._lanes.values() if lane.parked]:
            while lane.parked:
                run = lane.parked.popleft()
                assert isinstance(run, ParkedRun), "there are no places of COMMITs"
                given_up_count += len(run.messages)
                self._unparked(run)
                place += 1
                if place % DROPPED_PER_STEP == 0:
                    yield
            self._come_forward(lane)
            lane.source.end_turn()  # `unpark` may not come by any more
        return given_up_count

    def close_lanes(self) -> bool:
        """Drop the lanes of a closed connection without parked runs. Returns False if there are more; call again."""
        self._forget_routes()
        for key, lane in list(islice(reversed(self._lanes.items()), TRIM_COUNT)):
            self._drop(key, lane)
        if self._lanes:
            return False
        self.close()
        return True

    def waiting_for_turn(self, joint: Joint) -> Iterator[Waiting]:
        """Wait for the turn of this transaction before the connection's other work; not at all, if the turn has
        come.
        """
        if not joint.waits:
            return
        self._joint = joint
        try:
            yield Waiting(joint.begin)
        finally:
            self._joint = None

    def waits_on(self) -> Iterable[WaitEdge]:
        return () if self._joint is None or not self._joint.waits else (self._joint.edge(),)

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"destinations": len(self._lanes)}
        if self.parked_count:
            facts["parked"] = self.parked_count
        if self.waiting_for:
            facts["waiting for"] = self.waiting_for
        return facts


class ParkingLimit:
    """Limit of the stash of one connection while the connection is read on for ACKs.

    A connection that holds nothing of the queues that it waits for is simply not read from; one that does could wait
    for itself for ever. A single run may always be parked, or no run larger than the limit could be sent at all.
    """

    __slots__ = ("_bytes_max", "_held_of", "_lanes")

    def __init__(self, lanes: Lanes, bytes_max: int, held_of: Callable[[Container[object]], int]) -> None:
        """Make the limit. `held_of`: returns the number of unacknowledged deliveries of these queues."""
        self._lanes = lanes
        self._bytes_max = bytes_max
        self._held_of = held_of

    def refusal(self, more_bytes: int) -> ProtocolError | None:
        """Return the error for `more_bytes` that must not be parked, None if they may."""
        lanes = self._lanes
        if not lanes.stash_bytes or lanes.stash_bytes + more_bytes <= self._bytes_max:
            return None
        held_count = self._held_of(lanes.blocked_queues())
        if not held_count:
            return None
        return ProtocolError(
            "too-much-waits",
            f"more than {self._bytes_max} bytes wait for blocked destinations",
            f"The connection holds {held_count} unacknowledged messages of these destinations, so it was read on for "
            "ACKs. Acknowledge faster, produce on a connection of its own, or choose another full policy.",
        )

    def check(self, destination: str, receipt_ids: list[str] | None, more_bytes: int) -> None:
        """Raise ProtocolError, about a SEND, if `more_bytes` must not be parked."""
        error = self.refusal(more_bytes)
        if error is not None:
            headers = {"destination": destination}
            error.identify("SEND", {**headers, "receipt": receipt_ids[0]} if receipt_ids else headers)
            raise error


def _is_large(message: Message) -> bool:
    return isinstance(message, LargeMessage)


class _BlockedQueues(Container[object]):
    """See `Lanes.blocked_queues`: one look-up for each queue that is asked for, however many lanes there are."""

    __slots__ = ("_lanes",)

    def __init__(self, lanes: dict[int, Lane]) -> None:
        self._lanes = lanes

    def __contains__(self, queue: object) -> bool:
        lane = self._lanes.get(id(queue))
        return lane is not None and lane.source.blocked


def _bytes_of(route: Route) -> int:
    return ROUTE_BYTES + TARGET_BYTES * len(route.targets)
