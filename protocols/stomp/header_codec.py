"""Header blocks for parts without knowledge of STOMP: the store, which keeps blocks, and queues, which change them.

Satisfies `sluiceway.store.chunks.HeadCodec` without importing it. Heads are made once per distinct block and kept for a
while, as the parser does: a backlog of a million messages has a handful.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, cast

from ...queues.message import Envelope, Message
from .errors import ProtocolError
from .escaping import Version
from .head import STAMPED_HEADERS, HeadAccount, SendHead, parse_headers
from .limits import StompLimits

DIALECTS: Final[tuple[Version, ...]] = ("1.0", "1.1", "1.2")
HEADS_MAX: Final = 512

_UNLIMITED: Final = StompLimits(header_count_max=2**31, header_line_bytes_max=2**31, header_block_bytes_max=2**31)


class HeaderCodec:
    """Writes and reads header blocks."""

    __slots__ = ("_account", "_heads")

    def __init__(self, account: HeadAccount | None = None) -> None:
        """Make a codec. `account` counts the memory of the heads; None: it is not counted."""
        self._account = account
        self._heads: OrderedDict[tuple[int, bytes], SendHead] = OrderedDict()

    def describe(self, head: Envelope) -> tuple[int, int]:
        """Return the dialect of a head and the length of its block."""
        stomp_head = cast(SendHead, head)
        return DIALECTS.index(stomp_head.version), len(stomp_head.block)

    def restore(self, dialect: int, block: bytes) -> Envelope:
        """Return the head of this block. Raises ValueError for an invalid one."""
        key = dialect, block
        head = self._heads.get(key)
        if head is None:
            try:
                head = SendHead.restore(block, DIALECTS[dialect], _UNLIMITED)
            except (ProtocolError, IndexError) as error:
                raise ValueError(f"a header block of dialect {dialect} can't be read: {error}") from error
            head.count(self._account)
            self._heads[key] = head
            if len(self._heads) > HEADS_MAX:
                self._heads.popitem(last=False)
        return head

    @staticmethod
    def check_offered(dialect: int, block: bytes) -> None:
        """Raises ValueError if this block of a client sets a header that only the broker may set, or can't be read.
        Headers that are left out whenever a block is restored (BROKER_OWNED_HEADERS) do no harm.
        """
        try:
            headers = parse_headers(block, _UNLIMITED, unescape_as=DIALECTS[dialect])
        except ProtocolError as error:
            raise ValueError(f"they are no STOMP {DIALECTS[dialect]}: {error}") from error
        forged = sorted({name.strip(" \t\r") for name in headers} & STAMPED_HEADERS)
        if forged:
            raise ValueError(f"{', '.join(forged)} may be said by the broker only: leave it out")


def rewrite(message: Message, changes: Mapping[str, str | None]) -> tuple[SendHead, bytes]:
    """Return head and wire of this message with these headers set (a string) or removed (None). The body is unchanged.

    The broker rewrites dead-lettered messages so (`sluiceway.queues.dead_letters.Rewrite`). Costs about as much as
    parsing the header block.
    """
    head = cast(SendHead, message.head)
    changed = head.with_headers(changes)
    return changed, changed.block + message.wire[len(head.block) :]
