"""The QueueService of Luxun on the Thrift port, with clients of others: thriftpy2, and one made from the interface."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TFramedTransportFactory

from sluiceway import EmbeddedBroker
from sluiceway.protocols.thrift.binary import MessageType, frame_bytes, framed, message
from sluiceway.protocols.thrift.queue_service import CALLS
from sluiceway.thrift import server
from sluiceway.thrift.service import Answer
from tests.network import authority
from tests.protocols.thrift.test_binary import IDL, interface

api: Final = interface()
Code = api.ErrorCode
NODE_MODULES: Final = os.environ.get("SLUICEWAY_NODE_MODULES", "")
pytestmark = pytest.mark.timeout(60)


def port_of(broker: EmbeddedBroker) -> int:
    url: str = broker.call(lambda inner: inner.thrift.urls[0])  # type: ignore[union-attr]
    return int(url.rpartition(":")[2])


@contextmanager
def started(**tables: Any) -> Iterator[EmbeddedBroker]:
    """A broker with a Thrift port; in the end no call holds memory."""
    thrift = {"listen": "127.0.0.1:0", **tables.pop("thrift", {})}
    with EmbeddedBroker(thrift=thrift, logs={"delete_passcode": "secret"}, **tables) as broker:
        yield broker
        broker.wait_until(lambda: broker.call(lambda inner: inner.thrift._room.held_bytes == 0))  # type: ignore[union-attr]


@contextmanager
def client(broker: EmbeddedBroker, **options: Any) -> Iterator[Any]:
    made = make_client(
        api.QueueService,
        "127.0.0.1",
        port_of(broker),
        proto_factory=TBinaryProtocolFactory(),
        trans_factory=TFramedTransportFactory(),
        timeout=20_000,
        **options,
    )
    with closing(made):
        yield made


def consume(service: Any, topic: str = "orders", **fields: Any) -> Any:
    return service.consume(api.ConsumeRequest(topic=topic, **fields))


def produce(service: Any, *items: bytes, topic: str = "orders") -> list[int]:
    return [service.produce(api.ProduceRequest(item=item, topic=topic)).index for item in items]


def test_items_are_consumed_by_index_and_by_fan_out() -> None:
    with started() as broker, client(broker) as service, client(broker) as other:
        assert produce(service, b"a", b"bb", b"", b"dddd") == [0, 1, 2, 3]
        from_one = consume(service, startIndex=1, maxFetchSize=1_000)
        assert (from_one.itemList, from_one.lastConsumedIndex) == ([b"bb", b"", b"dddd"], 3)
        small = consume(service, startIndex=0, maxFetchSize=4)
        assert (small.itemList, small.lastConsumedIndex) == ([b"a", b"bb", b""], 2)
        for size in (0, -1):
            assert consume(service, startIndex=3, maxFetchSize=size).itemList == [b"dddd"]
        first = consume(service, fanoutId="billing", maxFetchSize=0)
        assert (first.itemList, first.lastConsumedIndex) == ([b"a"], 0)
        assert consume(other, fanoutId="billing", startIndex=3, maxFetchSize=1_000).itemList == [b"bb", b"", b"dddd"]
        assert consume(other, fanoutId="shipping", maxFetchSize=1_000).itemList == [b"a", b"bb", b"", b"dddd"]
        sizes = [
            service.getSize(api.GetSizeRequest(topic="orders", fanoutId=group)).size for group in (None, "billing")
        ]
        assert sizes == [4, 0]


def test_indexes_are_found_by_time_and_topics_are_listed() -> None:
    with started() as broker, client(broker) as service:
        produce(service, b"a", b"b")
        produce(service, b"c", topic="returns.eu")

        def find(timestamp: int) -> Any:
            return service.findClosestIndexByTime(
                api.FindClosestIndexByTimeRequest(timestamp=timestamp, topic="orders")
            )

        assert [find(-1).index, find(0).index, find(-2).index] == [0, 0, 2]
        assert find(find(-2).timestampOfIndex + 1_000_000).index == 1
        assert service.listTopics(api.ListTopicsRequest()).topics == ["orders", "returns.eu"]
        assert service.deleteTopic(api.DeleteTopicRequest(topic="orders", password="secret")).result.resultCode == 0
        listed = service.listTopics(api.ListTopicsRequest())
        assert (listed.topics, listed.omitted) == (["returns.eu"], 0)


def test_a_call_that_fails_says_why_and_the_next_one_is_served() -> None:
    with started() as broker, client(broker) as service:
        produce(service, b"a")

        def said(result: Any) -> tuple[str, str]:
            assert result.resultCode != api.ResultCode.SUCCESS
            return Code._VALUES_TO_NAMES[result.errorCode], result.errorMessage

        assert said(consume(service, "none", startIndex=0).result) == ("TOPIC_NOT_EXIST", "there is no log /log/none")
        assert said(consume(service, startIndex=1).result)[0] == "ALL_MESSAGE_CONSUMED"
        assert said(consume(service, startIndex=7).result) == (
            "INDEX_OUT_OF_BOUNDS",
            "/log/orders has the indexes 0 to 0, not 7",
        )
        assert said(consume(service, startIndex=-1).result)[0] == "INDEX_OUT_OF_BOUNDS"
        consume(service, fanoutId="g", maxFetchSize=100)
        assert said(consume(service, fanoutId="g").result)[0] == "ALL_MESSAGE_CONSUMED"
        for name in ("a b", "a,/queue/b", "", "x" * 300, "a\0b"):
            assert said(service.produce(api.ProduceRequest(item=b"", topic=name)).result)[0] == "INVALID_TOPIC"
        deleted = service.deleteTopic(api.DeleteTopicRequest(topic="orders", password="wrong"))
        assert said(deleted.result) == ("AUTHENTICATION_FAILURE", "this is not the passcode: /log/orders stays")
        large = service.produce(api.ProduceRequest(item=bytes(16 * 1024 * 1024 + 1), topic="orders"))
        assert said(large.result)[0] == "MESSAGE_SIZE_TOO_LARGE"
        assert produce(service, b"b") == [1]


def test_clients_have_the_permissions_of_the_user_of_the_port(tmp_path: Path) -> None:
    (tmp_path / "passcode").write_text("pass\n")
    allowed = [
        {"users": ["luxun"], "actions": ["connect"]},
        {"users": ["luxun"], "actions": ["send", "create"], "destinations": ["/log/in"]},
    ]
    users = {"users": {"luxun": "pass"}, "permissions": allowed}
    thrift = {"login": "luxun", "passcode_file": str(tmp_path / "passcode")}
    with started(security=users, thrift=thrift) as broker, client(broker) as service:
        assert produce(service, b"a", topic="in") == [0]
        refused = service.produce(api.ProduceRequest(item=b"", topic="out")).result
        assert (refused.errorCode, refused.errorMessage) == (
            Code.AUTHENTICATION_FAILURE,
            "no permission to send on /log/out",
        )
        assert consume(service, "in", startIndex=0).result.errorCode == Code.AUTHENTICATION_FAILURE
        (tmp_path / "passcode").write_text("changed\n")
        with client(broker) as late:
            assert consume(late, "in", startIndex=0).result.errorCode == Code.AUTHENTICATION_FAILURE


def test_groups_and_items_outlive_the_broker(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"broker": {"data_dir": str(tmp_path)}, "store": {"engine": "leveldb"}}
    with started(**tables) as broker, client(broker) as service:
        produce(service, b"a", b"b", b"c")
        assert consume(service, fanoutId="g", maxFetchSize=0).itemList == [b"a"]
    with started(**tables) as broker, client(broker) as service:
        assert produce(service, b"d") == [3]
        assert consume(service, fanoutId="g", maxFetchSize=100).itemList == [b"b", b"c", b"d"]


def test_what_is_no_call_costs_only_its_sender() -> None:
    with started(thrift={"frame_bytes_max": 2000}) as broker, client(broker) as service:
        call = CALLS["produce"]
        with socket.create_connection(("127.0.0.1", port_of(broker)), 10) as raw:
            with pytest.raises(TApplicationException, match=r"2,0\d\d bytes: 2,000 at most \(frame_bytes_max\)"):
                produce(service, bytes(2000))
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert raw.recv(100) == b""
        with socket.create_connection(("127.0.0.1", port_of(broker)), 10) as raw:
            raw.sendall(framed(message(MessageType.CALL, "dance", 1, {}, {})))
            raw.sendall(framed(message(MessageType.REPLY, "produce", 2, {}, {})))
            raw.sendall(
                framed(message(MessageType.CALL, "produce", 3, call.arguments, {call.argument: {"topic": "a"}}))
            )
            raw.sendall(framed(b"\x80\2rubbish"))
            said = b""
            while piece := raw.recv(4096):
                said += piece
        words = [b"there is no call 'dance'", b"is no call", b"the required field item is missing"]
        assert all(each in said for each in words)
        assert 0 < frame_bytes(said[:4]) < len(said)
        with client(broker) as another:
            assert produce(another, b"a") == [0]


def test_one_connection_too_many_is_closed() -> None:
    with started(thrift={"connections_max": 1}) as broker, client(broker) as service:
        produce(service, b"a")
        with socket.create_connection(("127.0.0.1", port_of(broker)), 10) as raw:
            assert raw.recv(1) == b""
        assert produce(service, b"b") == [1]


def test_a_call_that_waits_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does where a log is full."""

    async def wait(*_arguments: object) -> Answer:
        await trio.sleep_forever()
        raise AssertionError("it does not end")

    monkeypatch.setattr(server, "answer", wait)
    with started() as broker:
        with socket.create_connection(("127.0.0.1", port_of(broker)), 10) as raw:
            values = {"getSizeRequest": {"topic": "a"}}
            raw.sendall(framed(message(MessageType.CALL, "getSize", 1, CALLS["getSize"].arguments, values)))
            broker.wait_until(lambda: broker.call(lambda inner: inner.thrift._room.held_bytes > 0))  # type: ignore[union-attr]
        broker.wait_until(lambda: broker.call(lambda inner: inner.thrift._tasks.connections_count == 0))  # type: ignore[union-attr]


