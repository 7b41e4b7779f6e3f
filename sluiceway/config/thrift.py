"""The port for Thrift clients of logs. See docs/thrift.md."""

from __future__ import annotations

from pathlib import Path

import attrs

from sluiceway.config.fields import is_address_or_empty, section
from sluiceway.protocols.settings import TlsConfig
from sluiceway.queues.settings import at_least, field

KIB = 1024
MIB = 1024 * KIB


@attrs.frozen
class ThriftConfig:
    """The port for Thrift clients of logs: the QueueService of Luxun ([what it does](thrift.md)). A connection beyond
    the limit is closed at once.
    """

    listen: str = field(
        "",
        "",
        "Where to listen for Thrift (binary protocol, framed transport): `HOST:PORT` or `[IPv6]:PORT`; port 0 takes "
        "any free one. Empty, the default: nowhere.",
        is_address_or_empty,
    )
    tls: TlsConfig = section(TlsConfig, "TLS of the Thrift port. Client certificates are asked for as on listeners.")
    login: str = field(
        "",
        "",
        "User as whom all clients of this port act, since Thrift's calls have none: its permissions for `/log/...` "
        "count. Empty: as a client that gives no login.",
    )
    passcode_file: Path | None = field(
        None, "", "File with the passcode of that user, in its first line. Read when a client connects."
    )
    connections_max: int = field(
        100, "count", "Thrift connections at a time. The next one is closed at once.", at_least(1)
    )
    frame_bytes_max: int = field(
        16 * MIB + 4 * KIB,
        "bytes",
        "Largest call; a connection that sends more is closed. The default takes an item of 16 MiB.",
        at_least(KIB),
    )
    buffers_bytes_max: int = field(
        64 * MIB,
        "bytes",
        "Memory for calls and answers of all Thrift connections together. Calls that do not fit wait. At least "
        "`frame_bytes_max`.",
        at_least(KIB),
    )
    client_seconds: float = field(
        15.0,
        "seconds",
        "How long a client may take to send the rest of a call, and to take a part of an answer, before it is cut.",
        at_least(0.1),
    )
    idle_seconds: float = field(3600.0, "seconds", "A connection without a call for this time is closed.", at_least(1))

    def __attrs_post_init__(self) -> None:
        if self.buffers_bytes_max < self.frame_bytes_max:
            raise ValueError(
                f"buffers_bytes_max ({self.buffers_bytes_max:,}) must be at least frame_bytes_max "
                f"({self.frame_bytes_max:,})"
            )
        if self.login and self.passcode_file is None:
            raise ValueError("login needs passcode_file, the file with its passcode")
