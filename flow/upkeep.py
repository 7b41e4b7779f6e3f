"""Memory that the broker keeps beside messages: connections, lanes, subscriptions, destinations, header blocks.

An object that a client makes with a frame of 50 bytes, and leaves there, counts as memory in use like messages do.
Every resource states its own size (`FlowResource.upkeep_bytes`), and is charged with it here from `open` to `close`; it
reports later growth by `keep`. Header blocks live as long as the last message that has them, and count themselves. No
source waits for these accounts: the number of objects of each kind is limited where they are made (`connections_max`,
`destinations_max`, `subscriptions_max`, ...), and their memory by `limit`: code that makes a new object for a client
asks `why_not` first, and refuses the request with the returned words. Existing objects stay usable. Their memory is
missing from the budget of messages.

Sizes are estimates that a test holds against the allocator (tests/limits/weighed.py).

Pure. `UpkeepAccount.gone` alone may be called from any thread, and from a destructor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from .account import Account
from .kinds import ResourceKind
from .limiters import SizeLimiter
from .resource import Flow, FlowResource
from .words import size_in_words

if TYPE_CHECKING:
    from .manager import FlowManager

CAPACITY_BYTES: Final = 1 << 60
"""Capacity of the accounts: `Upkeep.why_not` refuses new objects, and existing objects have to be charged."""
UPKEEP_FULL: Final = "upkeep-full"
"""The code of ERRORs that say so."""
UPKEEP_REMEDY: Final = (
    "Close connections, subscriptions and destinations that are not needed, or raise upkeep_bytes_max of [broker]."
)
PIECE_BYTES: Final = 16 * 1024
"""Small sizes are gathered up to this before they are charged."""
GONE_COUNT: Final = 256


class UpkeepAccount:
    """Account of the memory of one kind of objects."""

    __slots__ = ("_controller", "_gone", "_pending_bytes")

    def __init__(self, upkeep: Upkeep, name: str) -> None:
        self._controller = Account(
            upkeep,
            Flow(name),
            SizeLimiter(CAPACITY_BYTES, clock=upkeep.manager.clock),
            clock=upkeep.manager.clock,
        )
        self._pending_bytes = 0
        self._gone: deque[int] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes in use, exactly."""
        self.settle()
        return self._controller.limiter.used_bytes

    @property
    def charged_bytes(self) -> int:
        """Bytes in use, without those that are pending."""
        return self._controller.limiter.used_bytes

    def changed(self, size_bytes: int) -> None:
        """Charge a change of `size_bytes`, negative if less is kept, at once."""
        if size_bytes > 0:
            self._controller.charge(0, size_bytes, None)
        elif size_bytes:
            self._controller.release(0, -size_bytes)

    def add(self, size_bytes: int) -> None:
        """Add `size_bytes`; charged in pieces."""
        self._pending_bytes += size_bytes
        if self._pending_bytes >= PIECE_BYTES or len(self._gone) >= GONE_COUNT:
            self.settle()

    def gone(self, size_bytes: int) -> None:
        """Subtract `size_bytes` that were added before. Takes effect with the next `add`, or with `settle`."""
        self._gone.append(size_bytes)

    def settle(self) -> None:
        """Charge pending changes."""
        gone = self._gone
        size_bytes, self._pending_bytes = self._pending_bytes, 0
        while gone:
            size_bytes -= gone.popleft()
        self.changed(size_bytes)


class Upkeep(FlowResource):
    """The accounts of one broker. Made when its manager has the budget, opened when the manager has the accounts: they
    are charged with themselves, too.
    """

    passes_through = False

    def __init__(self, manager: FlowManager) -> None:
        super().__init__("of the broker", ResourceKind.UPKEEP, manager)
        self.heads = UpkeepAccount(self, "header blocks")
        """Distinct header blocks of SENDs that are kept: of messages, routes and caches."""
        self.things = UpkeepAccount(self, "connections, subscriptions and destinations")
        """Memory that resources take beside what is in them (`FlowResource.keep`), and the index of their names."""
        self.answers = UpkeepAccount(self, "records of answers")
        """Records of logs that answers to requests hold until they are made."""
        self.bytes_max = CAPACITY_BYTES
        self.refused_count = 0

    def limit(self, bytes_max: int) -> None:
        """Set the limit of memory for new objects in bytes; existing ones stay."""
        self.bytes_max = bytes_max

    @property
    def full(self) -> bool:
        """No new thing is to be made."""
        return self.things.charged_bytes >= self.bytes_max

    def why_not(self, what: str) -> str:
        """Return why `what` can't be made, in words; empty if it can. Counts a refusal."""
        if not self.full:
            return ""
        self.refused_count += 1
        return (
            f"{what} can't be made: connections, subscriptions and destinations take "
            f"{size_in_words(self.things.charged_bytes)} by themselves already, and upkeep_bytes_max of [broker] is "
            f"{size_in_words(self.bytes_max)}"
        )

    def settle(self) -> None:
        """Charge pending changes; to be called about once a second."""
        self.heads.settle()
        self.answers.settle()

    def facts(self) -> Mapping[str, object]:
        """Return the bytes of each kind."""
        facts: dict[str, object] = {
            "header_blocks_bytes": self.heads.used_bytes,
            "things_bytes": self.things.used_bytes,
            "things_bytes_max": self.bytes_max,
        }
        if self.refused_count:
            facts["refused_count"] = self.refused_count
        return facts
