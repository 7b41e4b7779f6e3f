"""The command line: arguments, exit codes, and what is said when something is wrong."""

from __future__ import annotations

import errno
import itertools
import json
import socket
import sys
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluiceway.cli import main, waiting
from sluiceway.client.address import Address
from sluiceway.client.link import Link
from sluiceway.config import Config
from sluiceway.version import VERSION
from tests.sluiceway.scripted_broker import Answer, ScriptedBroker, frame


def run(*arguments: str, input: str | bytes | None = None, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, list(arguments), input=input)


# -- help, version, config ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["serve", "send", "receive", "browse", "stat", "top", "doctor", "config", "version"]
)
def test_every_command_shows_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"sluiceway {command}" in result.output.split("Example", 1)[1]


def test_the_exit_codes_are_documented() -> None:
    assert "Exit codes: 0 done; 1 fewer messages" in run("--help").output


def test_version_names_the_packages_of_a_bug_report() -> None:
    output = run("version").output
    assert output.startswith(f"sluiceway {VERSION}\n")
    assert "trio " in output


def test_config_prints_a_file_that_it_accepts(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(run("config").output)
    result = run("config", "--check", str(file))
    assert result.exit_code == 0
    assert "is fine: listens on 127.0.0.1:61613" in result.output


def test_a_bad_configuration_ends_with_2_and_the_key(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[brokre]\n")
    for arguments in (("config", "--check", str(file)), ("serve", "--config", str(file))):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "brokre: unknown key; did you mean broker?" in result.stderr


# -- serve -------------------------------------------------------------------------------------------------------------


class FakeListenError(OSError):
    def __init__(self, address: str, reason: object) -> None:
        super().__init__(str(reason))
        self.address = address
        self.reason = reason


@pytest.fixture
def fake_broker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], list[Config]]:
    """Puts a function in the place of the broker's `serve`; the list holds the configurations it was given."""

    def install(body: Callable[..., Any]) -> list[Config]:
        seen: list[Config] = []

        async def serve(config: Config, *, on_ready: Callable[[list[str]], None], **_more: object) -> None:
            seen.append(config)
            body(on_ready)

        for name, attributes in (("broker", {"ListenError": FakeListenError}), ("serving", {"serve": serve})):
            module = types.ModuleType(f"sluiceway.{name}")
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, f"sluiceway.{name}", module)
        return seen

    return install


def test_serve_says_where_it_is_ready(fake_broker: Any) -> None:
    fake_broker(lambda on_ready: on_ready(["stomp://127.0.0.1:61613", "stomp://[::1]:61613"]))
    result = run("serve")
    assert result.exit_code == 0
    assert result.stdout == "sluiceway ready: stomp://127.0.0.1:61613\nsluiceway ready: stomp://[::1]:61613\n"


