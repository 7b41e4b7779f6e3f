"""Several lives of one broker with logs, on one folder: whole brokers in virtual time, their files and their store as
crashes and power cuts leave them.
"""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import trio

import sluiceway.store.log_storage
from sluiceway.broker import Broker
from sluiceway.config import Config, DestinationPolicy, Listener
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.store.log_storage import LogStorageConfig
from tests.scenarios.client import Client, Delivery
from tests.scenarios.stage import Stage, wall_clock_ms
from tests.store.bigarray.faulty import FaultyFiles
from tests.store.faulty import FaultyEngine

SMALL: Final = LogStorageConfig(data_page_bytes=4096, index_page_count=64, mapped_pages_max=3)
"""Pages of a few batches, so that a handful of records fills several."""


@contextmanager
def array_options(*, lease_items: int) -> Iterator[None]:
    """In the block, arrays are opened with leases of so many items, and a few dirty pages are many."""
    options = sluiceway.store.log_storage.ArrayOptions
    sluiceway.store.log_storage.ArrayOptions = lambda **sizes: options(  # type: ignore[assignment,misc]
        **sizes, lease_items=lease_items, dirty_pages_max=8
    )
    try:
        yield
    finally:
        sluiceway.store.log_storage.ArrayOptions = options  # type: ignore[misc]


class MortalFiles:
    """FaultyFiles of one life: when that is over they take nothing any more, and forgive who closes them. May end it
    at its n-th operation.
    """

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files
        self.dead = False
        self.operations_left: int | None = None
        """How many changes it has left; None: no end."""
        self.dies_before = True
        self.die: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        does = getattr(self.files, name)
        if name == "close":
            return lambda file: None if self.dead else does(file)
        return self._counted(does) if name in _CHANGES else self._alive(does)

    def _alive(self, does: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any, **options: Any) -> Any:
            if self.dead:
                raise OSError(errno.EIO, "this life is over")
            return does(*arguments, **options)

        return do

    def _counted(self, does: Callable[..., Any]) -> Callable[..., Any]:
        alive = self._alive(does)

        def do(*arguments: Any, **options: Any) -> Any:
            if self.operations_left is not None:
                self.operations_left -= 1
            last = self.operations_left == 0
            if last and self.dies_before:
                self.die()
            result = alive(*arguments, **options)
            if last and not self.dies_before:
                self.die()
            return result

        return do


_CHANGES: Final = frozenset({"pwritev", "truncate", "allocate", "sync", "sync_folder", "remove", "rename"})


class LogStage(Stage):
    """A broker with logs, and its clients."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker

    async def ask(self, client: Client, request: str, **facts: Any) -> dict[str, Any]:
        """A request about logs, and its reply."""
        await client.subscribe("/temp-queue/answers", id="answers")
        await client.send(f"/sluiceway/log/{request}", json.dumps(facts), reply_to="/temp-queue/answers")
        reply = await client.next_message()
        await client.unsubscribe("answers")
        return dict(json.loads(reply.body))


@attrs.define
class LogLives:
    """What is between lives: the folder of logs, with its `files`, and the store, with the places of groups."""

    folder: Path
    journal: LogStorageConfig = SMALL
    policies: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    limits: Mapping[str, Any] = attrs.field(factory=dict)
    """Fields of StompLimits."""
    files: FaultyFiles = attrs.field(init=False)
    engine: FaultyEngine = attrs.field(init=False)
    boot: int = 0

    def __attrs_post_init__(self) -> None:
        self.files = FaultyFiles(Random(0), self.folder / "vault")
        self.engine = FaultyEngine(Random(0))

    def config(self) -> Config:
        return Config(
            logs=self.journal,
            listeners=(Listener(address="127.0.0.1:0", limits=StompLimits(**self.limits)),),
            destinations=tuple(DestinationPolicy(match, settings) for match, settings in self.policies.items()),
        )

    def folder_of(self, log: str) -> Path:
        """Where the files of a log are."""
        return self.folder / "logs" / log.removeprefix("/log/")

    @asynccontextmanager
    async def life(self, *, end: str = "in order") -> AsyncIterator[LogStage]:
        """A broker on what the one before left. `end`: "in order", "crash" (the process dies), "power cut"."""
        mortal = MortalFiles(self.files)
        broker = Broker(
            self.config(),
            now_ms=wall_clock_ms,
            engine=self.engine,
            journal_folder=self.folder / "logs",
            journal_files=mortal,  # type: ignore[arg-type]
            boot=f"boot {self.boot}",
        )
        await broker.__aenter__()
        try:
            yield LogStage(broker)
            if end == "in order":
                await broker.stop()
                self.engine = self.engine.crash()  # the same content, open again
            else:
                mortal.dead = True
                self.die(power_cut=end == "power cut")
                broker.shards.abandon()
        except BaseException as error:
            await broker.__aexit__(type(error), error, error.__traceback__)
            raise
        await broker.__aexit__(None, None, None)

    def die(self, *, power_cut: bool) -> None:
        """All at once; whoever still writes gets errors."""
        if power_cut:
            self.engine = self.engine.power_cut()
            self.files.power_cut()
            self.boot += 1
        else:
            self.engine = self.engine.crash()
            self.files.kill()


def index_of(delivery: Delivery) -> int:
    return int(delivery.headers["index"])


async def everything(stage: Stage, log: str, **headers: str) -> list[Delivery]:
    """All that a reader from the earliest index on gets, gap markers too."""
    reader = await stage.connect()
    await reader.subscribe(log, **{"from": "earliest", **headers})
    found = await reader.drain()
    reader.stream.close()
    await trio.lowlevel.checkpoint()
    return found


def told(deliveries: Iterable[Delivery]) -> list[tuple[int, int, str]]:
    """The gaps among these."""
    return [
        (int(each.headers["gap-from"]), int(each.headers["gap-to"]), each.headers["gap-reason"])
        for each in deliveries
        if "gap" in each.headers
    ]


def records(deliveries: Iterable[Delivery]) -> dict[int, bytes]:
    """The records among these, by index."""
    return {index_of(each): each.body for each in deliveries if "gap" not in each.headers}


def receipted(client: Client) -> dict[str, tuple[int, int, str]]:
    """What the RECEIPTs of SENDs to logs said: index, count, durability."""
    return {
        frame.headers["receipt-id"]: (
            int(frame.headers["index"]),
            int(frame.headers["count"]),
            frame.headers["durability"],
        )
        for frame in client.received
        if frame.command == "RECEIPT" and "index" in frame.headers
    }
