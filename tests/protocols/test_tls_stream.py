"""TLS over memory streams: nothing lost or doubled however it is cut, and taken means taken by what is below."""

from __future__ import annotations

import ssl
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.protocols.settings import TlsConfig
from sluiceway.protocols.streams import MemoryStream, memory_pair
from sluiceway.protocols.tls import SEAL_BYTES, TlsError, TlsStream, not_after, server_context
from tests.network import authority


async def secured(capacity_bytes: int = 65_536) -> tuple[TlsStream, TlsStream, MemoryStream]:
    """The client's end, the broker's end, and what is below that."""
    ours, theirs = memory_pair(capacity_bytes=capacity_bytes)
    client = TlsStream(ours, authority.client_context(), server_hostname=authority.HOST)
    server = TlsStream(theirs, authority.server_context())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.handshake)
        nursery.start_soon(server.handshake)
    return client, server, theirs


def read_all(stream: TlsStream, size_max: int = 65_536) -> bytes:
    """What is there now."""
    got = b""
    while data := stream.read(size_max):
        got += data
    return got


@settings(max_examples=40)
@given(
    capacity_bytes=st.integers(300, 100_000),
    sizes=st.lists(st.integers(1, 60_000), min_size=1, max_size=8),
    read_bytes=st.integers(200, 100_000),
)
def test_all_comes_through_in_order(capacity_bytes: int, sizes: list[int], read_bytes: int) -> None:
    """However the stream below, the pieces and the reads are cut; and what counts as taken has come out below."""

    async def main() -> None:
        client, server, _below = await secured(capacity_bytes)
        pieces: list[bytes | memoryview] = [bytes([n]) * size for n, size in enumerate(sizes)]
        whole, got, taken_bytes = b"".join(pieces), b"", 0
        while pieces:
            taken = server.write(pieces)
            taken_bytes += taken
            while pieces and taken >= len(pieces[0]):
                taken -= len(pieces.pop(0))
            if taken:
                pieces[0] = memoryview(pieces[0])[taken:]
            got += read_all(client, read_bytes)
            assert len(got) >= taken_bytes
        assert taken_bytes == len(whole)
        server.shutdown_write()
        got += read_all(client, read_bytes)
        assert got == whole
        assert client.read(1) == b""

    trio.run(main)


async def test_no_more_than_a_bounded_part_is_encrypted_ahead() -> None:
    client, server, below = await secured(capacity_bytes=1000)
    assert server.write([b"x" * 10_000_000]) == 0
    assert server._ahead_bytes <= SEAL_BYTES
    del client, below


async def test_what_is_decrypted_already_can_be_read_without_waiting() -> None:
    """A small read leaves some behind, of which the stream below knows nothing."""
    client, server, _below = await secured()
    server.write([b"x" * 100])
    assert client.read(10) == b"x" * 10
    with trio.fail_after(1):
        await client.wait_readable()
    assert client.read(1000) == b"x" * 90
    assert client.read(1000) is None


async def test_a_peer_that_just_closes_its_socket_has_ended_the_stream() -> None:
    client, server, _below = await secured()
    server.write([b"the last"])
    server.close()
    assert client.read(100) == b"the last"
    assert client.read(100) == b""


async def test_bytes_that_were_changed_on_the_way_are_an_error() -> None:
    ours, theirs = memory_pair()
    client = TlsStream(ours, authority.client_context(), server_hostname=authority.HOST)
    server = TlsStream(theirs, authority.server_context())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.handshake)
        nursery.start_soon(server.handshake)
    await theirs.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(TlsError, match="TLS failed: "):
        client.read(100)


def test_renegotiation_is_off_and_old_versions_are(tmp_path: Path) -> None:
    """A renegotiation would need a read in the midst of a write."""
    certificate = authority.write(authority.server_certificate(), tmp_path)
    context = server_context(TlsConfig(certificate=certificate))
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.num_tickets == 0


