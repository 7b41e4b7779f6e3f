"""What the broker keeps beside messages: connections, lanes, subscriptions, destinations, header blocks.

What a client makes with a frame of 50 bytes, and leaves there, counts as memory in use like messages do. Every resource
says what it takes by itself (`FlowResource.upkeep_bytes`), and is charged with it here from `open` to `close`; what it
comes to have later it tells by `keep`. Header blocks live as long as the last message that has them, and count
themselves. Nobody waits for these accounts: how many there may be of each kind is limited where they are made
(`connections_max`, `destinations_max`, `subscriptions_max`, ...). What they take, others do not get.

Sizes are estimates that a test holds against the allocator (tests/limits/test_memory.py).

Pure. `Account.gone` alone may be called from any thread, and from a destructor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from flow.controller import FlowController
from flow.limiters import SizeLimiter
from flow.resource import Flow, FlowResource

if TYPE_CHECKING:
    from flow.manager import FlowManager

CAPACITY_BYTES: Final = 1 << 60
"""The limits are elsewhere."""
PIECE_BYTES: Final = 16 * 1024
"""Small sizes are gathered up to this before they are charged."""
GONE_COUNT: Final = 256


class Account:
    """What things of one kind take."""

    __slots__ = ("_controller", "_gone", "_pending_bytes")

    def __init__(self, upkeep: Upkeep, name: str) -> None:
        self._controller: FlowController[None] = FlowController(
            upkeep,
            Flow(name),
            SizeLimiter(CAPACITY_BYTES, clock=upkeep.manager.clock),
            accept=_never,
            clock=upkeep.manager.clock,
        )
        self._pending_bytes = 0
        self._gone: deque[int] = deque()

    @property
    def used_bytes(self) -> int:
        """All of it, exactly."""
        self.settle()
        return self._controller.limiter.used_bytes

    def changed(self, size_bytes: int) -> None:
        """So much more is kept, or less (negative). Charged at once."""
        if size_bytes > 0:
            self._controller.charge(0, size_bytes, None)
        elif size_bytes:
            self._controller.release(0, -size_bytes)

    def add(self, size_bytes: int) -> None:
        """So much more is kept; charged in pieces."""
        self._pending_bytes += size_bytes
        if self._pending_bytes >= PIECE_BYTES or len(self._gone) >= GONE_COUNT:
            self.settle()

    def gone(self, size_bytes: int) -> None:
        """What was added is kept no longer. Takes effect with what is added next, or with `settle`."""
        self._gone.append(size_bytes)

    def settle(self) -> None:
        """Charge what is pending."""
        gone = self._gone
        size_bytes, self._pending_bytes = self._pending_bytes, 0
        while gone:
            size_bytes -= gone.popleft()
        self.changed(size_bytes)


class Upkeep(FlowResource):
    """The accounts of one broker. Made once its memory has a budget."""

    passes_through = False

    def __init__(self, manager: FlowManager) -> None:
        super().__init__("of the broker", "upkeep", manager)
        self.heads = Account(self, "header blocks")
        """Distinct header blocks of SENDs that are kept: of messages, routes and caches."""
        self.things = Account(self, "connections, subscriptions and destinations")
        """What resources take beside what is in them (`FlowResource.keep`), and the index of their names."""
        self.open()

    def settle(self) -> None:
        """Charge what is pending; wanted about once a second."""
        self.heads.settle()

    def facts(self) -> Mapping[str, object]:
        """What each kind takes."""
        return {"header_blocks_bytes": self.heads.used_bytes, "things_bytes": self.things.used_bytes}


def _never(_element: None) -> None:
    raise AssertionError("an account is charged, nothing is added to it")
