"""CONNECT, CONNECTED, versions and heart-beats: checklist b10, b15-b24."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.errors import LocalProtocolError
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import Connect, Fault, Frame, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ClientMachine, ServerMachine, negotiate, parse_heart_beat
from sluiceway.protocols.stomp.transitions import State
from tests.protocols.stomp.connections import ConnectionPair, connected, fault_of


def connect_of(data: bytes) -> tuple[ServerMachine, Connect]:
    machine = ServerMachine(StompLimits())
    (event,) = machine.receive_data(data)
    assert isinstance(event, Connect)
    return machine, event


def greeting_fault(data: bytes) -> tuple[ServerMachine, Fault]:
    machine = ServerMachine(StompLimits())
    (event,) = machine.receive_data(data)
    assert isinstance(event, Fault)
    return machine, event


@pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
@pytest.mark.parametrize(
    ("accepted", "version"),
    [(b"1.0", "1.0"), (b"1.0,1.1", "1.1"), (b"1.2,1.1,1.0", "1.2"), (b"1.1, 1.2", "1.2"), (b"0.9,1.1,7.3", "1.1")],
)
def test_the_highest_common_version_is_chosen(command: bytes, accepted: bytes, version: Version) -> None:
    """b15, b17: STOMP is CONNECT; whatever the order in which versions are named."""
    machine, connect = connect_of(command + b"\naccept-version:" + accepted + b"\nhost:h\n\n\0")
    assert connect.version == version
    assert b"\nversion:" + version.encode() + b"\n" in machine.accept("s")
    assert machine.version == version


def test_no_accept_version_means_1_0() -> None:
    """b16: and such a client gets the CONNECTED of 1.0, with a session."""
    machine, connect = connect_of(b"CONNECT\nlogin: me \npasscode: secret\nheart-beat:5,5\n\n\0")
    assert (connect.version, connect.login, connect.passcode) == ("1.0", "me", "secret")
    assert machine.accept("s-1", heart_beat=(10, 10)) == b"CONNECTED\nsession:s-1\nserver:sluiceway/0.1\n\n\0"
    assert (machine.read_every_ms, machine.write_every_ms) == (0, 0)


def test_connected_names_version_session_server_and_heart_beat() -> None:
    """b17, b18"""
    machine, _connect = connect_of(b"CONNECT\naccept-version:1.2\nhost:h\nheart-beat:500,2000\n\n\0")
    assert machine.accept("s-1", heart_beat=(1000, 1000), extra=[("user-name", "me")]) == (
        b"CONNECTED\nsession:s-1\nserver:sluiceway/0.1\nversion:1.2\nheart-beat:1000,1000\nuser-name:me\n\n\0"
    )
    assert (machine.read_every_ms, machine.write_every_ms) == (1000, 2000)


@pytest.mark.parametrize("session_id", ["", "a:b", "a\\b", "a b", "a\nb", "a\0"])
def test_a_session_id_that_clients_trip_over_is_our_bug(session_id: str) -> None:
    machine, _connect = connect_of(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    with pytest.raises(LocalProtocolError, match="session id"):
        machine.accept(session_id)


def test_connect_is_never_unescaped_and_split_at_the_first_colon() -> None:
    r"""b10: a passcode with colons and backslashes survives, also what would be an undefined escape."""
    _machine, connect = connect_of(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:a\npasscode:p:q\\c\\t:\n\n\0")
    assert connect.passcode == "p:q\\c\\t:"
    assert connect.host == "/"
    assert "passcode" in connect.headers
    assert "p:q" not in repr(connect)


def test_a_missing_host_is_tolerated() -> None:
    """b16: required of clients; refusing telnet for it would help nobody."""
    assert connect_of(b"CONNECT\naccept-version:1.2\n\n\0")[1].host is None


@pytest.mark.parametrize("accepted", [b"2.0", b"", b"1", b"1.25"])
def test_without_a_common_version_the_error_lists_ours(accepted: bytes) -> None:
    """b19: with a `version` header and a text/plain body."""
    machine, fault = greeting_fault(b"CONNECT\naccept-version:" + accepted + b"\nhost:h\n\n\0")
    assert fault.error.code == "no-common-version"
    answer = machine.fail(fault.error)
    assert answer.startswith(b"ERROR\nmessage:no common protocol version\n")
    assert b"\nversion:1.0,1.1,1.2\n" in answer
    assert b"\ncontent-type:text/plain\n" in answer
    assert machine.state is State.PARKED


def test_a_listener_may_speak_fewer_versions() -> None:
    machine = ServerMachine(StompLimits(), versions=("1.1", "1.2"))
    (fault,) = machine.receive_data(b"CONNECT\n\n\0")
    assert isinstance(fault, Fault)
    assert fault.error.extra == (("version", "1.1,1.2"),)


def test_a_rejected_client_gets_one_error_and_no_more() -> None:
    """b20"""
    machine, _connect = connect_of(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0SEND\ndestination:/queue/a\n\n\0")
    assert machine.reject("access refused", body="Check login and passcode.") == (
        b"ERROR\nmessage:access refused\ncontent-type:text/plain\ncontent-length:25\n\nCheck login and passcode.\0"
    )
    assert machine.state is State.PARKED
    assert machine.receive_data(b"SEND\ndestination:/queue/a\n\n\0") == []


def test_a_client_of_one_version_reads_the_words_of_a_refusal() -> None:
    machine, _connect = connect_of(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    client = ClientMachine()
    client.connect("h", versions=("1.2",))
    [error] = client.receive_data(machine.reject("authentication required: no login given"))
    assert isinstance(error, Frame) and error.headers["message"] == "authentication required: no login given"


@pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
def test_a_second_connect_is_refused(command: bytes) -> None:
    """b22"""
    assert fault_of(command + b"\naccept-version:1.2\nhost:h\n\n\0").error.code == "already-connected"


def test_accept_without_connect_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError, match="greeting"):
        ServerMachine(StompLimits()).accept("s")
    with pytest.raises(LocalProtocolError, match="connected"):
        connected().reject("no")


def test_frames_behind_connect_wait_for_its_answer() -> None:
    """A client may pipeline; its escapes are only known once the version is."""
    send = b"SEND\ndestination:/queue/a\nx:\\c\n\n\0"
    machine, _connect = connect_of(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0\n" + send)
    assert machine.receive_data(send) == []
    assert machine.pending_bytes == 1 + 2 * len(send)
    machine.accept("s")
    (run,) = machine.receive_data(b"")
    assert isinstance(run, SendRun)
    assert len(run.wires) == 2
    assert run.head.headers["x"] == ":"
    assert machine.pending_bytes == 0


def test_what_waits_behind_a_connect_is_bounded() -> None:
    machine = ServerMachine(StompLimits(stash_bytes_max=1000))
    machine.receive_data(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    assert machine.receive_data(b"\n" * 1000) == []
    (fault,) = machine.receive_data(b"\n")
    assert isinstance(fault, Fault)
    assert fault.error.code == "too-much-before-connected"
    assert machine.pending_bytes == 0


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        (b"SEND\ndestination:/queue/a\n\n\0", "not-connected", "CONNECT or STOMP"),
        (b"MESSAGE\n\n\0", "not-connected", "MESSAGE"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http-request", "HTTP"),
        (b"GET /" + b"long" * 100, "http-request", "HTTP"),
        (b"CONNECT example.com:443 HTTP/1.1\r\n\r\n", "http-request", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls-handshake", "TLS"),
        (b"\x16", "tls-handshake", "TLS"),
        (b"x" * 100, "not-connected", "xxxx"),
    ],
)
def test_other_protocols_are_told_what_this_is(data: bytes, code: str, word: str) -> None:
    machine, fault = greeting_fault(data)
    assert fault.error.code == code
    assert word in fault.error.message
    assert machine.fail(fault.error).startswith(b"ERROR\nmessage:")


@pytest.mark.parametrize(
    ("client", "server", "expected"),
    [
        ((0, 0), (0, 0), (0, 0)),
        ((0, 0), (10, 20), (0, 0)),
        ((30, 40), (0, 0), (0, 0)),
        ((30, 0), (10, 20), (30, 0)),
        ((5, 0), (10, 20), (20, 0)),
        ((0, 40), (10, 20), (0, 40)),
        ((5, 5), (10, 20), (20, 10)),
    ],
)
def test_heart_beats_are_the_slower_of_offer_and_wish(
    client: tuple[int, int], server: tuple[int, int], expected: tuple[int, int]
) -> None:
    """b24"""
    assert negotiate(client, server) == expected


@pytest.mark.parametrize(("value", "expected"), [(None, (0, 0)), ("0,0", (0, 0)), ("1,2", (1, 2)), (" 1 , 2 ", (1, 2))])
def test_no_heart_beat_header_means_none(value: str | None, expected: tuple[int, int]) -> None:
    """b23"""
    assert parse_heart_beat(value) == expected


@pytest.mark.parametrize("value", [b"", b"1", b"1,", b"a,b", b"-1,0", b"1,2,3", b"1.5,2", b"9" * 40 + b",0"])
def test_a_malformed_heart_beat_is_refused(value: bytes) -> None:
    """b23"""
    _machine, fault = greeting_fault(b"CONNECT\naccept-version:1.1\nhost:h\nheart-beat:" + value + b"\n\n\0")
    assert fault.error.code == "bad-heart-beat"


def test_heart_beats_beyond_the_longest_are_not_watched_and_not_awaited() -> None:
    machine = ServerMachine(StompLimits(heart_beat_max_ms=5000))
    machine.receive_data(b"CONNECT\naccept-version:1.2\nhost:h\nheart-beat:60000,60000\n\n\0")
    machine.accept("s", heart_beat=(1000, 1000))
    assert (machine.read_every_ms, machine.write_every_ms) == (0, 5000)


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_both_sides_agree_on_heart_beats(version: Version) -> None:
    pair = ConnectionPair(version, heart_beat=((100, 400), (300, 200)))
    assert (pair.server.read_every_ms, pair.server.write_every_ms) == (200, 400)
    assert (pair.client.read_every_ms, pair.client.write_every_ms) == (400, 200)
    assert isinstance(pair.connected, Frame)
    assert pair.client.session_id == "session-1"


def test_connect_may_come_with_telnet_line_ends() -> None:
    _machine, connect = connect_of(b"\r\nCONNECT\r\naccept-version:1.2\r\nhost:h\r\n\r\n\0\r\n")
    assert (connect.version, connect.host) == ("1.2", "h")
