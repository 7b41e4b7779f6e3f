"""Page files that are missing, cut short or corrupt; heads and lists of gaps likewise: the broker starts and says what
it found, readers are told where records are missing, and get all the others.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Final

import pytest

from sluiceway.store.engine import put
from tests.faults.broker_log import BrokerLog
from tests.faults.logs.lives import LogLives, everything, index_of, records, told
from tests.how_often import rounds

LOG: Final = "/log/hurt"
OTHER: Final = "/log/well"
RECORDS_COUNT: Final = 200


def value_of(index: int) -> bytes:
    return b"%04d " % index + b"x" * (index * 7 % 190)


async def filled(folder: Path, *, end: str = "in order") -> LogLives:
    """Two logs, one with 200 records of up to 200 bytes: several pages of both kinds; and a group in the middle. It is
    played once for all tests, and copied.
    """
    if end not in _filled:
        played = await _play(folder, end)
        _filled[end] = _files_of(folder), list(played.engine._seen.contents())
        rmtree(folder / "logs")
        rmtree(folder / "vault")
    files, stored = _filled[end]
    _write(folder, files)
    lives = LogLives(folder)
    lives.engine.write([put(key, value) for key, value in stored], sync=True)
    return lives


_filled: dict[str, tuple[dict[Path, bytes], list[tuple[bytes, bytes]]]] = {}
"""By its end, what such a life has left: files, and the content of the store."""


def _files_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.glob("logs/**/*") if path.is_file()}


def _write(folder: Path, files: dict[Path, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


async def _play(folder: Path, end: str) -> LogLives:
    lives = LogLives(folder)
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        for index in range(RECORDS_COUNT):
            await producer.sent(LOG, value_of(index), kind="record")
        await producer.sent(OTHER, "sound")
        consumer = await stage.connect()
        await consumer.subscribe(LOG, id="g", ack="client-individual", group="g", **{"from": "earliest"})
        for delivery in await consumer.next_messages(RECORDS_COUNT):
            if index_of(delivery) < 50 or index_of(delivery) % 2:
                await consumer.ack(delivery)
        assert len(list(lives.folder_of(LOG).glob("data-*"))) > 4
    return lives


def pages(lives: LogLives, kind: str) -> list[Path]:
    return sorted(lives.folder_of(LOG).glob(f"{kind}-*"))


async def check(lives: LogLives, *, may_miss: bool = True) -> int:
    """A life on what is there; returns how many records are missing, each told, and the others all there."""
    async with lives.life() as stage:
        # Who takes batches looks at their checksums itself: damage to values is not told, but to be seen. And where a
        # run goes over a record whose index item is damaged, its data is there all the same.
        for headers in ({"batch": "4000", "compression": "gzip,snappy,zstd"}, {"batch": "1024"}, {}):
            missing: set[int] = set()
            found: dict[int, bytes] = {}
            deliveries = await everything(stage, LOG, **headers)
            for start, end, reason in told(deliveries):
                assert reason == "damaged"
                assert not missing & set(range(start, end)), "each is told once"
                missing |= set(range(start, end))
            if headers:
                for delivery in deliveries:
                    if "gap" not in delivery.headers:
                        count = int(delivery.headers["count"])
                        found |= dict.fromkeys(range(index_of(delivery), index_of(delivery) + count), b"")
            else:
                found = records(deliveries)
                assert found == {index: value_of(index) for index in found}
            assert not missing & set(found)
            assert missing | set(found) == set(range(RECORDS_COUNT))
            assert may_miss or not missing
        # A group: what it has not settled, and no more.
        consumer = await stage.connect()
        await consumer.subscribe(LOG, id="g", ack="client-individual", group="g")
        came = await consumer.drain()
        assert set(records(came)) == set(range(50, RECORDS_COUNT, 2)) - missing
        # Life goes on: appends, other logs, requests.
        assert records(await everything(stage, OTHER)) == {0: b"sound"}
        producer = await stage.connect()
        await producer.sent(LOG, b"goes on")
        assert (await everything(stage, LOG))[-1].body == b"goes on"
        for request in ("describe", "groups", "size"):
            assert (await stage.ask(producer, request, log=LOG))["ok"], request
        for timestamp_ms in (0, 1 << 50):
            reply = await stage.ask(producer, "closest", log=LOG, timestamp_ms=timestamp_ms)
            assert reply["ok"] or reply["error"] == "INTERNAL_ERROR"
        return len(missing)


@pytest.mark.parametrize("kind", ["data", "index"])
@pytest.mark.parametrize("how", ["missing", "empty", "short", "zeros"])
@pytest.mark.parametrize("place", [0, 1, -1])
async def test_a_page_file_that_is_gone_or_cut_short(
    tmp_path: Path, said: BrokerLog, kind: str, how: str, place: int
) -> None:
    lives = await filled(tmp_path)
    page = pages(lives, kind)[place]
    if how == "missing":
        page.unlink()
    elif how == "zeros":
        page.write_bytes(bytes(page.stat().st_size))
    else:
        with page.open("r+b") as file:
            file.truncate(0 if how == "empty" else 100)
    missing_count = await check(lives)
    assert 0 < missing_count < RECORDS_COUNT
    if how != "zeros":  # found when it is opened
        (line, *_more) = said.lines(event="a log has lost records: its readers are told where")
        assert line["log"] == LOG


@pytest.mark.parametrize("end", ["in order", "crash"])
@pytest.mark.parametrize("kind", ["data", "index"])
@pytest.mark.parametrize("seed", range(rounds(5)))
async def test_flipped_bytes_in_a_page(tmp_path: Path, kind: str, seed: int, end: str) -> None:
    """Wherever they are: in stamps, values, offsets, items, or the space that is not used yet."""
    lives = await filled(tmp_path, end=end)
    random = Random(seed)
    page = random.choice(pages(lives, kind))
    data = bytearray(page.read_bytes())
    for _ in range(random.choice((1, 1, 5, 50))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    page.write_bytes(data)
    await check(lives)


@pytest.mark.parametrize("seed", range(rounds(4)))
async def test_flipped_bytes_while_the_broker_runs(tmp_path: Path, seed: int) -> None:
    """Nobody looked when it was opened: whoever reads finds out."""
    lives = await filled(tmp_path)
    random = Random(seed)
    async with lives.life() as stage:
        page = random.choice(pages(lives, random.choice(("data", "index"))))
        with page.open("r+b") as file:
            for _ in range(20):
                place = random.randrange(page.stat().st_size)
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes((byte[0] ^ 0x10,)))
        for headers in ({}, {"batch": "3000"}, {"group": "new"}):
            deliveries = await everything(stage, LOG, **headers)
            missing = {index for start, end, _reason in told(deliveries) for index in range(start, end)}
            if "batch" not in headers:
                found = records(deliveries)
                assert missing | set(found) == set(range(RECORDS_COUNT))
                assert found == {index: value_of(index) for index in found}
        producer = await stage.connect()
        for request in ("describe", "groups", "list"):
            assert (await stage.ask(producer, request, log=LOG))["ok"], request


@pytest.mark.parametrize("place", range(0, 600, 83))
async def test_a_damaged_list_of_gaps_hides_nothing(tmp_path: Path, place: int) -> None:
    """What is missing is found anew, and what is there is served."""
    lives = await filled(tmp_path)
    pages(lives, "data")[1].unlink()
    missing_count = await check(lives)
    gaps = lives.folder_of(LOG) / "gaps"
    data = bytearray(gaps.read_bytes())
    data[place % len(data)] ^= 0x40
    gaps.write_bytes(data)
    async with lives.life() as stage:
        deliveries = await everything(stage, LOG)
        assert sum(end - start for start, end, _reason in told(deliveries)) == missing_count
        assert len(records(deliveries)) == RECORDS_COUNT - missing_count + 1


@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "future", "both slots"])
async def test_a_log_whose_head_can_not_be_read_is_refused_and_the_others_are_served(
    tmp_path: Path, said: BrokerLog, how: str
) -> None:
    lives = await filled(tmp_path)
    head = lives.folder_of(LOG) / "head"
    data = bytearray(head.read_bytes())
    if how == "missing":
        head.unlink()
    elif how == "empty":
        head.write_bytes(b"")
    elif how == "garbage":
        head.write_bytes(Random(0).randbytes(4096))
    elif how == "future":
        data[8:12] = (99).to_bytes(4, "little")
        head.write_bytes(data)
    else:
        data[520] ^= 1
        data[1030] ^= 1
        head.write_bytes(data)
    before = {path.name: path.read_bytes() for path in lives.folder_of(LOG).iterdir() if path.name != "lock"}
    async with lives.life() as stage:
        (line,) = said.lines(event="a log can't be opened")
        assert line["log"] == LOG
        if how == "future":
            assert "format 99" in line["error"]
        reader, producer = await stage.connect(), await stage.connect()
        await reader.frame("SUBSCRIBE", {"destination": LOG, "id": "1"})
        await reader.expect_error("can't be opened")
        await producer.frame("SEND", {"destination": LOG}, b"not taken")
        await producer.expect_error("can't be opened")
        assert records(await everything(stage, OTHER)) == {0: b"sound"}
    after = {path.name: path.read_bytes() for path in lives.folder_of(LOG).iterdir() if path.name != "lock"}
    assert before == after, "nothing was changed"


@pytest.mark.parametrize("slot", [512, 1024])
async def test_one_damaged_slot_of_a_head_costs_nothing(tmp_path: Path, slot: int) -> None:
    """Closed in order, both slots say the same."""
    lives = await filled(tmp_path)
    head = lives.folder_of(LOG) / "head"
    data = bytearray(head.read_bytes())
    data[slot + 9] ^= 1
    head.write_bytes(data)
    assert await check(lives, may_miss=False) == 0


@pytest.mark.parametrize("seed", range(rounds(8)))
async def test_flipped_bytes_in_a_head(tmp_path: Path, seed: int) -> None:
    """Wherever they are: the log is whole, or refused."""
    lives = await filled(tmp_path)
    head = lives.folder_of(LOG) / "head"
    data = bytearray(head.read_bytes())
    random = Random(seed)
    for _ in range(random.choice((1, 3))):
        data[random.choice((random.randrange(36), 512 + random.randrange(72), 1024 + random.randrange(72)))] ^= 4
    head.write_bytes(data)
    async with lives.life() as stage:
        reader = await stage.connect()
        await reader.frame("SUBSCRIBE", {"destination": LOG, "id": "1", "from": "earliest"})
        found = await reader.drain()
        if reader.error is None:
            assert records(found) == {index: value_of(index) for index in range(RECORDS_COUNT)}
        assert records(await everything(stage, OTHER)) == {0: b"sound"}


@pytest.mark.parametrize("what", ["id", "gaps", "lock"])
async def test_small_files_that_are_garbage(tmp_path: Path, what: str) -> None:
    lives = await filled(tmp_path)
    (lives.folder_of(LOG) / what).write_bytes(bytes(range(256)))
    assert await check(lives, may_miss=False) == 0


async def test_strange_things_in_the_folder_of_logs_are_left_alone(tmp_path: Path, said: BrokerLog) -> None:
    lives = await filled(tmp_path)
    for name in ("lost+found", ".hidden", "%2F", "%ZZ", "a%20b"):
        (lives.folder / "logs" / name).mkdir()
    (lives.folder / "logs" / "a file").write_text("not a log")
    before = sorted(path.name for path in (lives.folder / "logs").iterdir())
    assert await check(lives, may_miss=False) == 0
    assert sorted(path.name for path in (lives.folder / "logs").iterdir()) == before
