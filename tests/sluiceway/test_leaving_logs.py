"""Logs of a shard that moves to another hub, while the clients that wait for RECEIPTs stay."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import trio
import trio.testing

from sluiceway.log_service import Logs


class LogThatSyncs:
    """A log whose records are in its file, while their sync is under way."""

    environment = SimpleNamespace(shard=3)
    failing = ""

    def __init__(self) -> None:
        self.settled: list[Callable[[], None]] = []
        self.is_left = trio.Event()

    def when_written(self, callback: Callable[[], None]) -> None:
        callback()

    def when_settled(self, callback: Callable[[], None]) -> None:
        self.settled.append(callback)


async def test_the_receipts_of_a_sync_that_is_under_way_leave_before_the_shard_is_closed() -> None:
    """A log that is closed drops them, and their clients would wait for ever."""
    one = LogThatSyncs()

    class Table(list[Any]):
        def leave(self, log: LogThatSyncs) -> None:
            log.is_left.set()

    managers = SimpleNamespace(flush=lambda done: done(None), close=lambda: None)
    part = SimpleNamespace(managers=managers, storage=SimpleNamespace(close=list))
    logs = Logs(cast("Any", Table([one])), cast("Any", None), cast("Any", {3: part}))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: logs.leave(3, inline=True))
        await trio.testing.wait_all_tasks_blocked()
        assert one.settled and not one.is_left.is_set()
        one.settled[0]()
        await one.is_left.wait()
