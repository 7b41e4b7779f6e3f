"""Closing and opening of one shard while the broker serves the others.

A shard is closed in this order: no client is given a destination of it any more; connections that use one do so by way
of the hub that will have it, or, where there is none or that can't be, are ended with the ERROR `shard-away`; what they
had not acknowledged is requeued; then the rest is written, and the store is closed. Consumers of wildcards stay, but
for those that hold a message of the shard. If the rest can't be written, because another hub has the shard or the disk
is broken, RECEIPTs that wait for it never come: connections that wait for any are ended, too. When the shard is opened
again its destinations are those that are stored, and wildcards have them again.

Several shards are opened at once, since an opening waits for disks or a database most of its time; and closings, which
wait for clients, keep no opening waiting. What is done with one shard is done in the order in which it was asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from sluiceway.connections import Connections
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.session import Session
from sluiceway.queues.registry import ShardAwayError
from sluiceway.queues.subscription import Subscription
from sluiceway.shards import Shards

LEAVING_SECONDS: Final = 5.0
"""Time for connections that use a shard to end, before it is closed."""
LOOK_SECONDS: Final = 0.01

OPENINGS_MAX: Final = 4
"""Shards that are opened at once: their threads share the interpreter with the loop."""
CLOSINGS_MAX: Final = 2
"""Shards that are closed at once: each looks at all destinations until its messages are back."""

log = get_logger("sluiceway.shards")


@attrs.define
class _Line:
    """Work on one shard, one piece after another."""

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    waiting_count: int = 0


class ShardMoves:
    """Closes and opens shards, a few at once."""

    def __init__(self, shards: Shards, connections: Connections) -> None:
        self._shards = shards
        self._connections = connections
        self._lines: dict[int, _Line] = {}
        self._openings = trio.Semaphore(OPENINGS_MAX)
        self._closings = trio.Semaphore(CLOSINGS_MAX)

    def leave(self, number: int, why: str) -> None:
        """Give no destination of a shard to clients any more, at once. `close` is to follow. Does nothing if the shard
        is closed.
        """
        if number in self.usable:
            self._shards.leave(number, why)

    def deliver_again(self) -> None:
        """Have all queues deliver that were not allowed to."""
        self._shards.deliver_again()

    @property
    def open_count(self) -> int:
        """Number of open shards."""
        return len(self._shards.open_shards)

    @property
    def usable(self) -> frozenset[int]:
        """Open shards that are not about to be closed."""
        return frozenset(self._shards.open_shards.keys() - self._shards.registry.away.keys())

    async def close(self, number: int, why: str) -> None:
        """Close a shard; `why`: told to clients. Does nothing if it is closed. Raises EngineError if the rest can't be
        written: then it is as after a crash.
        """
        async with self._in_line(number), self._closings:
            if number not in self._shards.open_shards:
                return
            self.leave(number, why)
            using = [session for session in self._sessions() if self._uses(session, number)]
            ended = [session for session in using if not session.let_go(number)]
            self._end(ended, number)
            with trio.move_on_after(LEAVING_SECONDS):
                await self._left(ended, number)
            late = [session for session in self._sessions() if self._uses(session, number)]
            if late:  # they hold messages that came by wildcards, or that they do not take
                self._end(late, number)
                with trio.move_on_after(LEAVING_SECONDS):
                    await self._left(late, number)
            try:
                await self._shards.close_shard(number)
            except Exception:
                self._end([session for session in self._sessions() if not session.is_confirmed], number)
                raise
            log.info("shard closed", shard=number, because=why, ended_connections=len({*ended, *late}))

    async def open(
        self, number: int, epoch: int | None = None, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Open a shard that was closed; `epoch`: that of this owner, if other hubs may have it; `is_wanted`: asked when
        it is its turn. Raises the exceptions of its parts: then it stays closed.
        """
        async with self._in_line(number), self._openings:
            if number not in self._shards.open_shards and is_wanted():
                try:
                    await self._let_guests_go(number)
                    await self._shards.open_shard(number, epoch)
                finally:
                    self._shards.guests_may_come(number)
                log.info("shard opened", shard=number, destinations=len(self._shards.destinations_of(number)))

    @asynccontextmanager
    async def _in_line(self, number: int) -> AsyncIterator[None]:
        """Wait until nothing else is done with a shard."""
        line = self._lines.setdefault(number, _Line())
        line.waiting_count += 1
        try:
            async with line.lock:
                yield
        finally:
            line.waiting_count -= 1
            if not line.waiting_count:
                del self._lines[number]

    async def _let_guests_go(self, number: int) -> None:
        """Have subscribers of topics leave that are served here while the shard is elsewhere: they come again when it
        is open, and messages of that moment pass them by.
        """
        if self._shards.leave_guests(number):
            using = [session for session in self._sessions() if self._uses(session, number)]
            self._end([session for session in using if not session.let_go(number)], number)
            with trio.move_on_after(LEAVING_SECONDS):
                await self._left([], number)
            self._shards.forget_guests(number)

    def _end(self, sessions: list[Session], number: int) -> None:
        for session in sessions:
            session.fail(
                ProtocolError(
                    ShardAwayError.code,
                    self._shards.registry.away[number],
                    "Connect again later, or to the broker that has it: nothing that was confirmed is lost.",
                ),
                peers_fault=False,
            )

    async def _left(self, using: list[Session], number: int) -> None:
        """Wait until these sessions have ended, and no consumer holds a message of the shard."""
        while True:
            using = [session for session in using if not session.is_drained]
            if not using and not self._is_held(number):
                return
            await trio.sleep(LOOK_SECONDS)

    # ------------------------------------------------------------------ who uses a shard

    def _sessions(self) -> Iterator[Session]:
        for connection in tuple(self._connections):
            yield connection.session

    def _is_held(self, number: int) -> bool:
        """Whether consumers hold messages of the shard."""
        queues = [queue for each in self._shards.destinations_of(number) for queue in each.queues]
        return any(queue.unsettled_count for queue in queues)

    def _uses(self, session: Session, number: int) -> bool:
        if any(lane.inlet.environment.shard == number for lane in session.lanes.lanes):
            return True
        if any(transaction.shard == number for transaction in session.transactions):
            return True
        known = {id(subscription) for subscription in session.subscriptions.known}
        return any(id(consumer) in known for consumer in self._consumers(number))

    def _consumers(self, number: int) -> Iterator[object]:
        """Yield consumers that need the shard: those of one destination, and those that hold messages."""
        for destination in self._shards.destinations_of(number):
            by_wildcard = {id(each.consumer) for each in destination.wildcards or ()}
            for queue in destination.queues:
                for subscription in queue.subscriptions.values():
                    if subscription.unsettled_count or id(subscription.consumer) not in by_wildcard:
                        yield subscription.consumer
        for each in self._shards.logs or ():
            if each.environment.shard == number:
                outlets: list[Any] = list(each.outlets)
                for outlet in outlets:
                    subscriptions: list[Subscription] = list(outlet.subscriptions)
                    yield from (subscription.consumer for subscription in subscriptions)
