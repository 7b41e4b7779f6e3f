"""Connections that end without DISCONNECT: what they held goes to others, and nothing of them stays."""

from __future__ import annotations

import pytest

from sluiceway import EmbeddedBroker
from tests.faults.broker_log import BrokerLog
from tests.faults.bystander import Bystander
from tests.interop.raw_client import RawClient, frame, poll


def wait_until_only_the_bystander_is_left(broker: EmbeddedBroker) -> None:
    for _ in poll("the broker has forgotten the connection"):
        if len(broker.report()["connections"]) == 2:
            return


@pytest.mark.parametrize("how", ["close", "reset"])
def test_what_a_lost_consumer_had_not_acknowledged_goes_to_another(
    how: str, address: tuple[str, int], broker_log: BrokerLog, bystander: Bystander
) -> None:
    """In order, marked as redelivered; what it had acknowledged does not come again."""
    with RawClient(address) as producer, RawClient(address) as lost, RawClient(address) as heir:
        for client in (producer, lost, heir):
            client.connect()
        producer.send(b"".join(frame("SEND", b"%d" % number, destination="/queue/q") for number in range(100)))
        lost.send(frame("SUBSCRIBE", id="1", destination="/queue/q", ack="client-individual"))
        messages = list(lost.frames(100))
        lost.send(b"".join(frame("ACK", id=message["ack"]) for message in messages[10:20]))
        lost.send(frame("BEGIN", transaction="t", receipt="acked"))
        lost.expect("RECEIPT")
        getattr(lost, how)()
        heir.send(frame("SUBSCRIBE", id="1", destination="/queue/q", ack="auto"))
        received = list(heir.frames(90))
        assert [int(message.body) for message in received] == [*range(10), *range(20, 100)]
        assert {message.headers.get("redelivered") for message in received} == {"true"}
        assert broker_log.the_end_of(lost.name)["level"] == "info"
        bystander.is_served()


def test_a_lost_connection_aborts_its_transactions(address: tuple[str, int], bystander: Bystander) -> None:
    with RawClient(address) as lost, RawClient(address) as reader:
        lost.connect()
        lost.send(frame("BEGIN", transaction="t"))
        lost.send(frame("SEND", b"never", destination="/queue/q", transaction="t", receipt="r"))
        lost.expect("RECEIPT")
        lost.reset()
        reader.connect()
        reader.send(frame("SUBSCRIBE", id="1", destination="/queue/q"))
        reader.send(frame("SEND", b"marker", destination="/queue/q"))
        assert reader.expect("MESSAGE").body == b"marker"
        bystander.is_served()


def test_a_reset_inside_a_frame_leaves_nothing(
    broker: EmbeddedBroker, address: tuple[str, int], broker_log: BrokerLog, bystander: Bystander
) -> None:
    """Half a message is no message."""
    client = RawClient(address)
    client.connect()
    client.send(b"SEND\ndestination:/queue/half\ncontent-length:1000\n\nxxx")
    client.reset()
    broker_log.the_end_of(client.name)
    wait_until_only_the_bystander_is_left(broker)
    assert [d for d in broker.report()["destinations"] if d["name"] == "/queue/half" and d["depth_count"]] == []
    bystander.is_served()


@pytest.mark.parametrize("ack", ["auto", "client"])
def test_a_reset_in_the_middle_of_a_delivery_loses_no_message_that_was_not_read(
    ack: str, broker: EmbeddedBroker, address: tuple[str, int], broker_log: BrokerLog, bystander: Bystander
) -> None:
    """With ack client every message comes again; with auto all but those that the kernel had taken (b36)."""
    count = 20_000
    with RawClient(address) as producer, RawClient(address, receive_buffer_bytes=16384) as lost:
        producer.connect()
        lost.connect()
        lost.send(frame("SUBSCRIBE", id="1", destination="/queue/cut", ack=ack, receipt="on"))
        lost.expect("RECEIPT")
        body = b"x" * 1000
        producer.send(b"".join(frame("SEND", b"%d %b" % (n, body), destination="/queue/cut") for n in range(count)))
        producer.send(frame("BEGIN", transaction="t", receipt="all"))
        lost.expect("MESSAGE")
        lost.reset()
        producer.expect("RECEIPT")
        end = broker_log.the_end_of(lost.name)
        with RawClient(address) as heir:
            heir.connect()
            heir.send(frame("SUBSCRIBE", id="1", destination="/queue/cut"))
            first = int(heir.expect("MESSAGE").body.partition(b" ")[0])
            rest = [int(message.body.partition(b" ")[0]) for message in heir.frames(count - first - 1)]
        assert rest == list(range(first + 1, count))
        if ack == "client":
            assert first == 0
        else:
            assert first <= end["bytes_out"] // 1000
    wait_until_only_the_bystander_is_left(broker)
    bystander.is_served()


