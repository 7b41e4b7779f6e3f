"""Accounts: what a flow holds is charged to a limiter, and a source that brings more than fits waits in line for its
turn.

An `Account` is one flow of one sink that is charged for elements it is not given: a window over elements that a queue
holds, a buffer towards a socket, a cache, a spool. `FlowController` (controller.py) is an account that takes the
elements as well.

How it works
    - `charge` never fails: the elements exist already. When the limiter throttles, the account blocks the source
      that brought it, and `wait_in_line` blocks a source that has nothing to bring yet.
    - `release` of an account that is itself blocked as a source only *reserves* the space: it stays charged until the
      last sink that blocks it resumes it, because the elements may be in that sink's overflow.
    - *Resumption* begins when the limiter is no longer throttled: blocked sources are resumed, the highest priority
      first and the longest-waiting first within one (waiting.py), a few per turn, and only while the limiter is not
      throttled again. Sources not reached keep their place. A source that comes meanwhile queues behind them, except
      the source whose turn it is.
    - A source that cannot use its turn at once (a queue charges in its next dispatch) *holds* it: its `on_resume`
      returns True, and no other source is resumed until it calls `end_turn`. Otherwise all waiting sources would be
      resumed for each piece of room, and the one that gets it would be back in line before the others: the same source
      would always win. Held turns cost one resumption for each piece of room, however many wait.
    - *Headroom* (see WindowLimiter): while the limiter is throttled, but not exhausted, turns continue if a source of
      raised priority waits. A lower one whose share it is may use the headroom too, or a stream of raised priority
      would block it for ever.
    - Turns run in a loop, never in a recursion: a call that would start a turn inside a turn finds one under way and
      returns.

Invariants
    - Charged minus released is what the limiter holds; the reserved part of it is zero unless this account is blocked.
    - While a source waits and the limiter is not throttled, a turn is running, scheduled or held. (If a callback
      raised, the next `charge`, `release` or `poll` starts it again.)

Everything is synchronous, and no thread may enter twice: the seed's rule that a blocked source must see the block
before its call returns.

Deliberately not here: timers. A limiter that resumes by itself (rate, resize) needs a caller of `poll`.

Source: seed 002 "Flow Control"; the prototype's FlowController. Its faults that are avoided here: a resuming source
could overfill the sink; resumption was unfair; the blocked sources were walked while they changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import FlowClosedError, FlowError, NegativeAmountError, OverReleaseError
from .limiters import Clock, FlowLimiter
from .resource import Flow, FlowResource
from .snapshot import ControllerSnapshot
from .source import PRIORITY_ORDINARY, BlockCallback, ResumeCallback, SourceController
from .waiting import WaitingLine


class Account(SourceController):
    """One flow of one sink, which may be a source for others too, and the limiter that is charged for it.

    Attributes, to be read and never written from outside:
        limiter: the limiter that is charged.
        reserved_count, reserved_bytes: elements that left while a sink downstream blocked this account; charged until
            that sink resumes it.
        unaccounted_bytes: bytes that wait for room here and are charged nowhere; always 0 but for a FlowController.
            They are in the sum "memory in use" all the same.
        overflow_bytes: bytes that wait for room here; always 0 but for a FlowController.
        counts_memory: see the constructor.
    """

    __slots__ = (
        "_called_back",
        "_gated",
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
        schedule: Callable[[Callable[[], None]], None] | None = None,
        sources_per_turn: int = 1,
        on_block: BlockCallback | None = None,
        on_resume: ResumeCallback | None = None,
        priority: int = PRIORITY_ORDINARY,
        clock: Clock,
        counts_memory: bool = True,
        yields: bool = False,
    ) -> None:
        """Attach a sink for `flow` to `resource`. `limiter`: limit of the flow, which only this account may charge (a
        part of a CompositeLimiter may be shared); `schedule`: runs a callable soon, between two turns of a resumption
        (None: turns follow each other at once); `sources_per_turn`: blocked sources resumed per turn, at least 1;
        `on_block`, `on_resume`, `priority`: of this account as a source, see SourceController; `clock`: monotonic
        seconds; `counts_memory` False: what the limiter counts is charged elsewhere too, like a window over elements
        that a queue still holds, and is left out of the sum "memory in use"; `yields`: while the broker's memory is
        short, sources may be blocked (shares.py), otherwise the account takes what it needs, within its own limit.

        Raises FlowError if `sources_per_turn` is less than 1.
        """
        if sources_per_turn < 1:
            raise FlowError(
                f"{resource.kind} {resource.name}: {sources_per_turn} sources per turn resume none; give at least 1"
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
        self._schedule = schedule
        self._sources_per_turn = sources_per_turn
        self._waiting: WaitingLine[SourceController] = WaitingLine()
        # The fast paths test one flag: a source waits, a turn runs or is held, or the account is closed.
        self._gated = False
        self._turn_running = False
        self._turn_pending = False
        self._turn_held = False
        self._turn_source: SourceController | None = None
        self._called_back = False

    @property
    def sink_limiter(self) -> FlowLimiter | None:
        """Limiter of incoming elements."""
        return self.limiter

    @property
    def accepting(self) -> bool:
        """Whether any source may send now: the account is not throttled, not closed, and no source waits."""
        return not self._gated and not self.limiter.throttled

    def accepts(self, source: SourceController | None) -> bool:
        """Return whether an element of `source` is accepted at once: there is room, and no source waits or its turn
        runs.

        The element's size does not matter: a batch is charged whole, so the last one may exceed the capacity. Changes
        nothing and blocks no source: to get a place in the line, call `wait_in_line`. O(1).
        """
        return (not self._gated and not self.limiter.throttled) or self._is_turn_of(source)

    def keep_turn(self, source: SourceController) -> None:
        """Reserve the account for `source`, which sends in steps, until it calls `end_turn`. Does nothing if the source
        is not accepted now, or if another one waits.
        """
        if not self._gated and self.accepts(source):
            source.end_turn()
            self._turn_source, source._turn_sink = source, self
            self._turn_held = self._gated = True

    def may_exceed(self, source: SourceController) -> bool:
        """Return whether `source` may use the limiter's headroom: its priority is raised, or a higher priority was
        passed over to give it its turn.
        """
        return source.priority > PRIORITY_ORDINARY or (source is self._turn_source and self._waiting.took_share)

    def blocked_sources(self) -> tuple[SourceController, ...]:
        """Return the sources that this account blocks: the highest priority first, within one the next first."""
        return tuple(self._waiting)

    @property
    def blocks_somebody(self) -> bool:
        """Sources wait for it. O(1)."""
        return bool(self._waiting)

    def waiting_since(self) -> list[float]:
        """Clock readings: since when each of the sources has waited that this account blocks. O(sources)."""
        return [source._blocked_by[self] for source in self._waiting]

    # ------------------------------------------------------------------ in

    def charge(self, count: int, size_bytes: int, source: SourceController | None) -> None:
        """Charge `count` elements of `size_bytes` in total. Blocks `source` if the limiter is throttled then, or if
        other sources wait.

        The caller has checked for room before (`accepts`, or the limiter's own room). With headroom left `source` may
        be resumed before this returns. If `source` is None or closed, no source is blocked.

        Raises NegativeAmountError and, on a closed account, FlowClosedError; nothing changes then. O(1).
        """
        if self._gated:
            self._check_add(count, size_bytes)
        limiter = self.limiter
        limiter.add(count, size_bytes)
        if limiter.throttled or (self._gated and source is not self._turn_source):
            self._hold_back(source)
            self._start_turns()

    def wait_in_line(self, source: SourceController) -> None:
        """Block `source` until its turn, if the limiter is throttled or others wait; `source` charges nothing yet.

        Raises FlowClosedError if the account is closed. O(1).
        """
        if self._gated:
            self._check_add(0, 0)
        limiter = self.limiter
        limiter.add(0, 0)
        if limiter.throttled or (self._gated and source is not self._turn_source):
            self._hold_back(source)

    # ------------------------------------------------------------------ out

    def release(self, count: int, size_bytes: int) -> None:
        """Release `count` elements of `size_bytes` in total, which went downstream or are settled.

        If a downstream sink blocks this account, the space is reserved: it stays charged until the last such sink
        resumes it. Otherwise it is free at once, which may resume sources before this returns. Works on a closed
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
        """Release elements that expired or were dropped: their room is free at once, even while a sink blocks this
        account. Use `release` for elements that may be in the overflow of a sink, `discard` for elements that are not.
        Raises as `release` does.
        """
        if self.blocked:
            self._check_release(count, size_bytes)
        self.limiter.remove(count, size_bytes)
        if self._gated:
            self._start_turns()

    def poll(self) -> None:
        """Check the limiter, which may have resumed by itself (time, resize); if so, resume the sources."""
        self.limiter.poll()
        self._start_turns()

    # ------------------------------------------------------------------ end, and what people see

    def shut(self, *, at_once: bool = True) -> list[Any]:
        """Resume the blocked sources, and withdraw from the sinks that block this account. What is held stays charged,
        and in the manager's sum, until it is released or `close` is called. Without `at_once` the sources wait until
        `resume_next` has been called for each, or this.

        What is reserved is freed. A second call does nothing. If an `on_resume` raises, the error passes and the call
        can be repeated for the rest: no source stays blocked. Returns the elements that waited here, which only a
        FlowController has.
        """
        self._take_nothing()
        while at_once and self._waiting:
            self.resume_next()
        return []

    def resume_next(self) -> None:
        """Let the next of the blocked sources go, of which there is one: this account was shut."""
        self._waiting.take().resume(self)

    def close(self, *, at_once: bool = True) -> list[Any]:
        """Detach the account from its resource, then `shut` it. What is still held may be released, but no longer
        counts in the manager's sum.
        """
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
        """Return whether it is the turn of `source`: it may then pass the waiting ones, while there is room."""
        return source is not None and source is self._turn_source and not self.limiter.throttled and not self._closed

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

    def _unblocked(self, sink: Account) -> bool:
        """Free the reserved space: the last sink that blocked this account has resumed it."""
        self._free_reserved()
        # The account's own elements continue before those of the sources that are resumed.
        try:
            return super()._unblocked(sink)
        finally:
            self._start_turns()

    # ------------------------------------------------------------------ resumption

    def _set_gate(self) -> None:
        self._gated = self._has_waiting() or self._turn_running or self._turn_held or self._closed

    def _has_waiting(self) -> bool:
        """Whether a source or an element waits for room."""
        return bool(self._waiting)

    def _may_resume(self) -> bool:
        """Whether there is room to resume waiting sources: any room, or the headroom alone if a source of raised
        priority waits.
        """
        limiter = self.limiter
        return not limiter.throttled or (self._waiting.highest > PRIORITY_ORDINARY and not limiter.exhausted)

    def _may_give_turn(self) -> bool:
        """Return whether the next of the blocked sources may be resumed."""
        return self._may_resume()

    def _start_turns(self) -> None:
        """Start or continue resumption if a source waits, there is room, and no turn runs, is held or is scheduled."""
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
            # An error of one source does not affect those behind it. Without a schedule they are resumed with the next
            # poll.
            if self._schedule is not None and not self._closed and self._has_waiting():
                self._turn_pending = True
                self._schedule(self._run_turns)
            raise
        finally:
            self._turn_running = False
            self._set_gate()

    def _take_turn(self) -> bool:
        """Resume some sources; return True if there is more to do and room for it."""
        if self._closed:
            return False
        waiting = self._waiting
        sources_left = self._sources_per_turn
        while waiting and sources_left and self._may_give_turn():
            sources_left -= 1
            if self._give_turn(waiting.take()):
                return False
        return self._has_waiting() and self._may_resume()

    def _give_turn(self, source: SourceController) -> bool:
        """Resume this source. True: it holds its turn."""
        source.end_turn()  # a turn at another sink, during which this one blocked the source
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
        """End the turn at its source's request, and resume the next sources."""
        self._turn_source = None
        self._turn_held = False
        self._set_gate()
        self._start_turns()
