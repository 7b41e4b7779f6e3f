"""Committed transactions of an earlier run that had not all come to their queues and logs: they resume before clients
connect.

For each queue or log one drain (queues/spools.py, queues/log_drain.py) moves the rest, in order of the commits. Queues
page out messages beyond their memory. Only where a queue has no room until a consumer takes from it (or its policy
keeps it from paging, or the disk is full) the start does not wait: the rest moves later, and is first in line there.

Messages that were not persistent belonged to the earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice, repeat
from typing import Final

import trio

from sluiceway.flow import Flow, SourceController
from sluiceway.protocols.log import get_logger
from sluiceway.queues.log_drain import LogDrain
from sluiceway.queues.logs.table import PREFIX as LOG_PREFIX
from sluiceway.queues.logs.table import LogError, LogTable
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.spools import SpoolDrain, SpoolTarget, drop, queue_of
from sluiceway.store.spool import StoreSpool, StoreSpools

PROGRESS_SECONDS: Final = 1.0
"""Time between two lines of progress."""

LOOK_SECONDS: Final = 0.01
"""Time between two looks at the progress."""

STALL_SECONDS: Final = 1.0
"""Time without progress after which the rest waits for consumers."""

log = get_logger("sluiceway.store")


class SpoolRecovery:
    """Rest of transactions of an earlier run, on its way to the queues."""

    def __init__(
        self,
        spools: StoreSpools,
        registry: DestinationRegistry,
        logs: LogTable | None,
        *,
        clock: Callable[[], float],
    ) -> None:
        """Prepare the recovery; `run` moves the messages. Missing destinations are made."""
        self._spools = spools
        self._registry = registry
        self._logs = logs
        self._clock = clock
        self._legs: dict[SpoolDrain | LogDrain, None] = {}
        self._moved_count = 0

    async def _prepare(self) -> None:
        """Make a drain for each queue; messages without a queue are dropped in steps. With checkpoints."""
        spools: dict[SpoolTarget, list[StoreSpool]] = {}
        for spool in self._spools.left:
            for target in spool.targets:
                await trio.lowlevel.checkpoint()
                spools.setdefault(target, []).append(spool)
        gone: list[Iterable[tuple[StoreSpool, int]]] = []
        for target, having in spools.items():
            await trio.lowlevel.checkpoint()
            places = chain.from_iterable([zip(repeat(spool), spool.targets[target].places) for spool in having])
            if target[0].startswith(LOG_PREFIX):
                self._add_log_leg(places, target[0])
                continue
            queue = queue_of(target, self._registry, is_stored=True)
            if queue is not None:
                self._add_leg(places, queue)
                continue
            for spool in having:  # a temporary destination went with its connection
                spool.targets[target].is_gone = True
            gone.append(places)
        drop(chain.from_iterable(gone), dropped=_nothing, done=_over)

    def _add_leg(self, places: Iterable[tuple[StoreSpool, int]], queue: MessageQueue) -> None:
        def resumed(_sink: object) -> bool:
            return leg.go()

        def left(_spool: object, _place: int, _count: int, _charge_bytes: int) -> None:
            self._moved_count += 1
            if not leg.left_count:
                del self._legs[leg]
                source.close()

        source = SourceController(
            self._spools.store,
            Flow(f"committed transactions to {queue.name}"),
            on_resume=resumed,
            clock=self._clock,
        )
        leg = SpoolDrain(
            places,
            queue,
            source,
            count=0,
            may_go=lambda: True,
            left=left,
            unheard=self._unheard,
            persistent_only=True,
        )
        self._legs[leg] = None

    def _add_log_leg(self, places: Iterable[tuple[StoreSpool, int]], name: str) -> None:
        try:
            if self._logs is None:
                raise LogError("no-logs", "the broker keeps no logs")
            its_log = self._logs.get(name)
        except LogError as error:  # the pieces stay on the disk
            log.warning("records of a committed transaction stay on the disk", log=name, error=str(error))
            return

        pieces = list(places)
        left_count = len(pieces)

        def resumed(_sink: object) -> bool:
            return leg.go()

        def done() -> None:
            nonlocal left_count
            left_count -= 1
            self._moved_count += 1
            if not left_count:
                del self._legs[leg]
                source.close()

        source = SourceController(
            self._spools.store, Flow(f"committed transactions to {name}"), on_resume=resumed, clock=self._clock
        )
        leg = LogDrain(
            pieces, its_log, source, may_go=lambda: True, left=_nothing, done=done, warn=log.warning
        )  # fmt: skip
        self._legs[leg] = None

    def _unheard(self, count: int) -> None:
        self._registry.unheard_count += count

    @property
    def left_count(self) -> int:
        """Pieces that are not in their queues yet."""
        return sum(leg.left_count for leg in self._legs)

    async def run(self) -> None:
        """Move the messages for which there is room, and report the progress. Returns when all of them are in their
        queues, or the rest has to wait.
        """
        await self._prepare()
        if not self._legs:
            return
        log.info("committed transactions resume", transactions=len(self._spools.left), pieces=self.left_count)
        for leg in list(self._legs):
            await trio.lowlevel.checkpoint()
            leg.go()
        progress_seconds = told_seconds = self._clock()
        seen_count = 0
        while self._legs and self._clock() - progress_seconds < STALL_SECONDS:
            await trio.sleep(LOOK_SECONDS)
            now_seconds = self._clock()
            if self._moved_count > seen_count:
                seen_count, progress_seconds = self._moved_count, now_seconds
            if now_seconds - told_seconds >= PROGRESS_SECONDS:
                told_seconds = now_seconds
                log.info("committed transactions resume", pieces_left=self.left_count)
        if self._legs:
            log.warning(
                "committed transactions wait for room",
                pieces_left=self.left_count,
                queues=[leg.name for leg in islice(self._legs, 10)],
                remedy="consume from these queues, or raise their limits; the rest follows by itself",
            )


def _nothing(_spool: object, _place: int) -> None:
    """Do nothing: dropped messages are not counted."""


def _over() -> None:
    """Do nothing: the end is not awaited."""
