"""Large bodies in an engine that several threads may call, such as a database.

A body is records of BODY_PIECE_BYTES, written while it arrives, and at its end one more with its length, synced. What
has no length is not complete, and is removed by the next start. Whatever size a body has, one piece of it is in memory
for each write or read.

Bodies that need not survive the broker are in a folder of this machine (`SharedBodies`): the database has nothing of
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import Final, TypeVar

from ..queues.large import BodyError
from .engine import DiskFullError, Engine, EngineClosedError, EngineError, FencedError, delete, delete_range, put
from .keys import BODY, PIECE, body_key, family_range, parse_body_key, parse_piece_key, piece_key
from .large import PIECE_BYTES, BodyShelf, StagedBody

BODY_PIECE_BYTES: Final = PIECE_BYTES
"""Size of each record of a body, but the last one. Part of the format."""
REMOVED_COUNT: Final = 256
"""Pieces that are removed in one batch: 64 MiB."""

PATIENCE_SECONDS: Final = 30.0
"""Time for which writing or reading a piece is tried again. Senders and readers of large bodies wait meanwhile."""
AGAIN_SECONDS: Final = 0.5

T = TypeVar("T")

_LENGTH: Final = Struct("<Q")
_REMEDY: Final = "look at the database"


@contextmanager
def _telling(doing: str) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        raise BodyError(f"can't {doing}: {error}") from error


class EngineBodies:
    """Bodies in an engine. Satisfies `BodyShelf`."""

    piece_bytes: Final = BODY_PIECE_BYTES

    def __init__(self, engine: Engine, place: str, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """`place`: name of the engine, for people. The caller closes the engine after this. `patience_seconds`: 0: what
        fails is not tried again.
        """
        self._engine = engine
        self.place = place
        self._patience_seconds = patience_seconds

    def found(self) -> list[tuple[int, int]]:
        """Return the numbers and sizes of all bodies, those that are not complete with 0. Blocks: a look for each body.
        Raises BodyError.
        """
        with _telling("find large bodies"):
            lengths = {
                parse_body_key(key): self._length(value) for key, value in self._engine.iterate(*family_range(BODY))
            }
            start, stop = family_range(PIECE)
            while (key := next(self._engine.iterate_keys(start, stop), None)) is not None:
                file_id, _place = parse_piece_key(key)
                lengths.setdefault(file_id, 0)
                start = piece_key(file_id + 1, 0)
        return sorted(lengths.items())

    @staticmethod
    def _length(value: bytes) -> int:
        try:
            return int(_LENGTH.unpack(value)[0])
        except StructError:
            return 0  # damaged: reading the body says so

    def stage(self, file_id: int, *, durable: bool) -> StagedBody:
        """Begin a body. All of them are durable here."""
        return _EngineBody(self, self._engine, file_id)

    def patiently(self, work: Callable[[], T]) -> T:
        """Do `work`, again and again for a while if the engine fails: a database that is started anew costs its users a
        wait. Raises EngineError.
        """
        until_seconds = time.monotonic() + self._patience_seconds
        while True:
            try:
                return work()
            except (DiskFullError, FencedError, EngineClosedError):
                raise
            except EngineError:
                if time.monotonic() >= until_seconds:
                    raise
            time.sleep(AGAIN_SECONDS)

    def read(self, file_id: int, offset: int, size_bytes: int) -> bytes:
        parts: list[bytes] = []
        while size_bytes > 0:
            place, skipped = divmod(offset, BODY_PIECE_BYTES)
            with _telling(f"read large body {file_id}"):
                value = self.patiently(partial(self._engine.get, piece_key(file_id, place)))
            part = (value or b"")[skipped : skipped + size_bytes]
            if not part:
                raise BodyError(
                    f"{self.place} has no byte {offset} of large body {file_id}: something else than the broker has "
                    f"changed it; {_REMEDY}"
                )
            parts.append(part)
            offset += len(part)
            size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def remove(self, file_id: int) -> None:
        """Remove a body in batches. Blocks. Raises BodyError: then the next start removes the rest."""
        start, end = piece_key(file_id, 0), piece_key(file_id + 1, 0)
        with _telling(f"remove large body {file_id}"):
            self._engine.write([delete(body_key(file_id))], sync=False)
            while (key := next(self._engine.iterate_keys(start, end), None)) is not None:
                stop = min(piece_key(file_id, parse_piece_key(key)[1] + REMOVED_COUNT), end)
                self._engine.write([delete_range(start, stop)], sync=False)
                start = stop


class _EngineBody:
    """One body while it is written: `StagedBody`."""

    __slots__ = ("_broken", "_engine", "_file_id", "_pieces_count", "_shelf", "_size_bytes")

    def __init__(self, shelf: EngineBodies, engine: Engine, file_id: int) -> None:
        self._shelf = shelf
        self._engine = engine
        self._file_id = file_id
        self._pieces_count = self._size_bytes = 0
        self._broken: BodyError | None = None

    def write(self, piece: bytes) -> None:
        if self._broken is not None:
            raise self._broken
        assert self._size_bytes == self._pieces_count * BODY_PIECE_BYTES, "only the last piece is smaller"
        try:
            with _telling(f"write large body {self._file_id}"):
                changes = [put(piece_key(self._file_id, self._pieces_count), piece)]
                self._shelf.patiently(partial(self._engine.write, changes, sync=False))
        except BodyError as error:
            self._broken = error
            raise
        self._pieces_count += 1
        self._size_bytes += len(piece)

    def finish(self) -> None:
        if self._broken is not None:
            raise self._broken
        with _telling(f"write large body {self._file_id}"):
            changes = [put(body_key(self._file_id), _LENGTH.pack(self._size_bytes))]
            self._shelf.patiently(partial(self._engine.write, changes, sync=True))

    def discard(self) -> None:
        self._shelf.remove(self._file_id)


class _LocalBody:
    """One body on its way to the folder: `StagedBody`."""

    __slots__ = ("_body", "_gone", "write")

    def __init__(self, body: StagedBody, gone: Callable[[], None]) -> None:
        self._body = body
        self._gone = gone
        self.write = body.write

    def finish(self) -> None:
        self._body.finish()

    def discard(self) -> None:
        self._body.discard()
        self._gone()


class SharedBodies:
    """Bodies that must survive the broker in an engine, others in a folder of this machine. Satisfies `BodyShelf`."""

    def __init__(self, shared: BodyShelf, local: BodyShelf) -> None:
        """`local` is emptied by `found`."""
        self._shared = shared
        self._local = local
        self._local_ids: set[int] = set()
        self.place = shared.place
        self.piece_bytes = shared.piece_bytes

    def found(self) -> list[tuple[int, int]]:
        """Return the shared bodies; remove local ones of an earlier run. Raises BodyError."""
        for file_id, _size_bytes in self._local.found():
            self._local.remove(file_id)
        return self._shared.found()

    def stage(self, file_id: int, *, durable: bool) -> StagedBody:
        if durable:
            return self._shared.stage(file_id, durable=True)
        self._local_ids.add(file_id)
        return _LocalBody(self._local.stage(file_id, durable=False), partial(self._local_ids.discard, file_id))

    def read(self, file_id: int, offset: int, size_bytes: int) -> bytes:
        return self._of(file_id).read(file_id, offset, size_bytes)

    def remove(self, file_id: int) -> None:
        self._of(file_id).remove(file_id)
        self._local_ids.discard(file_id)

    def _of(self, file_id: int) -> BodyShelf:
        return self._local if file_id in self._local_ids else self._shared
