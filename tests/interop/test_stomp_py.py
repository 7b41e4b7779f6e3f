"""stomp.py, in each of its versions, for everything that it can do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import stomp

from sluiceway import EmbeddedBroker
from sluiceway.config import SecurityConfig
from sluiceway.embedded import embedded_config
from tests.interop.conftest import PATIENT
from tests.interop.raw_client import DEADLINE_SECONDS
from tests.interop.stomp_py import VERSIONS, Client, connected

ACK_MODES = [
    (version, ack)
    for version in VERSIONS
    for ack in ("auto", "client", "client-individual")
    if (version, ack) != ("1.0", "client-individual")
]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(address: tuple[str, int], version: str) -> Iterator[Client]:
    with connected(address, version) as client:
        yield client


def depths(broker: EmbeddedBroker, destination: str) -> tuple[int, int]:
    """(messages held, of these unsettled) of a destination; zeros if it is not there."""
    for found in broker.report()["destinations"]:
        if found["name"] == destination:
            return found["depth_count"], found["unsettled_count"]
    return 0, 0


# -- words of other brokers --------------------------------------------------------------------------------------------


def test_a_durable_wildcard_of_rabbitmq_and_the_headers_of_activemq(tmp_path: Path) -> None:
    """What topics send before there is a consumer, and while the broker restarts, comes with its dates."""
    config = embedded_config(
        {
            "broker": {"data_dir": str(tmp_path)},
            "store": {"engine": "leveldb"},
            "destinations": {"/topic/orders.#": {"jms_headers": True}},
        }
    )
    words = {"durable": "true", "auto-delete": "false"}
    with EmbeddedBroker(config) as broker, connected((broker.host, broker.port), "1.2") as client:
        client.subscribe("/topic/orders.#.paid", "audit", **words)
    with EmbeddedBroker(config) as broker, connected((broker.host, broker.port), "1.1") as client:
        for topic in ("orders.paid", "orders.eu.berlin.paid", "orders.eu.open"):
            client.send_and_wait(f"/topic/{topic}", topic, persistent="true")
    with EmbeddedBroker(config) as broker, connected((broker.host, broker.port), "1.1") as client:
        client.subscribe("/topic/orders.#.paid", "audit", "client", **words)
        messages = [client.message() for _ in range(2)]
        assert {each.body for each in messages} == {"orders.paid", "orders.eu.berlin.paid"}
        for each in messages:
            assert (each.headers["priority"], each.headers["expires"]) == ("4", "0")
            assert abs(int(each.headers["timestamp"]) / 1000 - time.time()) < 600
        assert client.listener.messages.empty()


# -- connecting --------------------------------------------------------------------------------------------------------


def test_connected_says_who_and_which_version(client: Client, version: str) -> None:
    connected = client.connected_headers
    assert connected["server"].startswith("sluiceway/")
    assert connected["session"]
    assert ":" not in connected["session"]
    assert connected.get("version", "1.0") == version


def test_the_receipt_of_disconnect_is_read_before_the_end(address: tuple[str, int], version: str) -> None:
    client = Client(address, version)
    client.connect()
    client.connection.disconnect(receipt="bye")
    assert client.listener.receipts.get(timeout=DEADLINE_SECONDS) == "bye"
    assert client.listener.disconnected.wait(DEADLINE_SECONDS)
    assert client.listener.errors.empty()


def test_one_connection_object_can_connect_again(address: tuple[str, int], version: str) -> None:
    client = Client(address, version)
    for number in range(3):
        client.connect()
        client.subscribe("/queue/again")
        client.send("/queue/again", str(number))
        assert client.message().body == str(number)
        client.disconnect()


@pytest.fixture
def guarded() -> Iterator[tuple[str, int]]:
    """A broker that lets in one user, whose passcode holds what escaping could spoil."""
    config = attrs.evolve(embedded_config(), security=SecurityConfig(users={"ann": "pass:word\\n"}, default="allow"))
    with EmbeddedBroker(config) as broker:
        yield broker.host, broker.port


def test_login_and_passcode_with_a_colon(guarded: tuple[str, int], version: str) -> None:
    """CONNECT is never escaped (b10)."""
    client = Client(guarded, version)
    client.connect("ann", "pass:word\\n")
    client.disconnect()


@pytest.mark.parametrize(("login", "passcode"), [("ann", "wrong"), ("bob", "pass:word\\n"), (None, None)])
def test_wrong_login(guarded: tuple[str, int], version: str, login: str | None, passcode: str | None) -> None:
    client = Client(guarded, version)
    with pytest.raises(stomp.exception.ConnectFailedException):
        client.connect(login, passcode)
    error = client.listener.errors.get(timeout=DEADLINE_SECONDS)
    assert "authentication" in error.headers["message"]
    assert passcode is None or passcode not in str(error)
    assert client.listener.disconnected.wait(DEADLINE_SECONDS)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_comes_as_it_was_sent(client: Client) -> None:
    client.subscribe("/queue/q")
    client.send("/queue/q", "body", kind="test", content_type="text/plain")
    message = client.message()
    assert message.body == "body"
    assert message.headers["destination"] == "/queue/q"
    assert message.headers["kind"] == "test"
    assert message.headers["content-type"] == "text/plain"
    assert message.headers["content-length"] == "4"
    assert message.headers["subscription"] == "1"
    assert message.headers["message-id"]
    assert "receipt" not in message.headers


HEADERS = {
    "plain": "value",
    "colon": "a:b:c",
    "blanks": " both ends ",
    "newline": "one\ntwo",
    "backslash": "C:\\new\\table",
    "literal escape": "\\n is not a newline",
    "umlauts": "Grüße, 日本, 🚿",
    "empty": "",
}


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_special_characters_in_headers(client: Client) -> None:
    """Values and names, by way of the escapes of the version."""
    headers = HEADERS | {"na:me": "colon in the name"}
    if client.version == "1.2":
        headers["return"] = "one\r\ntwo"
    client.subscribe("/queue/q")
    # stomp.py escapes values only; names are for the caller.
    client.connection.send("/queue/q", "x", headers={name.replace(":", "\\c"): v for name, v in headers.items()})
    message = client.message()
    assert {name: message.headers[name] for name in headers} == headers


def test_a_header_newline_never_becomes_one_for_a_1_0_client(address: tuple[str, int]) -> None:
    """It could forge headers there; the client of 1.2 that sent it gets it back whole."""
    with connected(address, "1.0") as old, connected(address, "1.2") as new:
        old.subscribe("/topic/t")
        new.subscribe("/topic/t")
        new.send_and_wait("/topic/t", "x", note="one\nforged:two")
        assert new.message().headers["note"] == "one\nforged:two"
        headers = old.message().headers
        assert "forged" not in headers
        assert "one" in headers["note"]


def test_unicode_bodies(client: Client) -> None:
    client.subscribe("/queue/q")
    client.send("/queue/q", "Grüße, 日本, 🚿")
    assert client.message().body == "Grüße, 日本, 🚿"


def test_binary_bodies(address: tuple[str, int], version: str) -> None:
    """Every byte there is, NUL and line ends at either end included."""
    body = b"\0\n\r" + bytes(range(256)) * 4 + b"\n\0"
    with connected(address, version, auto_decode=False) as client:
        client.subscribe("/queue/q")
        client.send("/queue/q", body)
        assert client.message().body == body


def test_bodies_without_content_length(address: tuple[str, int], version: str) -> None:
    """As brokers of the JMS kind want it for text messages."""
    with connected(address, version, auto_content_length=False) as client:
        client.subscribe("/queue/q")
        for body in ("text", ""):
            client.send("/queue/q", body)
            message = client.message()
            assert message.body == body
            # 1.2 wants one; before that, those of the JMS kind take it for a sign that the body is no text.
            expected = str(len(body)) if version == "1.2" else None
            assert message.headers.get("content-length") == expected


def test_bodies_of_a_megabyte(address: tuple[str, int], version: str) -> None:
    bodies = [bytes([number]) * (1 << 20) for number in range(1, 6)]
    with connected(address, version, auto_decode=False) as client:
        client.subscribe("/queue/q", ack="client")
        for body in bodies:
            client.send("/queue/q", body)
        for body in bodies:
            message = client.message()
            assert message.body == body
            client.ack(message)


def test_a_topic_reaches_all_who_listen(address: tuple[str, int], version: str) -> None:
    with ExitStack() as clients:
        subscribers = [clients.enter_context(connected(address, other)) for other in VERSIONS]
        for subscriber in subscribers:
            subscriber.subscribe("/topic/news.>")
        with connected(address, version) as producer:
            for number in range(100):
                producer.send("/topic/news.local", str(number))
            for subscriber in subscribers:
                assert subscriber.bodies(100) == [str(number) for number in range(100)]


def test_unsubscribe_ends_the_messages(client: Client, version: str) -> None:
    client.subscribe("/queue/q", "first")
    client.subscribe("/queue/other", "second")
    receipt = client.receipt()
    if version == "1.0":
        client.connection.unsubscribe(id="first", headers={"receipt": receipt})
    else:
        client.connection.unsubscribe("first", headers={"receipt": receipt})
    client.await_receipt(receipt)
    client.send_and_wait("/queue/q", "unheard")
    client.send("/queue/other", "heard")
    assert client.message().body == "heard"
    client.subscribe("/queue/q", "first")
    assert client.message().body == "unheard"


# -- acknowledgement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "ack"), ACK_MODES)
def test_every_ack_mode_empties_the_queue(broker: EmbeddedBroker, client: Client, ack: str) -> None:
    client.subscribe("/queue/q", ack=ack)
    for number in range(10):
        client.send("/queue/q", str(number))
    messages = [client.message() for _ in range(10)]
    assert [message.body for message in messages] == [str(number) for number in range(10)]
    if ack == "client":
        client.ack(messages[-1], receipt="acked")
    elif ack == "client-individual":
        for message in messages:
            client.ack(message)
        client.ack(messages[-1], receipt="acked")
    else:
        client.send("/topic/nobody", "", receipt="acked")
    client.await_receipt("acked")
    assert depths(broker, "/queue/q") == (0, 0)


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_an_individual_ack_settles_one(address: tuple[str, int], broker: EmbeddedBroker, version: str) -> None:
    """The others come again when the connection is gone."""
    with connected(address, version) as client:
        client.subscribe("/queue/q", ack="client-individual")
        for number in range(3):
            client.send("/queue/q", str(number))
        messages = [client.message() for _ in range(3)]
        client.ack(messages[1], receipt="acked")
        client.await_receipt("acked")
        assert depths(broker, "/queue/q") == (2, 2)
    with connected(address, version) as client:
        client.subscribe("/queue/q")
        assert client.bodies(2) == ["0", "2"]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_nack_brings_the_message_again(client: Client) -> None:
    client.subscribe("/queue/q", ack="client-individual")
    client.send("/queue/q", "try")
    message = client.message()
    assert "redelivered" not in message.headers
    client.nack(message)
    again = client.message()
    assert (again.body, again.headers["redelivered"], again.headers["delivery-count"]) == ("try", "true", "2")
    client.ack(again)


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_all_or_nothing(client: Client, broker: EmbeddedBroker) -> None:
    """SENDs wait for COMMIT, ABORT forgets them; the ACKs inside go with them."""
    client.subscribe("/queue/in", "in", ack="client")
    client.subscribe("/queue/out", "out")
    client.send("/queue/in", "work")
    work = client.message()
    for transaction, end in (("t1", client.connection.abort), ("t2", client.connection.commit)):
        client.connection.begin(transaction)
        for number in range(3):
            client.send_and_wait("/queue/out", f"{transaction} {number}", transaction=transaction)
        client.ack(work, transaction=transaction)
        assert client.listener.messages.empty()
        receipt = client.receipt()
        end(transaction, headers={"receipt": receipt})
        client.await_receipt(receipt)
    assert client.bodies(3) == ["t2 0", "t2 1", "t2 2"]
    assert depths(broker, "/queue/in") == (0, 0)


def test_two_transactions_at_a_time_do_not_mix(client: Client) -> None:
    client.subscribe("/queue/q")
    for transaction in ("a", "b"):
        client.connection.begin(transaction)
    for number in range(4):
        client.send("/queue/q", str(number), transaction="ab"[number % 2])
    client.connection.commit("b")
    client.connection.commit("a")
    assert client.bodies(4) == ["1", "3", "0", "2"]


# -- heart-beats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_heart_beats_go_both_ways_and_keep_an_idle_connection(patient_beats: EmbeddedBroker, version: str) -> None:
    address = (patient_beats.host, patient_beats.port)
    with connected(address, version, heartbeats=(50, 50), heart_beat_receive_scale=PATIENT) as client:
        assert client.connected_headers["heart-beat"] == "50,50"
        for _ in range(10):
            assert client.listener.heart_beats.acquire(timeout=DEADLINE_SECONDS)
        client.subscribe("/queue/q")
        client.send("/queue/q", "alive")
        assert client.message().body == "alive"
        assert client.listener.errors.empty()
        assert not client.listener.heart_beat_timeout.is_set()


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_client_that_stops_beating_is_told_and_closed(quick_beats: EmbeddedBroker, version: str) -> None:
    client = Client((quick_beats.host, quick_beats.port), version, heartbeats=(50, 0))
    client.connection.transport.set_listener("zz-mute", _Mute(client))
    client.connect()
    error = client.listener.errors.get(timeout=DEADLINE_SECONDS)
    assert "no bytes from you" in error.headers["message"]
    assert client.listener.disconnected.wait(DEADLINE_SECONDS)


class _Mute(stomp.ConnectionListener):  # type: ignore[misc]
    """Stops stomp.py's own beating as soon as it has begun: called after the protocol's listener, by its name."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def on_connected(self, _frame: Any) -> None:
        self._client.connection.heartbeat_terminate_event.set()


