"""TLS for clients whose connections are read by one thread and written by others.

A socket of Python's `ssl` must not be used by two threads at once: OpenSSL's state belongs to one. stomp.py reads in a
thread of its own and writes from any. So here each call into OpenSSL takes a lock, never waits while it has it, and
waiting is done on the bare socket outside of it. One thread may read at a time, and one may write; all others wait.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from typing import Any, Final

from stomp.transport import Transport

from sluiceway.client.address import Tls

RECORD_BYTES: Final = 16 * 1024
POLL_SECONDS: Final = 1.0
"""A thread that waits looks so often whether the connection was closed by another."""
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
    """What may be wrong if the other side closes the connection before there is a session. In TLS 1.3 it learns of our
    certificate when we take the handshake for done, and its last word often is lost.
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
    """What was wrong in a handshake, in words and with what to do."""
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


class SecureSocket:
    """A TLS connection with the methods of a socket that stomp.py uses."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Does the handshake, within the timeout of the socket. Raises OSError."""
        # The handshake is one thread's, so the plain way will do.
        self._tls = context.wrap_socket(connected, server_hostname=host)
        self._tls.setblocking(False)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closed = False

    def recv(self, size_max: int) -> bytes:
        """As of a blocking socket."""
        while True:
            if self._closed:
                return b""
            with self._lock:
                try:
                    parts = [self._tls.recv(size_max)]
                    got = len(parts[0])
                    while self._tls.pending() and got + RECORD_BYTES <= size_max:
                        parts.append(self._tls.recv(size_max - got))
                        got += len(parts[-1])
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                except ssl.SSLWantReadError:
                    want_write = False
                except ssl.SSLWantWriteError:
                    want_write = True
            self._wait(want_write=want_write)

    def sendall(self, data: bytes) -> None:
        """As of a blocking socket."""
        rest = memoryview(data)
        with self._writing:
            while rest:
                if self._closed:
                    raise ConnectionError("the connection was closed")
                with self._lock:
                    try:
                        rest = rest[self._tls.send(rest) :]
                        continue
                    except ssl.SSLWantReadError:
                        want_write = False
                    except ssl.SSLWantWriteError:
                        want_write = True
                self._wait(want_write=want_write)

    def _wait(self, *, want_write: bool) -> None:
        poll = select.poll()
        try:
            poll.register(self._tls, select.POLLOUT if want_write else select.POLLIN)
        except ValueError:
            return  # closed by another thread in this instant
        poll.poll(POLL_SECONDS * 1000)

    def getsockname(self) -> Any:
        """As of a socket."""
        return self._tls.getsockname()

    def setblocking(self, _blocking: bool) -> None:
        """It always behaves as if it were."""

    def shutdown(self, how: int) -> None:
        """As of a socket; wakes up who waits for it."""
        self._closed = True
        socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        """As of a socket."""
        self._closed = True
        self._tls.close()


class SecureTransport(Transport):  # type: ignore[misc]  # stomp.py ships no types
    """stomp.py's transport, with TLS where there is a context."""

    socket: Any

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__([(host, port)], **options)
        self._tls = tls
        self._host = host

    def attempt_connection(self) -> None:
        """Of stomp.py. Raises OSError if the handshake fails."""
        super().attempt_connection()
        if self._tls is not None:
            try:
                self.socket = SecureSocket(self.socket, self._tls, self._host)
            except OSError:
                self.socket.close()
                self.socket = None
                raise
