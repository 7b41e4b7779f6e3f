"""Heart-beats in virtual time: who must beat how often, and when silence is death. Checklist b23-b27."""

from __future__ import annotations

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

Q = "/queue/work"


def is_alive(stage: Stage, client: Client) -> bool:
    """The broker still serves this client."""
    return any(c.session.peer == client.name and c.session.ending is None for c in stage.broker.connections)


async def test_broker_beats_when_it_has_nothing_to_say(stage: Stage, later_version: Version) -> None:
    """b25: at least once per agreed interval."""
    client = await stage.connect(later_version, heart_beat=(0, 5_000))
    for _ in range(10):
        assert await client.raw_bytes(5) != b""


async def test_broker_beats_no_more_often_than_it_must(stage: Stage) -> None:
    client = await stage.connect(heart_beat=(0, 5_000))
    beats = await client.raw_bytes(100)
    assert set(beats) == {ord("\n")}
    assert 20 <= len(beats) <= 26


async def test_slower_of_both_wishes_counts(stage: Stage) -> None:
    """b24: the client wants 10 ms, the broker offers 1,000 at best."""
    client = await stage.connect(heart_beat=(0, 10))
    assert 100 <= len(await client.raw_bytes(100)) <= 130


@pytest.mark.parametrize("heart_beat", [(0, 0), (60_000, 0)])
async def test_broker_does_not_beat_unasked(stage: Stage, heart_beat: tuple[int, int]) -> None:
    client = await stage.connect(heart_beat=heart_beat)
    assert await client.raw_bytes(100) == b""


async def test_1_0_has_no_heart_beats(stage: Stage) -> None:
    """Whatever the header says."""
    client = await stage.connect("1.0", heart_beat=(1_000, 1_000))
    assert await client.raw_bytes(100) == b""
    assert is_alive(stage, client)


async def test_connected_tells_what_the_broker_does(stage: Stage, later_version: Version) -> None:
    client = await stage.connect(later_version, heart_beat=(1, 1))
    assert client.connected is not None
    assert client.connected.headers["heart-beat"] == "1000,1000"


async def test_messages_take_the_place_of_beats(stage: Stage) -> None:
    """b25: any bytes count, so a busy line has no beats between its frames."""
    client, producer = await stage.connect(heart_beat=(0, 1_000)), await stage.connect()
    await client.subscribe(Q)
    async with trio.open_nursery() as nursery:

        async def talk() -> None:
            for _ in range(100):
                await producer.send(Q, "x")
                await trio.sleep(0.5)

        nursery.start_soon(talk)
        received = await client.raw_bytes(49)
    assert b"\0\n\n" not in received  # one LF belongs to its frame
    assert received.count(b"MESSAGE") >= 97


async def test_no_beats_pile_up_for_a_client_that_does_not_read(stage: Stage) -> None:
    client = await stage.connect(heart_beat=(0, 1_000))
    await client.subscribe(Q)
    await client.send_all(Q, [b"x" * 10_000 for _ in range(20)])
    await trio.sleep(1_000)
    (connection,) = stage.broker.connections
    assert connection.session.outbound.control_bytes == 0
    assert len(await client.next_messages(20)) == 20


# ---------------------------------------------------------------------- death


async def test_silent_peer_is_dead_after_the_grace_and_not_before(stage: Stage, later_version: Version) -> None:
    """b26: twice the agreed interval, by default."""
    client = await stage.connect(later_version, heart_beat=(5_000, 0))
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    await client.next_message()
    began = trio.current_time()
    await trio.sleep(9.9)
    assert is_alive(stage, client)
    await client.expect_error("no bytes from you for 10")
    assert trio.current_time() - began < 10.5
    heir = await stage.connect(later_version)
    await heir.subscribe(Q)
    assert (await heir.next_message()).redelivered


async def test_grace_can_be_configured() -> None:
    async with Stage(heart_beat_grace_factor=4.0) as stage:
        client = await stage.connect(heart_beat=(1_000, 0))
        await trio.sleep(3.9)
        assert is_alive(stage, client)
        await trio.sleep(0.5)
        assert not is_alive(stage, client)


async def test_beats_keep_a_connection_alive(stage: Stage, later_version: Version) -> None:
    client = await stage.connect(later_version, heart_beat=(1_000, 0))
    for _ in range(100):
        await trio.sleep(1.0)
        await client.send_raw(b"\n")
    assert is_alive(stage, client)


async def test_carriage_returns_are_fine_in_beats(stage: Stage) -> None:
    """1.2: EOL may be CR LF."""
    client = await stage.connect("1.2", heart_beat=(1_000, 0))
    for _ in range(10):
        await trio.sleep(1.0)
        await client.send_raw(b"\r\n")
    await client.sent(Q, "x")


async def test_half_a_frame_counts_as_life(stage: Stage) -> None:
    """b27: a large body on a slow line is no silence."""
    client = await stage.connect(heart_beat=(1_000, 0))
    await client.subscribe(Q)
    frame = client.encode("SEND", {"destination": Q}, b"x" * 100)
    for at in range(0, len(frame), 5):
        await client.send_raw(frame[at : at + 5])
        await trio.sleep(1.5)
    assert (await client.next_message()).body == b"x" * 100


async def test_client_that_promised_nothing_may_be_silent(stage: Stage) -> None:
    client = await stage.connect(heart_beat=(0, 1_000))
    await trio.sleep(2_000)
    assert is_alive(stage, client)


async def test_promise_beyond_the_longest_interval_is_not_watched() -> None:
    async with Stage(heart_beat_max_ms=100_000) as stage:
        clients = [await stage.connect(heart_beat=(promised_ms, 0)) for promised_ms in (100_001, 2**40)]
        await trio.sleep(2_000)
        assert all(is_alive(stage, client) for client in clients)


@pytest.mark.parametrize("value", ["1", "1,", "a,b", "-1,0", "1,2,3", "1.5,0"])
async def test_nonsense_is_refused(stage: Stage, value: str) -> None:
    """b23."""
    client = stage.stranger()
    client.machine.connect("x")
    await client.send_raw(f"CONNECT\naccept-version:1.2\nhost:x\nheart-beat:{value}\n\n\0".encode())
    await client.expect_error("heart-beat")


async def test_time_in_which_the_broker_does_not_read_is_no_silence() -> None:
    """b27: the client may be beating all the time, its beats wait in the kernel."""
    async with Stage({"/queue/full": {"full": "block", "count_max": 10}}, stash_bytes_max=10_000) as stage:
        producer, consumer = await stage.connect(heart_beat=(1_000, 0)), await stage.connect()
        frames = b"".join(producer.encode("SEND", {"destination": "/queue/full"}, b"x" * 1_000) for _ in range(100))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.stream.send_all, frames)
            await trio.sleep(60)
            assert is_alive(stage, producer)
            await consumer.subscribe("/queue/full")
            assert len(await consumer.next_messages(100)) == 100
        assert is_alive(stage, producer)
        began = trio.current_time()
        await producer.expect_error("no bytes from you")
        assert trio.current_time() - began >= 1.5, "its full time again"
