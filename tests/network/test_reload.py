"""Other settings while the broker runs, by `Broker.reload` and by SIGHUP."""

from __future__ import annotations

import json
import signal
import ssl
import threading
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, ConfigError, DestinationPolicy, Listener, LoggingConfig
from sluiceway.faults import Faults
from sluiceway.listeners import Counts
from sluiceway.protocols.settings import TlsConfig
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues.names import parse
from sluiceway.queues.registry import SWEEP_SECONDS
from sluiceway.reloading import ReloadError
from sluiceway.security.config import Permission, SecurityConfig
from sluiceway.serving import serve
from sluiceway.store.config import StoreConfig
from tests.log_lines import LogLines
from tests.network import authority
from tests.network.talking import PATIENCE_SECONDS, Talker, dial, dial_tls
from tests.sluiceway.broker_process import BrokerProcess

PLAIN = Listener(address="127.0.0.1:0", name="plain")


def config(*listeners: Listener, **sections: Any) -> Config:
    return Config(listeners=listeners or (PLAIN,), **sections)


async def shown_certificate(address: str) -> bytes | None:
    """What a new connection gets to see."""
    stream = await dial_tls(address, authority.client_context())
    shown: bytes | None = stream.getpeercert(binary_form=True)
    await trio.aclose_forcefully(stream)
    return shown


def der_of(certificate: Any) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())


class TestCertificates:
    async def test_new_connections_get_the_new_one_and_old_ones_go_on(self, tmp_path: Path) -> None:
        first, second = authority.server_certificate(), authority.certificate_until(30)
        tls = TlsConfig(certificate=authority.write(first, tmp_path))
        settings = config(Listener(address="127.0.0.1:0", name="secure", tls=tls))
        async with Broker(settings) as broker:
            talker = Talker(await dial_tls(broker.addresses[0], authority.client_context()))
            await talker.connect()
            assert await shown_certificate(broker.addresses[0]) == der_of(first)
            authority.write(second, tmp_path)
            report = broker.reload(settings)
            assert report.changed == ("listeners[secure].tls (certificate read again)",)
            assert await shown_certificate(broker.addresses[0]) == der_of(second)
            assert await talker.round_trip(b"as before") == b"as before"
            await talker.stream.aclose()

    async def test_all_that_is_wrong_is_named_and_nothing_changes(self, tmp_path: Path, log_lines: LogLines) -> None:
        certificate = authority.write(authority.server_certificate(), tmp_path)
        secure = Listener(address="127.0.0.1:0", name="secure", tls=TlsConfig(certificate=certificate))
        settings = config(secure, PLAIN)
        async with Broker(settings) as broker:
            wrong = config(
                attrs.evolve(secure, tls=TlsConfig(certificate=tmp_path / "gone.pem")),
                attrs.evolve(PLAIN, tls=TlsConfig(certificate=tmp_path / "missing.pem")),
                Listener(address="127.0.0.1:0", name="new"),
            )
            with pytest.raises(ReloadError) as refused:
                broker.reload(wrong)
            assert "gone.pem" in str(refused.value)
            assert "missing.pem" in str(refused.value)
            assert broker.config is settings
            assert len(broker.listeners) == 2
            assert await shown_certificate(broker.addresses[0]) == der_of(authority.server_certificate())
        (line,) = log_lines.of("reload refused: nothing has changed")
        assert len(line["mistakes"]) == 2


