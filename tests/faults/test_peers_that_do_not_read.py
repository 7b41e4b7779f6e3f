"""Peers that never read what they asked for: what the broker holds for them is bounded, and others go on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sluiceway import EmbeddedBroker
from sluiceway.config import DestinationPolicy
from tests.faults.bystander import Bystander
from tests.faults.conftest import StartBroker
from tests.interop.raw_client import RawClient, RawFrame, frame, poll
from tests.sluiceway.broker_process import BrokerProcess

MIB = 1 << 20
KERNEL_BYTES = 16 * MIB
"""What two loop-back sockets may hold between them."""
SMALL = DestinationPolicy("/>", {"memory_bytes": MIB})


def send(destination: str, number: int, size_bytes: int = 1024) -> bytes:
    return frame("SEND", str(number).encode().ljust(size_bytes, b" "), destination=destination)


def numbers(frames: list[RawFrame]) -> list[int]:
    return [int(frame.body) for frame in frames]


def report_of(broker: EmbeddedBroker, peer: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in broker.report()["connections"] if c["peer"] == peer)
    return found


def send_until_it_waits(broker: EmbeddedBroker, client: RawClient, wire: bytes) -> tuple[int, dict[str, Any]]:
    """Until the broker stops reading this client, and does not go on.

    Returns how many bytes went and the client's part of the report.
    """
    sent = 0
    before: dict[str, Any] = {}
    for _ in poll("the broker stops reading"):
        sent += client.send_what_fits(wire[sent:])
        state = report_of(broker, client.name)
        if state["waiting_on"] is not None and state == before | {"blocked_seconds": state["blocked_seconds"]}:
            return sent, state
        before = state
    raise AssertionError("not reached")


def test_a_stalled_queue_consumer_stops_only_the_senders_of_its_queue(start_broker: StartBroker) -> None:
    """Bounded at outbound + queue + stash; and when it reads at last, every message is there, in order."""
    broker = start_broker(destinations=(SMALL,))
    address = (broker.host, broker.port)
    count = 32 * 1024
    with (
        Bystander(address) as bystander,
        RawClient(address, receive_buffer_bytes=16384) as stalled,
        RawClient(address) as producer,
    ):
        stalled.connect()
        stalled.send(frame("SUBSCRIBE", id="1", destination="/queue/busy", receipt="on"))
        stalled.expect("RECEIPT")
        producer.connect()
        wire = b"".join(send("/queue/busy", number) for number in range(count))
        sent, state = send_until_it_waits(broker, producer, wire)
        assert state["waiting_on"] == "blocked destinations"
        assert sent < KERNEL_BYTES + 3 * MIB < len(wire)
        limits = broker.config.listeners[0].limits
        assert report_of(broker, stalled.name)["waiting_bytes"] <= 2 * limits.outbound_bytes_max
        assert state["stash_bytes"] <= 2 * limits.stash_bytes_max
        bystander.is_served()
        rest = threading.Thread(target=producer.send, args=(wire[sent:],))
        rest.start()
        assert numbers(list(stalled.frames(count))) == list(range(count))
        rest.join()


def test_another_consumer_of_the_queue_gets_what_the_stalled_one_does_not_hold(start_broker: StartBroker) -> None:
    broker = start_broker(destinations=(SMALL,))
    address = (broker.host, broker.port)
    count = 4096
    with RawClient(address, receive_buffer_bytes=16384) as stalled, RawClient(address) as healthy:
        for client in (stalled, healthy):
            client.connect()
            client.send(
                frame(
                    "SUBSCRIBE",
                    id="1",
                    destination="/queue/shared",
                    ack="client-individual",
                    prefetch_count="100",
                    receipt="on",
                )
            )
            client.expect("RECEIPT")
        seen: list[int] = []
        done = threading.Event()

        def consume() -> None:
            # The last number may be with the stalled one; what that holds comes when it is gone.
            while len(seen) < count:
                message = healthy.expect("MESSAGE")
                seen.append(int(message.body))
                healthy.send(frame("ACK", id=message["ack"]))
                if len(seen) == count // 2:
                    done.set()

        thread = threading.Thread(target=consume)
        thread.start()
        with RawClient(address) as producer:
            producer.connect()
            producer.send(b"".join(send("/queue/shared", number) for number in range(count)))
            producer.send(frame("DISCONNECT", receipt="bye"))
            assert done.wait(20), f"{len(seen)} came"
            stalled.reset()
            thread.join(20)
        assert not thread.is_alive(), f"{len(seen)} came"
        assert sorted(seen) == list(range(count))


def test_a_stalled_topic_subscriber_loses_messages_and_others_do_not(start_broker: StartBroker) -> None:
    """The healthy one sees every message; the stalled one is told how many it lost; its share of memory is bounded."""
    broker = start_broker(destinations=(SMALL,))
    address = (broker.host, broker.port)
    count = 24 * 1024
    with (
        RawClient(address, receive_buffer_bytes=16384) as stalled,
        RawClient(address) as healthy,
        RawClient(address) as producer,
    ):
        for client in (stalled, healthy):
            client.connect()
            client.send(frame("SUBSCRIBE", id="1", destination="/topic/news", receipt="on"))
            client.expect("RECEIPT")
        producer.connect()
        # Until the buffers of the kernel are full nobody is stalled, and who takes more at once leads; so step by step.
        begun = 0
        while not report_of(broker, stalled.name)["waiting_bytes"]:
            producer.send(b"".join([send("/topic/news", number) for number in range(begun, begun + 128)]))
            assert numbers(list(healthy.frames(128))) == list(range(begun, begun + 128))
            begun += 128
        sending = threading.Thread(
            target=lambda: [producer.send(send("/topic/news", number)) for number in range(begun, count)]
        )
        sending.start()
        assert numbers(list(healthy.frames(count - begun))) == list(range(begun, count))
        sending.join()
        held = report_of(broker, stalled.name)["waiting_bytes"]
        assert held <= 2 * broker.config.listeners[0].limits.outbound_bytes_max
        topic = next(d for d in broker.report()["destinations"] if d["name"] == "/topic/news")
        assert topic["depth_bytes"] <= 2 * MIB
        assert topic["dropped_count"] > 0
        seen = 0
        lost = 0
        while True:
            message = stalled.expect("MESSAGE")
            seen += 1
            lost += int(message.headers.get("dropped-count", "0"))
            if int(message.body) == count - 1:
                break
        assert seen + lost == count


def test_who_never_reads_receipts_is_not_read_from(start_broker: StartBroker) -> None:
    """The broker stops taking frames from it, holds a bounded number of receipts, and goes on when they are read."""
    broker = start_broker(receipts_pending_max=100)
    address = (broker.host, broker.port)
    count = 150_000
    with Bystander(address) as bystander, RawClient(address, receive_buffer_bytes=16384) as greedy:
        greedy.connect()
        wire = b"".join(b"SEND\ndestination:/topic/unheard\nreceipt:%d\n\n\0" % number for number in range(count))
        sent, state = send_until_it_waits(broker, greedy, wire)
        assert state["waiting_on"] == "the client to read its receipts"
        assert state["waiting_bytes"] <= 2 * broker.config.listeners[0].limits.outbound_bytes_max
        bystander.is_served()
        rest = threading.Thread(target=greedy.send, args=(wire[sent:],))
        rest.start()
        receipts = [int(receipt["receipt-id"]) for receipt in greedy.frames(count)]
        rest.join()
        assert receipts == list(range(count))


def test_the_memory_of_a_broker_under_all_of_them_is_bounded(tmp_path: Path) -> None:
    """Half a gigabyte is thrown at a process by peers that read nothing; it grows by what its limits say. The rest is
    on disk.
    """
    with BrokerProcess(tmp_path) as broker, Bystander(broker.address) as bystander:
        before = broker.rss_bytes()
        files_before_count = broker.open_files_count()
        peers = []
        for number in range(4):
            peer = RawClient(broker.address, receive_buffer_bytes=16384)
            peers.append(peer)
            peer.connect()
            peer.send(frame("SUBSCRIBE", id="1", destination=f"/queue/hog-{number}"))
            block = b"".join(send(f"/queue/hog-{number}", 0, 64 * 1024) for _ in range(16))
            for _ in range(128):
                if peer.send_what_fits(block, patience_seconds=0.2) < len(block):
                    break
        bystander.is_served()
        grown = broker.rss_bytes() - before
        queue_bytes = 64 * MIB
        assert grown < 4 * (queue_bytes + 8 * MIB) * 1.3
        for peer in peers:
            peer.reset()
        for _ in poll("the broker has forgotten them"):
            if broker.open_files_count() < files_before_count + 80:  # tables of the store among them
                break
        bystander.is_served()
