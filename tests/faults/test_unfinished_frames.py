"""Peers that start a frame and do not end it, or take their time."""

from __future__ import annotations

from tests.faults.broker_log import BrokerLog
from tests.faults.bystander import Bystander
from tests.faults.conftest import StartBroker
from tests.interop.raw_client import RawClient, frame


def test_who_never_sends_a_whole_connect_is_closed(start_broker: StartBroker, broker_log: BrokerLog) -> None:
    """Silent ones, half frames and lines of other protocols alike: the connect timeout ends them all, with an ERROR."""
    broker = start_broker(connect_timeout_seconds=0.2)
    address = (broker.host, broker.port)
    with Bystander(address) as bystander:
        for wire in (
            b"",
            b"\n\n",
            b"CONNECT\naccept-version:1.2\nho",
            b"EHLO mail.example.org\r\n",
            b"*1\r\n$4\r\nPING\r\n",
        ):
            with RawClient(address) as client:
                client.send(wire)
                assert "no CONNECT within 0.2 seconds" in client.frames_to_end()[0]["message"]
            assert broker_log.the_end_of(client.name)["reason"].startswith("connect-timeout: ")
        bystander.is_served()


def test_half_a_frame_for_ever_ends_with_the_heart_beat(start_broker: StartBroker, broker_log: BrokerLog) -> None:
    """A peer that promised heart-beats and stops inside a body is dead after the grace time."""
    broker = start_broker(heart_beat_min_ms=50)
    address = (broker.host, broker.port)
    with Bystander(address) as bystander, RawClient(address) as client:
        client.connect(heart_beat="50,0")
        client.send(b"SEND\ndestination:/queue/a\ncontent-length:1000000\n\nxxx")
        error = client.frames_to_end()[0]
        assert (error.command, "no bytes from you" in error["message"]) == ("ERROR", True)
        assert broker_log.the_end_of(client.name)["reason"].startswith("heart-beat-missed: ")
        bystander.is_served()


def test_half_a_frame_without_heart_beats_hurts_nobody(address: tuple[str, int], bystander: Bystander) -> None:
    """Nothing was promised, so it may take for ever; what is held is what was sent. It can still be ended."""
    with RawClient(address) as client:
        client.connect()
        client.send(b"SEND\ndestination:/queue/a\nreceipt:late\ncontent-length:5\n\nxx")
        bystander.is_served()
        client.send(b"xxx\0")
        assert client.expect("RECEIPT")["receipt-id"] == "late"


def test_a_conversation_byte_by_byte_is_the_same_conversation(address: tuple[str, int], bystander: Bystander) -> None:
    """However the network cuts frames."""
    talk = (
        frame("STOMP", accept_version="1.2", host="h")
        + frame("SUBSCRIBE", id="1", destination="/queue/slow", ack="client")
        + frame("SEND", b"a\0b", length=True, destination="/queue/slow", k="\\c\\n")
        + b"\r\n\n"
        + frame("SEND", b"last", destination="/queue/slow", receipt="r")
    )
    with RawClient(address) as client:
        for at in range(len(talk)):
            client.send(talk[at : at + 1])
        assert client.expect("CONNECTED")["version"] == "1.2"
        others = list(client.frames(3))
        first, last = (other for other in others if other.command == "MESSAGE")
        assert (first.body, first["k"], last.body) == (b"a\0b", "\\c\\n", b"last")
        assert [other["receipt-id"] for other in others if other.command == "RECEIPT"] == ["r"]
