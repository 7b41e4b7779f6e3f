"""Whether a connection is read, and why not: one gate, and a hold for each reason.

Each reason not to read a connection has a `Hold` of its gate, or a `CountedHold`, which is on while a count is above a
limit. Releasing a hold asks the connection to check whether it reads again: a reason has no other way to end, so none
can end unnoticed. Asking the gate changes nothing: the session acts on the answer.

A hold may be *passable*: it counts only while its condition says no. Such a condition is evaluated whenever the
connection looks at the gate; code that changes the condition's inputs asks the connection to look.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from ..flow import Flow, FlowResource, SourceController

TURN_SECONDS: Final = 0.001
"""Time for the frames of one read before other connections have their turn. A frame is not cut in two."""


class Reason(Enum):
    """Reasons not to read a connection, in words for people."""

    LOGIN = "the check of its login"
    RECEIPTS_READ = "the client to read its receipts"
    RECEIPTS_STORED = "the disk, for its receipts"
    TRANSACTIONS = "the disk, for its transactions"
    DESTINATIONS = "blocked destinations"
    SUBSCRIPTIONS = "its subscriptions, which are made and ended in turns with those of others"
    LARGE_MESSAGE = "the disk, for its large message"
    RATE = "a limit per second"


def _counts() -> bool:
    return False


class ReadGate:
    """Holds of one connection, in the order in which people are told of them."""

    __slots__ = ("_ask", "_holds", "held_count")

    def __init__(self, ask: Callable[[], None]) -> None:
        """Make an open gate. `ask`: called when a hold was released, to look at `blocking` again."""
        self._ask = ask
        self._holds: list[Hold] = []
        self.held_count = 0
        """Number of holds that are on."""

    def blocking(self) -> Hold | None:
        """The first hold that counts; None: the connection may be read. O(1) while no hold is on."""
        if not self.held_count:
            return None
        return next((hold for hold in self._holds if hold.is_on and not hold.is_passable()), None)

    @property
    def holds(self) -> tuple[Hold, ...]:
        """All holds, on or off."""
        return tuple(self._holds)

    def hold(self, reason: Reason, words: str = "", *, is_passable: Callable[[], bool] = _counts) -> Hold:
        """Add a hold, behind the others. `words`: say more than those of the reason."""
        hold = Hold(self, reason, words, is_passable)
        self._holds.append(hold)
        return hold

    def count(self, reason: Reason, bytes_max: int) -> CountedHold:
        """Add a hold that is on while more than `bytes_max` bytes are counted."""
        hold = CountedHold(self, reason, bytes_max)
        self._holds.append(hold)
        return hold

    def drop(self, hold: Hold) -> None:
        """Remove a hold permanently."""
        self._holds.remove(hold)
        hold.release()

    def _took(self) -> None:
        self.held_count += 1

    def _released(self) -> None:
        self.held_count -= 1
        self._ask()


class Hold:
    """One reason not to read."""

    __slots__ = ("_gate", "is_on", "is_passable", "reason", "words")

    def __init__(
        self, gate: ReadGate, reason: Reason, words: str = "", is_passable: Callable[[], bool] = _counts
    ) -> None:
        """`ReadGate.hold` makes it."""
        self._gate = gate
        self.reason = reason
        self.words = words or reason.value
        self.is_passable = is_passable
        self.is_on = False

    def take(self) -> None:
        """The connection is not to be read. Again: nothing happens."""
        if not self.is_on:
            self.is_on = True
            self._gate._took()

    def release(self) -> None:
        """The reason has ended, and the connection is asked to look. If there was none: nothing happens."""
        if self.is_on:
            self.is_on = False
            self._gate._released()

    def source(
        self,
        resource: FlowResource,
        flow: Flow,
        *,
        clock: Callable[[], float],
        on_resume: Callable[[], None] | None = None,
    ) -> SourceController:
        """Make a source that has this hold while a sink blocks the source. `on_resume` is called first, and may block
        the source again. Code that closes the source releases the hold.
        """

        def resumed(_sink: object) -> None:
            if on_resume is not None:
                on_resume()
            if not source.blocked:
                self.release()

        source = SourceController(resource, flow, on_block=lambda _sink: self.take(), on_resume=resumed, clock=clock)
        return source


class CountedHold(Hold):
    """A reason not to read while a count of bytes is above its limit."""

    __slots__ = ("bytes_max", "used_bytes")

    def __init__(self, gate: ReadGate, reason: Reason, bytes_max: int) -> None:
        """`ReadGate.count` makes it."""
        super().__init__(gate, reason)
        self.bytes_max = bytes_max
        self.used_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count `size_bytes` more."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.bytes_max:
            self.take()

    def remove(self, size_bytes: int) -> None:
        """Count `size_bytes` less."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, f"{self.words}: more was removed than added"
        if self.is_on and self.used_bytes <= self.bytes_max:
            self.release()