# -- request and reply -------------------------------------------------------------------------------------------------


def test_request_and_reply_by_way_of_a_temporary_queue(address: tuple[str, int], version: str) -> None:
    """The server sees a reply-to that it can send to; only the asker gets the reply."""
    with (
        connected(address, version) as server,
        connected(address, version) as asker,
        connected(address, "1.2") as other,
    ):
        server.subscribe("/queue/requests")
        for client in (asker, other):
            client.subscribe("/temp-queue/replies", "replies")
        done = threading.Event()

        def serve() -> None:
            for _ in range(3):
                request = server.message()
                headers = {"correlation-id": request.headers["correlation-id"]}
                server.connection.send(request.headers["reply-to"], request.body.upper(), headers=headers)
            done.set()

        thread = threading.Thread(target=serve)
        thread.start()
        for number, word in enumerate(("one", "two", "three")):
            asker.send("/queue/requests", word, reply_to="/temp-queue/replies", correlation_id=str(number))
            reply = asker.message()
            assert (reply.body, reply.headers["correlation-id"]) == (word.upper(), str(number))
        thread.join(DEADLINE_SECONDS)
        assert done.is_set()
        assert other.listener.messages.empty()


def test_names_and_replies_as_with_rabbitmq(address: tuple[str, int], version: str) -> None:
    """No client has to SUBSCRIBE to its reply queue."""
    with connected(address, version) as server, connected(address, version) as asker:
        server.subscribe("/amq/queue/requests", "requests")
        asker.subscribe("/topic/news.#", "news")
        asker.send("/queue/requests", "one", reply_to="/temp-queue/replies")
        server.send(server.message().headers["reply-to"], "ONE")
        assert asker.message().body == "ONE"
        for name in ("/exchange/amq.topic/news", "/topic/news.today"):
            server.send(name, name)
            assert asker.message().body == name


