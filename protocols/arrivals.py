"""Waits for the input of many sockets at once: one epoll and one task for all of them, and one turn of the dispatcher
for all of their input.

A task that waits for its own socket costs two system calls and a switch of tasks for each read, and simultaneous input
of ten connections leads to ten deliveries where one would do. So a connection that waits for input leaves a callback
here (`Watched.wait`). The task of `Arrivals` calls the callback for each possible read; the connection's own task
sleeps until the callback reports other work.

A socket stays registered while its connection is open. A socket with input whose connection is not read now is taken
out until the connection waits again: an epoll that reports the socket again and again would keep the loop busy.

Fairness: sockets are taken in the order in which the kernel names them, for TURN_SECONDS, and before any is taken again
all that were named have had their turn. Connections that are served by their own tasks have one turn each in a pass of
the loop; so where more was named than one turn is enough for, those sockets get more turns in the next pass.

Only for plain sockets, on systems that have epoll: a stream over another one may hold bytes of which the kernel knows
nothing. Other streams wait separately.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from .reading import TURN_SECONDS

IS_AVAILABLE: Final = hasattr(select, "epoll")
_NAMED_MAX: Final = 256
"""Maximum number of sockets that one call asks the kernel for."""
_TURNS_MAX: Final = 16
"""Turns of all sockets together in one pass of the loop."""


class Arrivals:
    """All sockets whose input is waited for. `run` serves them."""

    def __init__(self, turn_with: Callable[[Callable[[], None]], None], clock: Callable[[], float]) -> None:
        """Watch sockets. `turn_with` calls its argument, and runs a turn of the dispatcher for the work that this
        requested.
        """
        self._turn_with = turn_with
        self._clock = clock
        self._epoll = select.epoll()
        self._descriptor = self._epoll.fileno()
        self._watched: dict[int, Watched] = {}
        self._named: deque[tuple[int, int]] = deque()
        """Sockets that the kernel has named and no turn has handled yet."""
        self._taken_count = 1
        """Number of sockets that the last turn handled."""

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with trio.open_nursery() as others:
                while True:
                    if self._named:
                        await trio.lowlevel.checkpoint()
                        if not self._named:
                            continue
                    else:
                        await trio.lowlevel.wait_readable(self._descriptor)
                    self._turn_with(self._take_some)
                    if self._named:
                        for _ in range(self._turns_wanted):
                            others.start_soon(self._take_turn)
        finally:
            self._epoll.close()

    @property
    def _turns_wanted(self) -> int:
        """Number of further turns that the named sockets will take at the speed of the last turn."""
        return min(-(-len(self._named) // self._taken_count) - 1, _TURNS_MAX - 1)

    async def _take_turn(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._named:
            self._turn_with(self._take_some)

    def watch(self, descriptor: int, take: Callable[[], bool]) -> Watched:
        """Make a watch on a socket. `take` reads the socket, and returns False to wake the waiting task. An exception
        of `take` is raised in that task.
        """
        return Watched(self, descriptor, take)

    def _take_some(self) -> None:
        named = self._named
        if not named:
            found = self._epoll.poll(0, _NAMED_MAX)
            if len(found) == 1:  # no socket waits behind it
                watched = self._watched.get(found[0][0])
                if watched is not None:
                    watched.arrived()
                return
            named.extend(found)
        clock = self._clock
        until_seconds = clock() + TURN_SECONDS
        count = len(named)
        while named:
            watched = self._watched.get(named.popleft()[0])
            if watched is not None:  # else it was closed since
                watched.arrived()
                if clock() >= until_seconds:
                    break
        self._taken_count = max(1, count - len(named))

    def _register(self, watched: Watched) -> None:
        if not self._epoll.closed:
            self._epoll.register(watched.descriptor, select.EPOLLIN)
            self._watched[watched.descriptor] = watched

    def _unregister(self, watched: Watched) -> None:
        if self._watched.pop(watched.descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(watched.descriptor)


class InputWait(ABC):
    """The wait of one connection for input, which a callback takes."""

    __slots__ = ("_error", "_take", "_task")

    def __init__(self, take: Callable[[], bool]) -> None:
        """`take` reads, and returns False to wake the waiting task."""
        self._take = take
        self._task: trio.lowlevel.Task | None = None
        self._error: Exception | None = None
        """Exception that the callback raised. It concerns this connection alone."""

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits."""
        return self._task is not None

    async def wait(self) -> None:
        """Let the callback take the input until it returns False. Raises what the callback raises. After a cancellation
        nothing more is taken.
        """
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._gave_up)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _gave_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def arrived(self) -> None:
        """Run the callback: there is input, or the connection is broken."""
        task = self._task
        if task is None:
            self.close()
            return
        try:
            goes_on = self._take()
        except Exception as error:
            if self._task is not task:
                raise  # no task is left to be told
            self._error = error
            goes_on = False
        if not goes_on and self._task is task:  # else the callback has led to its being cancelled
            self._task = None
            trio.lowlevel.reschedule(task)

    @abstractmethod
    def close(self) -> None:
        """Watch no more. `wait` may be called again."""


class Watched(InputWait):
    """One socket, and who waits for it."""

    __slots__ = ("_arrivals", "_is_registered", "descriptor")

    def __init__(self, arrivals: Arrivals, descriptor: int, take: Callable[[], bool]) -> None:
        """`Arrivals.watch` makes it."""
        super().__init__(take)
        self._arrivals = arrivals
        self._is_registered = False
        self.descriptor = descriptor

    async def wait(self) -> None:
        """Do `InputWait.wait`."""
        if not self._is_registered:
            self._is_registered = True
            self._arrivals._register(self)
        await super().wait()

    def close(self) -> None:
        """Take it out, before the socket is closed. `wait` may be called again."""
        if self._is_registered:
            self._is_registered = False
            self._arrivals._unregister(self)
