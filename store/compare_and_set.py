"""Records by compare-and-set: a value is read with its *version*; a write names the version that it is based on, and
is refused if another write came since.

    read       gives the value and its version, None if there is none
    write      with Version.NEW: only if there is none. With a version: only if that is the current one. With
               Version.ANY: any version, but there must be one. Gives the new version
    delete     with a version or Version.ANY
    children   gives the names directly below a path

`Records` is the port. A path begins with `/`; names between slashes are not empty. Callers use a path for a record or
for records below it, never for both. Every call returns at once and takes `done`, which is called later, never from
inside the call, with the result or with a MetadataError (never raised). Calls of one caller happen in their order.

A MetadataFailedError leaves it open whether the change happened. Read again, and continue from there.

The managers of `metadata/` and the coordination of a cluster stand on the same versions and errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import attrs

T = TypeVar("T")

VALUE_BYTES_MAX: Final = 512 << 10
"""Bytes of a record's value: half of what ZooKeeper takes."""

PATH_CHARACTERS_MAX: Final = 32_768
"""Characters of a path: two of the longest names, percent-encoded."""

_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")


@attrs.frozen(repr=False)
class Version:
    """Version of one record. Opaque: store it, pass it back, compare for equality. Versions of a record are not
    repeated while it lives; after it is deleted and made again, they may be.
    """

    number: int
    """Number, for implementations only."""

    NEW: ClassVar[Version]
    """Expects no record."""
    ANY: ClassVar[Version]
    """Expects a record of any version. For callers that are the only writer."""

    def __repr__(self) -> str:
        return {-1: "Version.NEW", -2: "Version.ANY"}.get(self.number, f"Version({self.number})")


Version.NEW = Version(-1)
Version.ANY = Version(-2)


@attrs.frozen
class Versioned(Generic[T]):
    """Value with its version."""

    value: T
    version: Version


class MetadataError(Exception):
    """Failure of an operation. Base of all errors given to `done`."""


class BadVersionError(MetadataError):
    """Another write came since. Nothing was changed; read again."""

    def __init__(self, what: str, *, given: Version, current: Version) -> None:
        expected = "was expected not to be there yet" if given == Version.NEW else f"was expected to be {given!r}"
        super().__init__(f"{what} {expected}, and is {current!r}: read it again, and decide anew")
        self.given = given
        self.current = current


class NoRecordError(MetadataError):
    """No record is at the path."""


class MetadataFailedError(MetadataError):
    """The store below failed; the message says what helps. Whether the change happened is not known: read again."""


OnRead = Callable[[Versioned[T] | MetadataError | None], None]
OnWritten = Callable[[Version | MetadataError], None]
"""Gets the new version."""
OnDone = Callable[[MetadataError | None], None]
"""Gets None on success."""
OnNames = Callable[[Sequence[str] | MetadataError], None]


class Records(Protocol):
    """Port to records by path."""

    def read(self, path: str, done: OnRead[bytes]) -> None:
        """Read a record."""

    def write(self, path: str, value: bytes, version: Version, done: OnWritten) -> None:
        """Write a record. Errors: BadVersionError; NoRecordError unless `version` is NEW; MetadataFailedError."""

    def delete(self, path: str, version: Version, done: OnDone) -> None:
        """Delete a record. Errors: as `write`."""

    def children(self, path: str, done: OnNames) -> None:
        """Give the names directly below a path, sorted; none if there is nothing below."""


def next_version(
    what: str, current: Version | None, given: Version, none_error: type[MetadataError], *, new: bool = True
) -> Version:
    """Return the version after this write, by the rules of compare-and-set, for implementations that count. `what`
    names the record, `current` is its version (None: there is none); `new`: Version.NEW makes it.

    Raises BadVersionError, and `none_error` if there is no record to overwrite.
    """
    if current is None:
        if new and given == Version.NEW:
            return Version(0)
        raise none_error(f"there is no {what}")
    if given not in (current, Version.ANY):
        raise BadVersionError(what, given=given, current=current)
    return Version(current.number + 1)


def checked_path(path: str) -> str:
    """Return the path of a record. Raises ValueError if it is none."""
    if len(path) > PATH_CHARACTERS_MAX or _PATH.fullmatch(path) is None:
        raise ValueError(
            f"{path[:80]!r} is no path of a record: it begins with /, has names between slashes, and at most "
            f"{PATH_CHARACTERS_MAX} characters"
        )
    return path


def checked_value(value: bytes) -> bytes:
    """Return the value of a record. Raises ValueError if it is too large."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"a record of {len(value)} bytes: at most {VALUE_BYTES_MAX} are allowed")
    return value
