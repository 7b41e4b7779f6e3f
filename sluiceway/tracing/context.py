"""The W3C header `traceparent`: which trace a message belongs to, and which span its sender sent it in.

Source: W3C Trace Context, "traceparent Header Field Values".
"""

from __future__ import annotations

import re
from typing import Final

import attrs

_LAYOUT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)

TRACESTATE_LENGTH_MAX: Final = 512
"""Characters; the least that everybody must pass on. A longer one is not exported (the message keeps it)."""


@attrs.frozen
class TraceContext:
    """Where a message stands in a trace."""

    trace_id: int
    span_id: int
    sampled: bool
    tracestate: str = ""


def parse_traceparent(value: str, tracestate: str = "") -> TraceContext | None:
    """The context in these headers; None for what is none: then the message belongs to no trace."""
    match = _LAYOUT.fullmatch(value)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    if len(tracestate) > TRACESTATE_LENGTH_MAX:
        tracestate = ""
    return TraceContext(trace_id, span_id, bool(int(match[4], 16) & 1), tracestate)


def is_chosen(trace_id: int, ratio: float) -> bool:
    """Whether a trace is among this share of all. The same for each message of it, here and in other programs that
    choose by the lower 63 bits.
    """
    return (trace_id & (1 << 63) - 1) < round(ratio * (1 << 63))
