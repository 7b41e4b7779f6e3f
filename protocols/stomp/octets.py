"""Octets that the parser knows by sight."""

from __future__ import annotations

import re
from typing import Final

EOL_OCTETS: Final = b"\r\n"
_EOLS: Final = re.compile(rb"[\r\n]*")

#: Octets that mean themselves in every version: printable ASCII without the backslash. A receipt with others takes
#: the slow path.
PLAIN_OCTETS: Final = bytes(range(33, 127)).replace(b"\\", b"")


def skip_eols(buf: bytes, pos: int) -> int:
    """Where the first octet is that ends no line."""
    match = _EOLS.match(buf, pos)
    assert match is not None  # It matches nothing, too.
    return match.end()


def text_of(raw: bytes) -> str:
    """Bytes of a command line for an error message."""
    return raw.decode("utf-8", "replace").removesuffix("\r")
