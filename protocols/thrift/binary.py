"""Messages of Thrift's binary protocol, by tables of fields.

Reading takes one step for each field, whatever the bytes are: strings are cut out whole, and a field that the table
does not have is passed over if it is a number or a string. Lists, maps and structs that are not expected are refused,
since walking through them has no bound but their size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

import attrs

FIELDS_MAX: Final = 32
"""Fields of one struct on the wire."""
NAME_BYTES_MAX: Final = 100
HEADER_BYTES: Final = 4
"""Length of a frame in front of it."""
_VERSION: Final = 0x8001
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">HBB")
_FIELD: Final = struct.Struct(">Bh")
_LIST: Final = struct.Struct(">Bi")


class Kind(IntEnum):
    """Types of values, as they are numbered on the wire."""

    STOP = 0
    BOOL = 2
    BYTE = 3
    DOUBLE = 4
    I16 = 6
    I32 = 8
    I64 = 10
    STRING = 11
    STRUCT = 12
    MAP = 13
    SET = 14
    LIST = 15


_SIZES: Final = {Kind.BOOL: 1, Kind.BYTE: 1, Kind.DOUBLE: 8, Kind.I16: 2, Kind.I32: 4, Kind.I64: 8}


class MessageType(IntEnum):
    """Types of messages."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3
    ONEWAY = 4


class Trouble(IntEnum):
    """Types of TApplicationException."""

    UNKNOWN_METHOD = 1
    INVALID_MESSAGE_TYPE = 2
    INTERNAL_ERROR = 6
    PROTOCOL_ERROR = 7


class FormatError(ValueError):
    """The bytes are no message of the expected form."""


@attrs.frozen
class Field:
    """A field of a struct."""

    name: str
    kind: Kind
    required: bool = False
    is_text: bool = False
    """Whether a STRING is UTF-8 text, not bytes."""
    fields: Mapping[int, Field] | None = None
    """Fields of a STRUCT; None: it is none."""


Fields = Mapping[int, Field]


@attrs.frozen
class Head:
    """Head of a message."""

    name: str
    kind: int
    """A MessageType, or a number that is none."""
    sequence_id: int
    place: int
    """Offset of the arguments in the message."""


def frame_bytes(header: bytes) -> int:
    """Return the length of a frame from the 4 bytes in front of it; negative: it is none."""
    return int(_I32.unpack(header)[0])


def framed(message: bytes) -> bytes:
    """Return a message with its length in front."""
    return _I32.pack(len(message)) + message


