"""STOMP over WebSocket over loopback, against wsproto as the client."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, Listener
from sluiceway.protocols.settings import TlsConfig, WebSocketConfig
from sluiceway.protocols.stomp.limits import StompLimits
from tests.log_lines import LogLines
from tests.network import authority
from tests.network.talking import PATIENCE_SECONDS, Talker, dial, dial_tls, read_to_end
from tests.network.web import Refusal, WebClient


def config(**options: Any) -> Config:
    """One WebSocket listener."""
    limits = options.pop("limits", StompLimits(linger_seconds=0.5))
    tls = options.pop("tls", TlsConfig())
    web = WebSocketConfig(**options)
    return Config(
        listeners=(Listener(address="127.0.0.1:0", protocol="websocket", websocket=web, limits=limits, tls=tls),)
    )


async def dial_web(broker: Broker, **options: Any) -> WebClient:
    """An open WebSocket."""
    as_text = options.pop("as_text", False)
    return await WebClient(await dial(broker.addresses[0]), as_text=as_text).open(**options)


@pytest.mark.parametrize("as_text", [False, True])
async def test_messages_of_all_sizes_go_both_ways(as_text: bool) -> None:
    async with Broker(config()) as broker:
        assert broker.urls[0].endswith("/stomp")
        assert broker.urls[0].startswith("ws://127.0.0.1:")
        talker = Talker(await dial_web(broker, as_text=as_text))
        await talker.connect()
        for size in (0, 1, 125, 126, 65_535, 65_536, 900_000):
            body = ("zwölf Boxkämpfer " * (size // 10 + 1)).encode()[:size]
            body = body.decode(errors="ignore").encode()
            assert await talker.round_trip(body) == body
        await talker.stream.aclose()


async def test_each_frame_is_a_message_in_bursts_and_for_all_sizes() -> None:
    """Clients that keep nothing between messages take each for a frame, stompjs 2 among them. `WebClient` looks at each
    message that comes: see `Messages`.
    """
    sizes = [0, 1, 60, 65_500, 65_535, 65_536, 262_144, 300_000, 1 << 20]
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        talker = Talker(client)
        await talker.connect()
        for ack in ("auto", "client-individual"):
            client.messages.frames.clear()
            where = f"/queue/{ack}"
            await client.send_all(
                f"SUBSCRIBE\nid:{ack}\ndestination:{where}\nack:{ack}\ncredit:5000,64000000\n\n\0".encode()
            )
            sent = [b"x" * size for size in sizes] + [b"burst %d" % number for number in range(2000)]
            frames = [f"SEND\ndestination:{where}\ncontent-length:{len(body)}\n\n".encode() + body for body in sent]
            for start in range(0, len(frames), 500):
                await client.stream.send_all(
                    b"".join(client.ws.send(BytesMessage(frame + b"\0")) for frame in frames[start : start + 500])
                )
            with trio.fail_after(PATIENCE_SECONDS):
                while len(client.messages.frames) < len(sent):
                    assert await client.receive_some(1 << 20)
            got = [frame.partition(b"\n\n")[2] for frame in client.messages.frames]
            assert got == [body + b"\0\n" for body in sent]
        await client.aclose()


async def test_a_ping_is_answered_within_a_message_in_fragments(tmp_path: Path) -> None:
    """A body of gigabytes may be under way, and a client that pings would give up."""
    limits = StompLimits(linger_seconds=0.5, large_body_bytes=1 << 20)
    async with Broker(attrs.evolve(config(limits=limits), broker=BrokerConfig(data_dir=tmp_path))) as broker:
        sender = Talker(await dial_web(broker))
        await sender.connect()
        body = b"\xff" * 12_000_000
        head = f"SEND\ndestination:/queue/q\ncontent-length:{len(body)}\nreceipt:r\n\n".encode()
        await sender.stream.send_all(head)
        for start in range(0, len(body), 500_000):
            await sender.stream.send_all(body[start : start + 500_000])
        await sender.stream.send_all(b"\0")
        await sender.expect("RECEIPT")
        reader = await dial_web(broker)
        await Talker(reader).connect()
        reader.messages.frames.clear()
        await reader.send_all(b"SUBSCRIBE\nid:s\ndestination:/queue/q\n\n\0")
        with trio.fail_after(PATIENCE_SECONDS):
            while len(reader.messages.begun) < 1_000_000:
                assert await reader.receive_some(65536)
            await reader.say(Ping(b"there?"))
            while not reader.pongs:
                assert await reader.receive_some(65536)
            assert not reader.messages.frames
            while not reader.messages.frames:
                assert await reader.receive_some(1 << 20)
        assert reader.messages.frames[0].partition(b"\n\n")[2] == body + b"\0\n"
        assert reader.kinds[-1] == "binary"
        await reader.aclose()
        await sender.stream.aclose()


async def test_over_tls_it_is_wss(tmp_path: Path) -> None:
    tls = TlsConfig(certificate=authority.write(authority.server_certificate(), tmp_path))
    async with Broker(config(tls=tls)) as broker:
        assert broker.urls[0].startswith("wss://")
        stream = await dial_tls(broker.addresses[0], authority.client_context())
        talker = Talker(await WebClient(stream).open())
        await talker.connect()
        body = bytes(range(256)) * 2000
        assert await talker.round_trip(body) == body
        await talker.stream.aclose()


async def test_text_goes_out_as_text_and_the_rest_as_binary() -> None:
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        talker = Talker(client)
        await talker.connect()
        await talker.round_trip("Grüße 🚰".encode())
        assert set(client.kinds) == {"text"}
        client.kinds.clear()
        await talker.round_trip(b"\xff\xfe")
        assert "binary" in client.kinds
        await client.aclose()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (("v12.stomp", "v11.stomp", "v10.stomp"), "v12.stomp"),
        (("v10.stomp", "v11.stomp"), "v11.stomp"),
        (("mqtt", "v10.stomp"), "v10.stomp"),
        (("mqtt",), None),
        ((), None),
    ],
)
async def test_the_best_subprotocol_that_is_offered(offered: tuple[str, ...], chosen: str | None) -> None:
    async with Broker(config()) as broker:
        client = await dial_web(broker, subprotocols=offered)
        assert client.subprotocol == chosen
        await Talker(client).connect()
        await client.aclose()


async def test_a_frame_in_many_pieces_and_many_frames_in_one() -> None:
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        talker = Talker(client)
        data = talker.machine.connect("test", versions=("1.2",))
        for place in range(len(data)):  # one message in fragments of one byte
            await client.say(BytesMessage(data[place : place + 1], message_finished=place == len(data) - 1))
        await talker.expect("CONNECTED")
        many = b"".join(
            talker.machine.send("SEND", [("destination", "/queue/a"), ("receipt", str(n))], b"x") for n in range(50)
        )
        await client.say(BytesMessage(many))
        for n in range(50):
            assert (await talker.expect("RECEIPT")).headers["receipt-id"] == str(n)
        await client.aclose()


async def test_a_ping_within_a_message_in_pieces_is_answered() -> None:
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        talker = Talker(client)
        data = talker.machine.connect("test", versions=("1.2",))
        await client.say(BytesMessage(data[:10], message_finished=False))
        await client.say(Ping(b"are you there"))
        with trio.fail_after(PATIENCE_SECONDS):
            assert await client.receive_some() == b"\n"
        assert client.pongs == [b"are you there"]
        await client.say(BytesMessage(data[10:]))
        await talker.expect("CONNECTED")
        await client.aclose()


async def test_heart_beats_go_both_ways() -> None:
    limits = StompLimits(heart_beat_min_ms=50, heart_beat_grace_factor=400, linger_seconds=0.5)
    async with Broker(config(limits=limits)) as broker:
        client = await dial_web(broker, as_text=True)
        talker = Talker(client)
        assert (await talker.connect(heart_beat=(100, 100))).headers["heart-beat"] == "50,50"
        with trio.fail_after(PATIENCE_SECONDS):
            for _ in range(4):
                assert await client.receive_some() == b"\n"
                await client.send_all(b"\n")
        assert await talker.round_trip(b"alive") == b"alive"
        await client.aclose()


async def test_closing_is_answered_with_the_same_code() -> None:
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        await Talker(client).connect()
        await client.say(CloseConnection(code=1001, reason="bye"))
        await read_to_end(client)
        assert client.closed_with == (1001, "")
        assert await client.stream.receive_some() == b""
        await client.aclose()


async def test_disconnect_ends_with_a_close_frame() -> None:
    """The RECEIPT comes, then 1000, then the end of the connection."""
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        talker = Talker(client)
        await talker.connect()
        await talker.send("DISCONNECT", {"receipt": "bye"})
        await talker.expect("RECEIPT")
        await read_to_end(client)
        assert client.closed_with is not None
        assert client.closed_with[0] == 1000
        await client.say(CloseConnection(code=1000))
        assert await read_to_end(client.stream) == b""
        await client.aclose()


async def test_an_error_frame_arrives_before_the_close() -> None:
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        talker = Talker(client)
        await talker.connect()
        await client.send_all(b"NONSENSE\n\n\0")
        await talker.expect("ERROR")
        await client.aclose()


def masked(first: int, payload: bytes, size: int | None = None) -> bytes:
    """A frame as no well-behaved client would make it; key 0."""
    size = len(payload) if size is None else size
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65536:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


BAD_FRAMES = {
    "unmasked": (b"\x82\x01x", 1002),
    "reserved bit": (masked(0xC2, b"x"), 1002),
    "unknown kind": (masked(0x83, b"x"), 1002),
    "unknown control": (masked(0x8B, b""), 1002),
    "continuation of nothing": (masked(0x80, b"x"), 1002),
    "message within a message": (masked(0x02, b"x") + masked(0x82, b"y"), 1002),
    "ping in pieces": (masked(0x09, b"x"), 1002),
    "large ping": (masked(0x89, b"x" * 126), 1002),
    "long way to write a length": (b"\x82\xfe\x00\x01\0\0\0\0x", 1002),
    "negative length": (b"\x82\xff\x80" + b"\0" * 7 + b"\0\0\0\0x", 1002),
    "text that is not UTF-8": (masked(0x81, b"\xff"), 1007),
    "text in pieces that is not": (masked(0x01, b"\xc3") + masked(0x80, b"x"), 1007),
    "text that ends within a character": (masked(0x01, b"\xc3") + masked(0x80, b""), 1007),
    "close with a wrong code": (masked(0x88, b"\x03\xed"), 1002),
    "close with half a code": (masked(0x88, b"\x03"), 1002),
    "close with a reason that is not UTF-8": (masked(0x88, b"\x03\xe8\xff"), 1007),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_who_breaks_the_rules_is_closed_with_the_fitting_code(name: str, log_lines: LogLines) -> None:
    data, code = BAD_FRAMES[name]
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        await Talker(client).connect()
        await client.stream.send_all(data)
        await read_to_end(client)
        assert client.closed_with is not None
        assert client.closed_with[0] == code
        assert await read_to_end(client.stream) == b""
        await client.aclose()
    (line,) = log_lines.of("connection ended")
    assert "WebSocket: " in line["reason"]


@pytest.mark.parametrize("in_pieces", [False, True])
async def test_an_oversized_message_is_closed_with_1009_before_it_has_come(in_pieces: bool) -> None:
    """By what its head says: nothing of that size is ever held."""
    limits = StompLimits(
        body_bytes_max=1000,
        large_body_bytes=0,
        header_block_bytes_max=1000,
        connect_frame_bytes_max=500,
        linger_seconds=0.5,
    )
    async with Broker(config(limits=limits)) as broker:
        client = await dial_web(broker)
        await Talker(client).connect()
        if in_pieces:
            await client.stream.send_all(masked(0x02, b"\n" * 1500) + masked(0x00, b"", size=501))
        else:
            await client.stream.send_all(masked(0x82, b"", size=2001))
        await read_to_end(client)
        assert client.closed_with is not None
        assert client.closed_with[0] == 1009
        await client.aclose()


class TestUpgrade:
    """What is no request for our WebSocket is answered as HTTP wants it."""

    async def refused(self, broker: Broker, **options: Any) -> Refusal:
        stream = await dial(broker.addresses[0])
        with pytest.raises(Refusal) as refusal:
            await WebClient(stream).open(**options)
        assert await read_to_end(stream) == b""
        await stream.aclose()
        return refusal.value

    async def answer(self, broker: Broker, request: bytes) -> bytes:
        stream = await dial(broker.addresses[0])
        await stream.send_all(request)
        answer = await read_to_end(stream)
        await stream.aclose()
        return answer

    async def test_another_path_is_404_and_ours_is_named(self, log_lines: LogLines) -> None:
        async with Broker(config(path="/broker/stomp")) as broker:
            refusal = await self.refused(broker, target="/stomp")
            assert refusal.status == 404
            assert "/broker/stomp" in refusal.body
            client = await dial_web(broker, target="/broker/stomp?token=1")
            await client.aclose()
        (line,) = log_lines.of("connection not opened")
        assert "'/stomp'" in line["reason"]

    async def test_a_browser_that_just_looks_is_told_what_this_is(self) -> None:
        async with Broker(config()) as broker:
            answer = await self.answer(broker, b"GET /stomp HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 426 ")
            assert b"stompjs" in answer

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"POST /stomp HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405),
            (b"GET /stomp HTTP/1.0\r\n\r\n", 400),
            (b"GET /stomp\r\n\r\n", 400),
            (b"GET /stomp HTTP/1.1\r\nHost: x\r\nbad header line\r\n\r\n", 400),
            (b"GARBAGE OF SOME KIND\r\n\r\n", 400),
            (b"GET /stomp HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
            (b"GET /stomp HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000, 431),
        ],
    )
    async def test_garbage(self, request_: bytes, status: int) -> None:
        async with Broker(config()) as broker:
            assert (await self.answer(broker, request_)).startswith(b"HTTP/1.1 %d " % status)

    async def test_plain_stomp_gets_an_error_frame(self, log_lines: LogLines) -> None:
        async with Broker(config()) as broker:
            answer = await self.answer(broker, b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            assert answer.startswith(b"ERROR\nmessage:this port speaks STOMP over WebSocket")
        (line,) = log_lines.of("connection not opened")
        assert "without WebSocket" in line["reason"]

    async def test_tls_is_named_in_the_log(self, log_lines: LogLines) -> None:
        async with Broker(config()) as broker:
            with pytest.raises(trio.BrokenResourceError):
                await dial_tls(broker.addresses[0], authority.client_context())
        (line,) = log_lines.of("connection not opened")
        assert line["reason"] == "the client speaks TLS on a WebSocket port without TLS"

    async def test_a_slow_request_ends_at_the_connect_timeout(self, log_lines: LogLines) -> None:
        limits = StompLimits(connect_timeout_seconds=0.1, linger_seconds=0.1)
        async with Broker(config(limits=limits)) as broker:
            assert await self.answer(broker, b"GET /stomp HTTP/1.1\r\nHost: ") == b""
        (line,) = log_lines.of("connection not opened")
        assert "WebSocket request" in line["reason"]

    @pytest.mark.parametrize(
        ("origins", "host", "origin", "is_let_in"),
        [
            ((), "localhost:15674", None, True),
            ((), "localhost:15674", "http://localhost:15674", True),
            ((), "127.0.0.1:15674", "http://127.0.0.1:15674", True),
            ((), "localhost:15674", "http://localhost:8080", False),
            ((), "localhost:15674", "https://evil.example", False),
            ((), "localhost:15674", "null", False),
            ((), "evil.example:15674", "http://evil.example:15674", False),  # a name that leads here
            (("https://app.example",), "localhost", "https://app.example", True),
            (("https://app.example",), "localhost", "http://app.example", False),
            (("https://app.example",), "localhost", "http://localhost", False),
            (("*",), "localhost", "https://evil.example", True),
        ],
    )
    async def test_pages_of_strangers_may_not_connect(
        self, origins: tuple[str, ...], host: str, origin: str | None, is_let_in: bool
    ) -> None:
        headers = () if origin is None else (("Origin", origin),)
        async with Broker(config(origins=origins)) as broker:
            if is_let_in:
                client = await dial_web(broker, host=host, headers=headers)
                await client.aclose()
            else:
                assert (await self.refused(broker, host=host, headers=headers)).status == 403

    @pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://", "nonsense"])
    def test_origins_that_can_never_match_are_refused(self, origin: str) -> None:
        with pytest.raises(ValueError, match="origins"):
            WebSocketConfig(origins=(origin,))


async def test_a_peer_that_never_reads_holds_up_nobody(log_lines: LogLines) -> None:
    """Floods of pings too: only the last is answered."""
    async with Broker(config()) as broker:
        silent = await dial_web(broker)
        await Talker(silent).connect()
        with trio.move_on_after(1):
            for _ in range(2000):
                await silent.say(Ping(b"x" * 125))
        talker = Talker(await dial_web(broker))
        await talker.connect()
        assert await talker.round_trip(b"works") == b"works"
        await talker.stream.aclose()
        await silent.aclose()


async def test_text_message_of_a_client_in_two_halves_of_a_character() -> None:
    async with Broker(config()) as broker:
        client = await dial_web(broker)
        talker = Talker(client)
        await talker.connect()
        frame = talker.machine.send("SEND", [("destination", "/queue/u"), ("receipt", "r")], "ä".encode())
        cut = frame.index(b"\xc3") + 1
        await client.stream.send_all(masked(0x01, frame[:cut]) + masked(0x80, frame[cut:]))
        await talker.expect("RECEIPT")
        await client.say(TextMessage("\n"))
        await client.aclose()


async def test_a_mistake_of_ours_costs_one_connection_and_not_the_broker(
    monkeypatch: pytest.MonkeyPatch, log_lines: LogLines
) -> None:
    """Also before STOMP begins, where libraries read what strangers send."""

    def mistaken(*_arguments: object, **_options: object) -> None:
        raise KeyError("a bug")

    async with Broker(config()) as broker:
        client = Talker(await dial_web(broker))
        await client.connect()
        with monkeypatch.context() as wrong:
            wrong.setattr("sluiceway.protocols.websocket._judged", mistaken)
            stream = await dial(broker.addresses[0])
            await stream.send_all(b"GET /stomp HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await read_to_end(stream) == b""
            await stream.aclose()
        assert await client.round_trip(b"still here") == b"still here"
        await client.stream.aclose()
    (line,) = log_lines.of("internal error")
    assert "KeyError" in line["exception"]
    (line,) = log_lines.of("connection not opened")
    assert line["reason"] == "internal error"
