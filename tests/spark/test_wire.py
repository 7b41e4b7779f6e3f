"""The blocking client of Spark's processes: what it promises while connections and brokers come and go."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial
from itertools import count

import attrs
import pytest

from pyspark_stomp.wire import BATCH_BYTES, Address, Connection, Gap, RefusedError, RequestError, Sender
from sluiceway.broker import Broker
from sluiceway.client.errors import CannotConnectError, ConnectionLostError
from sluiceway.embedded import EmbeddedBroker
from sluiceway.queues.logs.batches import encode
from tests.spark.conftest import BrokerMaker, connected, fill, numbers, until
from tests.spark.cutting_proxy import CuttingProxy

LOG = "/log/a"


def values_of(connection: Connection, start: int, stop: int, *, batch_bytes: int = BATCH_BYTES) -> list[bytes]:
    """The records of a range, which has no gaps."""
    found: list[bytes] = []
    for part in connection.read_batches(LOG, start, stop, batch_bytes=batch_bytes):
        assert not isinstance(part, Gap), part
        assert part.first_index == start + len(found)
        found += map(bytes, part.values())
    return found


def proxied(broker: EmbeddedBroker, *cuts: tuple[str, int]) -> tuple[CuttingProxy, Connection]:
    proxy = CuttingProxy((broker.host, broker.port), list(cuts))
    return proxy, Connection(Address.parse(proxy.address), patience_seconds=10.0)


def test_a_range_is_read_whole_and_in_order_wherever_it_begins_and_ends(broker: EmbeddedBroker) -> None:
    fill(broker, LOG, numbers(1000))
    with connected(broker) as connection:
        assert values_of(connection, 0, 1000) == numbers(1000)
        assert values_of(connection, 150, 151) == numbers(1, 150)
        assert values_of(connection, 99, 301) == numbers(202, 99)
        assert values_of(connection, 7, 7) == []


def test_requests_and_reading_share_a_connection_one_after_the_other(broker: EmbeddedBroker) -> None:
    fill(broker, LOG, numbers(300))
    with connected(broker) as connection:
        for _ in range(3):
            assert connection.request("log/size", log=LOG)["size"] == 300
            assert len(values_of(connection, 10, 300)) == 290
        reading = connection.read_batches(LOG, 0, 300)
        next(reading)
        reading.close()  # in the middle
        assert connection.request("log/size", log=LOG)["size"] == 300


def test_what_the_broker_refuses_is_told_with_its_code(broker: EmbeddedBroker) -> None:
    with connected(broker) as connection, pytest.raises(RequestError, match="TOPIC_NOT_EXIST") as refusal:
        connection.request("log/describe", log="/log/none")
    assert refusal.value.code == "TOPIC_NOT_EXIST"


def test_an_error_frame_is_not_tried_again(broker: EmbeddedBroker) -> None:
    with connected(broker) as connection, pytest.raises(RefusedError):
        connection.request("nonsense/nonsense")


@pytest.mark.parametrize("after_bytes", [40, 200, 3_000, 50_000, 120_000])
def test_reading_goes_on_behind_what_came_when_the_connection_is_lost(broker: EmbeddedBroker, after_bytes: int) -> None:
    """Each of three connections is cut somewhere: in CONNECTED, in a reply, in a head, in a body."""
    values = [b"%08d" % number * 16 for number in range(3000)]
    fill(broker, LOG, values)
    proxy, connection = proxied(broker, *[("down", after_bytes)] * 3)
    with connection:
        assert values_of(connection, 5, 2995, batch_bytes=16_384) == values[5:2995]
    assert proxy.connections_count == 4
    proxy.close()


def test_reading_goes_on_after_the_broker_was_restarted(make_broker: BrokerMaker) -> None:
    first = make_broker()
    fill(first, LOG, [b"%08d" % number * 128 for number in range(20_000)])
    with connected(first) as connection:
        reading = connection.read_batches(LOG, 0, 20_000, batch_bytes=65_536)
        found = [next(reading)]
        first.stop()
        again = threading.Thread(target=partial(make_broker, port=connection.address.port))
        again.start()
        found += list(reading)
        again.join()
    assert not [part for part in found if isinstance(part, Gap)]
    assert [part.first_index for part in found if not isinstance(part, Gap)] == [*range(0, 20_000, 100)]


def test_a_broker_that_does_not_come_back_is_given_up_after_a_while(make_broker: BrokerMaker) -> None:
    broker = make_broker()
    with connected(broker, patience_seconds=0.3) as connection:
        connection.request("log/list")
        broker.stop()
        with pytest.raises(CannotConnectError, match="no broker answers"):
            connection.request("log/list")


def test_a_connection_that_was_lost_while_idle_is_no_error(make_broker: BrokerMaker) -> None:
    broker = make_broker()
    with connected(broker, patience_seconds=0.0) as connection:
        connection.request("log/list")
        broker.stop()
        make_broker(port=connection.address.port)
        assert connection.request("log/list")["logs"] == []


def test_what_is_gone_is_a_gap_and_the_rest_is_read(broker: EmbeddedBroker) -> None:
    fill(broker, LOG, numbers(1000))
    with connected(broker) as connection:
        connection.request("log/truncate", log=LOG, before=250)
        parts = list(connection.read_batches(LOG, 100, 1000))
        assert parts[0] == Gap(LOG, broker.address, 100, 250, "retention")
        assert values_of(connection, 250, 1000) == numbers(750, 250)
        assert list(connection.read_batches(LOG, 0, 200)) == [Gap(LOG, broker.address, 0, 200, "retention")]


def test_what_is_not_there_is_a_gap_too_and_nobody_waits_for_it(broker: EmbeddedBroker) -> None:
    """A log that was deleted, or whose disk has lost its end."""
    fill(broker, LOG, numbers(10))
    with connected(broker) as connection:
        assert list(connection.read_batches(LOG, 10, 20)) == [Gap(LOG, broker.address, 10, 20, "lost")]
        assert list(connection.read_batches(LOG, 5, 20))[1:] == [Gap(LOG, broker.address, 10, 20, "lost")]
        assert list(connection.read_batches("/log/none", 0, 3)) == [Gap("/log/none", broker.address, 0, 3, "deleted")]
        assert [each["log"] for each in connection.request("log/list")["logs"]] == [LOG]


def test_bodies_of_a_megabyte_come_through(broker: EmbeddedBroker) -> None:
    values = [bytes([number]) * (1 << 20) for number in range(6)]
    fill(broker, LOG, values, per_batch=2)
    with connected(broker) as connection:
        assert values_of(connection, 0, 6) == values


# ---------------------------------------------------------------------- sending


def staging(connection: Connection) -> Sender:
    names = count()
    return connection.stages(lambda: f"/log/sluiceway.stage.test.{next(names)}")


def published(broker: EmbeddedBroker, sender: Sender) -> list[bytes]:
    """What is in the log when the stages of a sender are committed."""
    with connected(broker) as direct:
        parts = [
            {"stage": stage.name, "to": LOG, "count": stage.count, "whole": stage.whole}
            for stage in sender.stages
            if stage.count
        ]
        assert direct.request("sink/commit", query="test", batch=0, parts=parts)["published"]
        return values_of(direct, 0, direct.request("log/describe", log=LOG)["next"])


def test_receipts_are_waited_for_a_window_at_a_time(broker: EmbeddedBroker) -> None:
    with connected(broker) as connection, connection.sender(LOG, window=3) as sender:
        for start in range(0, 1000, 10):
            sender.send_batches(encode(numbers(10, start)), 10)
            assert start + 10 - sender.confirmed_count <= 30
        assert sender.finish() == 1000
        assert values_of(connection, 0, 1000) == numbers(1000)


@pytest.mark.parametrize("cut", [("up", 5_000), ("answer", 5_000), ("down", 400)])
def test_stages_have_each_record_once_through_lost_connections(broker: EmbeddedBroker, cut: tuple[str, int]) -> None:
    """Cut in a SEND, before its receipt (which nobody hears), and in receipts."""
    proxy, connection = proxied(broker, cut, cut, cut)
    with connection, staging(connection) as sender:
        for start in range(0, 3000, 100):
            sender.send_batches(encode(numbers(100, start)), 100)
        assert sender.finish() == 3000
    assert proxy.connections_count > 2
    assert published(broker, sender) == numbers(3000)
    proxy.close()


def test_what_is_sent_again_on_its_way_ends_the_stage(broker: EmbeddedBroker) -> None:
    """As a hub does that does not know whether another one has it."""
    with connected(broker) as connection, connected(broker) as other, staging(connection) as sender:
        for start in range(0, 100, 10):
            sender.send_batches(encode(numbers(10, start)), 10)
            if start in (0, 50):
                while sender._under_way:
                    sender._take_receipt()
                with other.sender(sender.destination) as again:
                    again.send_batches(encode(numbers(10, start)), 10)
        assert sender.finish() == 100
    assert [(stage.count, stage.whole) for stage in sender.stages] == [(10, False), (50, False), (40, True)]
    assert published(broker, sender) == numbers(100)


def test_what_the_broker_still_holds_of_a_lost_connection_is_not_published(broker: EmbeddedBroker) -> None:
    """What was sent while the disk was nearly full waits in the broker, and comes into the log after the connection."""

    def make_low(wanted: bool) -> None:
        def change(running: Broker) -> None:
            assert running.store is not None and running.store._guard is not None
            guard = running.store._guard
            guard._config = attrs.evolve(guard._config, disk_free_min_bytes=1 << 60 if wanted else 0)

        broker.call(change)
        until(lambda: broker.call(lambda running: running.store is not None and running.store.disk_is_low) is wanted)

    def is_parked(running: Broker) -> bool:
        return any(each.session.lanes.parked_count for each in running.connections)

    with connected(broker) as connection, staging(connection) as sender:
        sender.send_batches(encode(numbers(10)), 10)
        assert sender.finish() == 10
        make_low(True)
        sender.send_batches(encode(numbers(10, 10)), 10)
        until(lambda: broker.call(is_parked))
        assert connection._link is not None
        assert connection._link._stream is not None
        connection._link._stream._socket.shutdown(socket.SHUT_RDWR)

        def relieve() -> None:
            """When the writer has come back and asked."""
            until(lambda: broker.call(lambda running: running.left_behind.connections_count == 1))
            until(lambda: broker.call(lambda running: len(running.connections) == 1))
            make_low(False)

        relief = threading.Thread(target=relieve)
        relief.start()
        assert sender.finish() == 20
        relief.join()
    with connected(broker) as direct:
        assert direct.request("log/size", log=sender.stages[0].name)["size"] == 20
    assert published(broker, sender) == numbers(20)


def test_many_writers_lose_nothing_and_may_write_twice(broker: EmbeddedBroker) -> None:
    proxy, connection = proxied(broker, ("answer", 5_000), ("answer", 5_000))
    with connection, connection.sender(LOG) as sender:
        for start in range(0, 3000, 100):
            sender.send_batches(encode(numbers(100, start)), 100)
    with connected(broker) as direct:
        found = values_of(direct, 0, direct.request("log/describe", log=LOG)["next"])
    assert set(found) == set(numbers(3000))
    assert len(found) > 3000
    proxy.close()


# ---------------------------------------------------------------------- what is no broker


def answering(answer: Callable[[bytes], bytes]) -> Address:
    """Somebody who says this to whoever connects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _address = listener.accept()
        with client, listener:
            client.sendall(answer(client.recv(65536)))

    threading.Thread(target=serve, daemon=True).start()
    return Address.parse(f"127.0.0.1:{listener.getsockname()[1]}")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n\0", b"", b"CONNECTED\nversion:1.1\n\n\0", b"nonsense"]
)
def test_what_is_no_broker_is_told_so(answer: bytes) -> None:
    address = answering(lambda _asked: answer)
    with Connection(address, patience_seconds=0.0) as connection, pytest.raises(CannotConnectError):
        connection.connect()


