"""A message under another header block: what the broker does to one that it gives up (dead letters).

Queues know nothing of headers; this is what they are given for it (`sluiceway.queues.dead_letters.Rewrite`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ...queues.message import Message
from .head import SendHead


def rewrite(message: Message, changes: Mapping[str, str | None]) -> tuple[SendHead, bytes]:
    """Head and wire of this message with these headers set (a string) or removed (None). The body stays as it is.

    Costs about as much as parsing the header block.
    """
    head = cast(SendHead, message.head)
    changed = head.with_headers(changes)
    return changed, changed.block + message.wire[len(head.block) :]
