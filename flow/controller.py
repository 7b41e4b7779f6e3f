"""Controllers: accounts that take elements in, and what happens to elements that do not fit.

A `FlowController` is one flow of one sink (and perhaps of a source too): it charges a limiter for incoming elements
(account.py), and hands each element over once it is charged.

How it works
    - `add` never fails. An element that does not fit goes to the *overflow* list, and its source is blocked. `offer`
      refuses instead.
    - Overflow is not charged here. It stays charged at its source: a source that was blocked during dispatch does not
      free the space of what it sent. Its `release` only *reserves* the space, and frees it when the last sink that
      blocks it resumes it. So an upstream may overflow a downstream freely. The overflow list is bounded by what the
      sources could hold: one batch of each source that was not blocked yet. Overflow of a source without a limiter is
      charged nowhere: it is in `unaccounted_bytes`, and such a source must bound its batches itself (or `offer`).
    - When there is room again the overflow goes first, in order, and then the blocked sources.

Source: seed 002 "Flow Control"; the prototype's FlowController.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .account import Account
from .limiters import Clock, FlowLimiter
from .resource import Flow, FlowResource
from .source import PRIORITY_ORDINARY, BlockCallback, ResumeCallback, SourceController

E = TypeVar("E")

_NO_OVERFLOW: deque[Any] = deque(maxlen=0)
"""Shared by all controllers that never had overflow, which are most: a deque takes 760 bytes."""

OVERFLOW_PER_TURN = 1000
"""Elements that one scheduled turn takes from overflow at most: about a millisecond, so that sockets are served in
between."""


class FlowController(Account, Generic[E]):
    """Account that takes in the elements for which it is charged. E is the type of an element: a message, or a batch of
    them.

    Attributes, to be read and never written from outside, beside those of an Account:
        overflow_count, overflow_bytes: elements that wait because there was no room.
        unaccounted_bytes: the part of `overflow_bytes` that came from sources without a limiter, so that it is charged
            nowhere. It is in the sum "memory in use" all the same.
    """

    __slots__ = ("_accept", "_overflow")

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
        """Attach a sink for `flow` to `resource`. `accept` takes each element, already charged, at once or (from
        overflow) later, in order; it may call `release` at once, and add to other controllers, but must not raise: the
        element counts as held then. Other arguments and errors: see Account.
        """
        super().__init__(
            resource,
            flow,
            limiter,
            schedule=schedule,
            sources_per_turn=sources_per_turn,
            on_block=on_block,
            on_resume=on_resume,
            priority=priority,
            clock=clock,
            counts_memory=counts_memory,
            yields=yields,
        )
        self._accept = accept
        # Element, count, bytes, and the part of the bytes that is charged nowhere.
        self._overflow: deque[tuple[E, int, int, int]] = _NO_OVERFLOW

    def add(self, element: E, count: int, size_bytes: int, source: SourceController | None) -> None:
        """Take `element`, which counts as `count` elements of `size_bytes` in total. Never refuses; may block `source`.

        If there is room and no source waits, the element is charged and accepted before this returns; if that throttled
        the limiter, the source is blocked. Otherwise the element goes to overflow and the source is blocked (once). If
        `source` is None or closed, no source is blocked, so nothing here bounds the overflow. Use that for elements
        that are bounded elsewhere (a reply to a request that was charged, a test); otherwise ask `accepts` first, or
        give a source and check `blocked`. Such overflow counts as memory in use.

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

    def shut(self, *, at_once: bool = True) -> list[E]:
        """Close the account, and return the elements that waited in overflow, in order; they were never charged here.

        Stop routing to this controller before: a source that adds in its `on_resume` gets a FlowClosedError. No element
        is lost if an `on_resume` raises and the call is repeated.
        """
        super().shut(at_once=at_once)
        elements = [entry[0] for entry in self._overflow]
        self._overflow = _NO_OVERFLOW
        self.overflow_count = self.overflow_bytes = self.unaccounted_bytes = 0
        return elements

    def _is_turn_of(self, source: SourceController | None) -> bool:
        """Return whether the turn is `source`'s, and overflow is empty."""
        return not self._overflow and super()._is_turn_of(source)

    def _add_to_overflow(self, element: E, count: int, size_bytes: int, source: SourceController | None) -> None:
        self._check_add(count, size_bytes)
        # A source with a limiter stays charged for what it sent while it is blocked (see `release`).
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

    def _has_waiting(self) -> bool:
        return bool(self._overflow or self._waiting)

    def _may_resume(self) -> bool:
        """Return whether blocked sources may be resumed; the headroom is not for elements in overflow."""
        return not self.limiter.throttled if self._overflow else super()._may_resume()

    def _may_give_turn(self) -> bool:
        return not self._overflow and super()._may_resume()

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
        return super()._take_turn()
