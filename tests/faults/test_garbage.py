"""Seeded garbage over real sockets: whatever comes, the broker answers with one ERROR or closes, and goes on."""

from __future__ import annotations

import random

from sluiceway import EmbeddedBroker
from tests.faults.broker_log import BrokerLog
from tests.faults.bystander import Bystander
from tests.faults.conftest import StartBroker
from tests.interop.raw_client import RawClient, frame, poll

CONNECTIONS_COUNT = 300

PIECES = (
    frame("CONNECT", accept_version="1.0,1.1,1.2", host="h"),
    frame("STOMP", accept_version="1.2", host="h", heart_beat="1000,1000"),
    frame("SEND", b"body", destination="/queue/g", receipt="1"),
    frame("SEND", b"b\0dy", length=True, destination="/topic/g"),
    frame("SEND", b"", destination="/queue/g,/topic/g", priority="9", expires="1"),
    frame("SUBSCRIBE", id="1", destination="/queue/g", ack="client"),
    frame("SUBSCRIBE", id="2", destination="/topic/>", ack="auto"),
    frame("UNSUBSCRIBE", id="1"),
    frame("ACK", id="1-0"),
    frame("NACK", id="1-0", receipt="2"),
    frame("BEGIN", transaction="t"),
    frame("SEND", b"x", destination="/queue/g", transaction="t"),
    frame("ACK", id="1-1", transaction="t"),
    frame("COMMIT", transaction="t"),
    frame("ABORT", transaction="t", receipt="3"),
    frame("DISCONNECT", receipt="4"),
    b"\r\n",
    b"\n\n\n",
    b"\0",
    b"SEND\ndestination:/queue/g\ncontent-length:99999999999999999999\n\n",
    b"content-length:-1\n",
    b"\xff\xfe\xfd",
    b"\x16\x03\x01",
    b"a" * 5000,
)


def garbage(choice: random.Random) -> bytes:
    """Frames in any order, cut, repeated, with bytes changed."""
    wire = bytearray(b"".join(choice.choice(PIECES) for _ in range(choice.randrange(1, 12))))
    if choice.random() < 0.7:
        wire[:0] = PIECES[0]
    for _ in range(choice.choice((0, 0, 1, 2, 20))):
        at = choice.randrange(len(wire))
        match choice.randrange(4):
            case 0:
                wire[at] = choice.randrange(256)
            case 1:
                del wire[at : at + choice.randrange(1, 20)]
            case 2:
                wire[at:at] = choice.randbytes(choice.randrange(1, 20))
            case _:
                wire[at:at] = choice.choice(PIECES)
        if not wire:
            return b"\n"
    return bytes(wire)


def talk(broker: EmbeddedBroker, choice: random.Random) -> str:
    """One connection of garbage, ended in one of the ways there are."""
    with RawClient((broker.host, broker.port)) as client:
        try:
            wire = garbage(choice)
            cut = choice.randrange(len(wire) + 1)
            client.send(wire[:cut])
            client.send(wire[cut:])
            if choice.random() < 0.3:
                client.reset()
                return client.name
            client.finish_sending()
        except (ConnectionResetError, BrokenPipeError):
            return client.name  # it was refused while we spoke
        errors = [f for f in client.frames_to_end() if f.command == "ERROR"]
        assert len(errors) <= 1
        assert all(f.headers["message"] for f in errors)
        return client.name


def test_garbage_never_hurts_the_broker(start_broker: StartBroker, broker_log: BrokerLog) -> None:
    """No internal error, one line per connection, and a bystander that notices nothing."""
    broker = start_broker(connect_timeout_seconds=5.0, linger_seconds=0.2)
    with Bystander((broker.host, broker.port)) as bystander:
        names = [talk(broker, random.Random(seed)) for seed in range(CONNECTIONS_COUNT)]
        for _ in poll("all of them are gone"):
            if len(broker.report()["connections"]) == 2:
                break
        bystander.is_served()
    assert broker_log.lines(event="internal error") == []
    ended = [line["peer"] for line in broker_log.lines(event="connection ended")]
    assert all(ended.count(name) == names.count(name) for name in names)