def test_the_end_of_input_still_gets_its_answers(address: tuple[str, int], broker_log: BrokerLog) -> None:
    """`printf ... | nc`: everything is sent, our direction closed, and only then the answers are read."""
    with RawClient(address) as client:
        client.send(
            frame("CONNECT", accept_version="1.2", host="h")
            + frame("SEND", b"x", destination="/queue/q", receipt="1")
            + frame("SEND", b"y", destination="/queue/q", receipt="2")
        )
        client.finish_sending()
        frames = client.frames_to_end()
        assert [f.command for f in frames] == ["CONNECTED", "RECEIPT", "RECEIPT"]
        assert [f["receipt-id"] for f in frames[1:]] == ["1", "2"]
    assert broker_log.the_end_of(client.name)["reason"] == "closed by the client"


def test_a_mistake_before_the_end_of_input_still_gets_its_error(address: tuple[str, int]) -> None:
    with RawClient(address) as client:
        client.send(frame("CONNECT", accept_version="1.2", host="h") + b"NONSENSE\n\n\0")
        client.finish_sending()
        assert [f.command for f in client.frames_to_end()] == ["CONNECTED", "ERROR"]


def test_the_end_of_input_before_connect_is_no_event(address: tuple[str, int], broker_log: BrokerLog) -> None:
    """Port scanners and health checks open and close: one line of information, no warning."""
    with RawClient(address) as client:
        client.finish_sending()
        assert client.bytes_to_end() == b""
    line = broker_log.the_end_of(client.name)
    assert (line["level"], line["reason"]) == ("info", "closed by the client before CONNECT")


def test_a_peer_that_errs_and_does_not_read_is_closed_after_the_linger(
    address: tuple[str, int], broker_log: BrokerLog, bystander: Bystander
) -> None:
    """Its ERROR waits behind what it never read; the broker waits no longer than the linger, and nobody else at all."""
    with RawClient(address, receive_buffer_bytes=4096) as stalled, RawClient(address) as producer:
        stalled.connect()
        stalled.send(frame("SUBSCRIBE", id="1", destination="/queue/q", receipt="on"))
        stalled.expect("RECEIPT")
        producer.connect()
        body = b"x" * 65536
        producer.send(b"".join(frame("SEND", body, destination="/queue/q", length=True) for _ in range(200)))
        producer.send(frame("BEGIN", transaction="t", receipt="all"))
        producer.expect("RECEIPT")
        stalled.send(b"NONSENSE\n\n\0")
        assert broker_log.the_end_of(stalled.name)["reason"].startswith("unknown-command: ")
        bystander.is_served()


def test_rapid_connects_and_disconnects_leave_nothing(broker: EmbeddedBroker, bystander: Bystander) -> None:
    """A client per message, as web pages do (b55)."""
    address = (broker.host, broker.port)

    def resources() -> list[str]:
        kinds = ("connection", "outbound", "subscription")
        return sorted(r["name"] for r in broker.report()["resources"] if r["kind"] in kinds)

    before = resources()
    assert before
    for number in range(200):
        with RawClient(address) as client:
            client.send(
                frame("CONNECT", accept_version="1.2", host="h")
                + frame("SEND", b"%d" % number, destination="/topic/nobody")
                + frame("DISCONNECT", receipt="bye")
            )
            assert [f.command for f in client.frames_to_end()] == ["CONNECTED", "RECEIPT"]
    wait_until_only_the_bystander_is_left(broker)
    assert resources() == before
    bystander.is_served()
