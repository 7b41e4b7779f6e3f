"""Messages between a hub and the service of one host: JSON objects, each behind its length in four bytes.

A hub asks, with a number `n` that the answer repeats:

    open       hub, session_seconds, session ("" or one to go on with), ended ("" or one to end)
    beat       nothing else: the session lives on, as with every other request
    advertise  hub
    read       path                         answer: value and version, or neither
    write      path, value, version         answer: version
    delete     path, version
    children   path                         answer: names
    hubs                                    answer: hubs
    watch      path                         `changed` events of this path, as long as the connection lasts
    unwatch    path
    close      the session ends in order

An answer with `error` (a code) and `words` says that it was refused. The service also sends events without a number:
`{"event": "changed", "path": ...}`, `{"event": "hubs"}`, `{"event": "ended", "words": ...}`.

Values are in Base64. Unknown fields are ignored: later versions may add some.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from sluiceway.store.compare_and_set import VALUE_BYTES_MAX

from .port import Hub

Message = Mapping[str, Any]

LENGTH: Final = Struct(">I")

MESSAGE_BYTES_MAX: Final = 4 << 20
"""Bytes of one message. A list of names is the longest."""

assert MESSAGE_BYTES_MAX > 2 * VALUE_BYTES_MAX


class MessageError(ValueError):
    """Bytes that are no message of this protocol. The connection is of no use any more."""


class MessageReader:
    """Bytes to messages, whatever the chunking."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now. Raises MessageError."""
        self._bytes += data
        found: list[Message] = []
        while len(self._bytes) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._bytes)
            if length > MESSAGE_BYTES_MAX:
                raise MessageError(f"a message of {length} bytes: at most {MESSAGE_BYTES_MAX} are allowed")
            end = LENGTH.size + length
            if len(self._bytes) < end:
                break
            found.append(decoded(bytes(self._bytes[LENGTH.size : end])))
            del self._bytes[:end]
        return found


def framed(message: Message) -> bytes:
    """Return the bytes of a message."""
    data = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


def decoded(data: bytes) -> Message:
    """Return the message of its JSON. Raises MessageError."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageError(f"a message is an object, got {data[:80]!r}")
    return message


def text_of(message: Message, field: str) -> str:
    """Return a text of a message. Raises MessageError."""
    value = message.get(field)
    if not isinstance(value, str):
        raise MessageError(f"{field} of {_said(message)} is missing or no text")
    return value


def number_of(message: Message, field: str) -> float:
    """Return a number of a message. Raises MessageError."""
    value = message.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MessageError(f"{field} of {_said(message)} is missing or no number")
    return value


def value_text(value: bytes) -> str:
    """Return the Base64 of a value."""
    return base64.b64encode(value).decode()


def value_of(message: Message) -> bytes:
    """Return the value in a message. Raises MessageError."""
    try:
        return base64.b64decode(text_of(message, "value"), validate=True)
    except binascii.Error as error:
        raise MessageError(f"the value of {_said(message)} is no Base64: {error}") from error


def hub_fields(hub: Hub) -> Message:
    """Return the fields of a hub."""
    return {
        "name": hub.name,
        "address": hub.address,
        "version": hub.version,
        "weight": hub.weight,
        "session": hub.session,
        "clients": hub.clients,
    }


def hub_of(fields: object) -> Hub:
    """Return the hub with these fields. Raises MessageError."""
    if not isinstance(fields, dict):
        raise MessageError(f"a hub is an object, got {str(fields)[:80]!r}")
    try:
        return Hub(
            text_of(fields, "name"),
            text_of(fields, "address"),
            text_of(fields, "version"),
            float(number_of(fields, "weight")),
            text_of(fields, "session"),
            text_of({"clients": "", **fields}, "clients"),
        )
    except ValueError as error:
        raise MessageError(str(error)) from error


def _said(message: Message) -> str:
    return f"the message {str(message.get('op') or message.get('event') or message)[:80]!r}"
