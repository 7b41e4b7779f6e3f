"""Heads that were parsed before, found by their bytes: they make the second SEND of a producer cheap.

Two tables. One finds a head by all of its bytes. The other finds a *sibling*, a head that differs in the number of
its content-length only, from which the new one is made for a third of the price of parsing: bodies of text rarely
have one length.

Invariants: both are bounded; each cached head has passed every check of the parser; a head with a receipt is never
cached.

Source: DESIGN section 3, "Keep the wire form".
"""

from __future__ import annotations

from typing import Final

from .head import HeadAccount, SendHead

#: Distinct heads kept per connection, and the longest that is kept: at most 128 KiB of bytes, and about as much again
#: parsed.
HEAD_CACHE_COUNT_MAX: Final = 128
HEAD_CACHE_BYTES_MAX: Final = 1024
KEY_BYTES: Final = 256
"""Memory of an entry beside the bytes of its key."""

#: A head, and whether its frames are forwarded as they are (without the command line), so that a wire is one slice of
#: the buffer.
Entry = tuple[SendHead, bool]

_LENGTH_LINE: Final = b"\ncontent-length:"


class HeadCache:
    """Cached heads of one connection. A key is a SEND from command line to blank line, without its `receipt` line.

    The end of the connection calls `clear` (`Parser.park`): no finalizer does, for the garbage collector would run
    those of thousands of connections in one go.
    """

    __slots__ = ("_entries", "_kept_bytes", "_siblings", "account")

    def __init__(self) -> None:
        self.account: HeadAccount | None = None
        """Counts the keys; the heads count themselves."""
        self._kept_bytes = 0
        self._entries: dict[bytes, Entry] = {}
        self._siblings: dict[bytes, SendHead] = {}

    def __len__(self) -> int:
        return max(len(self._entries), len(self._siblings))

    def get(self, key: bytes) -> Entry | None:
        """The entry of exactly these bytes."""
        return self._entries.get(key)

    def derive(self, key: bytes, lengthless: bytes, length: int) -> Entry | None:
        """An entry for `key`, made from its sibling and kept; None without one. The other two are of `cut_length`."""
        sibling = self._siblings.get(lengthless)
        if sibling is None:
            return None
        return self._keep(key, (sibling.with_length(length, key[5:-2]), True))

    def put(self, key: bytes, lengthless: bytes, head: SendHead) -> Entry:
        """Keep a parsed head without receipt under `key`, if the key is not too long. Returns its entry."""
        verbatim = key == b"SEND\n%s\n\n" % head.block
        # Neutral means no blanks that 1.0 trims, so that no other line of the block can be the content-length.
        if lengthless and verbatim and head.neutral:
            self._make_room(self._siblings)
            self._siblings[lengthless] = head
            self._keep_bytes(KEY_BYTES + len(lengthless))
        return self._keep(key, (head, verbatim))

    def clear(self) -> None:
        """Forget all heads."""
        self._entries.clear()
        self._siblings.clear()
        self._forget_bytes()

    def _keep(self, key: bytes, entry: Entry) -> Entry:
        if len(key) <= HEAD_CACHE_BYTES_MAX:
            self._make_room(self._entries)
            self._entries[key] = entry
            self._keep_bytes(KEY_BYTES + len(key))
        return entry

    def _make_room(self, table: dict[bytes, Entry] | dict[bytes, SendHead]) -> None:
        # All at once: who fills it with unique headers gains nothing from it, and the others come back after one miss
        # each.
        if len(table) >= HEAD_CACHE_COUNT_MAX:
            self.clear()

    def _keep_bytes(self, size_bytes: int) -> None:
        if self.account is not None:
            self._kept_bytes += size_bytes
            self.account.add(size_bytes)

    def _forget_bytes(self) -> None:
        if self.account is not None and self._kept_bytes:
            size_bytes, self._kept_bytes = self._kept_bytes, 0
            self.account.gone(size_bytes)


def cut_length(key: bytes) -> tuple[bytes, int]:
    """A head without the number of its content-length, and that number; (b"", -1) if it has no plain one or is too
    long."""
    start = key.find(_LENGTH_LINE) + len(_LENGTH_LINE)
    if start < len(_LENGTH_LINE) or len(key) > HEAD_CACHE_BYTES_MAX:
        return b"", -1
    end = key.find(b"\n", start)
    digits = key[start:end]
    if not digits.isdigit() or len(digits) > 10 or (digits[0] == 48 and len(digits) > 1):
        return b"", -1
    return key[:start] + key[end:], int(digits)
