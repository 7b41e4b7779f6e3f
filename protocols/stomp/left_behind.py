"""SENDs that ended connections left behind: their queues had no room yet (b50).

They are sent on as their queues get room, by one lane for each queue or log, whichever session sent them: so an ended
session costs its parked runs, and little more. SENDs of one connection to one queue keep their order. A session that
has more to do than that (a large body on its way to disk, a transaction on its way from there) stays as a whole, and is
counted with what it takes.

The sum is bounded: beyond `bytes_max` a connection's remaining SENDs are dropped, and its log line says so. No promised
message is lost: a RECEIPT is sent when the queue has the message. A client that wants to know sends DISCONNECT with a
receipt and waits for it. A transaction that is committed is never dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final, Protocol

from ...flow import Account, Flow, FlowManager, FlowResource, SizeLimiter, SourceController
from ...flow.kinds import ResourceKind
from ...queues.environment import DispatchHandle, Scheduling
from ...queues.full_actions import QueueFullError
from ...queues.logs.log import Log
from ...queues.logs.offers import RefusedSendError
from ...queues.message import Message, wire_bytes_of
from ...queues.message_sink import MessageSink, SinkOwner
from ...queues.producers import origin_of
from ...queues.queue import MessageQueue
from .lanes import Lane, Lanes, ParkedRun

SESSION_BYTES: Final = 20 * 1024
"""Approximate memory of a session that stays as a whole, beside its parked runs: a test measures it."""
REMAINS_BYTES: Final = 640
"""Approximate memory for any other ended session, beside its parked runs: its name and its places in the lanes;
likewise.
"""
RUN_BYTES: Final = 320
"""Approximate memory of a run beside the charge to its stash: its head, which is no longer shared; likewise."""
LANE_BYTES: Final = 2048
"""Approximate memory of a new lane; likewise."""
CONNECTIONS_MAX: Final = 10_000
"""Sessions that stay as a whole."""
LANES_PER_STEP: Final = 4


class Leaving(Protocol):
    """The session that ends."""

    lost_count: int

    @property
    def sends_come_again(self) -> bool:
        """Whether the other hub sends anew what it has no RECEIPT of: the session was there for a client of it."""

    @property
    def session_id(self) -> str: ...
    @property
    def lanes(self) -> Lanes: ...


class _Remains:
    """Parked runs of one ended session, in all lanes."""

    __slots__ = ("estates_count", "own_bytes", "session_id")

    def __init__(self, session_id: str, parked: list[Lane]) -> None:
        self.session_id = session_id
        self.estates_count = len(parked)
        self.own_bytes = REMAINS_BYTES + RUN_BYTES * sum([len(lane.parked) for lane in parked])
        """Bytes charged for the session until its last run has gone."""


class _SharedLane:
    """Parked runs of ended sessions for one queue or log: those of each session are one *estate*, in the order in which
    the sessions ended.
    """

    __slots__ = ("estates", "inlet", "is_ready", "source", "target")

    def __init__(self, target: SinkOwner, inlet: MessageSink) -> None:
        self.target = target
        self.inlet = inlet
        self.estates: deque[tuple[list[ParkedRun], _Remains]] = deque()
        """Runs of each the other way round: what goes next is the last."""
        self.is_ready = False
        self.source: SourceController


class Staying:
    """The charge for a session that stays as a whole."""

    __slots__ = ("_left_behind", "_stash_bytes")

    def __init__(self, left_behind: LeftBehind, stash_bytes: int) -> None:
        self._left_behind = left_behind
        self._stash_bytes = stash_bytes

    def drained(self, *, ends: bool) -> None:
        """Note that the stash of the session is empty. `ends`: the session has no other work; call once with that."""
        stash_bytes, self._stash_bytes = self._stash_bytes, 0
        self._left_behind._released(stash_bytes, ends=ends)


class LeftBehind(FlowResource):
    """The lanes and the account of one broker, and their place on the flow map."""

    passes_through = False

    def __init__(
        self,
        bytes_max: int,
        *,
        manager: FlowManager,
        clock: Callable[[], float],
        scheduling: Scheduling,
        unheard: Callable[[int], None],
    ) -> None:
        """Make the account. `unheard` is called with the number of messages whose queue was deleted."""
        super().__init__("ended connections", ResourceKind.STASH, manager)
        self._account = self._controller("left behind by ended connections", bytes_max, clock, counts_memory=False)
        """Account of everything left behind. Where sessions stay, their stashes count as memory separately."""
        self._memory = self._controller("memory of what is left behind", bytes_max, clock, counts_memory=True)
        self._bytes_max = bytes_max
        self._clock = clock
        self._unheard = unheard
        self._lanes: dict[int, _SharedLane] = {}
        self._ready: deque[_SharedLane] = deque()
        self._context: DispatchHandle = scheduling.register(self._dispatch, "what ended connections left")
        self._remains: dict[str, _Remains] = {}
        self._staying_count = 0
        self.dropped_count = 0
        """Messages that there was no room for."""
        self.open()

    def _controller(self, name: str, bytes_max: int, clock: Callable[[], float], *, counts_memory: bool) -> Account:
        limiter = SizeLimiter(max(1, bytes_max), clock=clock)
        return Account(self, Flow(name), limiter, clock=clock, counts_memory=counts_memory)

    @property
    def used_bytes(self) -> int:
        """Bytes that are left behind now."""
        return self._account.limiter.used_bytes

    @property
    def connections_count(self) -> int:
        """Number of ended connections that left something behind."""
        return len(self._remains) + self._staying_count

    def has(self, session_id: str) -> bool:
        """Whether something of this session is in the lanes."""
        return session_id in self._remains

    def leave(self, session: Leaving, *, is_moving: bool, is_busy: bool) -> Generator[None, None, Staying | None]:
        """A connection has ended, in steps. `is_moving`: committed transactions of it are on their way; `is_busy`: a
        large body is. Returns the charge of a session that stays, None for all others.
        """
        lanes = session.lanes
        if is_moving or is_busy:
            staying = self._stay(lanes.stash_bytes, always=is_moving or not lanes.stash_bytes)
            if staying is not None:
                return staying
        elif not lanes.stash_bytes:
            return None
        elif (adopting := self._adopt(session)) is not None:
            yield from adopting
            return None
        session.lost_count = yield from lanes.giving_up()
        self.dropped_count += session.lost_count
        return None

    # ------------------------------------------------------------------ sessions that stay

    def _stay(self, stash_bytes: int, *, always: bool) -> Staying | None:
        """A session stays as a whole, with this in its stash. None: there is no room for it, unless `always`."""
        used_bytes = self.used_bytes + stash_bytes + SESSION_BYTES
        if not always and (used_bytes > self._bytes_max or self._staying_count >= CONNECTIONS_MAX):
            return None
        self._account.charge(0, stash_bytes + SESSION_BYTES, None)
        self._memory.charge(0, SESSION_BYTES, None)
        self._staying_count += 1
        return Staying(self, stash_bytes)

    def _released(self, stash_bytes: int, *, ends: bool) -> None:
        """Release bytes of a session that stays."""
        self._account.release(0, stash_bytes + (SESSION_BYTES if ends else 0))
        if ends:
            self._memory.release(0, SESSION_BYTES)
            self._staying_count -= 1

    # ------------------------------------------------------------------ what the others leave

    def _adopt(self, session: Leaving) -> Iterator[None] | None:
        """Take over what this session has parked, all of it runs, with its charge: at once, but into lanes in the steps
        that are returned. None: there is no room for it.
        """
        lanes = session.lanes
        parked = [lane for lane in lanes.lanes if lane.parked]
        new_count = sum([id(lane.inlet) not in self._lanes for lane in parked])
        remains = _Remains(session.session_id, parked)
        size_bytes = lanes.stash_bytes + remains.own_bytes
        if self.used_bytes + size_bytes + new_count * LANE_BYTES > self._bytes_max:
            return None
        lanes.hand_over()
        self._charge(size_bytes)
        self._remains[session.session_id] = remains
        return self._adopting(parked, remains, without_owed=session.sends_come_again)

    def _adopting(self, parked: list[Lane], remains: _Remains, *, without_owed: bool) -> Iterator[None]:
        """Take over each lane. `without_owed`: but for SENDs that are sent anew, marked: both copies would wait,
        and the first one, unmarked, could come behind the second one.
        """
        for number, lane in enumerate(parked, 1):
            runs = [run for run in reversed(lane.parked) if isinstance(run, ParkedRun)]
            lane.parked.clear()
            if without_owed:
                self._charge(-sum([run.leave() for run in runs if run.is_owed_whole]))
                runs = [run for run in runs if not run.is_owed_whole]
            if runs:
                self._lane(lane.target, lane.inlet).estates.append((runs, remains))
            else:
                self._left(remains)
            if not number % LANES_PER_STEP:
                yield

    def _lane(self, target: SinkOwner, inlet: MessageSink) -> _SharedLane:
        known = self._lanes.get(id(inlet))
        if known is not None:
            return known
        lane = self._lanes[id(inlet)] = _SharedLane(target, inlet)

        def resumed(_sink: object) -> bool:
            self._make_ready(lane)
            return True  # the estate continues later, and ends its turn then

        lane.source = SourceController(self, Flow(target.name), on_resume=resumed, clock=self._clock)
        target.producers_count += 1
        self._charge(LANE_BYTES)
        self._make_ready(lane)
        return lane

    def _drop(self, lane: _SharedLane) -> None:
        del self._lanes[id(lane.inlet)]
        lane.target.producers_count -= 1
        lane.source.close()
        self._charge(-LANE_BYTES)

    def _charge(self, size_bytes: int) -> None:
        for controller in (self._account, self._memory):
            if size_bytes > 0:
                controller.charge(0, size_bytes, None)
            elif size_bytes:
                controller.release(0, -size_bytes)

    # ------------------------------------------------------------------ sending on

    def _make_ready(self, lane: _SharedLane) -> None:
        if not lane.is_ready:
            lane.is_ready = True
            self._ready.append(lane)
        self._context.request_dispatch()

    def _dispatch(self, budget: int) -> bool:
        """Send on what may go now: one run of each lane in turn, about `budget` messages."""
        ready = self._ready
        while ready and budget > 0:
            lane = ready.popleft()
            lane.is_ready = False
            if lane.estates and (lane.inlet.closed or not lane.source.blocked):
                budget -= self._send_next(lane)
        return bool(ready)

    def _send_next(self, lane: _SharedLane) -> int:
        """Returns how many messages the run has that was tried."""
        runs, remains = lane.estates[0]
        run = runs[-1]
        went = True
        try:
            went = self._send_on(lane, run)
        finally:  # only now: what is under way is charged somewhere at any time
            if went:
                runs.pop()
                self._charge(-run.leave())
                if not runs:
                    lane.estates.popleft()
                    self._left(remains)
            lane.source.end_turn()
            if not lane.estates:
                self._drop(lane)
            elif not lane.source.blocked:
                self._make_ready(lane)
        return max(1, len(run.messages))

    def _left(self, remains: _Remains) -> None:
        remains.estates_count -= 1
        if not remains.estates_count:
            del self._remains[remains.session_id]
            self._charge(-remains.own_bytes)

    def _send_on(self, lane: _SharedLane, run: ParkedRun) -> bool:
        """False: it must wait on."""
        inlet, messages, size_bytes = lane.inlet, run.messages, run.size_bytes
        if inlet.closed:
            self._unheard(len(messages))
            return True
        if run.shared is not None:
            messages, size_bytes = run.shared.rewritten(messages)
        if isinstance(inlet, MessageQueue | Log) and origin_of(messages[0]) is not None:
            try:
                return inlet.offer_once(messages, lane.source)
            except (QueueFullError, RefusedSendError):
                self.dropped_count += len(messages)
                return True
        if inlet.rejects and not inlet.fits(len(messages), size_bytes):
            return self._send_what_fits(inlet, messages, lane.source)
        try:
            return inlet.offer(messages, size_bytes, lane.source)
        except RefusedSendError as refusal:  # no client is left to be told
            assert isinstance(inlet, Log)
            good = refusal.good
            if good:
                inlet.offer(good, wire_bytes_of(good), lane.source)
            self.dropped_count += len(messages) - len(good)
            return True

    def _send_what_fits(self, inlet: MessageSink, messages: list[Message], source: SourceController) -> bool:
        """Send the messages that still fit to a queue that would refuse the run as a whole, as if the frames had come
        apart.
        """
        count = size_bytes = 0
        for message in messages:
            size_bytes += len(message.wire)
            if not inlet.fits(count + 1, size_bytes):
                break
            count += 1
        try:
            fitting = messages[: max(1, count)]
            if not inlet.offer(fitting, wire_bytes_of(fitting), source):
                return False
            self.dropped_count += len(messages) - len(fitting)
        except QueueFullError:
            self.dropped_count += len(messages)
        return True

    def facts(self) -> Mapping[str, object]:
        return {"ended connections": self.connections_count, "dropped": self.dropped_count}
