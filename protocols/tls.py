"""TLS between a byte stream and what is above it, without I/O of its own: OpenSSL works on memory.

Reading and writing take the available bytes and never wait, as everywhere here, so a dispatch turn writes to a TLS
connection as to any other. Only `handshake` waits, before STOMP begins.

What is taken. Bytes count as taken when the kernel has the last byte of the records that hold them, for that is when a
message with ack `auto` is acknowledged. At most `SEAL_BYTES` are encrypted ahead of the kernel; they can't be taken
back, so a writer must offer the rest again, first (`ByteStream.write`): encrypted bytes are skipped then.

Records are filled by the writer: small pieces are joined above (`outbound`), and OpenSSL makes records of 16 KiB of
each piece. Renegotiation (TLS 1.2) is off. A key update of TLS 1.3 leaves its answer in the memory of OpenSSL, where it
goes out before the next record, which is all that RFC 8446 wants (4.6.3); a peer that asks for new keys again and again
ends its connection. No session tickets are given in TLS 1.3: STOMP connections are long, and a client certificate is
looked at each time. In TLS 1.2 a session may be resumed for two hours, until the certificate of its client ends.

Not here: users by certificate (`sluiceway.security`), reports of failed handshakes (`opening`).
"""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from .framing import PLAIN
from .settings import TlsConfig
from .streams import ByteStream, PeerCertificate

SEAL_BYTES: Final = 128 * 1024
"""Plain bytes encrypted for one system call, and at most ahead of the kernel."""

ROOM_BYTES: Final = 512 * 1024
"""Maximum size of a read of a connection. One buffer serves all connections of a listener."""

SLICE_BYTES: Final = 64 * 1024
"""Taken from the stream below at a time. Records that bring nothing may take a hundred times as long as others."""

OWED_BYTES_MAX: Final = 4 * 1024
"""Bytes of OpenSSL's own answers that wait for the next record: some 150 changes of keys while the broker sends
nothing.
"""

HANDSHAKE_READ_BYTES: Final = 16 * 1024
HANDSHAKE: Final = 0x16
"""First byte of every TLS connection."""

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsError(ConnectionError):
    """TLS with one peer went wrong. The message says what, in words."""


class NotTlsError(TlsError):
    """The peer does not speak TLS; `began_with` are its first bytes."""

    def __init__(self, began_with: bytes) -> None:
        super().__init__("the peer does not speak TLS")
        self.began_with = began_with


class CertificateError(ValueError):
    """The certificate of the broker, its key or the authorities for clients can't be used. The message names the file
    and the remedy.
    """


class TlsServer:
    """The server side of TLS as one configuration has it. Never changes: a reload makes a new one."""

    __slots__ = ("_room", "config", "context", "fingerprint_sha256", "not_after")

    def __init__(self, config: TlsConfig) -> None:
        """Reads the files, which may take a while. `config.is_on`. Raises CertificateError."""
        self.config = config
        self.context = server_context(config)
        self._room = memoryview(bytearray(ROOM_BYTES))
        assert config.certificate is not None
        der = first_certificate(config.certificate)
        self.fingerprint_sha256 = hashlib.sha256(der).hexdigest()
        """Fingerprint of the certificate of the broker."""
        try:
            self.not_after = not_after(der)
            """End of validity of the certificate of the broker, in seconds since the epoch."""
        except (ValueError, IndexError):
            raise CertificateError(
                f"{config.certificate}: its first certificate does not say until when it is good"
            ) from None

    def stream(self, under: ByteStream) -> TlsStream:
        """TLS over this stream. `handshake` is due."""
        return TlsStream(under, self.context, room=self._room)


