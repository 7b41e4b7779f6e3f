"""The W3C header `traceparent`: the trace of a message, and the span of its sender.

Source: W3C Trace Context, "traceparent Header Field Values".
"""

from __future__ import annotations

import re
from typing import Final

import attrs

_LAYOUT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)

TRACESTATE_LENGTH_MAX: Final = 512
"""Minimum length in characters that every system must propagate. A longer one is not exported (the message keeps
it).
"""


@attrs.frozen
class TraceContext:
    """Position in a trace."""

    trace_id: int
    span_id: int
    sampled: bool
    tracestate: str = ""


def parse_traceparent(value: str, tracestate: str = "") -> TraceContext | None:
    """Return the context in these headers; None for an invalid header: the message then belongs to no trace."""
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
    """Return whether a trace is in this share of all traces. The result is the same for each message of the trace, here
    and in other programs that select by the lower 63 bits.
    """
    return (trace_id & (1 << 63) - 1) < round(ratio * (1 << 63))