async def test_calls_without_room_wait_in_turn() -> None:
    kept = []
    room = server.Room(100, kept.append)
    taken: list[int] = []

    async def take(size_bytes: int) -> None:
        await room.take(size_bytes)
        taken.append(size_bytes)

    async with trio.open_nursery() as nursery:
        for size_bytes in (80, 30, 10, 300):
            nursery.start_soon(take, size_bytes)
            await trio.testing.wait_all_tasks_blocked()
        assert taken == [80]
        room.change(-80)
        await trio.testing.wait_all_tasks_blocked()
        assert taken == [80, 30, 10]
        room.change(-40)
    assert taken == [80, 30, 10, 300]
    assert sum(kept) == room.held_bytes == 300


def test_clients_come_over_tls(tmp_path: Path) -> None:
    certificate = authority.write(authority.server_certificate(), tmp_path)
    with started(thrift={"tls": {"certificate": str(certificate)}}) as broker:
        context = authority.client_context()
        context.check_hostname = False
        with client(broker, ssl_context=context) as service:
            assert produce(service, b"a") == [0]


@pytest.mark.interop
@pytest.mark.skipif(
    not (shutil.which("thrift") and shutil.which("node") and Path(NODE_MODULES, "thrift").is_dir()),
    reason="needs thrift-compiler, node, and the library thrift in SLUICEWAY_NODE_MODULES",
)
def test_a_client_in_javascript_is_made_from_the_interface(tmp_path: Path) -> None:
    subprocess.run(["thrift", "--gen", "js:node,es6", "-out", str(tmp_path), str(IDL)], check=True, timeout=30)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    shutil.copy(Path(__file__).parent / "queue_service.js", tmp_path)
    with started() as broker:
        done = subprocess.run(
            ["node", "queue_service.js", str(port_of(broker))],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0", "1", "one,two", "ALL_MESSAGE_CONSUMED", "orders"]
