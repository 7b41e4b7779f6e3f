"""Bodies in files: written while they arrive, read piece by piece, removed with the last reference.

One file per body, in a `BodyShelf`: `large/` of the data folder (`FolderShelf`), where it is named by its number in 16
hexadecimal digits and holds the body and nothing else; or a database (engine_bodies.py). A file is complete when its
`BodyReference` is handed out, and is not changed after that. Until then there is no reference to it: what a crash
leaves half written is removed by the next start like any other orphan.

*What keeps a file.* References that are alive (see queues/large.py), and records of the store that name the file
(`keep`, `forget`; `recover` adopts those of an earlier run). Both are counted on the dispatch loop. Numbers are never
used again: they continue from the highest that a file or a record has.

*When the disk is slow.* Pieces on their way to it are charged to a limiter, whose sources are the sockets of the
senders; a slow disk blocks those, and no other connection. A durable body is synced every SYNC_BYTES while it is
written, so that the last sync, for which others wait, is short.

*When the disk is full* the body is given up and its space is free at once. A sender that waits instead could wait for
ever: half-written bodies hold the very space that all of them wait for.

Invariants: a file that a reference or a record names exists and is complete (or was damaged from outside: then reading
raises). `disk_bytes` is the size of the files, plus announced bytes that are still to come.

Not here: which records name a file (the StoreQueue), the lock of the folder (directory.py).

Source: seed 002 "Large Message Support".
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from ..flow import Account, Flow, FlowManager, FlowResource, SizeLimiter, SourceController
from ..flow.kinds import ResourceKind
from ..queues.large import BodyError, BodyReference, LargeMessage
from ..queues.message import Envelope
from .folders import sync_folder
from .io_threads import Job, Runner

WAITING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Pieces on their way to the disk, of all bodies together, before their sockets are left alone: enough to keep a disk
busy, and all the memory that large bodies take on their way in.
"""

PIECE_BYTES: Final = 256 * 1024
"""Smaller pieces are collected to this size before they go to the disk: a way there and back for each would cost more
than writing it.
"""

SYNC_BYTES: Final = 16 * 1024 * 1024
"""A durable body is synced each time this much of it is written."""

_NAME: Final = re.compile(r"[0-9a-f]{16}")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@attrs.frozen
class BodyStatistics:
    """Large bodies now, and since the start."""

    files_count: int
    """Complete ones."""
    staged_count: int
    """Number of bodies that are being received."""
    disk_bytes: int
    """Size of all files on disk, and of those announced and on their way."""
    waiting_bytes: int
    """Bytes in memory that are to be written."""
    written_bytes: int
    read_bytes: int
    failures_count: int
    """Bodies that could not be written or read, and files that could not be removed."""


@attrs.frozen
class BodyRecovery:
    """Result of `recover`."""

    kept_count: int
    removed_count: int
    """Number of files that no record named."""
    removed_bytes: int
    missing: frozenset[int]
    """Named by a record, and not there: these messages are lost."""
    unnamed_count: int
    """Number of files that no record named, and that were kept."""
    unnamed_bytes: int


class AllMissingError(BodyError):
    """Error of a recovery that finds none of the files that records name."""


class StagedBody(Protocol):
    """One body while it is written. Used by the writer only; each call blocks and raises BodyError."""

    def write(self, piece: bytes) -> None:
        """Write the next bytes: `piece_bytes` of the shelf, if it has such, or fewer as the last ones."""

    def finish(self) -> None:
        """Complete the body: behind it, it can be read, and is safe if it is to be durable."""

    def discard(self) -> None:
        """Remove what there is of it."""


class BodyShelf(Protocol):
    """Storage of bodies by their numbers. Each call but `stage` blocks and raises BodyError."""

    @property
    def place(self) -> str:
        """Name of the place, for people."""

    @property
    def piece_bytes(self) -> int | None:
        """Size that all pieces of a body have, but the last one. None: any."""

    def found(self) -> list[tuple[int, int]]:
        """Return the numbers and sizes of the bodies that are there, complete or not."""

    def stage(self, file_id: int, *, durable: bool) -> StagedBody:
        """Begin a body; nothing is written yet."""

    def read(self, file_id: int, offset: int, size_bytes: int) -> bytes:
        """Return these bytes of a complete body."""

    def remove(self, file_id: int) -> None:
        """Remove a body, if it is there."""


