"""A request to the broker over STOMP like any other: SEND to /sluiceway/NAME with a temporary reply queue; the reply's
body is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sluiceway.cli.client import Client

REQUEST_DESTINATION: Final = "/sluiceway/stat"
REPLY_DESTINATION: Final = "/temp-queue/stat"
REPLY_SECONDS: Final = 30.0
"""A broker with very many things under load makes its answer in steps."""


def ask(
    client: Client,
    reply_destination: str = REPLY_DESTINATION,
    facts: Mapping[str, Any] | None = None,
    *,
    of: str = REQUEST_DESTINATION,
) -> dict[str, Any]:
    """One request to `of` (`facts`: its body) and its answer; `client` is subscribed to the reply queue. Raises
    NotSluiceway, Refused or ConnectionLost.
    """
    from sluiceway.cli.client import NotSluiceway

    body = b"" if facts is None else json.dumps(facts).encode()
    client.send(of, body, {"reply-to": reply_destination}, receipt=False)
    reply = client.next_message(REPLY_SECONDS)
    if reply is None:
        raise NotSluiceway(f"{client.target.url} did not answer within {REPLY_SECONDS:g} s: is it a Sluiceway broker?")
    try:
        report = json.loads(reply.body)
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise NotSluiceway(f"{client.target.url} did not answer with JSON: is it a Sluiceway broker of this version?")
    return report