class TlsStream:
    """One end of a TLS connection over another stream."""

    __slots__ = (
        "_ahead_bytes",
        "_ended",
        "_holds",
        "_incoming",
        "_outgoing",
        "_room",
        "_sealed",
        "_shut",
        "_tls",
        "_under",
        "peer",
        "peer_certificate",
    )
    framing = PLAIN

    def __init__(
        self,
        under: ByteStream,
        context: ssl.SSLContext,
        *,
        room: memoryview | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Make a TLS stream. `room`: buffer for decryption; may be shared by streams of one thread. `server_hostname`:
        this side is the client, and expects the other end to have a certificate for that name.
        """
        self._under = under
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._room = room if room is not None else memoryview(bytearray(ROOM_BYTES))
        self._sealed: memoryview = memoryview(b"")
        """Records that the stream below has not taken."""
        self._ahead_bytes = 0
        """Plain bytes in records that the stream below has not taken as a whole."""
        self._holds = False
        """Whether there may be more to read without new input from below."""
        self._ended = False
        self._shut = False
        self.peer = under.peer
        self.peer_certificate: PeerCertificate | None = None

    # ------------------------------------------------------------------ the handshake

    async def handshake(self) -> None:
        """Agree on keys and look at certificates. Raises NotTlsError, TlsError, OSError; then it must be closed."""
        await trio.lowlevel.checkpoint()
        is_first = self._tls.server_side
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._push_all()
                data = await self._more()
                if is_first and data and data[0] != HANDSHAKE:
                    raise NotTlsError(data) from None
                is_first = False
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            except ssl.SSLError as error:
                self._tell_alert()
                raise TlsError(in_words(error)) from error
            else:
                break
        await self._push_all()
        self._holds = True  # the end of the handshake and the first data may have come together
        self.peer_certificate = certificate = _certificate_of(self._tls)
        resumed = self._tls.server_side and self._tls.session_reused
        if resumed and certificate is not None and certificate.not_after < time.time():
            # A client that resumes a session of TLS 1.2 shows none: it is one of the last two hours, checked then.
            raise TlsError("the certificate of the peer is not good: certificate has expired")

    async def _more(self) -> bytes:
        while (data := self._under.read(HANDSHAKE_READ_BYTES)) is None:
            await self._under.wait_readable()
        return data

    async def _push_all(self) -> None:
        self._push()
        while self._sealed:
            await self._under.wait_writable()
            self._push()

    def _tell_alert(self) -> None:
        """Send the alert with which OpenSSL refused, if the peer can still be told."""
        try:
            self._push()
        except OSError:
            return  # the peer is gone

    # ------------------------------------------------------------------ reading and writing

    @property
    def peer_has_ended(self) -> bool:
        return self._under.peer_has_ended

    def read(self, size_max: int) -> bytes | None:
        size_bytes = self.read_into(self._room[:size_max])
        return None if size_bytes is None else bytes(self._room[:size_bytes])

    def read_into(self, room: memoryview) -> int | None:
        if self._ended:
            return 0
        wanted = len(room)
        got = 0
        # Records may bring nothing, for ever, and faster than they are opened: so there is an end to it in any case.
        left_bytes = 2 * max(wanted, SLICE_BYTES)
        while True:
            if not self._holds:
                if left_bytes <= 0:
                    break
                asked_bytes = min(wanted, SLICE_BYTES)
                data = self._under.read(asked_bytes)
                if data is None:
                    break
                if data:
                    self._incoming.write(data)
                    left_bytes = left_bytes - len(data) if len(data) == asked_bytes else 0
                else:
                    self._incoming.write_eof()
                self._holds = True
            got = self._open(room, got)
            if self._ended or got == wanted:
                break
            if self._outgoing.pending > OWED_BYTES_MAX:
                self._ended = True
                raise TlsError("the peer asks for new keys again and again")
        return got if got or self._ended else None

    def _open(self, room: memoryview, got: int) -> int:
        """Decrypt into the room, behind `got`. Returns the end of the filled part; `_holds` and `_ended` are set."""
        read, wanted = self._tls.read, len(room)
        try:
            while got < wanted:
                count = read(wanted - got, room[got:])
                if not count:
                    self._ended = True
                    break
                got += count  # type: ignore[operator]  # with a buffer, it is a number
        except ssl.SSLWantReadError:
            self._holds = False
        except ssl.SSLEOFError:
            # The peer closed its socket without a word in TLS, as many do. Frames say themselves where they end, so
            # nothing can be cut short unseen.
            self._ended = True
        except ssl.SSLError as error:
            self._ended = True
            if not got:
                raise TlsError(in_words(error)) from error
        return got

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        taken = self._push()
        if self._sealed:
            return taken
        skip = taken
        write = self._tls.write
        try:
            for piece in pieces:
                size = len(piece)
                if skip >= size:
                    skip -= size
                    continue
                rest = memoryview(piece)[skip:]
                skip = 0
                while rest:
                    count = write(rest[: SEAL_BYTES - self._ahead_bytes])
                    self._ahead_bytes += count
                    rest = rest[count:]
                    if self._ahead_bytes >= SEAL_BYTES:
                        taken += self._push()
                        if self._sealed:
                            return taken
        except ssl.SSLError as error:
            raise TlsError(in_words(error)) from error
        return taken + self._push()

    def _push(self) -> int:
        """Hand records to the stream below. Returns how many plain bytes are out now: those of all records, or none."""
        sealed = self._sealed
        while True:
            if not sealed:
                if not self._outgoing.pending:
                    break
                sealed = self._sealed = memoryview(self._outgoing.read())
            sealed = self._sealed = sealed[self._under.write([sealed]) :]
            if sealed:
                return 0
        ahead_bytes, self._ahead_bytes = self._ahead_bytes, 0
        return ahead_bytes

    async def wait_readable(self) -> None:
        if self._holds or self._ended:
            await trio.lowlevel.checkpoint()
        else:
            await self._under.wait_readable()

    async def wait_writable(self) -> None:
        await self._under.wait_writable()

    # ------------------------------------------------------------------ the end

    def shutdown_write(self) -> None:
        """Send close_notify, then close the output of the stream below. Encrypted bytes that were not taken are sent
        before it as far as the kernel takes them at once.
        """
        if not self._shut:
            self._shut = True
            with contextlib.suppress(OSError):
                # SSLWantReadError: close_notify is sent, the peer's is not here, and is not waited for. Others: the
                # stream is broken.
                self._tls.unwrap()
            self._tell_alert()
        self._under.shutdown_write()

    def close(self) -> None:
        self._under.close()

    def abandon(self) -> None:
        self._under.abandon()


# -- contexts ----------------------------------------------------------------------------------------------------------


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """A context for the server side. Raises CertificateError, which says which file is wrong and how."""
    context = _own_context(config, ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    context.verify_mode = _VERIFY[config.client_certificates]
    if config.client_ca is not None:
        load_authorities(context, config.client_ca)
    return context


def peer_context(config: TlsConfig) -> ssl.SSLContext:
    """A context for connections to equals, which have settings like these: they get this side's certificate, and have
    one from `client_ca` (None: from an authority of the system). Raises CertificateError.
    """
    context = _own_context(config, ssl.PROTOCOL_TLS_CLIENT)
    if config.client_ca is None:
        context.load_default_certs()
    else:
        load_authorities(context, config.client_ca)
    return context


def _own_context(config: TlsConfig, protocol: int) -> ssl.SSLContext:
    """A context with this side's certificate."""
    assert config.certificate is not None, "look at `is_on` first"
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[config.version_min]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if config.ciphers:
        try:
            context.set_ciphers(config.ciphers)
        except ssl.SSLError:
            raise CertificateError(
                f"tls.ciphers = {config.ciphers!r} names none that OpenSSL knows: see `openssl ciphers -v`"
            ) from None
    load_certificate(context, config.certificate, config.key, _password(config))
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None, password: Callable[[], str]) -> None:
    """Give a context its own certificate. `password` is asked if the key has one. Raises CertificateError."""
    files = [certificate] if key is None else [certificate, key]
    for file in files:
        _must_be_readable(file)
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        raise CertificateError(_why_unusable(error, certificate, key)) from None
    except (OSError, ValueError) as error:
        if isinstance(error, CertificateError):
            raise
        raise CertificateError(f"{certificate}: can't be used: {error}") from None


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Give a context the authorities that it trusts. Raises CertificateError."""
    _must_be_readable(file)
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError, ValueError):
        raise CertificateError(
            f"{file}: has no certificate of an authority in PEM form (-----BEGIN CERTIFICATE-----)"
        ) from None


def _must_be_readable(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise CertificateError(f"{file}: can't be read: {error.strerror or error}") from None


def _why_unusable(error: ssl.SSLError, certificate: Path, key: Path | None) -> str:
    reason = error.reason or str(error)
    where = certificate if key is None else key
    if reason == "KEY_VALUES_MISMATCH":
        return f"{where}: this key is not the one of the certificate {certificate}; name the key that it was made with"
    if "DECRYPT" in reason or "PASSWORD" in reason:
        return f"{where}: the password does not open this key; see key_password_file and key_password_env"
    if not _has(certificate, b"-----BEGIN CERTIFICATE-----"):
        return f"{certificate}: has no certificate in PEM form (-----BEGIN CERTIFICATE-----)"
    if key is None and not _has(certificate, b"PRIVATE KEY-----"):
        return f"{certificate}: has no private key in it: name the file that has (`key` beside it, or --tls-key)"
    return (
        f"{certificate}: can't be used as a certificate with the key in {where}: both must be PEM"
        f" (-----BEGIN CERTIFICATE-----, -----BEGIN PRIVATE KEY-----), the certificate first ({reason})"
    )


def _has(file: Path, mark: bytes) -> bool:
    return mark in file.read_bytes()


def _password(config: TlsConfig) -> Callable[[], str]:
    def ask() -> str:
        # Without this OpenSSL asks on the terminal, for which a broker has no use.
        if config.key_password_file is not None:
            try:
                return config.key_password_file.read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                said = error.strerror if isinstance(error, OSError) else "is not UTF-8"
                raise CertificateError(f"{config.key_password_file}: can't be read: {said}") from None
        if config.key_password_env:
            password = os.environ.get(config.key_password_env)
            if password is None:
                raise CertificateError(
                    f"the environment variable {config.key_password_env} is not set; it should hold the password of"
                    f" the key in {config.key or config.certificate}"
                )
            return password
        raise CertificateError(
            f"{config.key or config.certificate}: this key has a password: give it by key_password_file or"
            " key_password_env"
        )

    return ask


# -- certificates ------------------------------------------------------------------------------------------------------


def _certificate_of(tls: ssl.SSLObject) -> PeerCertificate | None:
    der = tls.getpeercert(binary_form=True)
    if der is None:
        return None
    told: Mapping[str, Any] = tls.getpeercert() or {}  # empty: no certificate was asked for, so none was checked
    if not told:
        return None
    names = [value for part in told.get("subject", ()) for name, value in part if name == "commonName"]
    names += [value for kind, value in told.get("subjectAltName", ()) if kind in ("DNS", "email")]
    return PeerCertificate(
        names=tuple(dict.fromkeys(names)),
        fingerprint_sha256=hashlib.sha256(der).hexdigest(),
        not_after=float(ssl.cert_time_to_seconds(told["notAfter"])),
    )


def first_certificate(file: Path) -> bytes:
    """The first certificate in a PEM file, in DER form. Raises CertificateError."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        text = file.read_text(encoding="ascii", errors="replace")
        return ssl.PEM_cert_to_DER_cert(text[text.index(begin) : text.index(end) + len(end)])
    except (OSError, ValueError):
        raise CertificateError(f"{file}: there is no certificate in it ({begin})") from None


