"""Data folders of an earlier version are opened: all that they hold comes once, and groups go on where they were."""

from __future__ import annotations

import signal
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sluiceway.queues.logs.batches import split
from sluiceway.store.bigarray import current_boot_id
from sluiceway.store.bigarray.head import SLOT_BYTES, SLOT_OFFSETS, boot_hash, encode_slot, newest
from tests.compatibility.books import (
    BATCHES,
    COUNTS,
    DELAY_MS,
    LARGE,
    LOG,
    LOG_COUNT,
    PREFETCH,
    SETTLED,
    STAGE,
    TOPIC,
    Peer,
    numbered,
    planner,
    texts,
)
from tests.interop.raw_client import RawFrame
from tests.sluiceway.broker_process import BrokerProcess

ENDS = ("ordered", "killed")
WRITTEN_AT = 1795374650.0
"""Seconds since 1970, about."""

pytestmark = pytest.mark.interop


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> str:
    """How the broker of a folder ended."""
    found: str = request.param
    return found


@pytest.fixture
def folder(end: str, tmp_path: Path) -> Path:
    """One of the folders, unpacked. Its broker was killed on this machine since it was started, if it was."""
    unpack(end, tmp_path)
    for head in tmp_path.glob("data/logs/*/head"):
        move_to_this_machine(head)
    return tmp_path


def unpack(end: str, where: Path) -> None:
    with tarfile.open(Path(__file__).with_name(f"{end}.tar.xz")) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(where, filter="data")
        else:
            packed.extractall(where)


def move_to_this_machine(head: Path) -> None:
    """A log knows in which start of which machine it was written: after another one it was not in memory any more."""
    data = bytearray(head.read_bytes())
    slot = newest(data)
    assert slot is not None
    slot.boot = boot_hash(current_boot_id())
    offset = SLOT_OFFSETS[slot.sequence & 1]
    data[offset : offset + SLOT_BYTES] = encode_slot(slot)
    head.write_bytes(data)


def start(folder: Path) -> BrokerProcess:
    arguments = ("--data", str(folder / "data"), "--config", str(folder / "sluiceway.toml"))
    return BrokerProcess(folder, *arguments, listen=None)


def stop(process: BrokerProcess, end: str) -> None:
    if end == "in order":
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    process.kill()


def taken(
    process: BrokerProcess, destination: str, count: int, *, settle: bool = True, **headers: str
) -> list[RawFrame]:
    """These must come, and nothing more."""
    with Peer(process.address) as peer:
        peer.join(destination, **headers)
        found = peer.take(count)
        if settle:
            for message in found:
                peer.ask("ACK", id=message["ack"])
        peer.ask("UNSUBSCRIBE", id="s")
        assert not peer.came, peer.came[:3]
        peer.leave()
    return found


def indexes(messages: list[RawFrame]) -> list[int]:
    return [int(message["index"]) for message in messages]


def test_queues_durable_subscriptions_claims_and_commits_of_an_earlier_version(folder: Path) -> None:
    with start(folder) as process:
        plain = taken(process, "/queue/plain", 7)
        assert texts(plain) == numbered(3, 10)
        assert plain[0].headers["redelivered"] == "true"
        assert [text.strip() for text in texts(taken(process, "/queue/paged", 400))] == numbered(0, 400)
        assert [message.body for message in taken(process, "/queue/large", 1)] == [LARGE]
        (dead,) = taken(process, "/queue/dead-letters", 1)
        assert (dead.body, dead["dead-letter-destination"]) == (b"fails", "/queue/failing")
        if time.time() > WRITTEN_AT + DELAY_MS / 1000:
            assert texts(taken(process, "/queue/later", 1)) == ["later"]
        for _ in range(2):  # until somebody settles them
            with Peer(process.address, client_id="audit") as audit:
                audit.join(TOPIC, durable="true", id="audit")
                assert texts(audit.take(8)) == numbered(2, 10)
                audit.leave()
        claims_and_commits_go_on(process)
        stop(process, "in order")
        assert '"level": "error"' not in process.log