def test_flags_of_serve_go_over_environment_and_file(fake_broker: Any, tmp_path: Path) -> None:
    seen = fake_broker(lambda on_ready: None)
    file = tmp_path / "broker.toml"
    file.write_text('listeners = ["127.0.0.1:1"]\n[broker]\nname = "from-file"\n')
    result = run(
        "serve", "--config", str(file), "--listen", "127.0.0.1:2", "--listen", "[::1]:3",
        "--data", str(tmp_path / "flag"),
        SLUICEWAY_LOGGING__LEVEL="error", SLUICEWAY_BROKER__DATA_DIR=str(tmp_path / "environment"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    config = seen[0]
    assert [listener.address for listener in config.listeners] == ["127.0.0.1:2", "[::1]:3"]
    assert (config.broker.name, config.broker.data_dir, config.logging.level) == (
        "from-file",
        tmp_path / "flag",
        "error",
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_a_taken_port_ends_with_3_the_port_and_a_remedy(fake_broker: Any, grouped: bool) -> None:
    """Also when the error comes out of a nursery, in a group."""

    def taken(on_ready: object) -> None:
        error = FakeListenError("127.0.0.1:61613", OSError(errno.EADDRINUSE, "Address already in use"))
        raise ExceptionGroup("nursery", [error]) if grouped else error

    fake_broker(taken)
    result = run("serve")
    assert result.exit_code == 3
    assert "cannot listen on 127.0.0.1:61613" in result.stderr
    assert "Port 61613 is taken" in result.stderr
    assert "--listen 127.0.0.1:0" in result.stderr


def test_a_wrong_address_ends_with_2_and_says_how_it_is_written() -> None:
    result = run("serve", "--listen", "61613")
    assert result.exit_code == 2
    assert "--listen: listeners[1]" in result.stderr
    assert "write HOST:PORT" in result.stderr


# -- send --------------------------------------------------------------------------------------------------------------


def test_send_waits_for_the_receipt_and_says_goodbye() -> None:
    with ScriptedBroker() as broker:
        result = run("send", "/queue/a", "Grüße", "-H", "kind:test", "--persistent", "--url", broker.url)
    assert result.exit_code == 0, result.output
    [(headers, body)] = broker.received("SEND")
    assert body.decode() == "Grüße"
    assert headers["destination"] == "/queue/a"
    assert (headers["kind"], headers["persistent"]) == ("test", "true")
    assert "receipt" in headers
    assert len(broker.received("DISCONNECT")) == 1


def test_send_repeats_the_message() -> None:
    """More than may be outstanding at a time, so that it has to wait in between."""
    with ScriptedBroker() as broker:
        result = run("send", "/queue/a", "x", "--count", "250", "--url", broker.url)
    assert result.exit_code == 0, result.output
    assert len({headers["receipt"] for headers, _body in broker.received("SEND")}) == 250


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_send_reads_standard_input(arguments: tuple[str, ...]) -> None:
    with ScriptedBroker() as broker:
        result = run("send", "/queue/a", *arguments, "--no-receipt", "--url", broker.url, input=b"\x00\xff")
    assert result.exit_code == 0, result.output
    [(headers, body)] = broker.received("SEND")
    assert body == b"\x00\xff"
    assert "receipt" not in headers


def test_send_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"from a file")
    with ScriptedBroker() as broker:
        assert run("send", "/queue/a", "--file", str(file), "--url", broker.url).exit_code == 0
    assert broker.received("SEND")[0][1] == b"from a file"


def test_login_and_passcode_are_sent_and_not_shown() -> None:
    def refuse(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        return frame("ERROR", {"message": "access refused"}, b"unknown login web")

    with ScriptedBroker(refuse) as broker:
        url = broker.url.replace("//", "//web:wrong@")
        result = run("send", "/queue/a", "x", "--url", url, SLUICEWAY_PASSCODE="hunter2")
    assert result.exit_code == 5
    assert "access refused" in result.stderr
    assert "unknown login web" in result.stderr
    assert "hunter2" not in result.output
    headers = broker.frames[0][1]
    assert (headers["login"], headers["passcode"]) == ("web", "hunter2")


def test_an_error_frame_ends_with_5_and_the_brokers_words() -> None:
    def refuse(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        return frame("ERROR", {"message": "no such thing"}) if command == "SEND" else None

    with ScriptedBroker(refuse) as broker:
        result = run("send", "/queue/a", "x", "--url", broker.url)
    assert result.exit_code == 5
    assert "the broker answered ERROR: no such thing" in result.stderr


def test_a_login_that_is_refused_names_the_options() -> None:
    def refuse(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        return frame("ERROR", {"message": "not you", "code": "login-refused"}, b"Check login and passcode.")

    with ScriptedBroker(refuse) as broker:
        result = run("send", "/queue/a", "x", "--url", broker.url)
    assert result.exit_code == 5
    assert result.stderr == (
        "sluiceway: the broker answered ERROR: not you\nCheck login and passcode.\n"
        "They come from --login and SLUICEWAY_PASSCODE (or --passcode), or from the URL.\n"
    )


def test_a_send_that_waits_for_long_says_once_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever fills a queue sees a command that hangs."""
    told = threading.Event()
    say = waiting.say_that_it_waits

    def say_and_tell(address: Address) -> None:
        say(address)
        told.set()

    def slow(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        assert command != "SEND" or told.wait(10)
        return None

    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr("sluiceway.cli.messages.say_that_it_waits", say_and_tell)
    monkeypatch.setattr(waiting, "_ask", lambda _target, _said: None)
    with ScriptedBroker(slow) as broker:
        result = run("send", "/queue/a", "x", "--url", broker.url, "--count", "2")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "sluiceway: waiting: the broker has not confirmed all of it yet",
        "  `sluiceway stat` names the cause",
        "  It resumes as soon as the broker does; Ctrl-C ends it",
    ]


def test_words_why_a_broker_takes_nothing_are_its_own() -> None:
    report = {
        "store": {"state": "failing", "error": "no space left on device"},
        "bottlenecks": [{"words": "store blocks 1 flow, for 5 s"}],
    }
    assert waiting.words_of_report(report) == [
        "store: failing: no space left on device",
        "bottleneck: store blocks 1 flow, for 5 s",
    ]
    assert waiting.words_of_report({"store": {"state": "ok"}}) == []


@pytest.mark.parametrize(("moves", "waits", "told_count"), [(False, True, 1), (True, True, 0), (False, False, 0)])
def test_only_a_command_whose_broker_does_not_get_on_says_so(
    monkeypatch: pytest.MonkeyPatch, *, moves: bool, waits: bool, told_count: int
) -> None:
    """Once; not one that waits for its own input."""
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.001)
    told: list[None] = []
    looks = itertools.count()
    looked_enough = threading.Event()

    def progress() -> tuple[int, bool]:
        number = next(looks)
        if number == 50:
            looked_enough.set()
        return number if moves else 0, waits

    def tell() -> None:
        told.append(None)
        looked_enough.set()

    with waiting.watched(progress, 0.01, tell):
        assert looked_enough.wait(10)
    assert len(told) == told_count


def test_no_broker_ends_with_4_and_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = run("send", "/queue/a", "x", "--url", f"127.0.0.1:{port}")
    assert result.exit_code == 4
    assert f"no broker answers at stomp://127.0.0.1:{port}" in result.stderr
    assert "sluiceway serve" in result.stderr


def test_a_host_that_is_not_known_is_not_a_broker_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    result = run("send", "/queue/a", "x", "--url", "brokr.example")
    assert result.exit_code == 4
    assert "the host 'brokr.example' of stomp://brokr.example:61613 is not known" in result.stderr
    assert "--url" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "/queue/a", "x", "--file", __file__), "not both"),
        (("send", "42 ducks", "/queue/a"), "comes first: sluiceway send /queue/a '42 ducks'"),
        (("send", "/queue/a", "x", "-H", "nonsense"), "NAME:VALUE"),
        (("send", "/queue/a", "x", "--url", "amqp://x"), "write stomp://HOST:PORT"),
        (("receive",), "DESTINATION"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


# -- receive -----------------------------------------------------------------------------------------------------------


def deliver(*bodies: bytes) -> Answer:
    def answer(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        if command != "SUBSCRIBE":
            return None
        common = {"subscription": headers["id"], "destination": headers["destination"]}
        return b"".join(
            frame("MESSAGE", {**common, "message-id": str(number), "ack": f"a{number}"}, content)
            for number, content in enumerate(bodies)
        )

    return answer


def test_receive_prints_and_acknowledges_what_it_was_asked_for() -> None:
    """The third message is there already, but stays unacknowledged: it belongs to another user."""
    with ScriptedBroker(deliver(b"one", b"two", b"three")) as broker:
        result = run("receive", "/queue/a", "--count", "2", "--url", broker.url)
    assert result.exit_code == 0, result.output
    assert result.stdout == "one\ntwo\n"
    assert [headers["id"] for headers, _body in broker.received("ACK")] == ["a0", "a1"]
    subscribe = broker.received("SUBSCRIBE")[0][0]
    assert (subscribe["ack"], subscribe["prefetch-count"]) == ("client-individual", "2")


def test_receive_in_auto_mode_acknowledges_nothing() -> None:
    with ScriptedBroker(deliver(b"one")) as broker:
        assert run("receive", "/queue/a", "--count", "1", "--ack", "auto", "--url", broker.url).exit_code == 0
    assert not broker.received("ACK")


def test_fewer_messages_than_asked_for_end_with_1() -> None:
    with ScriptedBroker(deliver(b"one")) as broker:
        result = run("receive", "/queue/a", "--count", "2", "--timeout", "0.05", "--url", broker.url)
    assert result.exit_code == 1
    assert "1 of 2 messages came" in result.stderr
    assert result.stdout == "one\n"


def test_an_interrupted_receive_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C without a --timeout once ended in a traceback."""
    taken = Link.next_message

    def once(self: Link, timeout_seconds: float | None) -> Any:
        if next(left, False):
            return taken(self, timeout_seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(Link, "next_message", once)
    left = iter([True])
    with ScriptedBroker(deliver(b"one")) as broker:
        result = run("receive", "/queue/a", "--count", "5", "--url", broker.url)
    assert result.exit_code == 1
    assert result.stderr == "sluiceway: 1 of 5 messages came, then it was interrupted\n"
    left = iter([True])
    with ScriptedBroker(deliver(b"one")) as broker:
        result = run("receive", "/queue/a", "--url", broker.url)
    assert result.exit_code == 0
    assert result.stderr == "1 message received\n"


def test_receive_prints_json_lines() -> None:
    with ScriptedBroker(deliver("ü".encode(), b"\xff")) as broker:
        result = run("receive", "/queue/a", "--count", "2", "--format", "json", "--url", broker.url)
    text, binary = (json.loads(line) for line in result.stdout.splitlines())
    assert text["body"] == "ü"
    assert text["headers"]["message-id"] == "0"
    assert binary["body_base64"] == "/w=="


def test_receive_prints_bare_bodies() -> None:
    with ScriptedBroker(deliver(b"\x00a", b"b")) as broker:
        result = run("receive", "/queue/a", "--count", "2", "--format", "body", "--url", broker.url)
    assert result.stdout_bytes == b"\x00ab"


# -- stat --------------------------------------------------------------------------------------------------------------

REPORT: dict[str, Any] = {
    "broker": {"name": "sluiceway", "version": "0.1.0", "uptime_seconds": 3700.0, "rss_bytes": 50 << 20},
    "used_bytes": 64 << 20,
    "destinations": [
        {"name": "/queue/quiet", "kind": "queue", "depth_count": 0, "depth_bytes": 0},
        {
            "name": "/queue/orders",
            "kind": "queue",
            "depth_count": 300_000,
            "depth_bytes": 64 << 20,
            "oldest_age_seconds": 41.0,
        },
    ],
    "chains": [{"words": "producer web-3 waits on queue orders (memory full, 41 s)"}],
    "bottlenecks": [{"words": "subscription billing-2 blocks 7 flows, for 41 s"}],
    "dispatcher": {"dispatches_count": 12_345, "longest_dispatch_seconds": 0.0031, "ready_count": [0] * 10},
}


def answer_stat(content: bytes) -> Answer:
    def answer(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        if command != "SEND":
            return None
        assert headers["destination"] == "/sluiceway/stat"
        assert headers["reply-to"] == "/temp-queue/stat"
        return frame("MESSAGE", {"subscription": "1", "message-id": "1", "destination": "/temp-queue/stat"}, content)

    return answer


def test_stat_names_the_bottleneck_first_and_the_busiest_destination() -> None:
    with ScriptedBroker(answer_stat(json.dumps(REPORT).encode())) as broker:
        result = run("stat", "--url", broker.url)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "up 62 min" in lines[0]
    assert lines[1] == "bottleneck: subscription billing-2 blocks 7 flows, for 41 s"
    assert "producer web-3 waits on queue orders" in lines[2]
    assert result.stdout.index("/queue/orders") < result.stdout.index("/queue/quiet")
    assert "12,345 dispatches" in result.stdout


def test_stat_as_json_is_what_the_broker_said() -> None:
    with ScriptedBroker(answer_stat(json.dumps(REPORT).encode())) as broker:
        result = run("stat", "--json", "--url", broker.url)
    assert json.loads(result.stdout) == REPORT


def test_stat_of_something_else_says_so() -> None:
    with ScriptedBroker(answer_stat(b"hello")) as broker:
        result = run("stat", "--url", broker.url)
    assert result.exit_code == 4
    assert "is it a Sluiceway broker" in result.stderr


def another_broker(command: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
    """RabbitMQ: it says so, and refuses what it does not know."""
    if command == "CONNECT":
        return frame("CONNECTED", {"version": "1.2", "server": "RabbitMQ/3.10.8"})
    return frame("ERROR", {"message": "Invalid destination"}) if command == "SUBSCRIBE" else None


def test_stat_of_another_broker_names_it() -> None:
    with ScriptedBroker(another_broker) as broker:
        result = run("stat", "--url", broker.url)
    assert result.exit_code == 4
    assert "is RabbitMQ/3.10.8, not Sluiceway" in result.stderr


def test_doctor_of_another_broker_names_it_and_advises_no_login() -> None:
    with ScriptedBroker(another_broker) as broker:
        result = run("doctor", "--url", broker.url)
    assert "is RabbitMQ/3.10.8, not Sluiceway" in result.output
    assert "may `admin`" not in result.output