class TestListeners:
    async def test_limits_are_those_of_new_connections(self) -> None:
        async with Broker(config(PLAIN)) as broker:
            old = Talker(await dial(broker.addresses[0]))
            await old.connect()
            limits = StompLimits(body_bytes_max=1024, large_body_bytes=0)
            report = broker.reload(config(attrs.evolve(PLAIN, limits=limits, connections_max=2)))
            assert set(report.changed) == {
                "listeners[plain].limits.body_bytes_max",
                "listeners[plain].limits.large_body_bytes",
                "listeners[plain].connections_max",
            }
            new = Talker(await dial(broker.addresses[0]))
            await new.connect()
            assert await old.round_trip(b"x" * 5000) == b"x" * 5000
            await new.send("SEND", {"destination": "/queue/a"}, b"x" * 5000)
            assert (await new.expect("ERROR")).headers["code"] == "body-too-large"
            for talker in (old, new):
                await talker.stream.aclose()

    async def test_one_more_is_opened_and_one_less_is_closed_to_new_ones(self) -> None:
        other = Listener(address="127.0.0.1:0", name="other")
        async with Broker(config(PLAIN)) as broker:
            address = broker.addresses[0]
            talker = Talker(await dial(address))
            await talker.connect()
            assert broker.reload(config(PLAIN, other)).changed == ("listeners[other] (new)",)
            assert len(broker.urls) == 2
            added = Talker(await dial(broker.addresses[1]))
            await added.connect()
            assert broker.reload(config(other)).changed == ("listeners[plain] (closed)",)
            with pytest.raises(OSError):
                await dial(address)
            assert await talker.round_trip(b"as before") == b"as before"
            for each in (talker, added):
                await each.stream.aclose()

    async def test_what_was_counted_under_a_name_stays_while_there_is_a_listener_of_it(self) -> None:
        """Counters of metrics never go back."""
        first, second = (Listener(address=f"127.0.0.{host}:0", name="front") for host in (1, 2))
        async with Broker(config(first)) as broker:
            talker = Talker(await dial(broker.addresses[0]))
            await talker.connect()
            assert broker.listening.counts() == {"front": Counts(1, 1, 0)}
            broker.reload(config(second))
            assert broker.listening.counts() == {"front": Counts(1, 1, 0)}
            other = Talker(await dial(broker.addresses[0]))
            await other.connect()
            assert b'sluiceway_connections_accepted_total{listener="front"} 2' in await broker.metrics_page()
            broker.reload(config(PLAIN))
            assert broker.listening.counts() == {"front": Counts(2, 2, 0), "plain": Counts(0, 0, 0)}
            for each in (talker, other):
                await each.stream.aclose()
            with trio.fail_after(PATIENCE_SECONDS):
                while broker.connections:  # noqa: ASYNC110 - nobody is told of it
                    await trio.sleep(0.01)
            assert broker.listening.counts() == {"plain": Counts(0, 0, 0)}

    async def test_a_listener_that_waits_no_longer_for_a_slowed_login_is_told_once(self, log_lines: LogLines) -> None:
        security = SecurityConfig(users={"ann": "a"}, permissions=(Permission(users=("ann",), actions=("*",)),))
        async with Broker(config(PLAIN, security=security)) as broker:
            hasty = attrs.evolve(PLAIN, limits=StompLimits(connect_timeout_seconds=1.0))
            for _ in range(2):
                broker.reload(config(hasty, security=security))
        (line,) = [
            each for each in log_lines.of("suspicious security configuration") if "connect_timeout" in each["found"]
        ]
        assert "listener plain" in line["found"]

    async def test_an_address_that_is_taken_changes_nothing(self) -> None:
        async with Broker(config(PLAIN)) as broker, Broker(config(PLAIN)) as neighbour:
            taken = Listener(address=neighbour.addresses[0])
            free = Listener(address="127.0.0.1:0", name="free")
            with pytest.raises(ReloadError, match="in use"):
                broker.reload(config(free, taken))
            assert len(broker.listeners) == 1
            assert broker.config.listeners == (PLAIN,)

    async def test_a_port_that_is_our_own_is_said_to_be(self) -> None:
        """Of a listener that gets another name, or another address on the same port: no other program has it."""
        async with Broker(config(PLAIN)) as broker:
            address = broker.addresses[0]
            everywhere = f"0.0.0.0:{address.rpartition(':')[2]}"
            for other in (Listener(address=address, name="renamed"), Listener(address=everywhere, name="plain")):
                with pytest.raises(ReloadError, match="this broker does so already, as listener plain"):
                    broker.reload(config(other))
            assert broker.addresses == [address]

    async def test_a_broker_that_is_about_to_stop_opens_no_more(self, log_lines: LogLines) -> None:
        """Drained or stopped: a listener that a reload adds would take in whoever comes."""
        other = Listener(address="127.0.0.1:0", name="other")
        async with Broker(config(PLAIN)) as broker:
            consumer = Talker(await dial(broker.addresses[0]))
            await consumer.connect()
            await consumer.send("SUBSCRIBE", {"destination": "/queue/a", "id": "1", "ack": "client"})
            await consumer.send("SEND", {"destination": "/queue/a"}, b"not acknowledged: the drain goes on")
            await consumer.expect("MESSAGE")
            assert broker.drain(60.0) == 0
            with pytest.raises(ReloadError, match="about to stop"):
                broker.reload(config(PLAIN, other))
            assert broker.config.listeners == (PLAIN,)
            assert len(broker.listeners) == 1
            await consumer.stream.aclose()
            await broker.stop()
            with pytest.raises(ReloadError, match="about to stop"):
                broker.reload(config(PLAIN, other))
        assert len(log_lines.of("reload refused: nothing has changed")) == 2

    async def test_a_name_that_must_be_looked_up_is_refused(self) -> None:
        async with Broker(config(PLAIN)) as broker:
            with pytest.raises(ReloadError, match="looked up at the start only"):
                broker.reload(config(PLAIN, Listener(address="broker.invalid:61613")))

    async def test_a_plain_listener_can_become_a_secure_one(self, tmp_path: Path) -> None:
        tls = TlsConfig(certificate=authority.write(authority.server_certificate(), tmp_path))
        async with Broker(config(PLAIN)) as broker:
            broker.reload(config(attrs.evolve(PLAIN, tls=tls)))
            assert broker.urls[0].startswith("stomp+ssl://")
            assert await shown_certificate(broker.addresses[0]) is not None


