"""A bit that has flipped on the disk: what it hit is moved aside and said; all the rest comes, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from sluiceway import EmbeddedBroker
from sluiceway.embedded import embedded_config
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.store import keys
from sluiceway.store.chunks import decode_chunk
from sluiceway.store.config import StoreConfig
from sluiceway.store.directory import open_directory
from sluiceway.store.engine import Engine, put
from sluiceway.store.storequeue import StoreQueue
from tests.faults.store.small_store import constants, small
from tests.interop.raw_client import RawClient, frame, poll
from tests.scenarios.lives import Lives

Q: Final = "/queue/orders"
MESSAGES_COUNT: Final = 60


@attrs.define
class Quarantine:
    """Stands for the folder of a store."""

    kept: dict[str, bytes] = attrs.field(factory=dict)

    def free_bytes(self) -> int:
        return 1 << 40

    def attic_put(self, name: str, data: bytes) -> str:
        self.kept[name] = data
        return f"attic/{name}"


@pytest.fixture
def attic(monkeypatch: pytest.MonkeyPatch) -> Quarantine:
    """Where stores of this test put damaged records."""
    found = Quarantine()

    def make(config: StoreConfig, **options: Any) -> StoreQueue:
        return StoreQueue(config, **{**options, "folder": found})

    monkeypatch.setattr("sluiceway.shard.StoreQueue", make)
    return found


def chunks_of(engine: Engine) -> dict[bytes, bytes]:
    return dict(engine.iterate(*keys.family_range(keys.CHUNK)))


def sequences_in(key: bytes, value: bytes) -> list[int]:
    _queue_id, first = keys.parse_placed_key(key)
    sequences, _messages = decode_chunk(first, value, HeaderCodec())
    return list(sequences)


@pytest.mark.parametrize("place", range(0, 16, 3))
async def test_what_a_damaged_chunk_held_is_missing_and_said_and_nothing_else(attic: Quarantine, place: int) -> None:
    """In blocks of eight, each sent on its own: a chunk is one message, or (sealed) a block."""
    with constants(small(3)):
        lives = Lives()
        async with lives.life() as stage:
            producer = await stage.connect()
            for number in range(MESSAGES_COUNT):
                await producer.sent(Q, f"{number:03}", persistent="true")
        chunks = chunks_of(lives.engine)
        key = sorted(chunks)[place % len(chunks)]
        hit = sequences_in(key, chunks[key])
        lives.engine.corrupt(key)
        damaged = chunks_of(lives.engine)[key]
        async with lives.life() as stage:
            consumer = await stage.connect()
            await consumer.subscribe(Q)
            came = [delivery.text for delivery in await consumer.drain()]
            assert came == [f"{number:03}" for number in range(MESSAGES_COUNT) if number not in hit]
            report = stage.broker.report()["store"]
            assert (report["corrupt_count"], report["lost_count"]) == (1, len(hit))
            assert attic.kept == {f"chunk-{key.hex()}": damaged}
            assert stage.depth_count(Q) == 0, "the lost ones are not waited for"
        assert not chunks_of(lives.engine), "what is lost does not stay on the disk"


async def test_what_comes_in_behind_a_damaged_chunk_is_served_as_ever(attic: Quarantine) -> None:
    with constants(small(3)):
        lives = Lives()
        async with lives.life() as stage:
            producer = await stage.connect()
            await producer.send_all(Q, range(8), persistent="true")
            await producer.sync()
        (key,) = chunks_of(lives.engine)
        lives.engine.corrupt(key)
        async with lives.life() as stage:
            producer, consumer = await stage.connect(), await stage.connect()
            await producer.sent(Q, "new", persistent="true")
            await consumer.subscribe(Q, ack="client-individual")
            (new,) = await consumer.next_messages(1)
            assert new.text == "new"
            await consumer.ack(new)
            assert stage.broker.report()["store"]["lost_count"] == 8
        async with lives.life() as stage:
            assert stage.broker.report()["store"]["corrupt_count"] == 0, "said once"
            assert stage.depth_count(Q) == 0


FAMILIES: Final = {
    "queue": keys.QUEUE,
    "head": keys.HEAD,
    "summary": keys.SUMMARY,
    "state": keys.STATE,
    "chunk": keys.CHUNK,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", range(4))
async def test_the_store_opens_whatever_record_is_damaged(attic: Quarantine, family: str, place: int) -> None:
    """Messages may be lost with it, or come again; the broker starts, serves, and says what it found."""
    with constants(small(3)):
        lives = Lives()
        async with lives.life(end="crash") as stage:
            producer, consumer = await stage.connect(), await stage.connect()
            await producer.send_all(Q, range(40), persistent="true")
            await producer.sync()
            await consumer.subscribe(Q, ack="client-individual", prefetch_count="20")
            for delivery in (await consumer.next_messages(20))[1::3]:
                await consumer.ack(delivery)
        records = sorted(dict(lives.engine.iterate(*keys.family_range(FAMILIES[family]))))
        assert records, f"there is a {family} record to be damaged"
        lives.engine.corrupt(records[place % len(records)])
        async with lives.life() as stage:
            consumer = await stage.connect()
            await consumer.subscribe(Q)
            came = [int(delivery.text) for delivery in await consumer.drain()]
            assert came == sorted(came), "in order"
            producer = await stage.connect()
            await producer.sent("/queue/others", "served", persistent="true")


# ---------------------------------------------------------------------------------------- the real engine


def test_a_flipped_bit_in_leveldb_is_found_and_put_into_the_attic(tmp_path: Path) -> None:
    """A block of 1,024 is lost with its only chunk, before and behind it all is there."""
    config = attrs.evolve(
        embedded_config(),
        broker=attrs.evolve(embedded_config().broker, data_dir=tmp_path),
        store=StoreConfig(engine="leveldb"),
    )
    with EmbeddedBroker(config) as broker, RawClient((broker.host, broker.port)) as client:
        client.connect()
        for first in range(0, 3072, 1024):
            run = [frame("SEND", b"%d" % n, destination=Q, persistent="true") for n in range(first, first + 1023)]
            last = frame("SEND", b"%d" % (first + 1023), destination=Q, persistent="true", receipt="r")
            client.send(b"".join([*run, last]))
            assert client.expect("RECEIPT")["durability"] == "disk"
    lost = _flip_a_bit(tmp_path)
    with EmbeddedBroker(config) as broker, RawClient((broker.host, broker.port)) as client:
        client.connect()
        client.send(frame("SUBSCRIBE", destination=Q, id="s"))
        came = [int(message.body) for message in client.frames(3072 - len(lost))]
        assert came == [number for number in range(3072) if number not in lost]
        for _ in poll("the report says what is lost"):
            report = broker.report()["store"]
            if (report["corrupt_count"], report["lost_count"]) == (1, len(lost)):
                break
    (kept,) = [path for path in (tmp_path / "attic").iterdir() if path.is_file()]
    assert kept.name.startswith("chunk-") or "chunk-" in kept.name


def _flip_a_bit(data: Path) -> set[int]:
    """In one chunk of the middle. Returns the numbers of the messages in it."""
    directory = open_directory(data)
    engine, _repaired = directory.open_engine()
    try:
        chunks = chunks_of(engine)
        key = sorted(chunks)[len(chunks) // 2]
        value = chunks[key]
        _queue_id, first = keys.parse_placed_key(key)
        _sequences, messages = decode_chunk(first, value, HeaderCodec())
        flipped = bytearray(value)
        flipped[len(value) // 2] ^= 4
        engine.write([put(key, bytes(flipped))], sync=True)
        return {int(message.wire[len(message.head.block) :].strip(b"\n\0")) for message in messages}  # type: ignore[attr-defined]
    finally:
        engine.close()
        directory.close()
