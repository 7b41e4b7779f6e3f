"""Messages of `sluiceway send`, and how many each is: copies of one body, or lines of a file.

A number says which message of a producer this is, the same whenever it is sent again: the number of the line, or what a
column of the line says. Numbers ascend, since the broker takes one that is not above the last for a repetition.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Final

SEQUENCE_MAX: Final = 2**63 - 1
"""Largest number that the broker takes."""


class NumberingError(Exception):
    """A line without a number, or with one that does not ascend."""


def copies(body: bytes, count: int, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield a body so many times, with numbers from `first` on."""
    for sequence in range(first, first + count):
        yield sequence, body


def lines_of(file: Iterable[bytes], first: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line without its end, with numbers from `first` on."""
    for sequence, line in enumerate(file, first):
        yield sequence, _body(line)


def lines_by_column(file: Iterable[bytes], column: str, separator: str) -> Iterator[tuple[int, bytes]]:
    """Yield each line without its end, with the number in one of its columns: the `column`th, counted from 1, or the
    one of that name in the first line, which is then not yielded. Raises NumberingError.
    """
    place = int(column) - 1 if column.isdecimal() else None
    last = -1
    for count, line in enumerate(file, 1):
        body = _body(line)
        columns = _columns(body, separator)
        if place is None:
            if column not in columns:
                raise NumberingError(f"line 1 has no column {column!r}: it has {', '.join(map(repr, columns))}")
            place = columns.index(column)
            continue
        text = columns[place].strip() if place < len(columns) else ""
        if not (text.isascii() and text.isdecimal()) or int(text) > SEQUENCE_MAX:
            raise NumberingError(f"line {count}: {text!r} in column {column} is no whole number up to {SEQUENCE_MAX}")
        sequence = int(text)
        if sequence <= last:
            raise NumberingError(
                f"line {count}: {sequence} in column {column} is not above {last} of the line before: the broker would "
                "take it for a repetition. Sort the lines by this column"
            )
        last = sequence
        yield sequence, body


def _body(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _columns(body: bytes, separator: str) -> list[str]:
    """Return the columns of a line, quoted as in CSV."""
    text = body.decode("utf-8", "surrogateescape")
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:  # a NUL, or a field of 128 KiB
        return text.split(separator)
