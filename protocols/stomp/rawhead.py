"""Checks of command and headers as bytes, before they are parsed or are even complete.

Of several faults the one that comes first in the stream counts, so that chunking makes no difference.

Source: STOMP 1.2 "Size Limits"; checklist b14.
"""

from __future__ import annotations

from typing import Final

from . import faults
from .errors import ProtocolError
from .escaping import Version
from .head import salvage_headers
from .octets import split_head, text_of
from .transitions import Role, State, refusal

#: A first line longer than this is no command (the longest is UNSUBSCRIBE), so it is refused before it ends.
COMMAND_LINE_BYTES_MAX: Final = 64


def check_raw_head(raw: bytes, bytes_max: int, role: Role, state: State, version: Version | None) -> None:
    """Raise `ProtocolError` for a NUL, for a first line that is no command, and for more than `bytes_max`."""
    too_long = len(raw) > bytes_max
    first_line = raw.find(b"\n", 0, COMMAND_LINE_BYTES_MAX + 1)
    endless = first_line < 0 and len(raw) > COMMAND_LINE_BYTES_MAX
    nul = raw.find(b"\0")
    if not (too_long or endless or nul >= 0):
        return
    if nul >= 0 and (not too_long or nul < bytes_max) and (not endless or nul < COMMAND_LINE_BYTES_MAX):
        error = faults.nul_in_headers()
        identify(error, raw[:nul], version)
    elif endless and bytes_max > COMMAND_LINE_BYTES_MAX:
        error = refusal(role, state, version, text_of(raw[:COMMAND_LINE_BYTES_MAX]))
        identify(error, raw[:COMMAND_LINE_BYTES_MAX], version)
    else:
        name = "header_block_bytes_max" if version is not None else "connect_frame_bytes_max"
        error = faults.head_too_large(bytes_max, name)
        identify(error, raw[:bytes_max], version)
    raise error


def identify(error: ProtocolError, raw_head: bytes, version: Version | None) -> None:
    """Identify the frame of an error, as far as its head can be read."""
    line, block = split_head(raw_head, version)
    error.identify(text_of(line), salvage_headers(block, version))
