"""Controllers: who must wait, who may go on, and what happens to an element that does not fit.

A `SourceController` is one flow of one source: it knows which sinks block it. A `FlowController` is one flow of one
sink (and perhaps of a source too): it charges a limiter for what comes in, and when the limiter throttles it blocks
whoever sent the element.

How it works
    - `add` never fails. What does not fit goes to the *overflow* list and its source is blocked. `offer` refuses
      instead.
    - Overflow is not charged here. It is charged where it comes from: a source that was blocked during dispatch does
      not free the space of what it sent. Its `release` only *reserves* the space, and frees it when the last sink
      that blocks it lets go. So an upstream may overflow a downstream freely. The overflow list is bounded by what the
      sources could hold: one batch of each source that was not blocked yet. What a source without a limiter overflows
      is charged nowhere: it is in `unaccounted_bytes`, and such a source must bound its batches itself (or `offer`).
    - *Resumption* begins when the limiter is no longer throttled: first the overflow in order, then the blocked
      sources, the highest priority first and the longest-waiting first within one (waiting.py), a few per turn, and
      only while the limiter is not throttled again. Sources not reached keep their place. Whoever adds meanwhile queues
      behind them, except the source whose turn it is.
    - A source that cannot use its turn at once (a queue charges in its next dispatch) *holds* it: its `on_resume`
      returns True, nobody else is resumed until it calls `end_turn`. Otherwise all that wait would be resumed for
      each piece of room, and the one that gets it would be back in line before those that came too late: always the
      same one gets it. Held turns cost one resumption for each piece of room, however many wait.
    - *Headroom* (see WindowLimiter): while the limiter is throttled, but not exhausted, turns go on if a source of
      raised priority waits. A lower one whose share it is may use the headroom too, or a stream of raised priority
      would keep it out for ever.
    - Turns run in a loop, never in a recursion: a call that would start a turn inside a turn finds one under way and
      returns.

Invariants
    - A sink is in `source.blocked_by` exactly if the source is in `sink.blocked_sources()`. A source's `blocked` says
      whether there is any.
    - Charged minus released is what the limiter holds; the reserved part of it is zero unless this controller is
      blocked.
    - While somebody waits and the limiter is not throttled, a turn is running, scheduled or held. (If a callback
      raised, the next `add`, `offer`, `release` or `poll` starts it again.)
    - A source has one turn at most: the one it was given last.

Everything is synchronous, and no thread may enter twice: the seed's rule that a blocked source must see the block
before its call returns.

Deliberately not here: timers. A limiter that resumes by itself (rate, resize) needs somebody to call `poll`.

Source: seed 002 "Flow Control"; the prototype's FlowController. Its faults that are avoided here: a resuming source
could overfill the sink; resumption was unfair; the blocked sources were walked while they changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from .errors import FlowClosedError, FlowError, NegativeAmountError, OverReleaseError, PairingError
from .limiters import Clock, FlowLimiter
from .resource import Flow, FlowResource
from .snapshot import ControllerSnapshot
from .waiting import WaitingLine

E = TypeVar("E")

BlockCallback = Callable[["FlowController[Any]"], None]
"""Called with the sink that blocked."""

ResumeCallback = Callable[["FlowController[Any]"], bool | None]
"""Called with the last sink that let go. True: the source uses its turn later, and calls `end_turn` then."""

PRIORITY_ORDINARY = 4
"""Sources above it are of raised priority: they may use a limiter's headroom."""

_NO_OVERFLOW: deque[Any] = deque(maxlen=0)
"""For all controllers that never had any, which are most: a deque takes 760 bytes."""

OVERFLOW_PER_TURN = 1000
"""Elements that one scheduled turn takes from overflow at most: about a millisecond, so that sockets are served in
between."""


