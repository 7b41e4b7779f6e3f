"""What is passed into every queue from outside, and the ports that it has to fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import attrs

from ..flow import Account, FlowManager
from .message import PRIORITY_DEFAULT
from .observer import ObserverOf
from .storage import Store

if TYPE_CHECKING:
    from .dead_letters import DeadLetterRouter


class TimerHandle(Protocol):
    """What `Scheduling.call_later` gives."""

    def cancel(self) -> None: ...


class DispatchHandle(Protocol):
    """A dispatch context, as far as a queue uses it."""

    def request_dispatch(self) -> None: ...
    def close(self) -> None: ...


class Scheduling(Protocol):
    """What queues need of a dispatcher. `sluiceway.dispatcher.Dispatcher` fits; tests bring a hand-cranked one."""

    def register(
        self, dispatch: Callable[[int], bool], label: str, priority: int = PRIORITY_DEFAULT
    ) -> DispatchHandle: ...
    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle: ...
    def executor(
        self, priority: int = PRIORITY_DEFAULT, label: str = "executor"
    ) -> Callable[[Callable[[], None]], None]: ...


@attrs.frozen
class QueueEnvironment:
    """What is passed into every queue from outside: time, dispatch, the flow registry."""

    manager: FlowManager
    scheduling: Scheduling
    clock: Callable[[], float]
    """Monotonic seconds."""
    now_ms: Callable[[], int]
    """Wall clock, milliseconds since the epoch: expiry is a date."""
    resume: Callable[[Callable[[], None]], None] | None = None
    """Where the turns of resuming sources run; None: at once."""
    store: Store | None = None
    """Where persistent messages are kept, and what memory has no room for; None: nothing outlives the broker."""
    dead_letters: DeadLetterRouter | None = None
    """Takes what queues give up; None: they give up nothing."""
    contain: Callable[[Exception], None] | None = None
    """Is given what the answer to one of many raised, so that the others are answered; None: it is raised."""
    in_steps: Callable[[Hashable, Iterator[object]], None] | None = None
    """Where long work is done, a few steps at a time, that of one owner in order (`Steps.do`); None: at once."""
    observer_of: ObserverOf | None = None
    """Who follows what becomes of a queue's messages; None: nobody."""

    def do_in_steps(self, owner: Hashable, work: Iterator[object]) -> None:
        """Do this now as far as that goes, and the rest with others in between, behind what the same owner gave before:
        the name of a destination, or whatever has such work by itself.
        """
        if self.in_steps is not None:
            self.in_steps(owner, work)
            return
        for _step in work:
            pass

    def carefully(self, work: Callable[[], None]) -> None:
        """Do this for one of many; what it raises is no matter of the others, and contained."""
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

    def let_sources_go(self, owner: Hashable, gate: Account) -> None:
        """All that this controller, which was shut, still holds back: in steps."""
        self.do_in_steps(owner, self._letting_go(gate))

    def _letting_go(self, gate: Account) -> Iterator[None]:
        while gate.blocks_somebody:
            self.carefully(gate.let_next_go)
            yield
