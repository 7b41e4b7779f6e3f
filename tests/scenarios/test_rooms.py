"""Large bodies that are read to where they are sent from: in order with small ones, counted, and at nobody's cost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from sluiceway.protocols.stomp.receive_buffer import ReceiveBuffer
from tests.scenarios.stage import Stage

Q = "/queue/q"


@pytest.fixture(params=[False, True], ids=["as it is", "room for all"])
def rooms(request: pytest.FixtureRequest) -> Iterator[None]:
    """Also with room for whatever is not complete."""
    if not request.param:
        yield
        return
    with patch.multiple(ReceiveBuffer, _MISSING_BYTES_MIN=1, _SHARE=1_000_000):
        yield


def frame(body: bytes, destination: str = Q) -> bytes:
    return f"SEND\ndestination:{destination}\ncontent-length:{len(body)}\n\n".encode() + body + b"\0"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("rooms")
async def test_small_and_large_bodies_keep_their_order_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice((0, 20, 1000, 65_536, 300_000))).hex().encode() for _ in range(30)]
    data = b"".join(map(frame, bodies))
    async with Stage() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q)
        await stage.settled_down()
        before_bytes = stage.broker.manager.used_bytes
        place = 0
        while place < len(data):
            size = chance.choice((1, 50, 4000, 70_000, 500_000))
            await producer.send_raw(data[place : place + size])
            place += size
        messages = await consumer.next_messages(len(bodies))
        assert [message.body for message in messages] == bodies
        await stage.settled_down()
        assert stage.broker.manager.used_bytes - before_bytes < 10_000


async def test_a_body_that_is_announced_and_never_sent_takes_next_to_nothing() -> None:
    async with Stage() as stage:
        clients = [await stage.connect() for _ in range(20)]
        before_bytes = stage.broker.manager.used_bytes
        for client in clients:
            await client.send_raw(frame(b"x" * 1_048_576)[:200])
        await stage.settled_down()
        assert stage.broker.manager.used_bytes - before_bytes < 20 * 2000
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q)
        await producer.send_raw(frame(b"y" * 600_000))
        (message,) = await consumer.next_messages(1)
        assert len(message.body) == 600_000


async def test_room_is_counted_and_given_back_with_its_connection() -> None:
    async with Stage() as stage:
        client = await stage.connect()
        before_bytes = stage.broker.manager.used_bytes
        await client.send_raw(frame(b"x" * 1_048_576)[:400_000])
        await stage.settled_down()
        assert stage.broker.manager.used_bytes - before_bytes >= 1_048_576
        client.vanish()
        await stage.settled_down()
        assert stage.broker.manager.used_bytes <= before_bytes
