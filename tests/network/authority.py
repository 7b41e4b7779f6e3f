"""Certificates for tests: a right one, and each that is wrong in one way."""

from __future__ import annotations

import datetime
import ssl
from functools import cache
from pathlib import Path

import trustme

HOST = "localhost"
_DAY = datetime.timedelta(days=1)


@cache
def authority() -> trustme.CA:
    """The authority that everybody here trusts. One for the run: making keys takes time."""
    return trustme.CA(organization_name="Sluiceway tests")


@cache
def strange_authority() -> trustme.CA:
    """One that nobody trusts."""
    return trustme.CA(organization_name="Somebody else")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@cache
def server_certificate(host: str = HOST) -> trustme.LeafCert:
    """For a listener."""
    return authority().issue_cert(host)


@cache
def certificate_until(days: float) -> trustme.LeafCert:
    """Good for so many days from now; negative: not any more."""
    return authority().issue_cert(HOST, not_before=_now() - 400 * _DAY, not_after=_now() + days * _DAY)


@cache
def client_certificate(name: str = "alice") -> trustme.LeafCert:
    """For a client of that common name."""
    return authority().issue_cert(f"{name}@example.org", common_name=name)


@cache
def expired_client_certificate() -> trustme.LeafCert:
    """It was good until yesterday."""
    return authority().issue_cert(
        "old@example.org", common_name="old", not_before=_now() - 400 * _DAY, not_after=_now() - _DAY
    )


@cache
def strange_client_certificate() -> trustme.LeafCert:
    """From an authority that nobody here knows."""
    return strange_authority().issue_cert("mallory@example.org", common_name="mallory")


def write(certificate: trustme.LeafCert, folder: Path, name: str = "server") -> Path:
    """Certificate and key in one PEM file. Returns its path."""
    path = folder / f"{name}.pem"
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    # Into its place at once, as whoever renews certificates should.
    made = folder / f"{name}.new"
    made.write_bytes(chain + certificate.private_key_pem.bytes())
    made.replace(path)
    return path


def write_authority(folder: Path) -> Path:
    """The certificate of the authority that everybody trusts."""
    path = folder / "ca.pem"
    authority().cert_pem.write_to_path(str(path))
    return path


def server_context(certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """For the broker's end in memory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # as the broker does; else the end of a handshake waits for a client that reads
    (certificate or server_certificate()).configure_cert(context)
    return context


def client_context(certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """A client that trusts the authority, and shows this certificate if it is asked for one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context
