"""The habits of clients that cannot be installed here, as bytes on a socket: Perl, PHP, CR LF, telnet, pipelining."""

from __future__ import annotations

import pytest

from sluiceway import EmbeddedBroker
from tests.interop.raw_client import RawClient, RawFrame, frame


def reader(address: tuple[str, int], destination: str, version: str = "1.2", ack: str = "auto") -> RawClient:
    """A client that is subscribed to one destination."""
    client = RawClient(address)
    client.connect(version)
    client.send(frame("SUBSCRIBE", id="1", destination=destination, ack=ack, receipt="on"))
    client.expect("RECEIPT")
    return client


# -- Perl: Net::STOMP::Client ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_the_receipt_of_a_send_in_a_transaction_comes_at_once(address: tuple[str, int], version: str) -> None:
    """Perl's client waits for it before it sends COMMIT."""
    with RawClient(address) as client, reader(address, "/queue/q") as other:
        client.connect(version)
        client.send(frame("BEGIN", transaction="t", receipt="begun"))
        assert client.expect("RECEIPT")["receipt-id"] == "begun"
        for number in range(3):
            client.send(frame("SEND", b"%d" % number, destination="/queue/q", transaction="t", receipt=str(number)))
            assert client.expect("RECEIPT")["receipt-id"] == str(number)
        client.send(frame("COMMIT", transaction="t", receipt="done"))
        assert client.expect("RECEIPT")["receipt-id"] == "done"
        for number in range(3):
            message = other.expect("MESSAGE")
            assert message.body == b"%d" % number
            assert {"transaction", "receipt"}.isdisjoint(message.headers)


# -- PHP: stomp-php ----------------------------------------------------------------------------------------------------


def echoed(command: str, message: RawFrame, **more: str) -> bytes:
    """All headers of a MESSAGE in its ACK or NACK, as PHP's client sends them."""
    headers = {**message.headers, **more}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n\0".encode()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_all_headers_of_a_message_may_be_echoed_in_its_ack(
    broker: EmbeddedBroker, address: tuple[str, int], version: str
) -> None:
    """Whatever they are: a content-length that counts the message's body, names that look like receipts, a priority."""
    with reader(address, "/queue/q", version, ack="client") as client:
        client.send(
            frame("SEND", b"body", length=True, destination="/queue/q", priority="7", custom="x", reply_to="/queue/r")
        )
        message = client.expect("MESSAGE")
        message.headers.pop("content-length")
        client.send(echoed("ACK", message, id=message.headers.get("ack", ""), receipt="acked"))
        assert client.expect("RECEIPT")["receipt-id"] == "acked"
        assert [d["depth_count"] for d in broker.report()["destinations"] if d["name"] == "/queue/q"] == [0]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_all_headers_of_a_message_may_be_echoed_in_its_nack(address: tuple[str, int], version: str) -> None:
    with reader(address, "/queue/q", version, ack="client-individual") as client:
        client.send(frame("SEND", b"body", destination="/queue/q", custom="x"))
        message = client.expect("MESSAGE")
        message.headers.pop("content-length", None)
        client.send(echoed("NACK", message, id=message.headers.get("ack", "")))
        again = client.expect("MESSAGE")
        assert again["redelivered"] == "true"
        again.headers.pop("content-length", None)
        client.send(echoed("ACK", again, id=again.headers.get("ack", ""), receipt="acked"))
        assert client.expect("RECEIPT")["receipt-id"] == "acked"


def test_what_a_sender_asked_for_itself_is_not_passed_on(address: tuple[str, int]) -> None:
    """Otherwise echoing would ask for receipts, or join transactions, that nobody meant."""
    with reader(address, "/queue/q") as client:
        client.send(frame("BEGIN", transaction="t"))
        client.send(frame("SEND", b"x", destination="/queue/q", transaction="t", receipt="r"))
        client.send(frame("COMMIT", transaction="t"))
        client.expect("RECEIPT")
        assert set(client.expect("MESSAGE").headers) == {"destination", "message-id", "subscription", "content-length"}


# -- PHP: the extension in C (PECL stomp) ------------------------------------------------------------------------------


class PeclReader:
    """Reads as the extension does: it goes on by two octets behind a body whose length is known, and by one behind a
    NUL that it looked for, whatever they are; an empty line in place of a command is a failure.
    """

    def __init__(self, client: RawClient) -> None:
        self._socket = client.socket
        self._buffer = b""

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = self._socket.recv(8192)
            assert data, "the broker closed"
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _take_to(self, octet: bytes) -> bytes:
        taken = b""
        while not taken.endswith(octet):
            taken += self._take(1)
        return taken[:-1]

    def frame(self) -> RawFrame:
        command = self._take_to(b"\n").decode()
        assert command, "an empty line in place of a command"
        headers: dict[str, str] = {}
        while line := self._take_to(b"\n").decode():
            name, colon, value = line.partition(":")
            assert colon, line
            headers.setdefault(name, value)
        if "content-length" in headers:
            body = self._take(int(headers["content-length"]))
            assert self._take(2) == b"\0\n"
        else:
            body = self._take_to(b"\0")
            self._take(1)
        return RawFrame(command, headers, body)


