"""The admin port: HTTP for people, scripts and Prometheus. See docs/admin-api.md."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sluiceway.config.fields import is_address_or_empty, section
from sluiceway.protocols.settings import TlsConfig
from sluiceway.queues.settings import about, at_least, field


def _hosts(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen
class AdminConfig:
    """The admin port over HTTP: console, API, metrics, health. A connection beyond the limit is closed at once, and no
    request may delay messages.
    """

    address: str = field(
        "",
        "",
        "Where to listen for HTTP: `HOST:PORT` or `[IPv6]:PORT`; port 0 takes any free one. Empty, the default: "
        "nowhere. Configure users before you listen on more than this machine: without users every "
        "client has full access.",
        is_address_or_empty,
    )
    hosts: tuple[str, ...] = attrs.field(
        default=(),
        converter=_hosts,
        metadata=about(
            "Names under which browsers and scripts may reach this port, without the port: those that a reverse "
            "proxy or your DNS has for it. Addresses (127.0.0.1), `localhost` and this machine's own name need not be"
            " listed. "
            "Requests for any other name are refused, so that a web page elsewhere can't point a name of its own here."
        ),
    )
    tls: TlsConfig = section(
        TlsConfig, "TLS of the admin port (https). Client certificates are not asked for: people log in."
    )
    metrics_open: bool = field(
        False,
        "",
        "Whether /metrics is open to every client of the port. Off: needs `admin` on the broker, with HTTP Basic.",
    )
    connections_max: int = field(
        100,
        "count",
        "HTTP connections at a time; a browser makes up to six. The next one is closed at once.",
        at_least(1),
    )
    sessions_max: int = field(
        1000,
        "count",
        "Logged-in browsers at a time; the one that was idle for longest has to log in again when there are more.",
        at_least(1),
    )
    session_idle_seconds: float = field(
        3600.0,
        "seconds",
        "A browser without requests for this time has to log in again. The console sends requests while it is open.",
        at_least(1),
    )
    body_bytes_max: int = field(
        256 * 1024,
        "bytes",
        "Largest body of a request; it is refused beyond that. The default takes some thousand message ids.",
        at_least(1024),
    )
    client_seconds: float = field(
        15.0,
        "seconds",
        "How long a client may take to send a request, to take a part of an answer, and between two requests, before "
        "it is cut.",
        at_least(0.1),
    )
    request_seconds: float = field(
        60.0,
        "seconds",
        "How long an answer or an action may take; then the client gets an error. The finished part of a purge or a "
        "move stays done.",
        at_least(1),
    )