class _Reader:
    __slots__ = ("data", "place")

    def __init__(self, data: bytes | memoryview, place: int) -> None:
        self.data = memoryview(data)
        self.place = place

    def take(self, count: int) -> memoryview:
        end = self.place + count
        if count < 0 or end > len(self.data):
            raise FormatError(f"it ends at byte {len(self.data)}, and says that there are {count} more at {self.place}")
        taken = self.data[self.place : end]
        self.place = end
        return taken

    def i16(self) -> int:
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def string(self) -> memoryview:
        return self.take(self.i32())

    def text(self) -> str:
        try:
            return str(self.string(), "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"a text is not UTF-8: {error}") from None


def read_head(message: bytes | memoryview) -> Head:
    """Read the head of a message, in the strict form or the older one without a version. Raises FormatError."""
    reader = _Reader(message, 0)
    first = reader.i32()
    if first < 0:
        version, _unused, kind = _HEAD.unpack(_I32.pack(first))
        if version != _VERSION:
            raise FormatError(f"version {version:#06x} of the binary protocol is not known; use TBinaryProtocol")
        name = reader.text()
    else:
        if first > NAME_BYTES_MAX:
            raise FormatError("it does not begin as a message; use TBinaryProtocol over TFramedTransport")
        name = str(reader.take(first), "utf-8", "replace")
        kind = reader.take(1)[0]
    if len(name) > NAME_BYTES_MAX:
        raise FormatError("the name of the call is too long")
    return Head(name, kind, reader.i32(), reader.place)


def read_struct(message: bytes | memoryview, place: int, fields: Fields) -> dict[str, Any]:
    """Return the values of a struct by name. STRING gives `str` or a view of the message. Raises FormatError, also for
    a required field that is missing.
    """
    return _read(_Reader(message, place), fields)


def _read(reader: _Reader, fields: Fields) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for _turn in range(FIELDS_MAX):
        kind = reader.take(1)[0]
        if kind == Kind.STOP:
            break
        number = reader.i16()
        field = fields.get(number)
        if field is None or field.kind != kind:
            _pass_over(reader, kind, number)
        elif kind == Kind.STRUCT:
            assert field.fields is not None, "the table says what is in it"
            values[field.name] = _read(reader, field.fields)
        elif kind == Kind.STRING:
            values[field.name] = reader.text() if field.is_text else reader.string()
        elif kind == Kind.I64:
            values[field.name] = reader.i64()
        elif kind == Kind.I32:
            values[field.name] = reader.i32()
        else:
            raise AssertionError(f"no call has an argument of the type {kind}")
    else:
        raise FormatError(f"a struct has more than {FIELDS_MAX} fields")
    for field in fields.values():
        if field.required and field.name not in values:
            raise FormatError(f"the required field {field.name} is missing")
    return values


def _pass_over(reader: _Reader, kind: int, number: int) -> None:
    if kind == Kind.STRING:
        reader.string()
        return
    size_bytes = _SIZES.get(kind)  # type: ignore[call-overload]  # any number may have come
    if size_bytes is None:
        raise FormatError(f"field {number} has the type {kind}, which is not expected there")
    reader.take(size_bytes)


def message(kind: MessageType, name: str, sequence_id: int, fields: Fields, values: Mapping[str, Any]) -> bytes:
    """Return a message whose struct has these values; those that are None are left out."""
    encoded = name.encode()
    pieces = [_HEAD.pack(_VERSION, 0, kind), _I32.pack(len(encoded)), encoded, _I32.pack(sequence_id)]
    _write(pieces, fields, values)
    return b"".join(pieces)


def reply(name: str, sequence_id: int, fields: Fields, values: Mapping[str, Any]) -> bytes:
    """Return the reply to a call whose result is a struct."""
    result = Field("success", Kind.STRUCT, fields=fields)
    return message(MessageType.REPLY, name, sequence_id, {0: result}, {"success": values})


def trouble(name: str, sequence_id: int, kind: Trouble, words: str) -> bytes:
    """Return the answer to a call that could not be made."""
    fields = {1: Field("message", Kind.STRING, is_text=True), 2: Field("type", Kind.I32)}
    return message(MessageType.EXCEPTION, name, sequence_id, fields, {"message": words, "type": int(kind)})


def _write(pieces: list[Any], fields: Fields, values: Mapping[str, Any]) -> None:
    for number, field in fields.items():
        value = values.get(field.name)
        if value is None:
            continue
        pieces.append(_FIELD.pack(field.kind, number))
        if field.kind == Kind.STRUCT:
            assert field.fields is not None, "the table says what is in it"
            _write(pieces, field.fields, value)
        elif field.kind == Kind.STRING:
            _write_string(pieces, value)
        elif field.kind == Kind.LIST:
            _write_list(pieces, value)
        else:
            pieces.append((_I64 if field.kind == Kind.I64 else _I32).pack(value))
    pieces.append(b"\0")


def _write_string(pieces: list[Any], value: str | bytes | memoryview) -> None:
    data = value.encode() if isinstance(value, str) else value
    pieces.append(_I32.pack(len(data)))
    pieces.append(data)


def _write_list(pieces: list[Any], values: Iterable[Any]) -> None:
    """Write a list of strings."""
    items = list(values)
    pieces.append(_LIST.pack(Kind.STRING, len(items)))
    for item in items:
        _write_string(pieces, item)
