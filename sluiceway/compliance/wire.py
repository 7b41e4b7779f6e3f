"""STOMP as bytes: a writer of frames, right or wrong as a check wants them, and a strict reader without I/O.

Independent of `sluiceway.protocols` on purpose. The reader takes a stream in any pieces and gives frames with the bytes
they were made of. What cannot be read as a frame is a `WireFault`, after which the reader is spent; what can be read,
but is not what the grammar of the version says, is listed in `Frame.irregularities`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

VERSIONS: Final = ("1.0", "1.1", "1.2")
SERVER_COMMANDS: Final = frozenset({b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR"})
WITH_BODY: Final = frozenset({b"MESSAGE", b"ERROR"})
HEAD_BYTES_MAX: Final = 1 << 20
"""Longest head of a frame that is read: one without an end is a fault, not a reason to wait."""

_ESCAPES: Final = {"1.1": {"n": "\n", "c": ":", "\\": "\\"}, "1.2": {"n": "\n", "c": ":", "\\": "\\", "r": "\r"}}

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


class WireFault(Exception):
    """Bytes that are no frame; the message says why."""


def pairs(headers: Headers) -> list[tuple[str, str]]:
    """Return headers as a list, in their order."""
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)


def escape(text: str, version: str) -> str:
    """Return a header's name or value as it stands on the wire in `version`."""
    if version == "1.0":
        return text
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c")
    return text.replace("\r", "\\r") if version == "1.2" else text


def unescape(text: str, version: str) -> str:
    """Return what an escaped name or value means. Raises WireFault for an escape that the version does not define."""
    known = _ESCAPES.get(version)
    if known is None or "\\" not in text:
        return text
    parts: list[str] = []
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            following = next(letters, "")
            if following not in known:
                raise WireFault(f"the escape \\{following} is not defined in {version}")
            letter = known[following]
        parts.append(letter)
    return "".join(parts)


def frame(command: str, headers: Headers = (), body: bytes = b"", *, eol: bytes = b"\n", end: bytes = b"\0") -> bytes:
    """Return a frame of exactly these headers: nothing is escaped, added or judged."""
    lines = [command.encode(), *(f"{name}:{value}".encode() for name, value in pairs(headers))]
    return eol.join(lines) + eol + eol + body + end


@attrs.frozen
class Frame:
    """One frame of the server."""

    command: str
    headers: tuple[tuple[str, str], ...]
    """Names and values in their order, unescaped as the version wants."""
    body: bytes
    raw: bytes
    """Bytes of the frame, the NUL included."""
    irregularities: tuple[str, ...] = ()
    """Faults against the grammar of the version, despite which the frame can be read."""

    def get(self, name: str) -> str | None:
        """Return the first header of that name."""
        return next((value for each, value in self.headers if each == name), None)

    def __str__(self) -> str:
        return readable(self.raw)


class Reader:
    """Frames from a stream. Set `version` when CONNECTED has said it."""

    def __init__(self) -> None:
        self.version = "1.0"
        self.eols_count = 0
        """EOLs outside of frames: those behind a frame, and heart-beats."""
        self._buffer = bytearray()
        self._searched = 0
        self._body_at = -1

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream."""
        self._buffer += data

    @property
    def rest(self) -> bytes:
        """Bytes of a frame that is not whole yet."""
        return bytes(self._buffer)

    def next(self) -> Frame | None:
        """Return the next whole frame. Raises WireFault."""
        self._skip_eols()
        buffer = self._buffer
        if self._body_at < 0:
            end = re.search(rb"\r?\n\r?\n", buffer[max(0, self._searched - 3) :])
            if end is None:
                self._searched = len(buffer)
                if len(buffer) > HEAD_BYTES_MAX or b"\0" in buffer:
                    raise WireFault(f"no end of the headers in {len(buffer)} bytes, or a NUL among them")
                return None
            self._body_at = self._searched = max(0, self._searched - 3) + end.end()
        head = bytes(buffer[: self._body_at])
        length = self._length(head)
        if length is None:
            end_at = buffer.find(b"\0", self._searched)
            self._searched = len(buffer)
            if end_at < 0:
                return None
        else:
            end_at = self._body_at + length
            if len(buffer) <= end_at:
                return None
            if buffer[end_at] != 0:
                raise WireFault(f"no NUL behind the {length} octets of its content-length")
        raw = bytes(buffer[: end_at + 1])
        body = bytes(buffer[self._body_at : end_at])
        del buffer[: end_at + 1]
        self._searched, self._body_at = 0, -1
        return self._made(head, body, raw, length is not None)

    def _skip_eols(self) -> None:
        if self._body_at >= 0:
            return
        at = 0
        buffer = self._buffer
        while at < len(buffer):
            if buffer[at] == 10:
                at += 1
                self.eols_count += 1
            elif buffer[at] == 13 and at + 1 < len(buffer) and buffer[at + 1] == 10:
                at += 1
            else:
                break
        if at:
            del buffer[:at]
            self._searched = 0

    def _length(self, head: bytes) -> int | None:
        found = re.search(rb"\ncontent-length:([^\n]*?)\r?\n", head)
        if found is None:
            return None
        text = found[1].strip() if self.version == "1.0" else found[1]
        if not re.fullmatch(rb"\d{1,12}", text):
            raise WireFault(f"content-length is {found[1]!r}")
        return int(text)

    def _made(self, head: bytes, body: bytes, raw: bytes, has_length: bool) -> Frame:
        wrong: list[str] = []
        if self.version == "1.2":
            head = head.replace(b"\r\n", b"\n")
        elif head.partition(b"\n")[0].endswith(b"\r"):  # else a CR before LF is the end of a value
            wrong.append(f"lines end with CR LF, which {self.version} does not have")
            head = head.replace(b"\r\n", b"\n")
        lines = head.split(b"\n")
        command = lines[0]
        if command not in SERVER_COMMANDS:
            raise WireFault(f"{readable(command[:60])!r} is no frame of a server")
        if body and command not in WITH_BODY:
            wrong.append(f"{command.decode()} has a body")
        headers: list[tuple[str, str]] = []
        version = "1.0" if command == b"CONNECTED" else self.version
        for line in lines[1:-2]:
            name, colon, value = line.partition(b":")
            if not colon or not name:
                raise WireFault(f"{readable(line[:60])!r} is no header")
            if version != "1.0" and b":" in value:
                wrong.append(f"the colon in the header {readable(name)} is not escaped")
            try:
                headers.append((unescape(name.decode(), version), unescape(value.decode(), version)))
            except UnicodeDecodeError:
                raise WireFault(f"the header {readable(line[:60])!r} is not UTF-8") from None
        if b"\0" in head:
            wrong.append("a NUL in the headers")
        return Frame(command.decode(), tuple(headers), body, raw, tuple(wrong))


def readable(data: bytes, bytes_max: int = 2000) -> str:
    """Return bytes for people: as text, with ^@ for NUL and ^M for CR, as the specifications write them; other control
    characters and what is not UTF-8 as \\xNN; a line for each line."""
    shown = data[:bytes_max].decode("utf-8", "backslashreplace")
    shown = shown.replace("\0", "^@").replace("\r", "^M")
    shown = re.sub(r"[\x01-\x08\x0b-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", shown)
    return shown + (f" … {len(data) - bytes_max} more bytes" if len(data) > bytes_max else "")