def not_after(der: bytes) -> float:
    """The end of a certificate's validity, in seconds since the epoch, from its DER form.

    Python tells it of a peer's certificate only. X.509 has it at a fixed place: Certificate, tbsCertificate, then
    version (perhaps), number, algorithm, issuer, and validity, a pair of dates (RFC 5280, 4.1). Raises ValueError or
    IndexError for something else.
    """
    _kind, start, _end = _element(der, 0)
    _kind, at, _end = _element(der, start)
    if der[at] == 0xA0:  # the version, which the oldest leave out
        at = _element(der, at)[2]
    for _ in range(3):
        at = _element(der, at)[2]
    _kind, first, _end = _element(der, at)
    kind, begin, end = _element(der, _element(der, first)[2])
    text = der[begin:end].decode("ascii")
    if kind == 0x17:  # UTCTime: 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    elif kind != 0x18:
        raise ValueError("no date where one should be")
    return float(calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ")))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Kind, start and end of the content of the element at this place."""
    size, start = der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + size > len(der):
        raise ValueError("cut short")
    return der[at], start, start + size


_REASONS: Final = {
    "UNSUPPORTED_PROTOCOL": "the peer speaks an older version of TLS than version_min allows",
    "NO_SHARED_CIPHER": "no cipher in common with the peer",
    "WRONG_VERSION_NUMBER": "the input is not TLS",
    "HTTP_REQUEST": "the peer speaks HTTP without TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer shows no certificate, and client_certificates is required",
    "UNEXPECTED_EOF_WHILE_READING": "the peer closed the connection in the midst of the handshake",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the CA of the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate: it may be for another host",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the broker's certificate has expired",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no version of TLS in common with the peer",
}


def in_words(error: ssl.SSLError) -> str:
    """Describe a TLS error for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the peer is not good: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return _REASONS["UNEXPECTED_EOF_WHILE_READING"]
    reason = error.reason or ""
    return _REASONS.get(reason, f"TLS failed: {reason.lower().replace('_', ' ') or error}")
