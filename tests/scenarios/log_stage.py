"""A stage with logs: a broker that keeps them in files, inline and in virtual time, and who asks it about them."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import attrs

from sluiceway.broker import Broker
from sluiceway.queues.logs.batches import CONTENT_TYPE, Batch, encode, split
from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.bigarray import Files
from sluiceway.store.engine import Engine
from sluiceway.store.log_storage import LogStorageConfig
from sluiceway.store.memory import MemoryEngine
from tests.scenarios.client import Client, Delivery
from tests.scenarios.stage import Stage, wall_clock_ms
from tests.store.faulty import FaultyEngine

LOG = "/log/orders"
PASSCODE = "let me"
REPLIES = "/temp-queue/replies"


class LogStage(Stage):
    """The broker of a Stage, with logs in `folder` (None: one that goes with the stage; not the temporary one of a
    broker without a data folder, which promises nothing)."""

    def __init__(
        self,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        journal: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        engine: Engine | None = None,
        files: Files | None = None,
        boot: str = "boot 1",
        in_engine: bool | None = None,
        **limits: Any,
    ) -> None:
        """`journal`: fields of LogStorageConfig; `files`: how files are reached; `boot`: names this run of the
        machine; `in_engine`: logs are in the engine, as in a database (None: as the class says)."""
        super().__init__(policies, **limits)
        if folder is None:
            folder = Path(mkdtemp(prefix="sluiceway-log-stage-"))
            weakref.finalize(self, shutil.rmtree, folder, True)
        settings = {"delete_passcode": PASSCODE, **(journal or {})}
        self.broker = Broker(
            attrs.evolve(self.broker.config, logs=LogStorageConfig(**settings)),
            now_ms=wall_clock_ms,
            engine=MemoryEngine() if engine is None else engine,
            journal_folder=folder,
            journal_files=files,
            all_in_engine=self.in_engine if in_engine is None else in_engine,
            boot=boot,
        )

    async def connect_asking(self) -> Asker:
        """A client that can ask for things."""
        client = await self.connect(name="asker")
        await client.subscribe(REPLIES, id="replies")
        return Asker(client)

    def log(self, name: str = LOG) -> Any:
        """A log, from inside."""
        assert self.broker.logs is not None
        return self.broker.logs.logs[name]

    def group(self, name: str = "g", log: str = LOG) -> Any:
        """A group, from inside."""
        assert self.broker.logs is not None
        return self.broker.logs.groups[log][name]


class Asker:
    """Requests about logs."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def ask(self, request: str, body: bytes | None = None, **facts: Any) -> dict[str, Any]:
        """The reply to a request; `body`: in place of the facts as JSON."""
        await self.client.send(
            f"/sluiceway/log/{request}", json.dumps(facts) if body is None else body, reply_to=REPLIES
        )
        reply = json.loads((await self.client.next_message()).body)
        assert isinstance(reply, dict)
        return reply

    async def asked(self, request: str, **facts: Any) -> dict[str, Any]:
        """The same, and it must succeed."""
        reply = await self.ask(request, **facts)
        assert reply.pop("ok") is True, reply
        return reply

    async def refused(self, request: str, body: bytes | None = None, **facts: Any) -> str:
        """The same, and it must not: returns the code of the error."""
        reply = await self.ask(request, body, **facts)
        assert reply["ok"] is False, reply
        assert len(reply["message"]) > 10, reply
        return str(reply["error"])


class LogLives:
    """Several lives of one broker on one store and one folder of logs."""

    def __init__(self, folder: Path, policies: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> None:
        self.folder = folder
        self.engine = FaultyEngine(Random(0))
        self._policies = policies
        self._options = options

    @asynccontextmanager
    async def life(self, *, end: str = "in order") -> AsyncIterator[LogStage]:
        """`end`: "in order" or "crash": nothing is said to the files."""
        stage = LogStage(self._policies, engine=self.engine, folder=self.folder, **self._options)
        engine = self.engine
        broker = await stage.broker.__aenter__()
        try:
            yield stage
            if end == "in order":
                await broker.stop()
            self.engine = engine.crash()  # the same content, open again
        finally:
            if end != "in order":
                broker.shards.abandon()
            await broker.__aexit__(None, None, None)


# ---------------------------------------------------------------------- sending and reading


def receipts_of(client: Client) -> list[tuple[int, int]]:
    """Index and count of each RECEIPT that this client got from a log, in order."""
    return [
        (int(frame.headers["index"]), int(frame.headers["count"]))
        for frame in client.received
        if frame.command == "RECEIPT" and "count" in frame.headers
    ]


async def fill(client: Client, count: int, *, log: str = LOG, first: int = 0, **headers: str) -> None:
    """Append `count` records, numbered; returns when they are there."""
    await client.send_all(log, range(first, first + count), **headers)
    await client.sync()
    receipt_id = client.new_receipt_id()
    await client.frame("SEND", {"destination": "/queue/nobody", "receipt": receipt_id}, "")
    await client.expect_receipt(receipt_id)


async def send_batch(client: Client, *batches: bytes, log: str = LOG) -> tuple[int, int]:
    """Append a run of batches; returns what the RECEIPT said."""
    await client.sent(log, b"".join(batches), content_type=CONTENT_TYPE)
    return receipts_of(client)[-1]


def numbered(values: Iterable[object], *, codec: Codec = Codec.NONE, head: bytes = b"") -> bytes:
    """A batch of these as text."""
    return encode([str(value).encode() for value in values], codec=codec, head=head)


def indexes(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(delivery.headers["index"]) for delivery in deliveries]


def is_told(delivery: Delivery) -> bool:
    """Whether it only tells something: a gap, an end."""
    return any(name in delivery.headers for name in ("gap", "range-end", "log-deleted"))


def batches_of(delivery: Delivery) -> list[Batch]:
    """What a batch MESSAGE holds, checked: exactly the records that it says, in order."""
    assert delivery.headers["content-type"] == CONTENT_TYPE
    batches = list(split(delivery.body))
    index = int(delivery.headers["index"])
    for batch in batches:
        batch.check(plain_bytes_max=1 << 30)
        assert batch.is_stamped_right()
        assert batch.first_index == index, (batch, delivery.headers)
        index = batch.end_index
    assert index == int(delivery.headers["index"]) + int(delivery.headers["count"])
    return batches


def records_of(deliveries: Iterable[Delivery]) -> list[tuple[int, bytes]]:
    """Index and value of all records in these, single ones or in batches; what is only told is left out."""
    found: list[tuple[int, bytes]] = []
    for delivery in deliveries:
        if is_told(delivery):
            continue
        if delivery.headers.get("content-type") == CONTENT_TYPE:
            for batch in batches_of(delivery):
                found += [(batch.first_index + place, bytes(value)) for place, value in enumerate(batch.values())]
        else:
            found.append((int(delivery.headers["index"]), delivery.body))
    return found
