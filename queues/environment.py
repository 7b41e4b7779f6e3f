"""Objects that are passed into every queue from outside, and the ports that they satisfy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import attrs

from ..flow import Account, FlowManager
from .message import PRIORITY_DEFAULT
from .observer import Observer
from .storage import Store

if TYPE_CHECKING:
    from .dead_letters import DeadLetterRouter
    from .queue import MessageQueue


ObserverOf = Callable[["MessageQueue"], Observer | None]
"""Gives the observer of a new queue."""
HeaderOf = Callable[[str], str | None]
"""The value of a header of a message by its name; None: it has none of that name."""
PartFunction = Callable[[HeaderOf], str | None]
"""The value by which a message is divided. Never raises."""


class TimerHandle(Protocol):
    """Handle that `Scheduling.call_later` returns."""

    def cancel(self) -> None: ...


class DispatchHandle(Protocol):
    """A dispatch context, as far as a queue uses it."""

    def request_dispatch(self) -> None: ...
    def close(self) -> None: ...


class Scheduling(Protocol):
    """Part of a dispatcher that queues use. `sluiceway.dispatcher.Dispatcher` satisfies it; tests have one that is
    cranked by hand.
    """

    def register(
        self, dispatch: Callable[[int], bool], label: str, priority: int = PRIORITY_DEFAULT
    ) -> DispatchHandle: ...
    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle: ...
    def executor(
        self, priority: int = PRIORITY_DEFAULT, label: str = "executor"
    ) -> Callable[[Callable[[], None]], None]: ...


class MessageNumbers:
    """Message numbers that no store knows of."""

    __slots__ = ("_next",)

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def take(self, count: int) -> int:
        """Reserve this many numbers, and return the first."""
        first = self._next
        self._next = first + count
        return first


@attrs.frozen
class QueueEnvironment:
    """Environment of every queue, passed in from outside: time, dispatch, the flow registry, the shard."""

    manager: FlowManager
    scheduling: Scheduling
    clock: Callable[[], float]
    """Monotonic seconds."""
    now_ms: Callable[[], int]
    """Wall clock, milliseconds since the epoch: expiry is a date."""
    resume: Callable[[Callable[[], None]], None] | None = None
    """Scheduler for the turns of resuming sources; None: they run at once."""
    store: Store | None = None
    """Store of persistent messages, and of messages without room in memory; None: nothing outlives the broker."""
    dead_letters: DeadLetterRouter | None = None
    """Takes what queues give up; None: they give up nothing."""
    contain: Callable[[Exception], None] | None = None
    """Handler of errors raised for one of many objects, so that the others are handled; None: they are raised."""
    in_steps: Callable[[Hashable, Iterator[object]], None] | None = None
    """Executor of long work in a few steps at a time, in order for one owner (`Steps.do`); None: at once."""
    part_function: Callable[[str], PartFunction] | None = None
    """Finder of the functions that divide queues, by MODULE:NAME; None: there are none."""
    observer_of: ObserverOf | None = None
    """Factory of the observer of a queue's messages; None: no queue is observed."""
    take_numbers: Callable[[int], int] = attrs.field(factory=lambda: MessageNumbers().take)
    """Function that reserves that many message numbers of the shard, and returns the first."""
    shard: int | None = 0
    """Shard of the queue; None: it belongs to no shard, but to this process."""
    is_guest: bool = False
    """Whether the shard is at another hub, and the queue is a topic for the subscribers of this one."""
    may_deliver: Callable[[], bool] | None = None
    """Whether the queue may deliver at this moment; who says no requests a dispatch later. None: always."""

    def do_in_steps(self, owner: Hashable, work: Iterator[object]) -> None:
        """Do the first steps of `work` now, and the rest later, between other work and behind earlier work of the same
        owner. `owner`: the name of a destination, or any object with work of its own.
        """
        if self.in_steps is not None:
            self.in_steps(owner, work)
            return
        for _step in work:
            pass

    def carefully(self, work: Callable[[], None]) -> None:
        """Run `work` for one of many objects; errors are contained, so that the others are handled."""
        try:
            work()
        except Exception as error:
            if self.contain is None:
                raise
            self.contain(error)

    def carefully_in_steps(self, work: Callable[[], Iterable[None]]) -> Iterator[None]:
        """The same where this gives steps."""
        try:
            yield from work()
        except Exception as error:
            if self.contain is None:
                raise
            self.contain(error)

    def resume_sources(self, owner: Hashable, gate: Account) -> None:
        """Release all sources that the account `gate`, which was shut, still blocks: in steps."""
        self.do_in_steps(owner, self._resuming(gate))

    def _resuming(self, gate: Account) -> Iterator[None]:
        while gate.blocks_somebody:
            self.carefully(gate.resume_next)
            yield