class SourceController:
    """One flow of one source.

    Attributes:
        resource, flow: whose flow this is.
        blocked: a sink blocks it. Plain, because the hot path reads it; never written from outside.
        block_count: how often a sink blocked it.
        priority: which of those that wait for one sink is resumed first (0 to 9, 9 is the highest).
        overflow_count: 0, since a source takes nothing in. Here so that both kinds can be asked.
    """

    __slots__ = (
        "_blocked_by",
        "_clock",
        "_closed",
        "_on_block",
        "_on_resume",
        "_turn_sink",
        "block_count",
        "blocked",
        "flow",
        "has_waiting",
        "overflow_count",
        "priority",
        "resource",
    )

    def __init__(
        self,
        resource: FlowResource,
        flow: Flow,
        *,
        on_block: BlockCallback | None = None,
        on_resume: ResumeCallback | None = None,
        priority: int = PRIORITY_ORDINARY,
        has_waiting: Callable[[], bool] | None = None,
        clock: Clock,
    ) -> None:
        """Attach a source of `flow` to `resource`.

        `on_block` is called when a sink blocks this source, once for each sink, within the source's own call to it.
        `on_resume` is called when the last of them let go. Both find the state already changed. `on_resume` may add to
        that sink at once and return None. Or it returns True: the source keeps its turn, adds later, and then calls
        `end_turn` whether or not it had anything to add: until then that sink resumes nobody else.
        `has_waiting`: whether it has anything that waits for its sinks; while it has not, the flow map does not say
        that it waits (None: it always has).
        """
        self.has_waiting = has_waiting
        self.resource = resource
        self.flow = flow
        self.blocked = False
        self.block_count = 0
        self.priority = priority
        self.overflow_count = 0
        self._turn_sink: FlowController[Any] | None = None
        self._blocked_by: dict[FlowController[Any], float] = {}
        self._on_block = on_block
        self._on_resume = on_resume
        self._clock = clock
        self._closed = False
        resource.attach_controller(self)

    @property
    def blocked_by(self) -> Mapping[FlowController[Any], float]:
        """The sinks that block this source, each with the clock reading since when. A live view."""
        return MappingProxyType(self._blocked_by)

    @property
    def waits(self) -> bool:
        """A sink blocks it, and something of it waits for that."""
        return self.blocked and (self.has_waiting is None or self.has_waiting())

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def sink_limiter(self) -> FlowLimiter | None:
        """The limiter for what comes in; None for a pure source."""
        return None

    def block(self, sink: FlowController[Any]) -> None:
        """`sink` blocks this source. For sinks that are not a FlowController: those call it themselves.

        Raises PairingError if this sink blocks it already, FlowClosedError if the source is closed; nothing changes
        then.
        """
        if self._closed:
            raise FlowClosedError(f"{self.title} is closed: {sink.title} cannot block it")
        if sink in self._blocked_by:
            raise PairingError(
                f"{sink.title} blocks {self.title} already; a sink blocks a source once and resumes it once"
            )
        self._blocked_by[sink] = self._clock()
        self.blocked = True
        self.block_count += 1
        if self._on_block is not None:
            self._on_block(sink)

    def resume(self, sink: FlowController[Any]) -> bool:
        """`sink` lets go; if it was the last, the source goes on. True: it holds its turn until `end_turn`.

        Raises PairingError if it did not block, then nothing changes.
        """
        since = self._blocked_by.pop(sink, None)
        if since is None:
            raise PairingError(
                f"{sink.title} does not block {self.title}; a sink resumes only a source that it blocked"
            )
        sink.resource.held_up_seconds += self._clock() - since
        if self._blocked_by:
            return False
        self.blocked = False
        return self._let_go(sink)

    def end_turn(self) -> None:
        """The turn that `on_resume` kept by returning True is over: the sink may resume the next source, at once.

        Right after what was to be added was added, blocked or not; also if there was nothing. Without a turn it does
        nothing.
        """
        sink = self._turn_sink
        if sink is not None:
            self._turn_sink = None
            sink._turn_is_over()

    def close(self) -> list[Any]:
        """Withdraw from all sinks that block this source, end its turn, and leave the resource.

        `on_resume` is not called. A second call does nothing. Elements of this source in the overflow of a sink stay
        there. Returns what waited in its own overflow: for a pure source, nothing.
        """
        if not self._closed:
            self._closed = True
            self._withdraw()
            self.resource.detach_controller(self)
            self.end_turn()
        return []

    def describe(self) -> ControllerSnapshot:
        """Return a picture of this flow as it is now."""
        return ControllerSnapshot(
            flow=self.flow.name,
            limiter=None,
            blocked=self.blocked,
            block_count=self.block_count,
        )

    @property
    def title(self) -> str:
        """Who this is, for people: ``queue orders [flow orders]``."""
        return f"{self.resource.kind} {self.resource.name} [flow {self.flow.name}]"

    def _withdraw(self) -> None:
        while self._blocked_by:
            sink, since = self._blocked_by.popitem()
            sink.resource.held_up_seconds += self._clock() - since
            sink._forget(self)
        self.blocked = False

    def _let_go(self, sink: FlowController[Any]) -> bool:
        return self._on_resume is not None and self._on_resume(sink) is True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title}{' blocked' if self.blocked else ''}>"