class TestOtherKeys:
    async def test_what_needs_a_restart_is_named_and_stays(self, log_lines: LogLines) -> None:
        async with Broker(config()) as broker:
            other = config(
                broker=BrokerConfig(name="another", shutdown_seconds=1.0, destinations_max=7),
                store=StoreConfig(engine="memory"),
            )
            report = broker.reload(other)
            assert set(report.changed) == {"broker.shutdown_seconds", "broker.destinations_max"}
            assert set(report.needs_restart) == {"broker.name", "store.engine"}
            assert broker.config.broker.shutdown_seconds == 1.0
            assert broker.config.broker.name == "sluiceway"
            assert broker.config.store == StoreConfig()
            assert broker.reloading.may_change("listeners[web].tls.key")
            assert not broker.reloading.may_change("store.engine")
        (line,) = log_lines.of("reloaded")
        assert line["level"] == "warning"
        assert "store.engine" in line["needs_restart"]

    async def test_the_same_again_changes_nothing(self) -> None:
        async with Broker(config()) as broker:
            report = broker.reload(config())
            assert (report.changed, report.needs_restart) == ((), ())

    async def test_who_says_so_takes_a_section(self) -> None:
        async with Broker(config()) as broker:
            taken: list[Config] = []
            broker.reloading.takes("logging", taken.append)
            wanted = config(logging=attrs.evolve(config().logging, level="debug"))
            assert broker.reload(wanted).changed == ("logging.level",)
            assert taken == [wanted]

    async def test_a_broker_inside_a_program_has_nothing_to_read_again(self) -> None:
        async with Broker(config()) as broker:
            with pytest.raises(ReloadError, match="its program holds its settings"):
                await broker.reload_from_source()

    async def test_a_reload_whose_source_hangs_can_be_given_up(self) -> None:
        """The next one waits until that has come to something, and is the one that counts."""
        over = threading.Event()
        levels = iter(["error", "debug"])
        read: list[str] = []

        def hanging() -> Config:
            level = next(levels)
            over.wait(10)
            read.append(level)
            return config(logging=LoggingConfig(level=level))

        async with Broker(config()) as broker:
            broker.reloading.takes("logging", lambda _config: None)
            broker.reloading.source = hanging
            with trio.move_on_after(0.1) as given_up:
                await broker.reload_from_source()
            with trio.move_on_after(0.1) as waiting:
                await broker.reload_from_source()
            assert given_up.cancelled_caught and waiting.cancelled_caught
            over.set()
            await broker.reload_from_source()
            assert read == ["error", "debug"] and broker.config.logging.level == "debug"

    async def test_a_broken_file_changes_nothing_and_is_one_line(self, log_lines: LogLines) -> None:
        def broken() -> Config:
            raise ConfigError("a.toml: x: wrong\na.toml: y: wrong")

        async with Broker(config()) as broker:
            broker.reloading.source = broken
            with pytest.raises(ReloadError):
                await broker.reload_from_source()
        (line,) = log_lines.of("reload refused: nothing has changed")
        assert line["mistakes"] == ["a.toml: x: wrong", "a.toml: y: wrong"]


