"""One frame whose body is pulled from elsewhere while it is written: gigabytes are sent through a small buffer.

The body comes in pieces. One is being read while the one before it is being sent, so no more than two are in memory.
The head is sent with the first piece: a body that can't be read at all costs the peer no broken frame, and it can still
be told.

Pure: `pull` is passed in, and calls back later.

Source: seed 002 "Large Message Support": «chunk the payload out to keep memory low».
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from .framing import Framing, Piece

PIECE_BYTES: Final = 256 * 1024
"""Large enough that the way to the disk and back costs little per byte."""

PieceDone = Callable[[bytes | Exception], None]
"""Called once with the bytes that were asked for, all of them, or with why they can't be had."""

Pull = Callable[[int, int, PieceDone], None]
"""Asks for bytes of the body: from which offset on, how many, and whom to call. Never calls back before it returns."""


class StreamedFrame:
    """Head, body and tail of one frame on its way out."""

    __slots__ = (
        "_closed",
        "_failed",
        "_framing",
        "_head",
        "_length_bytes",
        "_loaded",
        "_piece",
        "_piece_bytes",
        "_pull",
        "_pulled_bytes",
        "_tail",
        "_waiting",
        "begun",
        "is_out",
        "offset",
        "size_bytes",
    )

    def __init__(
        self,
        head: Iterable[Piece],
        pull: Pull,
        length_bytes: int,
        tail: bytes,
        *,
        offset: int,
        piece_bytes: int,
        framing: Framing,
        loaded: Callable[[], None],
        failed: Callable[[StreamedFrame, Exception], None],
    ) -> None:
        """`length_bytes`: of the body, at least 1. `tail` ends with the NUL. `offset`: where the frame begins in all
        that is written. `loaded`: `take` has something; `failed`: it never will have more.
        """
        self._head: list[Piece] = list(head)
        self._pull = pull
        self._length_bytes = length_bytes
        self._tail = tail
        self._piece_bytes = piece_bytes
        self._framing = framing
        self._loaded = loaded
        self._failed = failed
        self._piece: bytes | None = None
        self._pulled_bytes = 0
        self._waiting = False
        self._closed = False
        self.offset = offset
        self.size_bytes = 0
        """Bytes of the whole frame on the stream."""
        self.begun = False
        """Whether some of the frame was taken."""
        self.is_out = False
        """Whether all of the frame was taken."""

    def take(self) -> list[Piece]:
        """Take the pieces that can be written now: none, if the next piece is still on its way. Asks for the piece
        behind.
        """
        piece, self._piece = self._piece, None
        pieces: list[Piece] = []
        if piece is not None:
            pieces, self._head = [*self._head, piece], []
            self.is_out = self._pulled_bytes == self._length_bytes
            if self.is_out:
                pieces.append(self._tail)
            pieces = self._framing.part(pieces, first=not self.begun, last=self.is_out)
            self.begun = True
            if self.is_out:
                return pieces
        if not self._waiting and not self._closed:
            self._waiting = True
            size_bytes = min(self._piece_bytes, self._length_bytes - self._pulled_bytes)
            self._pull(self._pulled_bytes, size_bytes, self._arrived)
        return pieces

    def _arrived(self, piece: bytes | Exception) -> None:
        self._waiting = False
        if self._closed:
            return
        if isinstance(piece, Exception):
            self._closed = True
            self._failed(self, piece)
            return
        self._piece = piece
        self._pulled_bytes += len(piece)
        self._loaded()

    def close(self) -> None:
        """Drop the frame and every piece that still arrives."""
        self._closed = True
        self._piece = None