class FolderShelf:
    """Bodies as files of a folder. Satisfies `BodyShelf`."""

    piece_bytes: Final = None

    def __init__(self, folder: Path, *, before_writing: Callable[[], None] | None = None) -> None:
        """`folder` exists and belongs to this object alone; `before_writing` is called before each write, by the thread
        that writes, and raises OSError if the folder is not the one that it was.
        """
        self._folder = folder
        self._before_writing = before_writing or _nothing

    @property
    def place(self) -> str:
        return str(self._folder)

    def found(self) -> list[tuple[int, int]]:
        try:
            with os.scandir(self._folder) as entries:
                return [(int(e.name, 16), e.stat().st_size) for e in entries if _NAME.fullmatch(e.name)]
        except OSError as error:
            raise _error("recover large bodies", error, self._folder) from error

    def stage(self, file_id: int, *, durable: bool) -> StagedBody:
        return _StagedFile(self._path(file_id), self._before_writing, durable=durable)

    def read(self, file_id: int, offset: int, size_bytes: int) -> bytes:
        return _read(self._path(file_id), offset, size_bytes)

    def remove(self, file_id: int) -> None:
        _remove(self._path(file_id))

    def _path(self, file_id: int) -> Path:
        return self._folder / f"{file_id:016x}"


class BodyFiles(FlowResource):
    """The large bodies of one broker. All is for the dispatch loop, but `reference_died`."""

    passes_through = False

    def __init__(
        self,
        shelf: BodyShelf,
        *,
        writer: Runner,
        reader: Runner,
        manager: FlowManager,
        clock: Callable[[], float],
        disk_bytes_max: int | None = None,
        warn: Callable[[BodyError], None],
    ) -> None:
        """`shelf` belongs to this object alone. `disk_bytes_max`: limit of all bodies together, None: the disk is the
        limit. `warn` is told of all failures: peers are not told of files. Call `recover` before use.
        """
        super().__init__("large bodies", ResourceKind.DISK, manager)
        self._shelf = shelf
        self._writer = writer
        self._reader = reader
        self._disk_bytes_max = disk_bytes_max
        self._warn = warn
        self._next_id = 1
        self._lengths: dict[int, int] = {}
        """Lengths of complete files."""
        self._alive: Counter[int] = Counter()
        """References by file."""
        self._kept: Counter[int] = Counter()
        """Records of the store by file."""
        self._staged: dict[int, StagedBody] = {}
        self._disk_bytes = 0
        self._written_bytes = 0
        self._read_bytes = 0
        self._failures_count = 0
        self._closed = False
        self.references_count = 0
        """References that are alive. While it is 0, no message has a large body: the hot path checks this."""
        self.waiting = Account(
            self,
            Flow("large bodies on their way to the disk"),
            SizeLimiter(WAITING_BYTES_MAX, WAITING_BYTES_MAX // 2, clock=clock),
            clock=clock,
        )
        self.open()

    # ------------------------------------------------------------------ start and end

    def recover(
        self, kept_counts: Mapping[int, int], *, keeps_all: bool = False, must_have_some: bool = False
    ) -> BodyRecovery:
        """Adopt the files of an earlier run. `kept_counts`: by file, the number of the store's records that name it.
        Removes all others; with `keeps_all`, where records may be lost, it leaves them alone. Blocks. Raises BodyError
        if the folder can't be read or a file not be removed; AllMissingError, with nothing changed, if there
        `must_have_some` of those with records and is none.
        """
        removed_count = removed_bytes = unnamed_count = unnamed_bytes = 0
        missing = set(kept_counts)
        found = self._shelf.found()
        if must_have_some and kept_counts and not any(file_id in kept_counts for file_id, _size_bytes in found):
            raise AllMissingError(f"{self._shelf.place} has none of the {len(kept_counts)} bodies that messages have")
        for file_id, size_bytes in found:
            if file_id in kept_counts:
                missing.discard(file_id)
                self._lengths[file_id] = size_bytes
                self._disk_bytes += size_bytes
            elif keeps_all:
                unnamed_count += 1
                unnamed_bytes += size_bytes
            else:
                self._shelf.remove(file_id)
                removed_count += 1
                removed_bytes += size_bytes
        self._kept = Counter({file_id: count for file_id, count in kept_counts.items() if file_id in self._lengths})
        self._next_id = max([self._next_id - 1, *kept_counts, *[file_id for file_id, _size in found]]) + 1
        return BodyRecovery(
            len(self._lengths), removed_count, removed_bytes, frozenset(missing), unnamed_count, unnamed_bytes
        )

    def stop(self) -> None:
        """Stop: remove the files that no record of the store names. Call `join` then."""
        if self._closed:
            return
        for staged in self._staged.values():
            self._writer.put(Job(staged.discard, _ignore))
        for file_id in self._lengths:
            if not self._kept[file_id]:
                self._writer.put(Job(partial(self._shelf.remove, file_id), _ignore))
        self._closed = True
        self.close()

    def join(self) -> None:
        """Wait until all requested work is done; later requests are ignored. Blocks; from any thread."""
        self._writer.close()
        self._reader.close()

    # ------------------------------------------------------------------ in

    @property
    def piece_bytes(self) -> int | None:
        """Size that pieces have to have, but the last one of a body. None: any."""
        return self._shelf.piece_bytes

    def begin(
        self, length_bytes: int, *, durable: bool, source: SourceController, failed: Callable[[BodyError], None]
    ) -> Staging:
        """Begin a body that arrives. `length_bytes`: -1 if unknown. `durable`: it must survive a power cut once it is
        complete. `source` is blocked while too much waits to be written. `failed` is called when a piece can't be
        written; then only `abort` may be called.

        Raises BodyError if there is no room for it.
        """
        self._reserve(max(0, length_bytes))
        file_id = self._next_id
        self._next_id += 1
        file = self._staged[file_id] = self._shelf.stage(file_id, durable=durable)
        return Staging(self, file_id, file, length_bytes, source, failed)

    def _reserve(self, size_bytes: int) -> None:
        most = self._disk_bytes_max
        if most is not None and self._disk_bytes + size_bytes > most:
            error = BodyError(
                f"{self._shelf.place} has {self._disk_bytes} bytes of large bodies, and may have {most}: consume them, "
                "or raise the limit"
            )
            self._note_failure(error)
            raise error
        self._disk_bytes += size_bytes

    def _put_piece(self, file: StagedBody, piece: bytes, source: SourceController, done: Callable[[Any], None]) -> None:
        self.waiting.charge(0, len(piece), source)
        self._writer.put(Job(partial(file.write, piece), partial(self._piece_done, len(piece), done)))

    def _piece_done(self, size_bytes: int, done: Callable[[Any], None], result: Any) -> None:
        if result is None:
            self._written_bytes += size_bytes
        done(result)
        self.waiting.release(0, size_bytes)

    def _finish(self, file_id: int, length_bytes: int, done: Callable[[BodyReference | BodyError], None]) -> None:
        def finished(result: BodyError | None) -> None:
            del self._staged[file_id]
            if result is not None:
                self._note_failure(result)
                self._disk_bytes -= length_bytes
                self._writer.put(Job(file.discard, _ignore))
                done(result)
                return
            self._lengths[file_id] = length_bytes
            done(self.refer(file_id, length_bytes))

        file = self._staged[file_id]
        self._writer.put(Job(file.finish, finished))

    def _give_up(self, file_id: int, reserved_bytes: int) -> None:
        file = self._staged.pop(file_id)
        self._disk_bytes -= reserved_bytes
        self._writer.put(Job(file.discard, _ignore))

    # ------------------------------------------------------------------ out

    def read(
        self, body: BodyReference, offset: int, size_bytes: int, done: Callable[[bytes | Exception], None]
    ) -> None:
        """`done` is called with these bytes of a body, or with the BodyError why they can't be had."""
        work = partial(self._shelf.read, body.file_id, offset, size_bytes)
        self._reader.put(Job(work, partial(self._read_done, done)))

    def _read_done(self, done: Callable[[bytes | Exception], None], result: bytes | BodyError) -> None:
        if isinstance(result, BodyError):
            self._note_failure(result)
        else:
            self._read_bytes += len(result)
        done(result)

    # ------------------------------------------------------------------ who keeps what

    def refer(self, file_id: int, length_bytes: int) -> BodyReference:
        """A reference to a complete file. For the store as well, when it reads a record that names one."""
        self._alive[file_id] += 1
        self.references_count += 1
        return BodyReference(self, file_id, length_bytes)

    def make_message(
        self,
        head: Envelope,
        wire: bytes,
        number: int,
        expires_at_ms: int,
        due_at_ms: int,
        file_id: int,
        length_bytes: int,
    ) -> LargeMessage:
        """Return a message of the store with a large body: `MakeLarge` of chunks.py."""
        body = self.refer(file_id, length_bytes)
        return LargeMessage(head, wire, number, body, expires_at_ms, due_at_ms)

    def keep(self, file_id: int) -> None:
        self._kept[file_id] += 1

    def forget(self, file_id: int) -> None:
        """Count one record less that names `file_id`; its body need not have been read or referenced."""
        left = self._kept[file_id] - 1
        if left > 0:
            self._kept[file_id] = left
            return
        del self._kept[file_id]
        self._remove_if_unused(file_id)

    def forget_all(self, file_ids: Iterable[int]) -> None:
        """Count one record less for each of `file_ids`."""
        for file_id in file_ids:
            self.forget(file_id)

    def reference_died(self, file_id: int) -> None:
        # Only a note, taken to the loop by way of the writer: this may be any thread, in the midst of anything.
        self._writer.put(Job(_nothing, partial(self._died, file_id)))

    def _died(self, file_id: int, _result: None) -> None:
        self.references_count -= 1
        left = self._alive[file_id] - 1
        if left > 0:
            self._alive[file_id] = left
            return
        del self._alive[file_id]
        self._remove_if_unused(file_id)

    def _remove_if_unused(self, file_id: int) -> None:
        if self._closed or self._alive[file_id] or self._kept[file_id]:
            return
        length_bytes = self._lengths.pop(file_id, None)
        if length_bytes is None:
            return  # it was missing when an earlier run's records were read

        def removed(result: BodyError | None) -> None:
            if result is None:
                self._disk_bytes -= length_bytes
            else:
                self._note_failure(result)  # the file still takes its space; the next start removes it

        self._writer.put(Job(partial(self._shelf.remove, file_id), removed))

    # ------------------------------------------------------------------ what people see

    def _note_failure(self, error: BodyError) -> None:
        self._failures_count += 1
        self._warn(error)

    def statistics(self) -> BodyStatistics:
        return BodyStatistics(
            files_count=len(self._lengths),
            staged_count=len(self._staged),
            disk_bytes=self._disk_bytes,
            waiting_bytes=self.waiting.limiter.used_bytes,
            written_bytes=self._written_bytes,
            read_bytes=self._read_bytes,
            failures_count=self._failures_count,
        )

    def facts(self) -> Mapping[str, object]:
        return {"files": len(self._lengths), "arriving": len(self._staged), "disk_bytes": self._disk_bytes}


class Staging:
    """One body on its way to its file. Made by `BodyFiles.begin`; ends with `commit` or `abort`."""

    __slots__ = (
        "_collected",
        "_collected_bytes",
        "_failed",
        "_file",
        "_file_id",
        "_files",
        "_has_failed",
        "_length_bytes",
        "_over",
        "_source",
        "_written_bytes",
    )

    def __init__(
        self,
        files: BodyFiles,
        file_id: int,
        file: StagedBody,
        length_bytes: int,
        source: SourceController,
        failed: Callable[[BodyError], None],
    ) -> None:
        self._files = files
        self._file_id = file_id
        self._file = file
        self._length_bytes = length_bytes
        self._source = source
        self._failed = failed
        self._written_bytes = 0
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._over = False
        self._has_failed = False

    def write(self, piece: bytes) -> None:
        """The next bytes. May block the source. Raises BodyError if there is no room for them."""
        size_bytes = len(piece)
        if self._length_bytes < 0:
            self._files._reserve(size_bytes)
        self._written_bytes += size_bytes
        if self._files.piece_bytes is not None:
            self._write_exactly(piece, self._files.piece_bytes)
            return
        if size_bytes >= PIECE_BYTES:
            self._send()
            self._files._put_piece(self._file, piece, self._source, self._piece_done)
            return
        self._collect(piece)
        if self._collected_bytes >= PIECE_BYTES or len(self._collected) >= PIECE_BYTES // 64:
            self._send()

    def _write_exactly(self, piece: bytes, piece_bytes: int) -> None:
        """Send pieces of this size only; the rest is collected."""
        view = memoryview(piece)
        while self._collected_bytes + len(view) >= piece_bytes:
            room_bytes = piece_bytes - self._collected_bytes
            self._collect(bytes(view[:room_bytes]))
            self._send()
            view = view[room_bytes:]
        if view:
            self._collect(bytes(view))
            if len(self._collected) >= PIECE_BYTES // 64:  # many small ones take more memory than they have bytes
                self._collected = [b"".join(self._collected)]

    def _collect(self, piece: bytes) -> None:
        self._collected.append(piece)
        self._collected_bytes += len(piece)

    def _send(self) -> None:
        if self._collected:
            piece = b"".join(self._collected)
            self._collected.clear()
            self._collected_bytes = 0
            self._files._put_piece(self._file, piece, self._source, self._piece_done)

    def _piece_done(self, result: BodyError | None) -> None:
        if result is not None and not self._over and not self._has_failed:
            self._has_failed = True
            self._files._note_failure(result)
            self._failed(result)

    @property
    def collected_bytes(self) -> int:
        """Size of the pieces that are collected here, to be charged to their sender."""
        return self._collected_bytes

    def commit(self, done: Callable[[BodyReference | BodyError], None]) -> None:
        """Complete the body. `done` gets the reference when the file is complete (and synced, if it is to be durable),
        or the error: the file is removed then.
        """
        self._send()
        self._over = True
        self._files._finish(self._file_id, self._written_bytes, done)

    def abort(self) -> None:
        """Give the body up and remove its file. Does nothing after `commit`, or a second time."""
        if not self._over:
            self._over = True
            self._collected.clear()
            self._collected_bytes = 0
            reserved_bytes = self._length_bytes if self._length_bytes >= 0 else self._written_bytes
            self._files._give_up(self._file_id, reserved_bytes)


class _StagedFile:
    """The file of one body while it is written. Used by the writer only; made at the first piece."""

    __slots__ = ("_before_writing", "_broken", "_descriptor", "_durable", "_path", "_unsynced_bytes")

    def __init__(self, path: Path, before_writing: Callable[[], None], *, durable: bool) -> None:
        self._path = path
        self._before_writing = before_writing
        self._durable = durable
        self._descriptor = -1
        self._unsynced_bytes = 0
        self._broken: BodyError | None = None

    def write(self, piece: bytes) -> None:
        if self._broken is not None:
            raise self._broken
        try:
            if self._descriptor < 0:
                self._before_writing()
                # Messages are nobody else's business.
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            view = memoryview(piece)
            while view:
                view = view[os.write(self._descriptor, view) :]
            self._unsynced_bytes += len(piece)
            if self._durable and self._unsynced_bytes >= SYNC_BYTES:
                os.fdatasync(self._descriptor)
                self._unsynced_bytes = 0
        except OSError as error:
            self._broken = _error("write", error, self._path)
            raise self._broken from error

    def finish(self) -> None:
        self.write(b"")
        try:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                if self._durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if self._durable:
                self._before_writing()  # the folder that is synced is the one that has the file
                sync_folder(self._path.parent)
        except OSError as error:
            self._broken = _error("write", error, self._path)
            raise self._broken from error

    def discard(self) -> None:
        try:
            if self._descriptor >= 0:
                descriptor, self._descriptor = self._descriptor, -1
                os.close(descriptor)
        finally:
            _remove(self._path)


def _read(path: Path, offset: int, size_bytes: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            piece = os.pread(descriptor, size_bytes, offset)
            while len(piece) < size_bytes and (
                more := os.pread(descriptor, size_bytes - len(piece), offset + len(piece))
            ):
                piece += more
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _error("read", error, path) from error
    if len(piece) < size_bytes:
        raise BodyError(
            f"{path} ends at {offset + len(piece)} bytes, though its message says {offset + size_bytes} or more: "
            "something else than the broker has changed it; "
            f"{_WITHOUT_IT}"
        )
    return piece


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _error("remove", error, path) from error


_WITHOUT_IT: Final = (
    "bring it back; or stop the broker: `sluiceway store export` leaves the message out, `sluiceway store import` "
    "takes the others into a new folder"
)


def _error(what: str, error: OSError, path: Path) -> BodyError:
    said = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        remedy = "free space on that disk, or consume large messages"
    elif isinstance(error, FileNotFoundError):
        remedy = f"something else than the broker has removed it; {_WITHOUT_IT}"
    elif isinstance(error, PermissionError):
        remedy = f"give user {os.geteuid()} the right to use it"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit of open files (ulimit -n)"
    else:
        remedy = "look at the disk"
    return BodyError(f"can't {what} {path}: {said}; {remedy}")


def _nothing() -> None:
    return None


def _ignore(_result: BodyError | None) -> None:
    """Ignore the result: a file that could not be removed is an orphan, which the next start removes."""