@pytest.mark.parametrize("with_length", [False, True])
def test_the_extension_of_php_gets_every_frame(address: tuple[str, int], with_length: bool) -> None:
    """Where no LF is behind the NUL it swallows the first letter of the next frame, so every second one is lost."""
    with RawClient(address) as client:
        reader = PeclReader(client)
        client.send(frame("CONNECT"))
        assert reader.frame().command == "CONNECTED"
        client.send(frame("SUBSCRIBE", destination="/queue/php", ack="client", receipt="s"))
        assert reader.frame()["receipt-id"] == "s"
        for number in range(20):
            client.send(
                frame("SEND", b"%d" % number, length=with_length, destination="/queue/php", receipt=str(number))
            )
        bodies, receipts = [], []
        for _ in range(40):
            found = reader.frame()
            if found.command == "RECEIPT":
                receipts.append(found["receipt-id"])
            else:
                bodies.append(found.body)
                client.send(frame("ACK", message_id=found["message-id"]))
        assert (bodies, receipts) == ([b"%d" % number for number in range(20)], [str(number) for number in range(20)])
        client.send(b"NONSENSE\n\n\0")
        assert reader.frame()["code"] == "unknown-command"


# -- RabbitMQ's generic suite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_the_second_of_two_is_acknowledged_first_and_the_other_comes_to_the_next_subscription(
    address: tuple[str, int], version: str
) -> None:
    """Both initial messages come at once, and so does the one that is left, each time anew."""
    with RawClient(address, deadline=4.0) as client:
        client.connect(version)
        for number in range(50):
            for body in (b"first", b"second"):
                client.send(frame("SEND", body, destination="/queue/q"))
            client.send(frame("SUBSCRIBE", id="tag", destination="/queue/q", ack="client-individual"))
            first, second = client.expect("MESSAGE"), client.expect("MESSAGE")
            assert (first.body, second.body) == (b"first", b"second")
            client.send(acknowledged(second))
            client.send(frame("UNSUBSCRIBE", id="tag", receipt=f"left {number}"))
            client.expect("RECEIPT")
            client.send(frame("SUBSCRIBE", id="tag", destination="/queue/q", ack="client-individual"))
            again = client.expect("MESSAGE")
            assert (again.body, again["redelivered"]) == (b"first", "true")
            client.send(acknowledged(again))
            client.send(frame("UNSUBSCRIBE", id="tag", receipt=f"done {number}"))
            client.expect("RECEIPT")


def acknowledged(message: RawFrame) -> bytes:
    """Its ACK, in 1.1 and 1.2."""
    if "ack" in message.headers:
        return frame("ACK", id=message["ack"])
    return frame("ACK", message_id=message["message-id"], subscription=message["subscription"])


# -- line ends ---------------------------------------------------------------------------------------------------------


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def test_a_client_that_ends_its_lines_with_cr_lf(address: tuple[str, int]) -> None:
    """Allowed in 1.2 (b2). The body is its own."""
    with RawClient(address) as client:
        client.send(crlf(b"CONNECT\naccept-version:1.2\nhost:h\n\n") + b"\0\r\n")
        client.expect("CONNECTED")
        client.send(crlf(frame("SUBSCRIBE", id="1", destination="/queue/q")) + b"\r\n\r\n")
        client.send(crlf(b"SEND\ndestination:/queue/q\nkind:crlf\n\n") + b"one\ntwo\r\n\0\r\n")
        message = client.expect("MESSAGE")
        assert (message.body, message["destination"], message["kind"]) == (b"one\ntwo\r\n", "/queue/q", "crlf")
        client.send(crlf(frame("DISCONNECT", receipt="bye")))
        assert client.expect("RECEIPT")["receipt-id"] == "bye"


def test_telnet_by_hand(address: tuple[str, int]) -> None:
    """Lines as they are typed, each on its way at once, with CR LF, and ^@ for the NUL."""
    with RawClient(address) as client:
        for line in (b"CONNECT\r\n", b"\r\n", b"\0\r\n"):
            client.send(line)
        assert "session" in client.expect("CONNECTED").headers
        for line in (b"SUBSCRIBE\r\n", b"destination: /queue/typed\r\n", b"\r\n", b"\0\r\n"):
            client.send(line)
        for line in (b"SEND\r\n", b"destination: /queue/typed\r\n", b"\r\n", b"hello", b"\0\r\n"):
            client.send(line)
        message = client.expect("MESSAGE")
        # What was typed is passed on as it was; in 1.0 blanks around a value mean nothing (b12).
        assert (message.body, message["destination"].strip()) == (b"hello", "/queue/typed")
        client.send(b"DISCONNECT\r\n\r\n\0")
        assert client.frames_to_end() == []


