"""Answers of the admin port while the broker starts: alive, not ready, and nothing else yet.

A start reads the store, which takes minutes for a large one; probes and people should not take the broker for dead.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from sluiceway.admin.app import HEALTH_PATHS, Receive, Scope, Send, answer_apart
from sluiceway.admin.errors import ApiError
from sluiceway.admin.read_routes import STARTING

RETRY_SECONDS = 5


async def answer_that_it_starts(scope: Scope, receive: Receive, send: Send) -> None:
    """One request, of any kind: an ASGI app."""
    await answer_apart(scope, receive, send, _answer(scope.get("path", "")))


def _answer(path: str) -> Response:
    headers = {"Cache-Control": "no-store", "Retry-After": str(RETRY_SECONDS)}
    facts: dict[str, Any] = {"ok": True}
    status = 200
    if path not in HEALTH_PATHS:
        status, facts = 503, ApiError(503, "starting", "the broker is starting", "Ask again in a moment.").to_dict()
    elif path == "/readyz":
        status, facts = 503, {"ready": False, "reasons": [STARTING]}
    return Response(json.dumps(facts).encode(), status, headers, "application/json")
