"""Large bodies of a store, for tools: files of a folder, or records in a database."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ...flow.words import count_in_words
from ..engine import Engine
from ..engine_bodies import BODY_PIECE_BYTES, EngineBodies
from ..large import StagedBody
from .records import body_path

PIECE_BYTES: Final = 192 * 1024
"""Bytes of a large body in one line; a multiple of 3, so that base64 has no padding in the middle."""


class BodyWriter(Protocol):
    """A body under way."""

    def write(self, data: bytes) -> None:
        """Append a piece of any size. Raises OSError or BodyError."""

    def finish(self) -> None:
        """Sync the complete body. Raises OSError or BodyError."""

    def give_up(self) -> None:
        """Remove what there is."""


class Bodies(Protocol):
    """All large bodies of a store."""

    noun: str
    """Name of one of them as it is stored, for people."""

    def place(self, file_id: int) -> str:
        """Return where a body is, for people."""

    def size_bytes(self, file_id: int) -> int | None:
        """Return the size of a body; None: it is missing."""

    def pieces(self, file_id: int, length_bytes: int) -> Iterator[bytes]:
        """Yield a body. Raises OSError or BodyError where it can't be read on."""

    def strangers(self, known: Container[int]) -> str:
        """Return how many bodies there are beside the known ones, in words; empty: none."""

    def highest_id(self) -> int:
        """Return the highest number of a body; 0: there is none."""

    def begin(self, file_id: int) -> BodyWriter:
        """Begin a new body. Raises OSError or BodyError."""


class FolderBodies:
    """Files. Satisfies `Bodies`."""

    noun = "the file of a large body"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, file_id: int) -> str:
        return str(body_path(self._folder, file_id))

    def size_bytes(self, file_id: int) -> int | None:
        try:
            return body_path(self._folder, file_id).stat().st_size
        except FileNotFoundError:
            return None

    def pieces(self, file_id: int, length_bytes: int) -> Iterator[bytes]:
        with body_path(self._folder, file_id).open("rb") as file:
            left_bytes = length_bytes
            while left_bytes:
                piece = file.read(min(PIECE_BYTES, left_bytes))
                if not piece:
                    raise OSError(f"{file.name} became shorter while it was read")
                left_bytes -= len(piece)
                yield piece

    def strangers(self, known: Container[int]) -> str:
        names = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        count = sum(name != f"{_number(name):016x}" or _number(name) not in known for name in names)
        return f"{count_in_words(count, 'file')} in {self._folder.name}/" if count else ""

    def highest_id(self) -> int:
        return max((_number(path.name) for path in self._folder.iterdir()), default=0)

    def begin(self, file_id: int) -> BodyWriter:
        return _File(body_path(self._folder, file_id))


def _number(name: str) -> int:
    try:
        return int(name, 16)
    except ValueError:
        return 0  # not one of our files


class _File:
    """One file. Satisfies `BodyWriter`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("xb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def give_up(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class StoredBodies:
    """Records of an engine. Satisfies `Bodies`."""

    noun = "a large body"

    def __init__(self, engine: Engine) -> None:
        self._bodies = EngineBodies(engine, "the database", patience_seconds=0)
        self._sizes: dict[int, int] | None = None

    def _find(self) -> dict[int, int]:
        """Return the sizes of the bodies, looked up once."""
        if self._sizes is None:
            self._sizes = dict(self._bodies.found())
        return self._sizes

    def place(self, file_id: int) -> str:
        return f"large body {file_id}"

    def size_bytes(self, file_id: int) -> int | None:
        return self._find().get(file_id)

    def pieces(self, file_id: int, length_bytes: int) -> Iterator[bytes]:
        for offset in range(0, length_bytes, PIECE_BYTES):
            yield self._bodies.read(file_id, offset, min(PIECE_BYTES, length_bytes - offset))

    def strangers(self, known: Container[int]) -> str:
        count = sum(file_id not in known for file_id in self._find())
        return f"{count} in the database" if count else ""

    def highest_id(self) -> int:
        return max(self._find(), default=0)

    def begin(self, file_id: int) -> BodyWriter:
        return _Pieces(self._bodies.stage(file_id, durable=True))


class _Pieces:
    """One body, cut into pieces as the engine has them. Satisfies `BodyWriter`."""

    def __init__(self, body: StagedBody) -> None:
        self._body = body
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        self._waiting += data
        while len(self._waiting) >= BODY_PIECE_BYTES:
            self._body.write(bytes(self._waiting[:BODY_PIECE_BYTES]))
            del self._waiting[:BODY_PIECE_BYTES]

    def finish(self) -> None:
        if self._waiting:
            self._body.write(bytes(self._waiting))
        self._body.finish()

    def give_up(self) -> None:
        self._body.discard()
