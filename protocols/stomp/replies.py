"""RECEIPTs of one connection, in its version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocols.outbound import Outbound
from protocols.stomp.encoder import receipt, receipts
from protocols.stomp.escaping import Version
from queues.storage import Shelf

MEMORY: Final = "memory"
"""What the RECEIPT of a SEND promises: the broker has it, a restart would lose it."""
DISK: Final = "disk"
"""It is on the disk, synced."""
CONSUMED: Final = "consumed"
"""It was settled before it had to be written."""

DURABILITY: Final = {how: (("durability", how),) for how in (MEMORY, DISK, CONSUMED)}


class Owed:
    """Receipts that are due when several things are done: a SEND to several queues, one that must wait, or be written
    first. `durability` is the least of what the legs have.
    """

    __slots__ = ("durability", "legs_count", "receipt_ids")

    def __init__(self, receipt_ids: list[str], legs_count: int) -> None:
        self.receipt_ids = receipt_ids
        self.legs_count = legs_count
        self.durability = CONSUMED


class Replies:
    """Says to the client what is done. `version` is set when the connection has agreed on one."""

    __slots__ = ("_outbound", "unconfirmed", "version")

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self.version: Version = "1.0"
        self.unconfirmed = False
        """Something was stored or settled without a RECEIPT: DISCONNECT has to wait for it."""

    def receipt(self, receipt_id: str | None) -> None:
        """Answer a frame other than SEND that asked for a receipt (None: it did not)."""
        if receipt_id is not None:
            self._outbound.send_control(receipt(receipt_id, self.version))

    def receipt_after(self, receipt_id: str, shelves: Iterable[Shelf]) -> None:
        """Answer a frame when what it did to these is on disk. None of them: at once."""
        waiting = list(shelves)
        if not waiting:
            self.receipt(receipt_id)
            return
        left_count = len(waiting)

        def one_done() -> None:
            nonlocal left_count
            left_count -= 1
            if not left_count:
                self.receipt(receipt_id)

        for shelf in waiting:
            shelf.when_settled(one_done)

    def receipts(self, receipt_ids: list[str] | None, durability: str = MEMORY) -> None:
        """Answer SENDs that asked for receipts. After the end of the connection nobody is there to be answered: does
        nothing.
        """
        if receipt_ids:
            self._outbound.send_control(receipts(receipt_ids, self.version, DURABILITY[durability]))

    def leg_done(self, owed: Owed | None, durability: str = MEMORY) -> None:
        """One of the queues has taken them, or never will; so safe they are there."""
        if owed is not None:
            owed.legs_count -= 1
            if durability == MEMORY or (durability == DISK and owed.durability == CONSUMED):
                owed.durability = durability
            if not owed.legs_count:
                self.receipts(owed.receipt_ids, owed.durability)
