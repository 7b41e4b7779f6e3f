"""TLS for clients: contexts, descriptions of failed handshakes, and a stream that one thread reads while others
write.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sluiceway.client.address import Address, Tls
from sluiceway.client.errors import CannotConnectError
from sluiceway.client.stream import MustWait, TcpStream

RECORD_BYTES: Final = 16 * 1024
OF_ANOTHER_NAME: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH; Python has no names for them."""
OF_ANOTHER_TIME: Final = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def client_context(tls: Tls) -> ssl.SSLContext:
    """Raises OSError for files that can't be used; its message names the file."""
    context = ssl.create_default_context() if tls.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.ca is not None:
        _load(tls.ca, "certificate of an authority", lambda: context.load_verify_locations(tls.ca))
    if tls.cert is not None:
        certificate = tls.cert
        _load(certificate, "certificate and its key", lambda: context.load_cert_chain(certificate, tls.key))
    elif tls.key is not None:
        raise OSError(f"the key {tls.key} is given without a certificate")
    return context


def _load(file: str, what: str, load: Any) -> None:
    try:
        load()
    except FileNotFoundError:
        raise OSError(f"{file}: there is no such file") from None
    except (OSError, ssl.SSLError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise OSError(f"{file}: has no {what} in PEM form that can be used ({why or error})") from None


def closed_early(tls: Tls | None) -> str:
    """Describe what may be wrong if the other side closes the connection before there is a session. In TLS 1.3 it
    learns of the client's certificate when the client takes the handshake for done, and its last word often is lost.
    """
    if tls is None:
        return ": is it STOMP?"
    if tls.cert is None:
        return (
            ": it may want a certificate of the client (--cert FILE and --key FILE, or ?cert=FILE&key=FILE in the"
            " address), or not speak TLS on this port; the broker's log says why"
        )
    return ": it may not trust this certificate; the broker's log says why"


def why_refused(error: OSError, tls: Tls | None) -> str:
    """Describe a failed handshake, with the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        if error.verify_code in OF_ANOTHER_NAME:
            return f"its certificate is of another name: {why}. Name the broker as its certificate does"
        if error.verify_code in OF_ANOTHER_TIME:
            return f"its certificate is not valid now: {why}. It needs a new one, or the clock of this machine is wrong"
        return f"its certificate is not trusted: {why}. Name its authority with --ca FILE (?ca=FILE in the address)"
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS there: use stomp://, or the broker's port for TLS"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "ALERT" in str(getattr(error, "reason", "")):
        said = str(getattr(error, "reason", "")).replace("_", " ").lower()
        return f"the other side ended it{f' ({said})' if 'alert' in said else ''}{closed_early(tls)}"
    return str(error)


class SecureStream(TcpStream):
    """A TLS connection. OpenSSL's state belongs to one thread at a time: each call into it takes a lock, and waits for
    nothing while it has it."""

    def __init__(self, shaken: ssl.SSLSocket) -> None:
        """`shaken`: after its handshake."""
        super().__init__(shaken)
        self._lock = threading.Lock()

    def _receive_now(self, size_max: int) -> bytes:
        with self._lock, _waits():
            parts: list[bytes] = [self._socket.recv(size_max)]
            got = len(parts[0])
            while self._socket.pending() and got + RECORD_BYTES <= size_max:
                parts.append(self._socket.recv(size_max - got))
                got += len(parts[-1])
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fill_now(self, room: memoryview) -> int:
        with self._lock, _waits():
            filled_bytes: int = self._socket.recv_into(room)
            try:
                while filled_bytes < len(room) and (count := self._socket.recv_into(room[filled_bytes:])):
                    filled_bytes += count
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass  # the next call meets it
            return filled_bytes

    def _send_now(self, data: memoryview) -> int:
        with self._lock, _waits():
            count: int = self._socket.send(data)
            return count

    def _shut(self) -> None:
        socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


@contextmanager
def _waits() -> Iterator[None]:
    try:
        yield
    except ssl.SSLWantReadError:
        raise MustWait(select.POLLIN) from None
    except ssl.SSLWantWriteError:
        raise MustWait(select.POLLOUT) from None


def secured(connected: socket.socket, address: Address) -> SecureStream:
    """TLS over it, within the timeout of the socket. Raises CannotConnectError."""
    tls = address.tls
    assert tls is not None
    try:
        context = client_context(tls)
    except OSError as error:
        raise CannotConnectError(f"TLS with {address.url}: {error}") from error
    try:
        return SecureStream(context.wrap_socket(connected, server_hostname=address.host))
    except ssl.SSLError as error:
        raise CannotConnectError(f"TLS with {address.url} failed: {why_refused(error, tls)}") from error
    except OSError as error:
        raise CannotConnectError(
            f"{address.url} closed the connection before it was established{closed_early(tls)}"
        ) from error