def test_subscriptions_as_with_artemis(address: tuple[str, int], version: str) -> None:
    """Its words for a durable subscription, for kinds of destinations, and no-local."""
    with connected(address, version) as client, connected(address, version) as other:
        client.subscribe("news", "n", **{"subscription-type": "MULTICAST", "no-local": "true"})
        for sender in (client, other):
            sender.send("news", "mine" if sender is client else "yours", destination_type="MULTICAST")
        assert client.message().body == "yours"
        words = {"durable-subscription-name": f"audit {version}", "consumer-window-size": "1000"}
        client.subscribe("/topic/audited", "a", **words)
        client.connection.unsubscribe("/topic/audited" if version == "1.0" else "a")
        other.send_and_wait("/topic/audited", "kept")
        client.subscribe("/topic/audited", "b", **words)
        assert client.message().body == "kept"


# -- volume ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.2"])
def test_twenty_thousand_messages_with_client_acks(broker: EmbeddedBroker, client: Client) -> None:
    """From a producer of its own, acknowledged by the hundred and one by one; nothing is lost, doubled or reordered."""
    count = 20_000
    client.subscribe("/queue/q", ack="client")

    def produce() -> None:
        with connected((broker.host, broker.port), "1.1") as producer:
            for number in range(count):
                producer.send("/queue/q", str(number))

    thread = threading.Thread(target=produce)
    thread.start()
    for number in range(count):
        message = client.message()
        assert message.body == str(number)
        if number % 100 == 99 or number < 1000:
            client.ack(message)
    thread.join(DEADLINE_SECONDS)
    client.ack(message, receipt="last")
    client.await_receipt("last")
    assert depths(broker, "/queue/q") == (0, 0)
