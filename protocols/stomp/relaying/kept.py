"""SENDs of one run that stay at the hub of their client until another hub has done them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from ..frames import PassedRun
from ..head import SendHead

ENTRY_BYTES: Final = 256
"""Memory of a run of SENDs that is kept here, beside its bytes."""
MARK: Final = b"possible-duplicate:true"
"""Header of a SEND that is sent again, and may have arrived before."""


@attrs.define(eq=False)
class Kept:
    """SENDs that may have to be sent again."""

    head: SendHead
    wires: list[bytes]
    receipts: list[str] | None
    charge_bytes: int
    in_doubt: bool = False
    """Whether the SENDs may have arrived."""
    passed: PassedRun | None = None
    """The SENDs as they came, from which `wires` are cut when they are needed."""
    is_part: bool = False
    """Whether all hubs but the one where the destination is at home have got theirs."""

    def cut(self) -> None:
        """Cut the SENDs out of what came, if that was not done."""
        if self.passed is not None:
            self.wires, self.passed = self.passed.cut().wires, None

    def marked(self) -> Kept:
        """Return SENDs with a header that says so if they may have arrived before."""
        if not self.in_doubt:
            return self
        head, wires = self.head, self.wires
        if MARK not in head.block.split(b"\n"):
            head = head.with_headers({"possible-duplicate": "true"})
            wires = rewritten(wires, self.head, head)
        return Kept(head, wires, self.receipts, 0, is_part=self.is_part)


def rewritten(wires: Iterable[bytes], old: SendHead, new: SendHead) -> list[bytes]:
    """Return wires with another header block."""
    start = len(old.block)
    return [new.block + wire[start:] for wire in wires]
