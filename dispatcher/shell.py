"""The dispatcher as one trio task: run turns, let trio serve sockets between them, sleep when nothing is ready.

How it sleeps. A sleep and a wake through trio's lowest level (`wait_task_rescheduled`, `reschedule`) cost about as much
as a bare checkpoint. A cancel scope with a deadline around each sleep would double that, and some timer is nearly
always pending (heart-beats, expiry). So one scope, the *alarm*, stays open over many turns and sleeps; its deadline is
only ever moved to an earlier timer. When it expires it cancels the present sleep or checkpoint of the loop, is caught
right here, and a new one is opened. An alarm set for a timer that was cancelled since wakes the loop once without need.

Wake-ups. A caller that adds work while the loop sleeps reschedules it, once: the mark `asleep` is cleared before. Other
tasks that are ready in the same pass of trio still run before the loop does, so their requests join the same turn.

Invariants: `asleep` is set exactly while the task is in `wait_task_rescheduled` and not rescheduled yet. A dispatch has
no await, so cancellation never interrupts one; Ctrl-C is held off as well until the next checkpoint.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

import trio

from .config import DispatcherConfig
from .core import DispatcherCore, ErrorHook, raise_error
from .errors import DispatcherStateError

BURST_SECONDS: Final = 0.0002
"""Time after a turn in a reader's task within which arrivals count as a burst: others are likely to follow."""


class Dispatcher(DispatcherCore):
    """Dispatcher of a broker: `DispatcherCore` plus `run()`.

    Components may register, request and set timers before `run()`. All methods but `submit` are for the thread of trio;
    a request from a foreign thread to a sleeping loop raises DispatcherStateError.
    """

    __slots__ = ("_alarm", "_clock_is_trio", "_failure", "_inline_seconds", "_started", "_task", "_thread_id", "_token")

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        *,
        config: DispatcherConfig | None = None,
        on_error: ErrorHook = raise_error,
    ) -> None:
        """Take `clock`, monotonic seconds; trio's own if None (then virtual under trio.testing.MockClock, and only
        readable inside of trio).
        """
        super().__init__(
            trio.current_time if clock is None else clock,
            config=DispatcherConfig() if config is None else config,
            on_error=on_error,
        )
        self._clock_is_trio = clock is None
        self._started = False
        self._task: trio.lowlevel.Task | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._alarm = trio.CancelScope()
        self._thread_id = 0
        self._inline_seconds = -math.inf
        """Time of the last turn run by `turn_with`."""
        self._failure: Exception | None = None
        """Exception of a turn in another task, to be raised by `run`."""

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the loop until `close()` (then returns, after a last turn), cancellation, or an error that the hook
        raises.

        Runs once per dispatcher: at its end the dispatcher is closed, timers are cancelled, and work accepted but not
        run is counted in `dropped_count`. Raises DispatcherStateError if called again.
        """
        if self._started:
            raise DispatcherStateError("run() was called before; a dispatcher runs once, make a new one")
        self._started = True
        self._task = trio.lowlevel.current_task()
        self._thread_id = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()
        if self._clock_is_trio:
            # The same time, without looking up the running loop at each reading.
            self._clock = self._inbox.clock = trio.lowlevel.current_clock().current_time
        self._inbox.connect(self._signal_from_thread)
        try:
            task_status.started()
            await trio.lowlevel.checkpoint()
            while not self._closed:
                await self._run_until_alarm()
            self.run_last_turn()
        finally:
            self._end()

    async def _run_until_alarm(self) -> None:
        """Run turns and sleep until the alarm expires or the dispatcher is closed."""
        with trio.CancelScope() as self._alarm:
            while True:
                if self._failure is not None:
                    raise self._failure
                self.run_turn()
                if self._closed:
                    return
                if self.has_work():
                    await trio.lowlevel.checkpoint()
                else:
                    await self._sleep()

    def turn_with(self, work: Callable[[], None]) -> None:
        """Call `work`, then, if the loop was asleep, run a turn for its requests, here and now.

        For little work that a task of the loop's own thread has just received: it saves two task switches, a third of
        the cost of a single message. Of several calls within BURST_SECONDS only the first has a turn of its own. Work
        left by the turn wakes the loop as usual. Raises the exceptions of `work`; an error of the turn is raised by
        `run`, as all others are.
        """
        if self._ready.asleep and self._clock() - self._inline_seconds < BURST_SECONDS:
            work()  # the loop wakes behind all arrivals of this pass of trio: one turn for them together
        else:
            self.turn_for_all(work)

    def turn_for_all(self, work: Callable[[], None]) -> None:
        """Do `turn_with` for work that serves all connections: each such `work` is followed by a turn, however soon
        after another one. Waking the loop instead would cost another pass of trio: 70 of 790 function calls for a
        single message, a tenth of the processor time.
        """
        ready = self._ready
        if not ready.asleep or self._in_turn:
            work()
            return
        ready.asleep = False  # requests from here on wake no task
        try:
            work()
            try:
                self.run_turn()
            except Exception as error:  # noqa: BLE001 - raised by `run`
                self._failure = error
            self._inline_seconds = self._clock()
        finally:
            ready.asleep = True
            if self._closed or self._failure is not None or self.has_work():
                self._wake()
            else:
                self._sleep_no_longer_than(self._timers.next_pending_seconds())

    async def _sleep(self) -> None:
        """Sleep until woken, or until the alarm raises trio.Cancelled, which `_run_until_alarm` catches."""
        deadline_seconds = self._timers.next_pending_seconds()
        if deadline_seconds < math.inf:
            self._sleep_no_longer_than(deadline_seconds)
        if not self._inbox.fall_asleep():
            await trio.lowlevel.checkpoint()
            return
        self._ready.asleep = True
        try:
            await trio.lowlevel.wait_task_rescheduled(self._sleep_aborted)
        finally:
            self._inbox.awake()
            self._wakeups_count += 1

    def _sleep_aborted(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._ready.asleep = False  # trio reschedules the task itself; a second time would be an error
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if threading.get_ident() != self._thread_id:
            raise DispatcherStateError("called from a foreign thread; submit() a callback that makes this call instead")
        assert self._task is not None
        self._ready.asleep = False
        trio.lowlevel.reschedule(self._task)

    def _signal_from_thread(self) -> None:
        assert self._token is not None
        self._token.run_sync_soon(self._wake_if_asleep)

    def _wake_if_asleep(self) -> None:
        if self._ready.asleep:  # a request may have been quicker
            self._wake()

    def _sleep_no_longer_than(self, deadline_seconds: float) -> None:
        if not self._clock_is_trio and deadline_seconds < math.inf:
            deadline_seconds = trio.current_time() + deadline_seconds - self._clock()
        if deadline_seconds < self._alarm.deadline:
            self._alarm.deadline = deadline_seconds