class FlowController(SourceController, Generic[E]):
    """One flow of one sink, which may be a source for others too. E is what it takes in: a message, or a batch of them.

    Attributes, to be read and never written from outside:
        limiter: what it charges.
        overflow_count, overflow_bytes: what waits because there was no room.
        reserved_count, reserved_bytes: what left while a sink downstream blocked this controller, and is charged
            until that sink lets go.
        unaccounted_bytes: the part of `overflow_bytes` that came from sources without a limiter, so that it is charged
            nowhere. It is in the sum "memory in use" all the same.
        counts_memory: see the constructor.
    """

    __slots__ = (
        "_accept",
        "_called_back",
        "_gated",
        "_overflow",
        "_schedule",
        "_sources_per_turn",
        "_turn_held",
        "_turn_pending",
        "_turn_running",
        "_turn_source",
        "_waiting",
        "counts_memory",
        "limiter",
        "overflow_bytes",
        "reserved_bytes",
        "reserved_count",
        "unaccounted_bytes",
    )

    def __init__(
        self,
        resource: FlowResource,
        flow: Flow,
        limiter: FlowLimiter,
        *,
        accept: Callable[[E], None],
        schedule: Callable[[Callable[[], None]], None] | None = None,
        sources_per_turn: int = 1,
        on_block: BlockCallback | None = None,
        on_resume: ResumeCallback | None = None,
        priority: int = PRIORITY_ORDINARY,
        clock: Clock,
        counts_memory: bool = True,
        yields: bool = False,
    ) -> None:
        """Attach a sink for `flow` to `resource`.

        Args:
            limiter: what the flow may hold. Only this controller may charge it (a part of a CompositeLimiter may be
                shared).
            accept: takes each element, already charged, at once or (from overflow) later, in order. It may call
                `release` at once, and add to other controllers. It must not raise: the element counts as held then.
            schedule: runs a callable soon, such as the dispatcher's executor; between two turns of a resumption.
                None: turns follow each other at once.
            sources_per_turn: blocked sources resumed per turn, at least 1.
            on_block, on_resume, priority: this controller as a source, see SourceController.
            clock: monotonic seconds.
            counts_memory: False if what the limiter counts is charged elsewhere too, like a window over elements that
                a queue still holds: then it is left out of the sum "memory in use".
            yields: while the broker's memory is short its sources may be held back (shares.py); otherwise it takes
                what it needs, within its own limit.
        """
        if sources_per_turn < 1:
            raise FlowError(
                f"{resource.kind} {resource.name}: {sources_per_turn} sources per turn resume nobody; give at least 1"
            )
        super().__init__(resource, flow, on_block=on_block, on_resume=on_resume, priority=priority, clock=clock)
        self.limiter = limiter
        self.counts_memory = counts_memory
        budget = resource.manager.budget
        if budget is not None and counts_memory and limiter.can_share:
            budget.join(self, priority=priority, yields=yields)
        self.overflow_bytes = 0
        self.reserved_count = 0
        self.reserved_bytes = 0
        self.unaccounted_bytes = 0
        self._accept = accept
        self._schedule = schedule
        self._sources_per_turn = sources_per_turn
        # Element, count, bytes, and the part of the bytes that is charged nowhere.
        self._overflow: deque[tuple[E, int, int, int]] = _NO_OVERFLOW
        self._waiting: WaitingLine[SourceController] = WaitingLine()
        # The fast paths test one flag: somebody waits, a turn runs or is held, or the controller is closed.
        self._gated = False
        self._turn_running = False
        self._turn_pending = False
        self._turn_held = False
        self._turn_source: SourceController | None = None
        self._called_back = False

    @property
    def sink_limiter(self) -> FlowLimiter | None:
        """The limiter for what comes in."""
        return self.limiter

    @property
    def accepting(self) -> bool:
        """`add` would take an element at once: not throttled, nobody waits, not closed."""
        return not self._gated and not self.limiter.throttled

    def accepts(self, source: SourceController | None) -> bool:
        """Whether `add` or `offer` from this source would be taken at once: there is room, and nobody waits before it,
        or it is its turn.

        Its size does not matter: a batch is charged whole, so the last one may go beyond the capacity. Changes nothing
        and blocks nobody: a source that is to get its place in the line calls `offer`. O(1).
        """
        return (not self._gated and not self.limiter.throttled) or self._is_turn_of(source)

    def keep_turn(self, source: SourceController) -> None:
        """Only `source` comes in until it calls `end_turn`: it adds in steps. If it is accepted, and has no turn."""
        if not self._gated and self.accepts(source):
            source.end_turn()
            self._turn_source, source._turn_sink = source, self
            self._turn_held = self._gated = True

    def may_exceed(self, source: SourceController) -> bool:
        """Whether this source may use the limiter's headroom: it is of raised priority, or a higher one was passed over
        to give it its turn.
        """
        return source.priority > PRIORITY_ORDINARY or (source is self._turn_source and self._waiting.took_share)

    def blocked_sources(self) -> tuple[SourceController, ...]:
        """Return the sources that this controller blocks: the highest priority first, within one the next first."""
        return tuple(self._waiting)

    @property
    def blocks_somebody(self) -> bool:
        """Sources wait for it. O(1)."""
        return bool(self._waiting)

    def waiting_since(self) -> list[float]:
        """Clock readings: since when each of the sources has waited that this controller blocks. O(sources)."""
        return [source._blocked_by[self] for source in self._waiting]

    # ------------------------------------------------------------------ in

    def add(self, element: E, count: int, size_bytes: int, source: SourceController | None) -> None:
        """Take `element`, which counts as `count` elements of `size_bytes` in total. Never refuses; may block `source`.

        With room and nobody waiting the element is charged and accepted before this returns; if that throttled the
        limiter, the source is blocked. Otherwise the element goes to overflow and the source is blocked (once).
        `source` None, or closed: nobody is there to block, so nothing here bounds the overflow. That is for what cannot
        come again before this was taken, or is bounded elsewhere (a reply to a request that was charged, a test); else
        ask `accepts` first, or give a source and look at `blocked`. What overflows so counts as memory in use.

        Raises NegativeAmountError and, on a closed controller, FlowClosedError; nothing changes then. O(1).
        """
        limiter = self.limiter
        if (self._gated or limiter.throttled) and not self._is_turn_of(source):
            self._add_to_overflow(element, count, size_bytes, source)
            return
        limiter.add(count, size_bytes)
        self._accept(element)
        if limiter.throttled:
            self._hold_back(source)

    def offer(self, element: E, count: int, size_bytes: int, source: SourceController | None) -> bool:
        """Take `element` like `add` and return True, or leave it and return False.

        False, and `source` blocked: when there is no room, or while others wait. Raises as `add` does. O(1).
        """
        limiter = self.limiter
        if (self._gated or limiter.throttled) and not self._is_turn_of(source):
            self._check_add(count, size_bytes)
            self._hold_back(source)
            self._start_turns()
            return False
        limiter.add(count, size_bytes)
        self._accept(element)
        if limiter.throttled:
            self._hold_back(source)
        return True

    def charge(self, count: int, size_bytes: int, source: SourceController | None) -> None:
        """Charge elements that the caller hands over by another way: `accept` is not called.

        The caller looked for room before (`accepts`, or the limiter's own room). Blocks `source` if the limiter is
        throttled then, or if others wait; 0 elements of 0 bytes are a way to wait in line. With headroom left it may be
        resumed before this returns. Raises as `add` does. O(1).
        """
        if self._gated:
            self._check_add(count, size_bytes)
        limiter = self.limiter
        limiter.add(count, size_bytes)
        if limiter.throttled or (self._gated and source is not self._turn_source):
            self._hold_back(source)
            if count or size_bytes:  # who only gets in line must find itself blocked
                self._start_turns()

    # ------------------------------------------------------------------ out

    def release(self, count: int, size_bytes: int) -> None:
        """`count` elements of `size_bytes` in total went on downstream, or are done with.

        If a downstream sink blocks this controller, the space is reserved: it stays charged until the last such sink
        lets go. Otherwise it is free at once, which may resume sources before this returns. Works on a closed
        controller too. Raises NegativeAmountError, and OverReleaseError for more than is held and not reserved; nothing
        changes then. O(1) plus resumption.
        """
        if self.blocked:
            self._check_release(count, size_bytes)
            self.reserved_count += count
            self.reserved_bytes += size_bytes
            return
        self.limiter.remove(count, size_bytes)
        if self._gated:
            self._start_turns()

    def discard(self, count: int, size_bytes: int) -> None:
        """These elements are gone for good: expired, dropped. Free at once, even while a sink blocks this controller.
        `release` is right for what may sit in the overflow of a sink; `discard` for what certainly does not. Raises as
        `release` does.
        """
        if self.blocked:
            self._check_release(count, size_bytes)
        self.limiter.remove(count, size_bytes)
        if self._gated:
            self._start_turns()

    def poll(self) -> None:
        """Look at the limiter again, which may have resumed by itself (time, resize); if so, let the sources go on."""
        self.limiter.poll()
        self._start_turns()

    # ------------------------------------------------------------------ end, and what people see

    def shut(self, *, at_once: bool = True) -> list[E]:
        """Let the blocked sources go, and withdraw from the sinks that block this controller. What is held stays
        charged, and in the manager's sum, until it is released or `close` is called. Not `at_once`: they wait until
        `let_next_go` has been called for each, or this.

        Returns the elements that waited in overflow, in order; they were never charged here. What is reserved is freed.
        A second call returns an empty list. Stop routing to this controller before: a source that adds in its
        `on_resume` gets a FlowClosedError. If an `on_resume` raises, the error passes and the call can be repeated for
        the rest: no source stays blocked and no element is lost.
        """
        self._take_nothing()
        while at_once and self._waiting:
            self.let_next_go()
        elements = [entry[0] for entry in self._overflow]
        self._overflow = _NO_OVERFLOW
        self.overflow_count = self.overflow_bytes = self.unaccounted_bytes = 0
        return elements

    def let_next_go(self) -> None:
        """Let the next of the blocked sources go, of which there is one: this controller was shut."""
        self._waiting.take().resume(self)

    def close(self, *, at_once: bool = True) -> list[E]:
        """As `shut`, and leave the resource: what is still held may be released, but is not in the manager's sum."""
        self._take_nothing()
        self.resource.detach_controller(self)
        if self.limiter.share is not None:
            self.limiter.share.budget.leave(self.limiter.share)
        return self.shut(at_once=at_once)

    def _take_nothing(self) -> None:
        if not self._closed:
            self._closed = self._gated = True
            self._withdraw()
            self._free_reserved()
            self.end_turn()

    def describe(self) -> ControllerSnapshot:
        """Return a picture of this flow as it is now."""
        return ControllerSnapshot(
            flow=self.flow.name,
            limiter=self.limiter.describe(),
            blocked=self.blocked,
            block_count=self.block_count,
            waiting_source_count=len(self._waiting),
            overflow_count=self.overflow_count,
            overflow_bytes=self.overflow_bytes,
            reserved_count=self.reserved_count,
            reserved_bytes=self.reserved_bytes,
        )

    # ------------------------------------------------------------------ blocking

    def _is_turn_of(self, source: SourceController | None) -> bool:
        """A source may add past the waiting ones in its own turn, while there is room and nothing lies before it in
        overflow.
        """
        return (
            source is not None
            and source is self._turn_source
            and not self._overflow
            and not self.limiter.throttled
            and not self._closed
        )

    def _add_to_overflow(self, element: E, count: int, size_bytes: int, source: SourceController | None) -> None:
        self._check_add(count, size_bytes)
        # A source with a limiter goes on being charged for what it sent while it is blocked (see `release`).
        accounted = source is not None and source.sink_limiter is not None and not source._closed
        unaccounted_bytes = 0 if accounted else size_bytes
        if self._overflow is _NO_OVERFLOW:
            self._overflow = deque()
        self._overflow.append((element, count, size_bytes, unaccounted_bytes))
        self.overflow_count += count
        self.overflow_bytes += size_bytes
        self.unaccounted_bytes += unaccounted_bytes
        self._gated = True
        self._hold_back(source)
        self._start_turns()

    def _hold_back(self, source: SourceController | None) -> None:
        if source is None or source._closed or source in self._waiting:
            return
        self._waiting.add(source)
        self._gated = True
        source.block(self)

    def _forget(self, source: SourceController) -> None:
        """A blocked source withdraws."""
        self._waiting.discard(source)
        self._set_gate()

    def _check_add(self, count: int, size_bytes: int) -> None:
        if self._closed:
            raise FlowClosedError(f"{self.title} is closed and takes nothing; stop routing to it before it is closed")
        if count < 0 or size_bytes < 0:
            raise NegativeAmountError(
                f"{self.title}: cannot add {count} elements of {size_bytes} bytes; amounts are zero or more"
            )

    def _check_release(self, count: int, size_bytes: int) -> None:
        if count < 0 or size_bytes < 0:
            raise NegativeAmountError(
                f"{self.title}: cannot release {count} elements of {size_bytes} bytes; amounts are zero or more"
            )
        held_count = self.limiter.used_count - self.reserved_count
        held_bytes = self.limiter.used_bytes - self.reserved_bytes
        if count > held_count or size_bytes > held_bytes:
            raise OverReleaseError(
                f"{self.title}: cannot release {count} elements of {size_bytes} bytes, it holds only {held_count} of "
                f"{held_bytes} bytes that are not reserved; look for one that is released twice or was never charged"
            )

    def _free_reserved(self) -> None:
        count, size_bytes = self.reserved_count, self.reserved_bytes
        if count or size_bytes:
            self.reserved_count = self.reserved_bytes = 0
            self.limiter.remove(count, size_bytes)

    def _let_go(self, sink: FlowController[Any]) -> bool:
        """The last sink that blocked this controller let go."""
        self._free_reserved()
        # The own elements go on before those of the sources that are let in again.
        try:
            return super()._let_go(sink)
        finally:
            self._start_turns()

    # ------------------------------------------------------------------ resumption

    def _set_gate(self) -> None:
        self._gated = bool(self._overflow or self._waiting) or self._turn_running or self._turn_held or self._closed

    def _may_resume(self) -> bool:
        """There is room for those that wait: any, or only the headroom, if one of raised priority is among them."""
        limiter = self.limiter
        if not limiter.throttled:
            return True
        return self._waiting.highest > PRIORITY_ORDINARY and not self._overflow and not limiter.exhausted

    def _start_turns(self) -> None:
        """Begin or go on with resumption, if somebody waits, there is room, and no turn runs, is held or scheduled."""
        if not self._gated or self._turn_running or self._turn_held or self._turn_pending or self._closed:
            return
        if not self._may_resume():
            return
        if self._schedule is None:
            self._run_turns()
        else:
            self._turn_pending = True
            self._schedule(self._run_turns)

    def _run_turns(self) -> None:
        if self._turn_running:
            # An executor that runs things at once called back from inside our own `schedule`: the loop below goes
            # round instead.
            self._called_back = True
            return
        self._turn_pending = False
        self._turn_running = True
        try:
            while self._take_turn():
                if self._schedule is not None:
                    self._called_back = False
                    self._schedule(self._run_turns)
                    if not self._called_back:
                        self._turn_pending = True
                        return
        except BaseException:
            # What one source raises is no matter of those behind it. Without a schedule they go on with the next poll.
            if self._schedule is not None and not self._closed and (self._overflow or self._waiting):
                self._turn_pending = True
                self._schedule(self._run_turns)
            raise
        finally:
            self._turn_running = False
            self._set_gate()

    def _take_turn(self) -> bool:
        """Take in some overflow, then resume some sources; return True if there is more to do and room for it."""
        if self._closed:
            return False
        limiter = self.limiter
        elements_left = OVERFLOW_PER_TURN
        while self._overflow and elements_left and not limiter.throttled:
            element, count, size_bytes, unaccounted_bytes = self._overflow.popleft()
            self.overflow_count -= count
            self.overflow_bytes -= size_bytes
            self.unaccounted_bytes -= unaccounted_bytes
            elements_left -= 1
            limiter.add(count, size_bytes)
            self._accept(element)
        waiting = self._waiting
        sources_left = self._sources_per_turn
        while waiting and sources_left and not self._overflow and self._may_resume():
            sources_left -= 1
            if self._give_turn(waiting.take()):
                return False
        return bool(self._overflow or waiting) and self._may_resume()

    def _give_turn(self, source: SourceController) -> bool:
        """Resume this source. True: it holds its turn."""
        source.end_turn()  # one that another sink gave it, in the midst of which it was blocked by this one
        self._turn_source = source
        source._turn_sink = self
        try:
            held = source.resume(self)
        except BaseException:
            source.end_turn()
            raise
        if held and source._turn_sink is self and not self._closed:
            self._turn_held = True
            return True
        source.end_turn()
        return False

    def _turn_is_over(self) -> None:
        """Its source says so."""
        self._turn_source = None
        self._turn_held = False
        self._set_gate()
        self._start_turns()
