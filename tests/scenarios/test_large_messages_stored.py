"""Large messages in a store: their bodies stay as long as the store has them, over page-outs and over restarts.

«Large» is more than a thousand bytes here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage

BODY = bytes(range(256)) * 100
Q = "/queue/q"
ENDS = ("in order", "crash", "power cut")

MakeLives = Callable[..., Lives]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "large"
    folder.mkdir()
    return folder


@pytest.fixture
def make_lives(folder: Path) -> MakeLives:
    def make(**policy: object) -> Lives:
        return Lives({"/queue/*": policy} if policy else None, large_folder=folder, large_body_bytes=1000)

    return make


def files_count(folder: Path) -> int:
    return len(list(folder.iterdir()))


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


async def send_large(client: Client, destination: str, number: int = 0, **headers: str) -> None:
    body = b"%d " % number + BODY
    await client.sent(destination, body, content_length=str(len(body)), **headers)


async def bodies(stage: Stage, count: int, destination: str = Q) -> list[bytes]:
    """The next messages of a queue, consumed."""
    client = await stage.connect()
    await client.subscribe(destination)
    return [delivery.body for delivery in await client.next_messages(count)]


async def settled(stage: Stage) -> None:
    """Until the store has written what it was told."""
    await trio.sleep(2)
    await stage.settled_down()


@pytest.mark.parametrize("end", ENDS)
async def test_a_receipted_large_message_outlives_the_broker(make_lives: MakeLives, folder: Path, end: str) -> None:
    """Body and all. One that is not persistent goes, and its file with it."""
    lives = make_lives()
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        await send_large(producer, Q, 1, persistent="true")
        await send_large(producer, Q, 2)
        await send_large(producer, Q, 3, persistent="true")
        assert durability(producer) == ["disk", "memory", "disk"]
        assert files_count(folder) == 3
    async with lives.life() as stage:
        assert files_count(folder) == 2
        assert await bodies(stage, 2) == [b"1 " + BODY, b"3 " + BODY]
        await settled(stage)
        assert files_count(folder) == 0
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(Q)
        await client.silence()


@pytest.mark.parametrize("end", ENDS)
async def test_an_acknowledged_large_message_is_gone_for_good(make_lives: MakeLives, folder: Path, end: str) -> None:
    lives = make_lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        for number in range(3):
            await send_large(client, Q, number, persistent="true")
        await client.subscribe(Q, ack="client-individual")
        deliveries = await client.next_messages(3)
        await client.ack(deliveries[1])
        await settled(stage)
        assert files_count(folder) == 2
    async with lives.life() as stage:
        assert files_count(folder) == 2
        assert await bodies(stage, 2) == [b"0 " + BODY, b"2 " + BODY]


async def test_a_file_of_several_queues_stays_for_the_last_of_them(make_lives: MakeLives, folder: Path) -> None:
    """Also when their records are all that is left of them."""
    lives = make_lives()
    async with lives.life() as stage:
        await send_large(await stage.connect(), "/queue/a,/queue/b", persistent="true")
    for name, left in (("a", 1), ("b", 0)):
        async with lives.life() as stage:
            assert files_count(folder) == 1
            assert await bodies(stage, 1, f"/queue/{name}") == [b"0 " + BODY]
            await settled(stage)
            assert files_count(folder) == left


async def test_an_expired_large_message_leaves_no_file_in_any_life(make_lives: MakeLives, folder: Path) -> None:
    lives = make_lives()
    async with lives.life() as stage:
        await send_large(await stage.connect(), Q, persistent="true", expiration="30000")
        assert files_count(folder) == 1
    async with lives.life() as stage:
        await trio.sleep(60)
        await settled(stage)
        assert files_count(folder) == 0
        assert stage.depth_count(Q) == 0


async def test_a_deleted_queue_takes_its_files_along(make_lives: MakeLives, folder: Path) -> None:
    """Those that only its records knew, too."""
    lives = make_lives()
    async with lives.life() as stage:
        await send_large(await stage.connect(), Q, persistent="true")
    async with lives.life() as stage:
        stage.broker.registry.delete(stage.destination(Q), "a test")
        await settled(stage)
        assert files_count(folder) == 0


@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_large_messages_page_out_and_in_again(make_lives: MakeLives, folder: Path, persistent: str) -> None:
    """A backlog that memory has no room for: what is outside of it has its bodies still, and nobody else's."""
    lives = make_lives(paging="page", memory_bytes=300_000)
    count = 3000
    async with lives.life() as stage:
        producer = await stage.connect()
        for number in range(0, count, 100):
            for each in range(number, number + 100):
                body = b"%d " % each + b"x" * 1000
                await producer.send(Q, body if each % 50 == 0 else b"%d" % each, persistent=persistent)
            await producer.sync()
            await trio.sleep(0.1)
        assert files_count(folder) == count // 50
        assert stage.broker.bodies is not None
        assert stage.broker.bodies.references_count < count // 100, "more than half of them are outside"
        received = await bodies(stage, count)
        assert received == [b"%d " % each + b"x" * 1000 if each % 50 == 0 else b"%d" % each for each in range(count)]
        await settled(stage)
        assert files_count(folder) == 0


@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_a_large_body_is_not_taken_in_while_the_disk_is_nearly_full(
    make_lives: MakeLives, folder: Path, persistent: str
) -> None:
    """Its sender waits, whatever it asks for: the reserve is for those who consume."""
    lives = make_lives()
    async with lives.life() as stage:
        producer = await stage.connect()
        fill_disk(stage, is_full=True)
        body = b"0 " + bytes(range(256)) * 16_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(producer.sent, Q, body, content_length=str(len(body)), persistent=persistent))
            await trio.sleep(5)
            assert size_bytes(folder) < len(body) // 4
            (connection,) = stage.broker.report()["connections"]
            assert connection["waiting_on"] == "the disk, for its large message"
            fill_disk(stage, is_full=False)
        assert await bodies(stage, 1) == [body]


async def test_who_holds_deliveries_is_told_that_the_disk_is_nearly_full(make_lives: MakeLives, folder: Path) -> None:
    """Its ACKs may lie behind the body: if it waited, it might wait for itself."""
    lives = make_lives()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent("/queue/other", "m")
        await client.subscribe("/queue/other", ack="client-individual")
        await client.next_message()
        fill_disk(stage, is_full=True)
        await client.frame("SEND", {"destination": Q, "content-length": str(len(BODY))}, BODY)
        await client.expect_error("can't store the body")
        assert files_count(folder) == 0
        fill_disk(stage, is_full=False)


def fill_disk(stage: Stage, *, is_full: bool) -> None:
    store = stage.broker.store
    assert store is not None
    store.disk_is_low = is_full
    store._set_gate()
