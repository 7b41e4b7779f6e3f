"""RECEIPTs of one connection, in its version."""

from __future__ import annotations

from typing import Final

from protocols.outbound import Outbound
from protocols.stomp.encoder import receipt, receipts
from protocols.stomp.escaping import Version

MEMORY_DURABILITY: Final = (("durability", "memory"),)
"""What the RECEIPT of a SEND promises: the broker has it, a restart would lose it."""


class Owed:
    """Receipts of SENDs that go to several queues, or must wait: due when the last leg is done."""

    __slots__ = ("legs_count", "receipt_ids")

    def __init__(self, receipt_ids: list[str], legs_count: int) -> None:
        self.receipt_ids = receipt_ids
        self.legs_count = legs_count


class Replies:
    """Says to the client what is done. `version` is set when the connection has agreed on one."""

    __slots__ = ("_outbound", "version")

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self.version: Version = "1.0"

    def receipt(self, receipt_id: str | None) -> None:
        """Answer a frame other than SEND that asked for a receipt (None: it did not)."""
        if receipt_id is not None:
            self._outbound.send_control(receipt(receipt_id, self.version))

    def receipts(self, receipt_ids: list[str] | None) -> None:
        """Answer SENDs that asked for receipts. After the end of the connection nobody is there to be answered: does
        nothing.
        """
        if receipt_ids:
            self._outbound.send_control(receipts(receipt_ids, self.version, MEMORY_DURABILITY))

    def leg_done(self, owed: Owed | None) -> None:
        """One of the queues has taken them, or never will."""
        if owed is not None:
            owed.legs_count -= 1
            if not owed.legs_count:
                self.receipts(owed.receipt_ids)
