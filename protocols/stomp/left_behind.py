"""What connections that have ended left behind: SENDs whose queues had no room yet (b50).

They go on to their queues by themselves as these get room. Together they are bounded: beyond `bytes_max`, in which each
connection counts with what its session takes, or beyond CONNECTIONS_MAX, what a connection leaves is dropped, and said
in its line in the log. Nothing is lost that was promised: a RECEIPT goes out
when the queue has the message. A client that wants to know sends DISCONNECT with a receipt and waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flow import Flow, FlowController, FlowManager, FlowResource, SizeLimiter

SESSION_BYTES: Final = 20 * 1024
"""About what an ended session takes that has one thing parked, beside that: a test measures it."""
CONNECTIONS_MAX: Final = 10_000


class LeftBehind(FlowResource):
    """The account of one broker, and its place on the flow map."""

    passes_through = False

    def __init__(self, bytes_max: int, *, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__("ended connections", "stash", manager)
        self._account: FlowController[None] = FlowController(
            self,
            Flow("left behind by ended connections"),
            SizeLimiter(bytes_max, clock=clock),
            accept=_never,
            clock=clock,
            counts_memory=False,  # it is, in the stash of each of them
        )
        self._bytes_max = bytes_max
        self.connections_count = 0
        self.dropped_count = 0
        """Messages that there was no room for."""
        self.open()

    @property
    def used_bytes(self) -> int:
        """What is left behind now."""
        return self._account.limiter.used_bytes

    def take(self, size_bytes: int) -> bool:
        """An ended connection leaves this many bytes; False: there is no room for them."""
        size_bytes += SESSION_BYTES
        if self._account.limiter.used_bytes + size_bytes > self._bytes_max or self.connections_count >= CONNECTIONS_MAX:
            return False
        self._account.charge(0, size_bytes, None)
        self.connections_count += 1
        return True

    def release(self, size_bytes: int) -> None:
        """All of it has gone on."""
        self._account.release(0, size_bytes + SESSION_BYTES)
        self.connections_count -= 1

    def facts(self) -> Mapping[str, object]:
        return {"ended connections": self.connections_count, "dropped": self.dropped_count}


def _never(_element: None) -> None:
    raise AssertionError("the account is charged, nothing is added to it")
