"""All checks: importing this package registers them."""

from __future__ import annotations

from sluiceway.compliance.checks import (
    acknowledging,
    connecting,
    encoding,
    ending,
    framing,
    heart_beats,
    receipts,
    sending,
    subscribing,
    transactions,
)

__all__ = [
    "acknowledging",
    "connecting",
    "encoding",
    "ending",
    "framing",
    "heart_beats",
    "receipts",
    "sending",
    "subscribing",
    "transactions",
]
