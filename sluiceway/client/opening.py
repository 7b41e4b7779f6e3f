"""Opening of streams to addresses, with or without TLS."""

from __future__ import annotations

import socket

from sluiceway.client.address import Address
from sluiceway.client.errors import CannotConnectError
from sluiceway.client.stream import TcpStream


def connect(address: Address, timeout_seconds: float) -> TcpStream:
    """A stream to that broker. Raises CannotConnectError."""
    url = address.url
    try:
        connected = socket.create_connection((address.host, address.port), timeout_seconds)
    except socket.gaierror as error:
        raise CannotConnectError(
            f"the host {address.host!r} of {url} is not known ({error.strerror or error})", reason="unknown-host"
        ) from error
    except OSError as error:
        raise CannotConnectError(
            f"no broker answers at {url}", "is it running, and is the address right?", reason="no-answer"
        ) from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is None:
            return TcpStream(connected)
        from sluiceway.client.secure import secured

        return secured(connected, address)
    except BaseException:
        connected.close()
        raise
