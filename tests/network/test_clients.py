"""Our own clients over TLS: the commands, producers and consumers, Spark's connection."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_stomp.wire import Connection
from sluiceway.cli import main
from sluiceway.client import CannotConnectError, Consumer, Producer
from sluiceway.client.address import Address, Tls
from sluiceway.client.secure import why_refused
from sluiceway.config import Config, Listener
from sluiceway.embedded import EmbeddedBroker
from sluiceway.protocols.settings import TlsConfig
from tests.network import authority


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """One that wants client certificates."""
    tls = TlsConfig(
        certificate=authority.write(authority.server_certificate(), tmp_path),
        client_certificates="required",
        client_ca=authority.write_authority(tmp_path),
    )
    listeners = (Listener(address="127.0.0.1:0", tls=tls), Listener(address="127.0.0.1:0"))
    with EmbeddedBroker(Config(listeners=listeners)) as running:
        yield running


@pytest.fixture
def files(tmp_path: Path, broker: EmbeddedBroker) -> dict[str, str]:
    """What a client needs."""
    cert = authority.write(authority.client_certificate(), tmp_path, "client")
    return {"ca": str(tmp_path / "ca.pem"), "cert": str(cert)}


def url_of(broker: EmbeddedBroker) -> str:
    return f"stomp+ssl://localhost:{broker.port}"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize("has_strange_one", [False, True])
def test_a_command_without_the_right_certificate_is_told_what_to_look_at(
    attempt: int, has_strange_one: bool, broker: EmbeddedBroker, files: dict[str, str], tmp_path: Path
) -> None:
    """However the connection happens to break: in the handshake, or when the client believes that all is well."""
    secure = ["--url", url_of(broker), "--ca", files["ca"]]
    if has_strange_one:
        strange = authority.write(authority.strange_client_certificate(), tmp_path, "strange")
        secure += ["--cert", str(strange)]
    code, said = run("send", "/queue/a", "secret", *secure)
    assert code
    assert ("may not trust this certificate" if has_strange_one else "--cert FILE") in said
    assert "the broker's log says why" in said


def test_the_commands_send_and_receive(broker: EmbeddedBroker, files: dict[str, str]) -> None:
    secure = ["--url", url_of(broker), "--ca", files["ca"], "--cert", files["cert"]]
    assert run("send", "/queue/a", "secret", *secure) == (0, "")
    code, said = run("receive", "/queue/a", "--count", "1", *secure)
    assert code == 0
    assert "secret" in said
    code, said = run("stat", *secure)
    assert code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ca", "none.pem"], "no such file"),
        ([], "is not trusted"),
        (["--key", "k.pem"], "without a certificate"),
    ],
)
def test_what_is_wrong_is_said(broker: EmbeddedBroker, options: list[str], words: str) -> None:
    code, said = run("send", "/queue/a", "x", "--url", url_of(broker), *options)
    assert code == 4, said
    assert words in said


def test_another_host_than_the_certificate_says(broker: EmbeddedBroker, files: dict[str, str]) -> None:
    url = f"stomp+ssl://127.0.0.1:{broker.port}"
    code, said = run("send", "/queue/a", "x", "--url", url, "--ca", files["ca"], "--cert", files["cert"])
    assert code == 4
    assert "mismatch, certificate is not valid for '127.0.0.1'. Name the broker as its certificate does" in said
    assert "--ca" not in said, "the authority is the right one"


def test_a_certificate_that_has_ended_is_called_so() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 10, "certificate has expired"
    said = why_refused(error, Tls())
    assert said == (
        "its certificate is not valid now: certificate has expired. It needs a new one, or the clock of this machine "
        "is wrong"
    )


def test_tls_to_a_port_without_it(broker: EmbeddedBroker, files: dict[str, str]) -> None:
    port = broker.call(lambda running: running.addresses[1]).rpartition(":")[2]
    code, said = run("send", "/queue/a", "x", "--url", f"stomp+ssl://localhost:{port}", "--ca", files["ca"])
    assert code == 4
    assert "does not speak TLS" in said


@pytest.mark.parametrize(
    "url",
    [
        "stomp://h:1?ca=x",
        "stomp+ssl://h:1?cafile=x",
        "stomp+ssl://h:1?ca=",
        "wss://h:1",
        "stomp://h:99999",
        "stomp://[abc]:1",
        "stomp://[::1",
        "[::1]x:80",
        "a[::1]:80",
        "stomp://[v1.x]:1",
        "stomp://:1",
    ],
)
def test_addresses_that_can_not_be(url: str) -> None:
    """Alike in all patch releases of Python, which judge brackets differently."""
    code, said = run("send", "/queue/a", "x", "--url", url)
    assert code == 2, said
    with pytest.raises(ValueError, match=r"write|takes|need|address"):
        Address.parse(url)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (" stomp://h:1 ", "h", 1),
        ("[::1]:5", "::1", 5),
        ("stomp://user:p%40ss@[fe80::1%eth0]:5/", "fe80::1%eth0", 5),
        ("127.0.0.1", "127.0.0.1", 61613),
    ],
)
def test_addresses_as_people_write_them(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)


def test_an_address_names_its_files() -> None:
    assert Address.parse("stomp+ssl://b?ca=/x/ca.pem&cert=c") == Address("b", 61614, tls=Tls("/x/ca.pem", "c"))


def test_a_producer_and_a_consumer(broker: EmbeddedBroker, files: dict[str, str]) -> None:
    """Batches of some size, so that reading and writing go on at once in several threads."""
    url = f"{url_of(broker)}?ca={files['ca']}&cert={files['cert']}"
    bodies = [str(n) * 1000 for n in range(3000)]
    got: list[str] = []

    def consume() -> None:
        with Consumer(url, group="g", from_="earliest") as consumer:
            for record in consumer.stream("secure"):
                got.append(bytes(record.value).decode())
                if len(got) == len(bodies):
                    return

    reader = threading.Thread(target=consume)
    with Producer(url, log="secure") as producer:
        reader.start()
        for body in bodies:
            producer.send(body)
    reader.join(20)
    assert got == bodies


def test_the_commands_about_logs_speak_tls_all_the_way(broker: EmbeddedBroker, files: dict[str, str]) -> None:
    secure = ["--url", url_of(broker), "--ca", files["ca"], "--cert", files["cert"]]
    lines = Path(files["ca"]).parent / "lines"
    lines.write_text("one\ntwo\n")
    assert run("log", "append", "n", str(lines), *secure)[0] == 0
    for group in ([], ["--group", "g", "--count", "2"]):
        code, said = run("log", "tail", "n", "--from", "earliest", *group, *secure)
        assert (code, said) == (0, "one\ntwo\n")


def test_a_producer_that_does_not_trust_the_broker(broker: EmbeddedBroker) -> None:
    with (
        pytest.raises(CannotConnectError, match="not trusted"),
        Producer(url_of(broker), log="secure", mode="sync", give_up_seconds=0.5) as p,
    ):
        p.send("x")


def test_sparks_connection(broker: EmbeddedBroker, files: dict[str, str]) -> None:
    address = Address.parse(f"{url_of(broker)}?ca={files['ca']}&cert={files['cert']}")
    with Connection(address) as connection:
        assert connection.request("log/list") is not None


def test_config_check_looks_at_certificates(tmp_path: Path) -> None:
    """A file that names one which can't be used would not start."""
    certificate = authority.write(authority.server_certificate(), tmp_path)
    file = tmp_path / "sluiceway.toml"
    text = '[[listeners]]\naddress = "127.0.0.1:0"\nname = "web"\n[listeners.tls]\ncertificate = "{}"\n'
    file.write_text(text.format(certificate))
    assert run("config", "--check", str(file))[0] == 0
    file.write_text(text.format(tmp_path / "gone.pem"))
    code, said = run("config", "--check", str(file))
    assert code == 2
    assert "listeners[web].tls" in said
    assert "gone.pem" in said