class TestPolicies:
    async def test_new_destinations_have_them_and_old_ones_what_is_safe(self, autojump_clock: Any) -> None:
        """With the next sweep."""
        async with Broker(config()) as broker:
            old = broker.registry.get(parse("/queue/old"))
            old.queue.partition(4)
            settings = {
                "redeliveries_max": 3,
                "auto_delete_seconds": None,
                "memory_bytes": 1 << 20,
                "paging": "offload",
            }
            report = broker.reload(config(destinations=(DestinationPolicy("/queue/>", settings),)))
            assert "destinations" in report.changed
            assert report.needs_restart == ("destinations[/queue/>].paging (for destinations that exist)",)
            await trio.sleep(SWEEP_SECONDS * 1.5)
            assert old.policy.redeliveries_max == 3
            assert [queue.policy.redeliveries_max for queue in old.queues] == [3]
            assert old.policy.memory_bytes == 1 << 20 and old.policy.paging != "offload"
            new = broker.registry.get(parse("/queue/new"))
            assert new.policy.paging == "offload"


async def test_a_setting_that_breaks_is_tried_again_and_keeps_no_other_back() -> None:
    levels: list[str] = []
    before = config(logging=LoggingConfig(level="info"))
    after = config(
        logging=LoggingConfig(level="debug"),
        destinations=(DestinationPolicy(match="/queue/>", settings={"count_max": 7}),),
    )
    async with Broker(before) as broker:

        def breaks_once(changed: Config) -> None:
            levels.append(changed.logging.level)
            if len(levels) == 1:
                raise RuntimeError("nobody expected this")

        broker.reloading.takes("logging", breaks_once)
        report = broker.reload(after)
        assert broker.faults.count == 1 and broker.config.logging.level == "info"
        assert "logging.level (the broker made a mistake with it)" in report.needs_restart
        assert "destinations" in report.changed
        assert broker.registry.get(parse("/queue/new")).policy.count_max == 7
        assert broker.reload(after).changed == ("logging.level",)
        assert levels == ["debug", "debug"] and broker.config == after