def test_a_passcode_is_sent_and_never_shown(broker: EmbeddedBroker) -> None:
    address = Address.parse(broker.address, login="ann", passcode="secret-word")
    heard: list[bytes] = []

    def refuse(asked: bytes) -> bytes:
        heard.append(asked)
        return b"ERROR\nmessage:wrong passcode\ncommand:CONNECT\n\n\0"

    spy = answering(refuse)
    spied = Address(spy.host, spy.port, address.login, address.passcode)
    with Connection(spied, patience_seconds=0.0) as connection, pytest.raises(RefusedError) as refusal:
        connection.connect()
    assert b"\nlogin:ann\n" in heard[0]
    assert b"\npasscode:secret-word\n" in heard[0]
    assert "secret-word" not in f"{refusal.value}{address!r}{spied}"


def test_damaged_records_are_a_gap(broker: EmbeddedBroker) -> None:
    """The broker does not look at batches that it passes on. What the query does about a gap it says itself."""
    from pyspark_stomp.wire import _Reading
    from sluiceway.protocols.stomp.frames import Frame

    fill(broker, LOG, numbers(10))
    fill(broker, LOG, numbers(10, 10))
    with connected(broker) as connection:
        whole, other = (part for part in connection.read_batches(LOG, 0, 20) if not isinstance(part, Gap))
        address = str(connection.address)
    damaged = bytearray(whole.data)
    damaged[-9] ^= 1
    headers = {"content-type": "application/vnd.sluiceway.batch", "index": "0", "count": "20"}
    reading = _Reading(connection, LOG, "", 0, 20, 1 << 20, True)
    gap, sound = reading._batches(Frame("MESSAGE", headers, bytes(damaged) + bytes(other.data)))
    assert gap == Gap(LOG, address, 0, 10, "damaged")
    assert not isinstance(sound, Gap)
    assert list(map(bytes, sound.values())) == numbers(10, 10)


def test_without_a_connection_there_is_no_frame() -> None:
    with pytest.raises(ConnectionLostError):
        Connection(Address.parse("127.0.0.1:1")).next_frame()
