"""Octets that the parser knows by sight."""

from __future__ import annotations

import re
from typing import Final

from .escaping import Version

EOL_OCTETS: Final = b"\r\n"
_CR: Final = 13
_EOLS: Final = re.compile(rb"[\r\n]*")

#: Octets that mean themselves in every version: printable ASCII without the backslash. A receipt with others takes
#: the slow path.
PLAIN_OCTETS: Final = bytes(range(33, 127)).replace(b"\\", b"")


def skip_eols(buf: bytes, pos: int) -> int:
    """Return the position of the first octet that ends no line."""
    match = _EOLS.match(buf, pos)
    assert match is not None  # The pattern matches nothing, too.
    return match.end()


def split_head(raw: bytes, version: Version | None) -> tuple[bytes, bytes]:
    """Return the command line of a frame and its header lines, both with LF line ends only.

    A CR before an LF belongs to the line end (b2), but in 1.1 to the value: 1.1 has no such line end, and no escape
    for a CR. Clients of 1.1 that end lines with CR LF all the same do so behind the command, too: so they are known.
    """
    line, _, block = raw.partition(b"\n")
    if line.endswith(b"\r"):
        line = line[:-1]
    elif version == "1.1":
        return line, block
    if _CR in block:
        block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return line, block


def text_of(raw: bytes) -> str:
    """Bytes of a command line for an error message."""
    return raw.decode("utf-8", "replace").removesuffix("\r")