class TestSignal:
    """SIGHUP to a broker of its own."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        authority.write(authority.server_certificate(), tmp_path)
        self.write(tmp_path, "info")
        return tmp_path

    def write(self, folder: Path, level: str, more: str = "") -> None:
        (folder / "sluiceway.toml").write_text(
            f'[logging]\nlevel = "{level}"\n{more}\n'
            '[[listeners]]\naddress = "127.0.0.1:0"\nname = "secure"\n[listeners.tls]\ncertificate = "server.pem"\n'
        )

    async def until_logged(self, process: BrokerProcess, event: str, count: int = 1) -> list[dict[str, Any]]:
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                whole, _newline, _begun = process.log.rpartition("\n")
                lines = [json.loads(line) for line in whole.splitlines()]
                found = [line for line in lines if line["event"] == event]
                if len(found) >= count:
                    return found
                await trio.sleep(0.02)

    async def test_it_swaps_the_certificate_and_refuses_a_broken_file(self, folder: Path) -> None:
        with BrokerProcess(folder, "--config", "sluiceway.toml", listen=None) as process:
            address = ":".join(map(str, process.address))
            talker = Talker(await dial_tls(address, authority.client_context()))
            await talker.connect()
            authority.write(authority.certificate_until(30), folder)
            process.signal(signal.SIGHUP)
            await self.until_logged(process, "reloaded")
            assert await shown_certificate(address) == der_of(authority.certificate_until(30))
            assert await talker.round_trip(b"as before") == b"as before"

            self.write(folder, "loud", "nonsense = 1")
            process.signal(signal.SIGHUP)
            (line,) = await self.until_logged(process, "reload refused: nothing has changed")
            assert len(line["mistakes"]) == 2
            assert await talker.round_trip(b"still as before") == b"still as before"

            self.write(folder, "debug")
            process.signal(signal.SIGHUP)
            lines = await self.until_logged(process, "reloaded", 2)
            assert lines[1]["changed"] == ["logging.level"]
            await talker.stream.aclose()
            process.signal(signal.SIGTERM)
            with trio.fail_after(PATIENCE_SECONDS):
                assert await trio.to_thread.run_sync(process.wait) == 0

    async def test_former_names_are_logged_at_the_start_and_at_a_reload(self, tmp_path: Path) -> None:
        file = tmp_path / "sluiceway.toml"
        file.write_text('[logs]\nlevel = "info"\nformat = "json"\n')
        with BrokerProcess(tmp_path, "--config", "sluiceway.toml") as process:
            (line,) = await self.until_logged(process, "former name in the configuration")
            assert (line["level"], line["where"]) == ("warning", "sluiceway.toml, line 1")
            assert line["remedy"] == "write [logging] in place of [logs]"
            file.write_text('[logs]\nlevel = "debug"\nformat = "json"\n')
            process.signal(signal.SIGHUP)
            (reloaded,) = await self.until_logged(process, "reloaded")
            assert reloaded["changed"] == ["logging.level"]
            await self.until_logged(process, "former name in the configuration", 2)

    async def test_a_stop_does_not_wait_for_a_source_that_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Such as a file on a disk that does not answer."""
        ready, hangs, ended = trio.Event(), trio.Event(), trio.Event()
        over = threading.Event()
        memory = StoreConfig(engine="memory")

        def source() -> Config:
            trio.from_thread.run_sync(hangs.set)
            over.wait(30)
            return config(store=memory)

        async def run() -> None:
            await serve(config(store=memory), on_ready=lambda _urls: ready.set(), source=source)
            ended.set()

        monkeypatch.setattr("sluiceway.serving.tune_garbage_collector", lambda: None)
        monkeypatch.setattr("sluiceway.serving.tune_allocator", lambda: None)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                with trio.fail_after(15):
                    await ready.wait()
                    for _ in range(3):
                        signal.raise_signal(signal.SIGHUP)
                    await hangs.wait()
                signal.raise_signal(signal.SIGTERM)
                with trio.move_on_after(10):
                    await ended.wait()
                assert ended.is_set()
        finally:
            over.set()

    async def test_what_a_reload_raises_costs_that_reload(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that nobody expected, of where the settings come from."""
        memory = StoreConfig(engine="memory")
        settings = iter(
            [RuntimeError("nobody expected this"), config(store=memory, logging=LoggingConfig(level="debug"))]
        )
        ready, contained, applied = trio.Event(), trio.Event(), trio.Event()
        met: list[Exception] = []

        def source() -> Config:
            found = next(settings)
            if isinstance(found, Exception):
                raise found
            return found

        def contain(_faults: Faults, error: Exception) -> None:
            met.append(error)
            contained.set()

        monkeypatch.setattr(Faults, "contain", contain)
        monkeypatch.setattr("sluiceway.serving.tune_garbage_collector", lambda: None)
        monkeypatch.setattr("sluiceway.serving.tune_allocator", lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(
                    serve,
                    config(store=memory),
                    on_ready=lambda _urls: ready.set(),
                    source=source,
                    apply_logging=lambda _config: applied.set(),
                )
            )
            with trio.fail_after(PATIENCE_SECONDS):
                await ready.wait()
                signal.raise_signal(signal.SIGHUP)
                await contained.wait()
                signal.raise_signal(signal.SIGHUP)
                await applied.wait()
                signal.raise_signal(signal.SIGTERM)
        assert [type(error) for error in met] == [RuntimeError]
