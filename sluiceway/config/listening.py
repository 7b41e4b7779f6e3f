"""Listeners in one word: `stomp://0.0.0.0:61613`, `wss://[::1]:15673/stomp`, or just `127.0.0.1:61613`.

The scheme sets protocol and TLS, the path is that of a WebSocket. Certificates are not part of the word: they come from
options (`serve --tls-certificate`) or from a table in the file.
"""

from __future__ import annotations

import re
from typing import Any, Final

SCHEMES: Final = {
    "stomp": ("stomp", False, 61613),
    "stomp+ssl": ("stomp", True, 61614),
    "ws": ("websocket", False, 15674),
    "wss": ("websocket", True, 15673),
}
"""Protocol, use of TLS, and usual port of each scheme."""


def listener_table(text: str, certificate: str | None = None, key: str | None = None) -> dict[str, Any]:
    """Return the table of a listener written as one word. `certificate` and `key`: files, for listeners with TLS.

    Raises ValueError that shows the form.
    """
    scheme, colon, rest = text.partition("://")
    if not colon:
        return {"address": text}
    if scheme not in SCHEMES:
        raise ValueError(f"{text!r} has an unknown scheme: write one of {', '.join(f'{name}://' for name in SCHEMES)}")
    protocol, is_secured, port = SCHEMES[scheme]
    address, slash, path = rest.partition("/")
    if not re.search(r":[0-9]+$", address):
        address = f"{address}:{port}"
    table: dict[str, Any] = {"address": address}
    if protocol != "stomp":
        table["protocol"] = protocol
        if slash:
            table["websocket"] = {"path": f"/{path}"}
    elif path:
        raise ValueError(f"{text!r}: only WebSocket has a path; end it with the port")
    if is_secured:
        if certificate is None:
            raise ValueError(
                f"{text!r} needs a certificate: `serve --tls-certificate FILE --tls-key FILE`, or a table with"
                ' [listeners.tls] certificate = "FILE"'
            )
        table["tls"] = {"certificate": certificate, **({} if key is None else {"key": key})}
    return table
