"""Whether a connection is read, and why not: one gate, and a hold for each reason.

Whatever keeps a connection from being read has a `Hold` of its gate, or a `CountedHold`, which is on while a count is
above a limit. To let go of a hold is to ask the connection whether it reads on: there is no other way to end a reason,
so none can end unnoticed. Asking the gate changes nothing: who acts on the answer is the session.

A hold may be *passable*: it counts only while its condition says no. Such a condition is asked anew whenever the
connection looks at the gate; whoever changes what the condition reads asks the connection to look.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from ..flow import Flow, FlowResource, SourceController

TURN_SECONDS: Final = 0.001
"""How long the frames of one read are worked on before others have their turn. A frame is not cut in two."""


class Reason(Enum):
    """Why a connection is not read: what it waits for, in words for people."""

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
    """The holds of one connection, in the order in which people are told of them."""

    __slots__ = ("_ask", "_holds", "held_count")

    def __init__(self, ask: Callable[[], None]) -> None:
        """`ask`: a hold was let go of, look at `blocking` again."""
        self._ask = ask
        self._holds: list[Hold] = []
        self.held_count = 0
        """How many holds are on."""

    def blocking(self) -> Hold | None:
        """The first hold that counts; None: the connection may be read. O(1) while no hold is on."""
        if not self.held_count:
            return None
        return next((hold for hold in self._holds if hold.is_on and not hold.is_passable()), None)

    @property
    def holds(self) -> tuple[Hold, ...]:
        """All of them, on or not."""
        return tuple(self._holds)

    def hold(self, reason: Reason, words: str = "", *, is_passable: Callable[[], bool] = _counts) -> Hold:
        """Add a hold, behind the others. `words`: say more than those of the reason."""
        hold = Hold(self, reason, words, is_passable)
        self._holds.append(hold)
        return hold

    def count(self, reason: Reason, bytes_max: int) -> CountedHold:
        """Add a hold that is on while more than so many bytes are counted."""
        hold = CountedHold(self, reason, bytes_max)
        self._holds.append(hold)
        return hold

    def drop(self, hold: Hold) -> None:
        """This reason is none any more."""
        self._holds.remove(hold)
        hold.let_go()

    def _took(self) -> None:
        self.held_count += 1

    def _let_go(self) -> None:
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

    def let_go(self) -> None:
        """The reason has ended, and the connection is asked to look. If there was none: nothing happens."""
        if self.is_on:
            self.is_on = False
            self._gate._let_go()

    def source(
        self,
        resource: FlowResource,
        flow: Flow,
        *,
        clock: Callable[[], float],
        on_resume: Callable[[], None] | None = None,
    ) -> SourceController:
        """A source that has this hold while a sink blocks it. `on_resume` comes first, and may block it again. Whoever
        closes the source lets go of the hold.
        """

        def resumed(_sink: object) -> None:
            if on_resume is not None:
                on_resume()
            if not source.blocked:
                self.let_go()

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
        """So many more."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.bytes_max:
            self.take()

    def remove(self, size_bytes: int) -> None:
        """So many less."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, f"{self.words}: more was removed than added"
        if self.is_on and self.used_bytes <= self.bytes_max:
            self.let_go()
