"""Frames to bytes, up to their NUL; the bytes behind the NUL belong to `sluiceway.protocols.framing`.

The hot frames have their own functions: receipts are written by the batch, and a MESSAGE is never written here at
all: `MessageRenderer` puts `message_prefix`, its own header lines and the wire of a `SendRun` behind each other.

Invariant: whatever the values, the bytes read back as the same frame under the same version; no value can end a header
line, and none can forge one. Unwritable values are refused with `LocalProtocolError`. Deliberately not here: whether a
frame may be sent now (`machine`).

Source: STOMP 1.2 "Frames", "Value Encoding"; checklist b1, b6, b7, b9, b10, b48, b52, b53.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from .errors import LocalProtocolError
from .escaping import Version, escape_name, escape_value
from .transitions import NEVER_ESCAPED

HEART_BEAT: Final = b"\n"
"""LF is the only line end that every version knows (b2)."""

BEHIND_NUL: Final = b"\n"
"""Byte behind each frame of the broker; `sluiceway.protocols.framing` says why."""

_BETWEEN: Final = BEHIND_NUL.decode()
_NEXT_RECEIPT: Final = f"{_BETWEEN}RECEIPT\nreceipt-id:"
_SPECIAL: Final = re.compile(r"[\\:\n\r\0]")


def header_lines(headers: Iterable[tuple[str, str]], version: Version) -> str:
    """Return header lines as this version reads them. Raises LocalProtocolError for a value that no header can hold."""
    lines = []
    for name, value in headers:
        if not name:
            raise LocalProtocolError(f"a header with the value {value[:40]!r} has an empty name; give it one")
        lines.append(f"{escape_name(name, version)}:{escape_value(value, version)}\n")
    return _without_nul("".join(lines))


def _plain_header_lines(headers: Iterable[tuple[str, str]]) -> str:
    lines = []
    for name, value in headers:
        if not name or ":" in name or "\n" in name or "\n" in value or value.endswith("\r"):
            raise LocalProtocolError(
                f"header {name[:40]!r} can't be written: CONNECT and CONNECTED are never escaped, so a name"
                " needs to be there, without a colon, and neither name nor value may hold a line end"
            )
        lines.append(f"{name}:{value}\n")
    return _without_nul("".join(lines))


def _without_nul(lines: str) -> str:
    if "\0" in lines:
        raise LocalProtocolError(
            "a header holds a NUL, which no version of STOMP can carry; put binary data into the body"
        )
    return lines


def encode_frame(command: str, headers: Iterable[tuple[str, str]], body: bytes = b"", *, version: Version) -> bytes:
    """Any frame. `content-length` is added to a body unless the headers have one (b6).

    Raises `LocalProtocolError` for an empty header name, a NUL in a header, what an unescaped frame can't hold (b10),
    or a content-length that is not the body's; `UnicodeEncodeError` for lone surrogates.
    """
    pairs = list(headers)
    given = next((value for name, value in pairs if name == "content-length"), None)
    if given is None:
        if body:
            pairs.append(("content-length", str(len(body))))
    elif given != str(len(body)):
        raise LocalProtocolError(
            f"content-length says {given[:20]!r}, the body has {len(body)} bytes; leave the header to the encoder"
        )
    lines = _plain_header_lines(pairs) if command in NEVER_ESCAPED else header_lines(pairs, version)
    return b"%s\n%s\n%s\0" % (command.encode(), lines.encode(), body)


def receipts(receipt_ids: Sequence[str], version: Version, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    """One RECEIPT per id, in order, with an EOL between each two (b48). `extra` headers go onto each of them.

    Escapes are looked for once in all ids together, so a batch costs little more than one.
    """
    if not receipt_ids:
        return b""
    receipt_ids = _escaped(receipt_ids, version)
    tail = _receipt_tail(tuple(extra), version)
    return f"RECEIPT\nreceipt-id:{f'{tail}{_NEXT_RECEIPT}'.join(receipt_ids)}{tail}".encode()


def _escaped(receipt_ids: Sequence[str], version: Version) -> Sequence[str]:
    joined = "".join(receipt_ids)
    if _SPECIAL.search(joined) is None:
        return receipt_ids
    _without_nul(joined)
    return [escape_value(receipt_id, version) for receipt_id in receipt_ids]


def indexed_receipts(
    receipt_ids: Sequence[str],
    version: Version,
    indexes: Iterable[tuple[int, int]],
    durability: str,
    partition: int | None = None,
) -> bytes:
    """Return the receipts of SENDs to a log: each says where its records begin, and how many they are; and in which
    partition.
    """
    tail = (
        f"\ndurability:{durability}\n\n\0"
        if partition is None
        else (f"\npartition:{partition}\ndurability:{durability}\n\n\0")
    )
    return _BETWEEN.join(
        [
            f"RECEIPT\nreceipt-id:{receipt_id}\nindex:{index}\ncount:{count}{tail}"
            for receipt_id, (index, count) in zip(_escaped(receipt_ids, version), indexes, strict=True)
        ]
    ).encode()


def receipt(receipt_id: str, version: Version, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    """One RECEIPT frame for `receipt_id` as the client wrote it (decoded)."""
    return receipts((receipt_id,), version, extra)


@lru_cache(maxsize=64)
def _receipt_tail(extra: tuple[tuple[str, str], ...], version: Version) -> str:
    return f"\n{header_lines(extra, version)}\n\0"


def error_frame(
    message: str, *, headers: Iterable[tuple[str, str]] = (), body: str = "", version: Version | None
) -> bytes:
    """Return an ERROR frame with a text body (b52). Line ends in `message` become spaces: it is shown as one line.

    `version` is None before a version was agreed on; then everything is written as 1.0 reads it, which needs no
    unescaping.
    """
    line = " ".join(message.replace("\0", " ").split())
    pairs = [("message", line), *headers]
    if body:
        pairs.append(("content-type", "text/plain"))
    return encode_frame("ERROR", pairs, body.encode("utf-8", "replace"), version=version or "1.0")


def message_prefix(subscription_id: str | None, version: Version) -> bytes:
    """Return the beginning of every MESSAGE of one subscription: the command line and, where there is an id, the
    `subscription` header.
    """
    if subscription_id is None:
        return b"MESSAGE\n"
    return f"MESSAGE\n{header_lines((('subscription', subscription_id),), version)}".encode()
