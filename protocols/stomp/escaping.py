"""Escapes of header names and values, per version (STOMP 1.1 and 1.2 "Value Encoding"; checklist b9-b11).

=======  ==========================================  =====================================
version  written                                     read
=======  ==========================================  =====================================
1.0      LF as ``\\n``, CR as ``\\r``, a colon in a   nothing: the octets are the value
         *name* as ``\\c``; all else as it is
1.1      ``\\n``  ``\\c``  ``\\\\``                     the same; anything else is fatal
1.2      ``\\n``  ``\\c``  ``\\\\``  ``\\r``            the same; anything else is fatal
=======  ==========================================  =====================================

1.0 has no escapes, yet a value that came from a 1.1 client may hold a line feed, and a raw one would forge a header.
Replacing it by a space was the alternative; the visible ``\\n`` was chosen because nothing is lost for a reader, and
because clients that speak 1.0 but know escapes still get the right value. 1.1 has no escape for CR: it goes out raw,
and is data for us; another lenient reader may lose one at the end.

Deliberately not here: which *frames* are escaped. CONNECT and CONNECTED never are (b10); `head` and `encoder` see to
that.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from .errors import ProtocolError

Version = Literal["1.0", "1.1", "1.2"]

#: Every version spoken here, best first: the order in which a common one is chosen (b17).
SUPPORTED_VERSIONS: Final[tuple[Version, ...]] = ("1.2", "1.1", "1.0")

_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)

_READ: Final[dict[Version, dict[str, str]]] = {
    "1.0": {},
    "1.1": {"n": "\n", "c": ":", "\\": "\\"},
    "1.2": {"n": "\n", "c": ":", "\\": "\\", "r": "\r"},
}

_WRITE_VALUE: Final[dict[Version, dict[int, str]]] = {
    "1.0": str.maketrans({"\n": "\\n", "\r": "\\r"}),
    "1.1": str.maketrans({"\n": "\\n", ":": "\\c", "\\": "\\\\"}),
    "1.2": str.maketrans({"\n": "\\n", ":": "\\c", "\\": "\\\\", "\r": "\\r"}),
}

_WRITE_NAME: Final[dict[Version, dict[int, str]]] = {
    "1.0": str.maketrans({"\n": "\\n", "\r": "\\r", ":": "\\c"}),
    "1.1": _WRITE_VALUE["1.1"],
    "1.2": _WRITE_VALUE["1.2"],
}


def unescape(text: str, version: Version) -> str:
    """Read a header name or value as `version` does. Raises `ProtocolError` for an escape that this version does not
    define (b11)."""
    if "\\" not in text or version == "1.0":
        return text
    meanings = _READ[version]

    def meaning(match: re.Match[str]) -> str:
        try:
            return meanings[match[1]]
        except KeyError:
            raise ProtocolError(
                "undefined-escape",
                f"undefined escape {match[0]!r} in a header",
                f"STOMP {version} defines {', '.join(chr(92) + key for key in meanings)}; write a backslash as \\\\.",
            ) from None

    return _ESCAPE.sub(meaning, text)


def escape_value(text: str, version: Version) -> str:
    """Write a header value as `version` wants it; the result never holds a line feed."""
    return text.translate(_WRITE_VALUE[version])


def escape_name(text: str, version: Version) -> str:
    """Write a header name as `version` wants it; the result holds neither a line feed nor a colon."""
    return text.translate(_WRITE_NAME[version])
