"""The dispatcher without trio: registering, requesting, and one turn at a time. `shell.Dispatcher` adds the task that
sleeps and wakes.

How it works. A turn runs ready contexts one by one, selecting the best one each time, so a context made ready by a
dispatch (a queue that feeds its consumers, an arrival of higher priority) runs in the same turn: that is the seed's
"grouping of contexts that interact", without threads and without a hop through trio. The turn ends when nothing is
ready, after a number of dispatches or after a time slice. Then the callbacks of `at_turn_end` run (connections flush:
one write per batch), and the shell lets trio serve sockets. Due timers and callbacks from other threads are dispatched
through contexts of the highest priority: their work (deadlines, completions of the store) mostly unblocks other work.
They are subject to the same budget and the same shares.

Invariants. A dispatch is never entered while another one runs (a turn inside a turn raises). No dispatch happens
outside of `run_turn` and `run_last_turn`. A callback is removed from its list before it is called, so an error neither
leads to a second call nor loses the rest.

Errors. An exception of a dispatch is a broken invariant of its owner: the context is closed and the error goes to
`on_error(context, error)`; the default raises it, which ends `run()`. If the hook returns, the loop continues without
that context. For callbacks (timers, submitted, executors, turn end) only the callback is lost; the context given to the
hook stands for its kind and stays open. Exceptions that are not `Exception` (Ctrl-C) always propagate.

Bounds of the lists: ready lists, one entry per context; callbacks for the end of the turn, each distinct callable once;
timers, inbox and executors: see their modules.

Not here: sleeping, threads' wake-ups, cancellation (shell.py).

Source: seed 002, "Dispatcher / Threading Model"; DESIGN 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from .config import DispatcherConfig
from .context import DONE, MORE, PRIORITY_DEFAULT, PRIORITY_HIGHEST, DispatchContext, ReadyLists
from .errors import DispatcherClosedError, DispatcherStateError
from .executor import CallableExecutor
from .inbox import CallbackInbox
from .statistics import DispatcherStatistics
from .timers import Timer, TimerHeap

ErrorHook = Callable[[DispatchContext, Exception], None]

_DEFAULT_CONFIG: Final = DispatcherConfig()


def raise_error(_context: DispatchContext, error: Exception) -> None:
    """Raise `error`. The default error hook: a broken invariant stops the loop loudly."""
    raise error


class DispatcherCore:
    """Dispatcher without the trio task. Drive it by hand in simulations: `run_turn()` or `run_until_idle()`.

    All methods but `submit` belong to one thread.
    """

    __slots__ = (
        "_busy_seconds",
        "_clock",
        "_closed",
        "_config",
        "_dispatches_count",
        "_dropped_count",
        "_errors_count",
        "_in_turn",
        "_inbox",
        "_inbox_context",
        "_longest_dispatch_label",
        "_longest_dispatch_seconds",
        "_on_error",
        "_ready",
        "_timers",
        "_timers_context",
        "_turn_end",
        "_turn_end_context",
        "_turns_count",
        "_wakeups_count",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        config: DispatcherConfig = _DEFAULT_CONFIG,
        on_error: ErrorHook = raise_error,
    ) -> None:
        """Take `clock`, monotonic seconds for timers and measuring, and `on_error` as described in the module."""
        self._clock = clock
        self._config = config
        self._on_error = on_error
        self._ready = ReadyLists(config.lower_share_interval_count, self._wake)
        self._timers = TimerHeap()
        self._inbox = CallbackInbox(clock, slice_seconds=self._config.turn_seconds / 2)
        self._turn_end: dict[Callable[[], None], None] = {}
        self._timers_context = self._carrier(self._dispatch_timers, "timers")
        self._inbox_context = self._carrier(self._inbox.dispatch, "submitted")
        # Only a name for the error hook: callbacks for the end of a turn are called directly, so this context is never
        # queued.
        self._turn_end_context = self._carrier(lambda _budget: DONE, "turn end")
        self._turn_end_context.close()
        self._in_turn = False
        self._closed = False
        self._dispatches_count = 0
        self._turns_count = 0
        self._wakeups_count = 0
        self._longest_dispatch_seconds = 0.0
        self._longest_dispatch_label = ""
        self._dropped_count = 0
        self._errors_count = 0
        self._busy_seconds = 0.0

    # For components

    def register(
        self, dispatch: Callable[[int], bool], label: str, priority: int = PRIORITY_DEFAULT
    ) -> DispatchContext:
        """Return a context that is dispatched by `dispatch(budget)` after each request.

        `dispatch` moves at most `budget` messages, must not block or wait, and returns MORE if it has more to do (it is
        then dispatched again after the other ready contexts of its priority) or DONE. `label` names it in statistics
        and errors. `priority` is 0 to 9, 9 the highest. Raises ValueError for another priority, DispatcherClosedError
        when closed. The dispatcher refers to the context only while it is queued.
        """
        self._refuse_if_closed(label)
        return DispatchContext(self._ready, dispatch, label, priority)

    def executor(self, priority: int = PRIORITY_DEFAULT, label: str = "executor") -> CallableExecutor:
        """Return a callable that runs callbacks on the loop, in order, at `priority`. Raises as `register`."""
        self._refuse_if_closed(label)
        return CallableExecutor(self._ready, priority, label)

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once at the end of the current turn, after the contexts; wakes the loop if it sleeps. O(1).

        Added again before it ran (an equal callable: the same function, or the same method of the same object), it
        still runs once. Added by a callback of this phase it runs in the same phase, or in the next turn after too many
        rounds. Ignored once ended.
        """
        ready = self._ready
        if ready.asleep:
            ready.wake()
        if not ready.ended:
            self._turn_end[callback] = None

    def call_at(self, deadline_seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` when `now()` has reached `deadline_seconds`, never earlier. Raises ValueError for NaN. O(log
        timers).

        Due timers run in order of deadline, then of creation. Once ended, the returned timer is already cancelled.
        """
        if self._ready.ended:
            return Timer(None, deadline_seconds, None)
        timers = self._timers
        first_seconds = timers.next_deadline_seconds
        timer = timers.add(deadline_seconds, callback)
        if deadline_seconds < first_seconds and self._ready.asleep:
            self._sleep_no_longer_than(deadline_seconds)
        return timer

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> Timer:
        """Do `call_at(now() + delay_seconds)`. Raises ValueError for a negative delay."""
        if delay_seconds < 0:
            raise ValueError(f"the delay of a timer must not be negative, got {delay_seconds} s")
        return self.call_at(self._clock() + delay_seconds, callback)

    def submit(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop soon: from ANY thread (not from a signal handler), in order per thread.

        Raises DispatcherClosedError once closed or ended; the callback was then not accepted. Callbacks accepted before
        `close()` still run.
        """
        self._inbox.submit(callback)

    def now(self) -> float:
        """Return the seconds on the dispatcher's clock, as used by timers."""
        return self._clock()

    @property
    def closed(self) -> bool:
        """Whether `close()` was called, or the loop has ended."""
        return self._closed

    def statistics(self) -> DispatcherStatistics:
        """Return a snapshot of counters and depths."""
        return DispatcherStatistics(
            dispatches_count=self._dispatches_count,
            turns_count=self._turns_count,
            wakeups_count=self._wakeups_count,
            longest_dispatch_seconds=self._longest_dispatch_seconds,
            longest_dispatch_label=self._longest_dispatch_label,
            ready_count=self._ready.counts(),
            timers_count=len(self._timers),
            timers_fired_count=self._timers.fired_count,
            submitted_count=self._inbox.submitted_count,
            submitted_waiting_count=self._inbox.waiting_count,
            dropped_count=self._dropped_count,
            errors_count=self._errors_count,
            busy_seconds=self._busy_seconds,
        )

    def close(self) -> None:
        """Accept no new work: `register`, `executor` and `submit` raise from now on. Idempotent.

        A running turn is finished; then `run_last_turn` does the accepted work. Later requests and callbacks of the
        loop's own thread are accepted without an error but have no effect, so that components can be torn down in any
        order.
        """
        self._closed = True
        self._inbox.close()
        if self._ready.asleep:
            self._ready.wake()

    # For the driver

    def has_work(self) -> bool:
        """Return whether another turn would do something now."""
        return bool(
            self._ready.mask
            or self._turn_end
            or self._inbox.arrived
            or (len(self._timers) and self._clock() >= self._timers.next_pending_seconds())
        )

    def run_turn(self) -> None:
        """Run one turn, then the callbacks for its end.

        Raises DispatcherStateError if called from within a dispatch, and any exception of the error hook; all other
        work then stays queued.
        """
        if self._in_turn:
            raise DispatcherStateError(
                "run_turn() inside a dispatch; use request_dispatch(), the loop calls when this dispatch is over"
            )
        self._in_turn = True
        started_seconds = self._clock()
        try:
            if self._inbox.arrived:
                self._inbox_context.request_dispatch()
            self._run_contexts(started_seconds)
            if self._turn_end:
                self._run_turn_end()
        finally:
            self._in_turn = False
            self._turns_count += 1
            self._busy_seconds += self._clock() - started_seconds

    def run_last_turn(self) -> None:
        """Run, after `close()`, callbacks submitted before it by other threads, then the callbacks for the end of the
        turn, then end.
        """
        if self._in_turn:
            raise DispatcherStateError(
                "run_last_turn() inside a dispatch; call close(), the loop ends when this turn is over"
            )
        self.close()
        self._in_turn = True
        try:
            while self._inbox.waiting_count:
                self._run_one(self._inbox_context)
            self._run_turn_end()
        finally:
            self._in_turn = False
            self._end()

    def run_until_idle(self, turns_max_count: int = 10_000) -> int:
        """Run turns until nothing is left to do now; return their number. For simulations. Raises DispatcherStateError
        if that takes more than `turns_max_count`.
        """
        for turns_count in range(turns_max_count):
            if not self.has_work():
                return turns_count
            self.run_turn()
        raise DispatcherStateError(f"still busy after {turns_max_count} turns: {self.statistics()}")

    def _run_contexts(self, now_seconds: float) -> None:
        # The innermost loop of the broker: locals, one clock reading per dispatch, the rare cases out of line.
        clock = self._clock
        timers = self._timers
        take = self._ready.take
        budget_count = self._config.budget_count
        ends_seconds = now_seconds + self._config.turn_seconds
        longest_seconds = self._longest_dispatch_seconds
        left_count = limit_count = self._config.dispatches_per_turn_count
        try:
            while left_count:
                if now_seconds >= timers.next_deadline_seconds:
                    self._timers_context.request_dispatch()
                context = take()
                if context is None:
                    return
                left_count -= 1
                try:
                    more = context.dispatch(budget_count)
                except Exception as error:  # noqa: BLE001 - handed to the hook, which raises it unless told otherwise
                    self._failed(context, error)
                    more = DONE
                if more:
                    context.request_dispatch()
                before_seconds = now_seconds
                now_seconds = clock()
                if now_seconds - before_seconds > longest_seconds:
                    longest_seconds = self._longest_dispatch_seconds = now_seconds - before_seconds
                    self._longest_dispatch_label = context.label
                if now_seconds >= ends_seconds:
                    return
        finally:
            self._dispatches_count += limit_count - left_count

    def _run_one(self, context: DispatchContext) -> None:
        """Run one dispatch out of the ordinary order, for the phases at the end."""
        try:
            context.dispatch(self._config.budget_count)
        except Exception as error:  # noqa: BLE001 - handed to the hook, which raises it unless told otherwise
            self._failed(context, error)

    def _run_turn_end(self) -> None:
        """Run the callbacks for the end of the turn. After half a turn's time the rest is left to the next turn, so
        that others are served in between.
        """
        clock = self._clock
        ends_seconds = clock() + self._config.turn_seconds / 2
        for _ in range(self._config.turn_end_rounds_count):
            if not self._turn_end:
                return
            callbacks = deque(self._turn_end)
            self._turn_end.clear()
            try:
                while callbacks:
                    try:
                        while callbacks:
                            callbacks.popleft()()
                            if clock() >= ends_seconds and not self._closed:
                                return
                    except Exception as error:  # noqa: BLE001 - handed to the hook, which raises it unless told otherwise
                        self._failed(self._turn_end_context, error)
            finally:
                if callbacks:  # the hook raised: keep the callbacks that have not run, before later ones
                    self._turn_end = dict.fromkeys([*callbacks, *self._turn_end])

    def _dispatch_timers(self, budget: int) -> bool:
        """Run due timers for up to half a turn."""
        clock = self._clock
        now_seconds = clock()
        ends_seconds = now_seconds + self._config.turn_seconds / 2
        return MORE if self._timers.run_due(now_seconds, budget, lambda: clock() >= ends_seconds) else DONE

    def _failed(self, context: DispatchContext, error: Exception) -> None:
        """Record an error. Raises it unless the hook returns."""
        self._errors_count += 1
        error.add_note(f"raised in a dispatch of {context.label!r} (priority {context.priority})")
        if context.outlives_errors:
            context.request_dispatch()  # there may be callbacks behind the one that raised
        else:
            context.close()
        self._on_error(context, error)

    def _carrier(self, dispatch: Callable[[int], bool], label: str) -> DispatchContext:
        return DispatchContext(self._ready, dispatch, label, PRIORITY_HIGHEST, outlives_errors=True)

    def _refuse_if_closed(self, label: str) -> None:
        if self._closed:
            raise DispatcherClosedError(f"the dispatcher is closed; {label!r} can't be registered any more")

    def _end(self) -> None:
        """End all work; drop and count what was left."""
        self._closed = True
        self._ready.ended = True
        self._inbox.close()
        self._dropped_count += self._inbox.clear() + len(self._turn_end)
        self._turn_end.clear()
        self._timers.clear()

    # For the shell to override

    def _wake(self) -> None:
        """Wake the sleeping loop, as there is work."""

    def _sleep_no_longer_than(self, deadline_seconds: float) -> None:
        """Shorten the sleep, as a timer is due before all others."""