def test_line_ends_before_between_and_behind_frames(address: tuple[str, int]) -> None:
    """Any number, from heart-beats or from clients that end frames with a line end."""
    with RawClient(address) as client:
        client.send(b"\n\n" + frame("CONNECT", accept_version="1.2", host="h") + b"\n")
        client.expect("CONNECTED")
        client.send(b"\n" * 1000)
        for number in range(10):
            client.send(frame("SEND", b"", destination="/queue/q", receipt=str(number)) + b"\n" * number)
            assert client.expect("RECEIPT")["receipt-id"] == str(number)


# -- commands and versions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
@pytest.mark.parametrize(
    ("accepted", "agreed"),
    [("1.2", "1.2"), ("1.1", "1.1"), ("1.0,1.1,1.2", "1.2"), ("1.1,1.0", "1.1"), ("1.2,9.9", "1.2")],
)
def test_both_commands_agree_on_the_highest_version(
    address: tuple[str, int], command: str, accepted: str, agreed: str
) -> None:
    with RawClient(address) as client:
        client.send(frame(command, accept_version=accepted, host="h"))
        connected = client.expect("CONNECTED")
        assert connected["version"] == agreed
        assert "\\" not in connected["session"]


def test_frames_behind_connect_need_not_wait_for_connected(address: tuple[str, int]) -> None:
    """A whole session in one segment, as one-shot producers send it."""
    with reader(address, "/queue/q") as other, RawClient(address) as client:
        client.send(
            frame("CONNECT", accept_version="1.2", host="h")
            + b"".join(frame("SEND", b"%d" % number, destination="/queue/q") for number in range(100))
            + frame("SEND", b"last", destination="/queue/q", receipt="r")
            + frame("DISCONNECT", receipt="bye")
        )
        assert [f.command for f in client.frames_to_end()] == ["CONNECTED", "RECEIPT", "RECEIPT"]
        assert [m.body for m in other.frames(101)] == [*(b"%d" % n for n in range(100)), b"last"]


def test_without_content_length_the_body_ends_at_the_first_nul(address: tuple[str, int]) -> None:
    """And a message with it keeps its NULs."""
    with reader(address, "/queue/q") as client:
        client.send(b"SEND\ndestination:/queue/q\n\nshort\0SEND\ndestination:/queue/q\ncontent-length:5\n\na\0b\0c\0")
        short, long = client.frames(2)
        assert (short.body, long.body) == (b"short", b"a\0b\0c")
        assert short["content-length"] == "5"
        assert long["content-length"] == "5"


def test_the_first_of_repeated_headers_counts(address: tuple[str, int]) -> None:
    """Forwarding clients put theirs in front of the older one (b13)."""
    with reader(address, "/queue/first") as client:
        client.send(b"SEND\ndestination:/queue/first\nfoo:new\ndestination:/queue/second\nfoo:old\n\nx\0")
        message = client.expect("MESSAGE")
        assert (message["destination"], message["foo"]) == ("/queue/first", "new")


def test_receipts_on_every_command(address: tuple[str, int]) -> None:
    """In the order of the frames, without waiting between them."""
    wire = (
        frame("SUBSCRIBE", id="1", destination="/queue/q", ack="client-individual", receipt="SUBSCRIBE")
        + frame("BEGIN", transaction="t", receipt="BEGIN")
        + frame("SEND", b"x", destination="/queue/q", receipt="SEND")
        + frame("COMMIT", transaction="t", receipt="COMMIT")
        + frame("BEGIN", transaction="t")
        + frame("ABORT", transaction="t", receipt="ABORT")
    )
    with RawClient(address) as client:
        client.connect()
        client.send(wire)
        found = list(client.frames(6))
        message = next(f for f in found if f.command == "MESSAGE")
        receipts = [f["receipt-id"] for f in found if f.command == "RECEIPT"]
        assert receipts == ["SUBSCRIBE", "BEGIN", "SEND", "COMMIT", "ABORT"]
        client.send(frame("NACK", id=message["ack"], receipt="NACK"))
        again = list(client.frames(2))
        assert {f.command for f in again} == {"RECEIPT", "MESSAGE"}
        message = next(f for f in again if f.command == "MESSAGE")
        client.send(
            frame("ACK", id=message["ack"], receipt="ACK") + frame("UNSUBSCRIBE", id="1", receipt="UNSUBSCRIBE")
        )
        client.send(frame("DISCONNECT", receipt="DISCONNECT"))
        assert [f["receipt-id"] for f in client.frames_to_end()] == ["ACK", "UNSUBSCRIBE", "DISCONNECT"]
