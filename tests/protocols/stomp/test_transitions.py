"""The tables that say what is legal."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.stomp.transitions import (
    ARRIVALS,
    CLIENT_COMMANDS,
    DEPARTURES,
    SERVER_COMMANDS,
    Role,
    State,
    arrivals,
)
from tests.protocols.stomp.connections import ConnectionPair, flat


@pytest.mark.parametrize("role", ["server", "client"])
def test_nothing_arrives_at_a_parked_machine(role: Role) -> None:
    """PARKED is for ever: it has no way out."""
    assert State.PARKED not in ARRIVALS[role]
    assert arrivals(role, State.PARKED, "1.2") == {}


def test_a_server_hears_what_a_client_says_and_the_other_way_round() -> None:
    said = {command for moves in DEPARTURES.values() for command in moves}
    assert said == CLIENT_COMMANDS
    heard = {command for moves in ARRIVALS["client"].values() for command in moves}
    assert heard == SERVER_COMMANDS


def test_an_error_is_the_last_thing_a_client_hears() -> None:
    """b52"""
    pair = ConnectionPair("1.2")
    events = pair.to_client(b"RECEIPT\nreceipt-id:1\n\n\0ERROR\nmessage:no\n\n\0RECEIPT\nreceipt-id:2\n\n\0garbage\0")
    assert [event.command for event in events if isinstance(event, Frame)] == ["RECEIPT", "ERROR"]
    assert len(events) == 2
    assert pair.client.state is State.PARKED


def test_a_client_may_be_refused_before_it_is_connected() -> None:
    client = ClientMachine()
    client.connect("h")
    (event,) = client.receive_data(b"ERROR\nversion:1.0\nmessage:a\\tb\n\nno\0")
    assert event == Frame("ERROR", {"version": "1.0", "message": "a\\tb"}, b"no")
    assert client.state is State.PARKED


def test_a_client_refuses_a_version_it_does_not_know() -> None:
    client = ClientMachine()
    client.connect("h")
    (fault,) = client.receive_data(b"CONNECTED\nversion:9.9\n\n\0")
    assert isinstance(fault, Fault)
    assert fault.error.code == "no-common-version"


def test_messages_right_behind_connected_are_read_in_its_version() -> None:
    """A server may write before the client has looked at CONNECTED."""
    client = ClientMachine()
    client.connect("h")
    events = client.receive_data(
        b"CONNECTED\nversion:1.1\n\n\0RECEIPT\nreceipt-id:a\\cb\n\n\0RECEIPT\nreceipt-id:2\n\n\0"
    )
    assert [frame[1:3] for frame in flat(events)[1:]] == [
        ("RECEIPT", (("receipt-id", "a:b"),)),
        ("RECEIPT", (("receipt-id", "2"),)),
    ]


def test_frames_of_a_server_are_refused_by_a_server() -> None:
    pair = ConnectionPair("1.2")
    (fault,) = pair.server.receive_data(b"MESSAGE\nreceipt:r\n\n\0")
    assert isinstance(fault, Fault)
    assert (fault.error.code, fault.error.receipt_id) == ("wrong-direction", "r")
