"""TLS listeners over loopback: who gets in, who does not and what is said, and that the others never notice."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trustme

from sluiceway.broker import Broker
from sluiceway.config import Config, Listener
from sluiceway.protocols.settings import TlsConfig
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.tls import CertificateError
from sluiceway.security.config import Permission, SecurityConfig
from tests.log_lines import LogLines
from tests.network import authority
from tests.network.talking import PATIENCE_SECONDS, Talker, dial, dial_tls, read_to_end


def config(folder: Path, **options: Any) -> Config:
    """One TLS listener."""
    limits = options.pop("limits", StompLimits(connect_timeout_seconds=10.0, linger_seconds=0.5))
    certificate = options.pop("certificate", None) or authority.server_certificate()
    tls = TlsConfig(certificate=authority.write(certificate, folder), **options)
    return Config(listeners=(Listener(address="127.0.0.1:0", name="secure", tls=tls, limits=limits),))


async def test_messages_of_all_sizes_go_both_ways(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        assert broker.urls[0].startswith("stomp+ssl://127.0.0.1:")
        talker = Talker(await dial_tls(broker.addresses[0], authority.client_context()))
        await talker.connect()
        for size in (0, 1, 16_383, 16_384, 100_000, 900_000):
            body = bytes(range(256)) * (size // 256 + 1)
            assert await talker.round_trip(body[:size]) == body[:size]
        await talker.stream.aclose()


async def test_tls_1_2_is_spoken_and_older_is_not(tmp_path: Path, log_lines: LogLines) -> None:
    async with Broker(config(tmp_path)) as broker:
        context = authority.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        talker = Talker(await dial_tls(broker.addresses[0], context))
        await talker.connect()
        assert await talker.round_trip(b"over 1.2") == b"over 1.2"
        await talker.stream.aclose()


async def test_version_min_1_3_turns_1_2_away(tmp_path: Path, log_lines: LogLines) -> None:
    async with Broker(config(tmp_path, version_min="1.3")) as broker:
        context = authority.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(trio.BrokenResourceError):
            await dial_tls(broker.addresses[0], context)
    (line,) = log_lines.of("connection not opened")
    assert "older version of TLS" in line["reason"]


async def test_a_client_that_expects_another_host_goes_and_is_logged(tmp_path: Path, log_lines: LogLines) -> None:
    async with Broker(config(tmp_path)) as broker:
        with pytest.raises(trio.BrokenResourceError) as refused:
            await dial_tls(broker.addresses[0], authority.client_context(), "other.example")
        assert "Hostname mismatch" in str(refused.value.__cause__)


async def test_an_expired_certificate_of_ours_is_told_at_the_start(tmp_path: Path, log_lines: LogLines) -> None:
    async with Broker(config(tmp_path, certificate=authority.certificate_until(days=-2))) as broker:
        with pytest.raises(trio.BrokenResourceError) as refused:
            await dial_tls(broker.addresses[0], authority.client_context())
        assert "expired" in str(refused.value.__cause__)
        ((label, not_after),) = broker.certificates()
        assert label == "secure"
        assert not_after < broker.now_ms() / 1000
    (line,) = log_lines.of("the certificate has expired")
    assert line["listener"] == "secure"


@pytest.mark.parametrize(("days", "is_told"), [(10, True), (15, False)])
async def test_a_certificate_that_ends_within_two_weeks_is_told(
    days: float, is_told: bool, tmp_path: Path, log_lines: LogLines
) -> None:
    async with Broker(config(tmp_path, certificate=authority.certificate_until(days))):
        assert bool(log_lines.of("the certificate expires soon")) is is_told


async def test_plain_stomp_on_a_tls_port_is_answered_and_named(tmp_path: Path, log_lines: LogLines) -> None:
    async with Broker(config(tmp_path)) as broker:
        stream = await dial(broker.addresses[0])
        await stream.send_all(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        answer = await read_to_end(stream)
        assert answer.startswith(b"ERROR\nmessage:this port requires TLS")
        assert b"stomp+ssl://" in answer
        await stream.aclose()
    (line,) = log_lines.of("connection not opened")
    assert line["reason"] == "the client speaks STOMP without TLS on a TLS port"


async def test_http_on_a_tls_port_gets_400(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        stream = await dial(broker.addresses[0])
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_to_end(stream)).startswith(b"HTTP/1.1 400 ")
        await stream.aclose()


async def test_tls_on_a_plain_port_is_named(log_lines: LogLines) -> None:
    async with Broker(Config(listeners=(Listener(address="127.0.0.1:0"),))) as broker:
        with pytest.raises(trio.BrokenResourceError):
            await dial_tls(broker.addresses[0], authority.client_context())
        await trio.testing.wait_all_tasks_blocked(0.05)
    assert any("TLS" in line.get("reason", "") for line in log_lines.of("connection ended"))


async def test_a_thousand_wrong_ones_are_one_line_in_the_log(tmp_path: Path, log_lines: LogLines) -> None:
    """And nobody else notices."""
    async with Broker(config(tmp_path)) as broker:
        talker = Talker(await dial_tls(broker.addresses[0], authority.client_context()))
        await talker.connect()
        for _ in range(100):
            stream = await dial(broker.addresses[0])
            await stream.send_all(b"\0\1\2\3")
            await read_to_end(stream)
            await stream.aclose()
        assert await talker.round_trip(b"still here") == b"still here"
        await talker.stream.aclose()
    assert len(log_lines.of("connection not opened")) == 1


async def test_a_slow_handshake_ends_at_the_connect_timeout(tmp_path: Path, log_lines: LogLines) -> None:
    limits = StompLimits(connect_timeout_seconds=0.1, linger_seconds=0.1)
    async with Broker(config(tmp_path, limits=limits)) as broker:
        stream = await dial(broker.addresses[0])
        await stream.send_all(b"\x16\x03\x01")
        assert await read_to_end(stream) == b""
        await stream.aclose()
        with trio.fail_after(PATIENCE_SECONDS):
            while broker.listening.opening_count or broker.listeners[0].connections_count:
                await trio.testing.wait_all_tasks_blocked(0.01)
    (line,) = log_lines.of("connection not opened")
    assert line["reason"] == "no complete TLS handshake within 0.1 seconds"


async def test_stopping_turns_away_who_is_in_the_handshake(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        stream = await dial(broker.addresses[0])
        await stream.send_all(b"\x16\x03\x01")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert broker.listening.opening_count == 1
        with trio.fail_after(PATIENCE_SECONDS):
            await broker.stop()
        await stream.aclose()


async def expect_refusal(address: str, context: ssl.SSLContext) -> None:
    """The connection breaks: with TLS 1.2 in the handshake, with 1.3 when the client believes that all is well."""
    try:
        stream = await dial_tls(address, context)
    except trio.BrokenResourceError:
        return
    with pytest.raises(trio.BrokenResourceError):
        await Talker(stream).connect()
    await trio.aclose_forcefully(stream)


class TestClientCertificates:
    """Who shows which certificate, and who gets in."""

    @pytest.fixture
    def required(self, tmp_path: Path) -> Config:
        return config(tmp_path, client_certificates="required", client_ca=authority.write_authority(tmp_path))

    async def test_a_good_one_gets_in_and_is_known(self, required: Config) -> None:
        async with Broker(required) as broker:
            context = authority.client_context(authority.client_certificate("alice"))
            talker = Talker(await dial_tls(broker.addresses[0], context))
            await talker.connect()
            (connection,) = broker.connections
            certificate = connection.session.certificate()
            assert certificate is not None
            assert certificate.names == ("alice", "alice@example.org")
            assert len(certificate.fingerprint_sha256) == 64
            assert certificate.not_after > broker.now_ms() / 1000
            await talker.stream.aclose()

    @pytest.mark.parametrize(
        ("certificate", "reason"),
        [
            (None, "shows no certificate"),
            (authority.expired_client_certificate, "certificate has expired"),
            (authority.strange_client_certificate, "unable to get local issuer certificate"),
        ],
    )
    async def test_a_bad_one_is_refused_and_named(
        self, certificate: Any, reason: str, required: Config, log_lines: LogLines
    ) -> None:
        """Without one, with an expired one, and with one of an unknown authority."""
        async with Broker(required) as broker:
            context = authority.client_context(None if certificate is None else certificate())
            await expect_refusal(broker.addresses[0], context)
            assert broker.listeners[0].connections_count == 0
        (line,) = log_lines.of("connection not opened")
        assert reason in line["reason"]

    async def test_optional_lets_in_who_has_none(self, tmp_path: Path) -> None:
        settings = config(tmp_path, client_certificates="optional", client_ca=authority.write_authority(tmp_path))
        async with Broker(settings) as broker:
            talker = Talker(await dial_tls(broker.addresses[0], authority.client_context()))
            await talker.connect()
            (connection,) = broker.connections
            assert connection.session.certificate() is None
            await talker.stream.aclose()

    async def test_optional_refuses_a_bad_one(self, tmp_path: Path) -> None:
        settings = config(tmp_path, client_certificates="optional", client_ca=authority.write_authority(tmp_path))
        async with Broker(settings) as broker:
            context = authority.client_context(authority.strange_client_certificate())
            await expect_refusal(broker.addresses[0], context)


class TestUsersByCertificate:
    """From the handshake to the permissions of the user for whom a certificate stands."""

    @pytest.fixture(params=["1.2", "1.3"])
    def version(self, request: pytest.FixtureRequest) -> ssl.TLSVersion:
        """What the client speaks at most."""
        return {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[request.param]

    @pytest.fixture
    def guarded(self, tmp_path: Path) -> Config:
        """Certificates are asked for; those of `alice`, `old` and `mallory` stand for one user, who may do a little."""
        mine = Permission(users=("web",), actions=("send", "receive", "create"), destinations=("/queue/web.>",))
        security = SecurityConfig(
            users={"root": "root"},
            certificates={"alice": "web", "old": "web", "mallory": "web"},
            permissions=(Permission(users=("*",), actions=("connect",)), mine),
        )
        asks = config(tmp_path, client_certificates="optional", client_ca=authority.write_authority(tmp_path))
        return attrs.evolve(asks, security=security)

    def context(self, certificate: trustme.LeafCert | None, version: ssl.TLSVersion) -> ssl.SSLContext:
        context = authority.client_context(certificate)
        context.maximum_version = version
        return context

    async def test_a_good_one_is_its_user_with_its_permissions_and_no_more(
        self, guarded: Config, version: ssl.TLSVersion
    ) -> None:
        async with Broker(guarded) as broker:
            context = self.context(authority.client_certificate("alice"), version)
            talker = Talker(await dial_tls(broker.addresses[0], context))
            await talker.connect()
            (connection,) = broker.connections
            assert connection.session.user == "web"
            assert await talker.round_trip(b"mine", "/queue/web.round") == b"mine"
            await talker.send("SEND", {"destination": "/queue/others"}, b"x")
            error = await talker.expect("ERROR")
            assert error.headers["message"] == "no permission to send on /queue/others"
            assert "/queue/others" not in broker.registry.destinations
            await talker.stream.aclose()

    @pytest.mark.parametrize("certificate", [None, "bob"])
    async def test_one_of_a_name_that_is_no_user_must_log_in(
        self, certificate: str | None, guarded: Config, version: ssl.TLSVersion
    ) -> None:
        """As well as who shows none."""
        async with Broker(guarded) as broker:
            shown = None if certificate is None else authority.client_certificate(certificate)
            talker = Talker(await dial_tls(broker.addresses[0], self.context(shown, version)))
            await talker.stream.send_all(talker.machine.connect("test", versions=("1.2",)))
            assert (await talker.expect("ERROR")).headers["code"] == "login-refused"
            await talker.stream.aclose()
            assert broker.guard.statistics().accepted_count == 0
            talker = Talker(await dial_tls(broker.addresses[0], self.context(shown, version)))
            connect = talker.machine.connect("test", login="root", passcode="root", versions=("1.2",))
            await talker.stream.send_all(connect)
            await talker.expect("CONNECTED")
            await talker.stream.aclose()

    @pytest.mark.parametrize(
        ("certificate", "reason"),
        [
            (authority.expired_client_certificate, "certificate has expired"),
            (authority.strange_client_certificate, "unable to get local issuer certificate"),
        ],
    )
    async def test_a_bad_one_is_nobody_though_its_name_is_a_users(
        self, certificate: Any, reason: str, guarded: Config, version: ssl.TLSVersion, log_lines: LogLines
    ) -> None:
        """An expired one, and one of another authority: the connection does not come as far as a login."""
        async with Broker(guarded) as broker:
            await expect_refusal(broker.addresses[0], self.context(certificate(), version))
            with trio.fail_after(PATIENCE_SECONDS):
                while broker.listening.opening_count:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            statistics = broker.guard.statistics()
            assert (statistics.accepted_count, statistics.refused_count) == (0, 0)
        (line,) = log_lines.of("connection not opened")
        assert reason in line["reason"]

    async def test_one_that_is_no_user_any_more_ends_its_connection(
        self, guarded: Config, version: ssl.TLSVersion
    ) -> None:
        async with Broker(guarded) as broker:
            context = self.context(authority.client_certificate("alice"), version)
            talker = Talker(await dial_tls(broker.addresses[0], context))
            await talker.connect()
            everybody = Permission(users=("*",), actions=("connect",))
            security = SecurityConfig(users={"root": "root"}, permissions=(everybody,))
            broker.reload(attrs.evolve(guarded, security=security))
            assert (await talker.expect("ERROR")).headers["message"] == "no permission to connect any more"
            await talker.stream.aclose()


class TestFiles:
    """What is wrong with a file is said with its name."""

    async def expect_refusal(self, tls: TlsConfig, *words: str) -> None:
        with pytest.raises(CertificateError) as refused:
            async with Broker(Config(listeners=(Listener(address="127.0.0.1:0", tls=tls),))):
                raise AssertionError("it started")
        for word in words:
            assert word in str(refused.value)

    async def test_a_certificate_that_is_not_there(self, tmp_path: Path) -> None:
        await self.expect_refusal(TlsConfig(certificate=tmp_path / "none.pem"), "none.pem", "No such file")

    async def test_a_file_that_is_no_certificate(self, tmp_path: Path) -> None:
        (tmp_path / "junk.pem").write_text("junk")
        await self.expect_refusal(TlsConfig(certificate=tmp_path / "junk.pem"), "junk.pem", "BEGIN CERTIFICATE")

    async def test_a_certificate_without_its_key(self, tmp_path: Path) -> None:
        (tmp_path / "half.pem").write_bytes(authority.server_certificate().cert_chain_pems[0].bytes())
        await self.expect_refusal(
            TlsConfig(certificate=tmp_path / "half.pem"), "half.pem", "no private key", "--tls-key"
        )

    async def test_the_key_of_another_certificate(self, tmp_path: Path) -> None:
        ours = authority.write(authority.server_certificate(), tmp_path)
        key = tmp_path / "key.pem"
        key.write_bytes(authority.client_certificate().private_key_pem.bytes())
        await self.expect_refusal(TlsConfig(certificate=ours, key=key), "key.pem", "not the one of the certificate")

    async def test_a_key_with_a_password(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Asked for by name, wrong, from a file and from the environment; never on the terminal."""
        from cryptography.hazmat.primitives import serialization

        pem = authority.server_certificate().private_key_pem.bytes()
        locked = serialization.load_pem_private_key(pem, None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open sesame"),
        )
        (tmp_path / "locked.pem").write_bytes(locked)
        (tmp_path / "password").write_text("open sesame\n")
        files: dict[str, Any] = {
            "certificate": authority.write(authority.server_certificate(), tmp_path),
            "key": tmp_path / "locked.pem",
        }
        await self.expect_refusal(TlsConfig(**files), "locked.pem", "key_password_file")
        monkeypatch.setenv("KEY_PASSWORD", "wrong")
        await self.expect_refusal(TlsConfig(**files, key_password_env="KEY_PASSWORD"), "locked.pem", "password")
        await self.expect_refusal(TlsConfig(**files, key_password_env="NOT_SET"), "NOT_SET", "not set")
        good: dict[str, Any]
        for good in ({"key_password_file": tmp_path / "password"}, {"key_password_env": "KEY_PASSWORD"}):
            monkeypatch.setenv("KEY_PASSWORD", "open sesame")
            async with Broker(Config(listeners=(Listener(address="127.0.0.1:0", tls=TlsConfig(**files, **good)),))):
                pass

    @pytest.mark.parametrize(
        ("settings", "word"),
        [
            ({"key": "k.pem"}, "without a certificate"),
            ({"certificate": "c.pem", "client_certificates": "required"}, "client_ca"),
            ({"certificate": "c.pem", "client_ca": "ca.pem"}, "optional or required"),
            ({"certificate": "c.pem", "key_password_file": "p", "key_password_env": "P"}, "take one"),
            ({"certificate": "c.pem", "key_password_env": "open sesame!"}, "environment variable"),
            ({"certificate": "c.pem", "version_min": "1.1"}, "1.2, 1.3"),
        ],
    )
    def test_settings_that_contradict_each_other(self, settings: dict[str, Any], word: str) -> None:
        with pytest.raises(ValueError, match=word) as refused:
            TlsConfig(**settings)
        assert "sesame" not in str(refused.value)

    async def test_unknown_ciphers(self, tmp_path: Path) -> None:
        ours = authority.write(authority.server_certificate(), tmp_path)
        await self.expect_refusal(TlsConfig(certificate=ours, ciphers="ROT13"), "ROT13", "openssl ciphers")