def test_groups_of_an_earlier_version_go_on_where_they_were(folder: Path, end: str) -> None:
    """Over a second end of the broker as well, the other one, which has written their places its own way by then."""
    again = {"ordered": "killed", "killed": "in order"}[end]
    left = [index for index in range(LOG_COUNT) if index not in SETTLED]
    with start(folder) as process:
        held = taken(process, LOG, len(left), settle=False, group="g")
        assert indexes(held) == left
        assert texts(held) == [str(index) for index in left]
        seen_to = PREFETCH + len(SETTLED)
        assert {index for message, index in zip(held, left, strict=True) if "redelivered" in message.headers} <= set(
            range(seen_to)
        )
        with Peer(process.address) as peer:
            peer.join(LOG, group="g")
            came = peer.take(len(left))
            for message in came[10:20]:
                peer.ask("ACK", id=message["ack"])
            receipt = peer.ask("SEND", b"new", destination=LOG)
            assert receipt["index"] == str(LOG_COUNT)
            peer.came.clear()
        stop(process, again)
    with start(folder) as process:
        expected = left[:10] + left[20:] + [LOG_COUNT]
        assert indexes(taken(process, LOG, len(expected), group="g")) == expected
        assert indexes(taken(process, LOG, LOG_COUNT + 1, group="h")) == list(range(LOG_COUNT + 1))
        assert '"level": "error"' not in process.log


@pytest.mark.parametrize("end", ["killed"])
def test_logs_keep_their_identity_and_their_batches(folder: Path) -> None:
    ids = {path.parent.name: path.read_text(encoding="ascii").strip() for path in folder.glob("data/logs/*/id")}
    for _ in range(2):
        with start(folder) as process:
            (run,) = taken(process, BATCHES, 1, batch="1048576", **{"from": "earliest"})
            assert run["message-id"].startswith(f"log.{ids['batches']}-")
            records = [bytes(value) for batch in split(run.body) for value in batch.values()]
            assert records == [f"{first} {n}".encode() for first in range(3) for n in range(5)]
            stop(process, "in order")
        for path in folder.glob("data/logs/*/id"):
            path.unlink()  # from the first opening on they are in the arrays


def test_a_power_cut_with_an_earlier_version_costs_a_log_nothing_that_was_synced(tmp_path: Path) -> None:
    """The machine was started anew meanwhile: indexes that may have been seen are not given out again."""
    unpack("killed", tmp_path)
    with start(tmp_path) as process, Peer(process.address) as peer:
        peer.join(LOG, **{"from": "earliest"})
        assert indexes(peer.take(LOG_COUNT)) == list(range(LOG_COUNT))
        receipt = peer.ask("SEND", b"new", destination=LOG)
        gap, new = peer.take(2)
        assert gap["gap-from"] == str(LOG_COUNT)
        assert new["index"] == receipt["index"] == gap["gap-to"]
        assert new.body == b"new"


def read(process: BrokerProcess, claimed: Mapping[str, Any]) -> list[str]:
    """What a claim has."""
    start, end = claimed["from"], claimed["to"]
    found = taken(process, claimed["log"], end - start + 1, settle=False, **{"from": str(start), "to": str(end)})
    assert "range-end" in found.pop().headers
    return texts(found)


def claims_and_commits_go_on(process: BrokerProcess) -> None:
    with planner(process.address) as asker:
        about = {"queue": "/queue/work", "group": "c"}
        assert read(process, asker.request("claim/claim", claim=2, max=2, **about)) == ["2", "3"]
        assert read(process, asker.request("claim/claim", claim=3, max=9, **about)) == ["4", "5"]
        assert asker.request("sink/state", query="q")["batch"] == 0
        for batch, stage in enumerate(("a", "b")):  # the first one was published already
            asker.request("sink/commit", query="q", batch=batch, parts=[{"stage": STAGE + stage, "to": COUNTS}])
        published = taken(process, COUNTS, 6, settle=False, **{"from": "earliest"})
        assert texts(published) == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]