@pytest.mark.parametrize("days", [-3.0, 10.0, 30_000.0])
def test_the_end_of_a_certificate_is_read_from_it(days: float) -> None:
    """As `cryptography` reads it; far away it is written in another form."""
    from cryptography import x509

    pem = authority.certificate_until(days).cert_chain_pems[0].bytes()
    expected = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    assert not_after(ssl.PEM_cert_to_DER_cert(pem.decode())) == expected


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x03\x02\x01", b"\x30\x80" * 10])
def test_what_is_no_certificate_has_no_end(der: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        not_after(der)


class EndlessStream:
    """There is always more to read than is asked for."""

    peer = "endless"
    peer_certificate = None

    def __init__(self) -> None:
        self.taken_bytes = 0

    def read(self, size_max: int) -> bytes:
        self.taken_bytes += size_max
        return bytes(size_max)

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"nobody asks for {name} here")


class Unpacking:
    """Stands in for OpenSSL: it takes records in which there is nothing to read, and may owe an answer to each."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, answer: bytes) -> None:
        self._incoming, self._outgoing, self._answer = incoming, outgoing, answer

    def read(self, _size_max: int, _room: memoryview) -> int:
        for _ in range(len(self._incoming.read()) // 27):
            self._outgoing.write(self._answer)
        raise ssl.SSLWantReadError


async def unpacking(answer: bytes) -> tuple[TlsStream, EndlessStream]:
    _client, server, _below = await secured()
    endless = EndlessStream()
    server._under = endless  # type: ignore[assignment]
    server._tls = Unpacking(server._incoming, server._outgoing, answer)  # type: ignore[assignment]
    return server, endless


@pytest.mark.parametrize("size_max", [16 * 1024, 512 * 1024])
async def test_records_that_bring_nothing_do_not_keep_the_loop(size_max: int) -> None:
    """However fast they come: other connections have their turn."""
    server, endless = await unpacking(b"")
    assert server.read(size_max) is None
    assert endless.taken_bytes <= max(2 * size_max, 128 * 1024)
    with pytest.raises(AssertionError, match="wait_readable"):
        await server.wait_readable()  # of the stream below, which has more at once


async def test_a_peer_that_asks_for_new_keys_without_end_ends_its_connection() -> None:
    """Each key update of TLS 1.3 leaves an answer of 27 bytes in OpenSSL's memory until we write."""
    server, endless = await unpacking(bytes(27))
    with pytest.raises(TlsError, match="new keys again and again"):
        server.read(512 * 1024)
    assert endless.taken_bytes <= 64 * 1024
    assert server.read(512 * 1024) == b""


@pytest.mark.parametrize("is_expired", [False, True])
async def test_a_session_is_resumed_until_the_certificate_of_the_client_ends(
    is_expired: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In TLS 1.2 OpenSSL looks at the certificate in the first handshake only."""
    broker = server_context(
        TlsConfig(
            certificate=authority.write(authority.server_certificate(), tmp_path),
            client_certificates="required",
            client_ca=authority.write_authority(tmp_path),
        )
    )
    context = authority.client_context(authority.client_certificate())
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def connect(session: ssl.SSLSession | None) -> tuple[TlsStream, TlsStream]:
        ours, theirs = memory_pair()
        client, server = TlsStream(ours, context, server_hostname=authority.HOST), TlsStream(theirs, broker)
        client._tls = context.wrap_bio(
            client._incoming, client._outgoing, server_hostname=authority.HOST, session=session
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.handshake)
            with pytest.raises(TlsError, match="has expired") if session and is_expired else nullcontext():
                await server.handshake()
        return client, server

    client, server = await connect(None)
    assert server.peer_certificate is not None
    if is_expired:
        end = server.peer_certificate.not_after
        monkeypatch.setattr("sluiceway.protocols.tls.time.time", lambda: end + 1)
    _client, server = await connect(client._tls.session)
    assert server._tls.session_reused
