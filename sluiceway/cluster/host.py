"""Shards of a broker that move between hubs: what `Ownership` decides is done with the shards that this broker has.

A shard that the broker owns is opened as after a crash or an orderly end, whichever it was. One that is to move is
closed in order: its destinations are given to no client, who uses it is told, the rest is written. A shard whose
session has ended is abandoned: at once no client is given its destinations, and it is closed. What a store still
writes or confirms then is true: no other hub can have it open as long as its folder is locked here, and a database
refuses writes of an earlier epoch.

Other hubs are told which shards are open here (`Links.announce`), before any of their clients hears of it otherwise:
so they send nothing to a hub that is only about to have a shard.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from sluiceway.cluster.coordination.port import Hub, SessionState
from sluiceway.cluster.links import Links, Seat
from sluiceway.cluster.membership import Loop, Membership, Spawn
from sluiceway.cluster.owned_placement import OwnedPlacement
from sluiceway.cluster.ownership import GoneHub, Ownership
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.warning_limiter import WarningLimiter
from sluiceway.shard_moves import ShardMoves
from sluiceway.store.directory import DirectoryError
from sluiceway.store.engine import EngineError, FencedError
from sluiceway.version import VERSION

RELEASE_SECONDS: Final = 1.0
"""Time to tell the others, where the service does not answer and no shard is open any more."""
LEAVE_SECONDS: Final = 20.0
"""Time for handing all shards over when the broker stops; those that are left are closed without it."""

WORDS_SECONDS: Final = 2.0
"""Time between two looks at why this hub is not in the cluster."""

log = get_logger("sluiceway.cluster")


class ShardsHere:
    """Shards of this broker, as `Ownership` asks for them. Satisfies `ShardHost`."""

    def __init__(
        self,
        moves: ShardMoves,
        *,
        spawn: Spawn,
        clock: Callable[[], float],
        contain: Callable[[Exception], None],
        changed: Callable[[], None],
    ) -> None:
        """`spawn` starts a task that lives no longer than the broker; `changed`: owners, hubs or open shards have
        changed.
        """
        self._moves = moves
        self._spawn = spawn
        self._contain = contain
        self._changed = changed
        self._turns: dict[int, int] = {}
        """Number of times that a shard was opened, closed or abandoned: tells the present wish from earlier ones."""
        self._ends: dict[int, trio.Event] = {}
        """End of the last piece of work on each shard."""
        self._warnings = WarningLimiter(clock)
        self.is_held = False
        """Whether the session is uncertain."""

    def open(self, shard: int, epoch: int, done: Callable[[Exception | None], None]) -> None:
        """Do `ShardHost.open`."""
        self._in_turn(shard, partial(self._open, shard, epoch, done, self._turn(shard)))

    async def _open(self, shard: int, epoch: int, done: Callable[[Exception | None], None], turn: int) -> None:
        failed: Exception | None = None
        try:
            await self._moves.open(shard, epoch, is_wanted=lambda: self._turns[shard] == turn)
        except Exception as error:  # noqa: BLE001 - whatever it is, the shard is asked for again
            failed = error
            more_count = self._warnings.say(f"{shard} {error}")
            if more_count is not None:
                log.error(
                    "a shard can't be opened here",
                    shard=shard,
                    error=str(error) or repr(error),
                    effect="its destinations wait; it is tried again each second",
                    more_since_last=more_count,
                )
        if self._turns[shard] == turn:
            self._tell(partial(done, failed))
            self._changed()

    def close(self, shard: int, done: Callable[[], None]) -> None:
        """Do `ShardHost.close`."""
        why = "it moves to another hub"
        self._moves.leave(shard, why)
        self._changed()
        self._in_turn(shard, partial(self._close, shard, why, done, self._turn(shard)))

    def abandon(self, shard: int) -> None:
        """Do `ShardHost.abandon`."""
        why = "another hub may have it: the session of this one has ended"
        self._moves.leave(shard, why)
        self._changed()
        self._in_turn(shard, partial(self._close, shard, why, _nothing, self._turn(shard)))

    async def _close(self, shard: int, why: str, done: Callable[[], None], turn: int) -> None:
        try:
            await self._moves.close(shard, why)
        except (EngineError, DirectoryError) as error:
            log.error("a shard was not closed in order", shard=shard, error=str(error))
        except Exception as error:  # noqa: BLE001 - it is as after a crash, and free
            self._contain(error)
        if self._turns[shard] == turn:
            self._tell(done)
            self._changed()

    def hold(self) -> None:
        """Do `ShardHost.hold`."""
        self.is_held = True
        self._changed()

    def resume(self) -> None:
        """Do `ShardHost.resume`."""
        self.is_held = False
        self._moves.deliver_again()
        self._changed()

    def owner_changed(self, shard: int) -> None:
        """Do `ShardHost.owner_changed`."""
        self._changed()

    def hubs_changed(self) -> None:
        """Do `ShardHost.hubs_changed`."""
        self._changed()

    def _in_turn(self, shard: int, work: Callable[[], Awaitable[None]]) -> None:
        """Do a piece of work on a shard behind all earlier ones."""
        before, ended = self._ends.get(shard), trio.Event()
        self._ends[shard] = ended

        async def do() -> None:
            try:
                if before is not None:
                    await before.wait()
                await work()
            finally:
                ended.set()

        self._spawn(do)

    def _turn(self, shard: int) -> int:
        turn = self._turns[shard] = self._turns.get(shard, 0) + 1
        return turn

    def _tell(self, done: Callable[[], None]) -> None:
        try:
            done()
        except Exception as error:  # noqa: BLE001 - one shard is not to cost the others
            self._contain(error)


class Member:
    """The broker as a hub of a cluster whose shards move."""

    def __init__(
        self,
        seat: Seat,
        membership: Membership,
        moves: ShardMoves,
        *,
        loop: Loop,
        clock: Callable[[], float],
        spawn: Spawn,
        contain: Callable[[Exception], None],
    ) -> None:
        """Make the part of a broker; `begin` joins. `clock`: monotonic seconds."""
        self.seat = seat
        self._membership = membership
        self._loop = loop
        self._clock = clock
        self._moves = moves
        self._spawn = spawn
        self._waiting: list[Callable[[], Awaitable[object]]] = []
        """Tasks of the coordination, which begin when the broker does."""
        self._contain = contain
        self._links: Links | None = None
        self._is_looking = False
        self._has_left = False
        self._said = ""
        """Reason that was logged last why this hub is not in the cluster."""
        self._open: frozenset[int] = frozenset()
        """Shards that are open here, as the other hubs were told."""
        self.host = ShardsHere(moves, spawn=spawn, clock=clock, contain=contain, changed=self._changed)
        self.coordination = membership.coordination(loop, clock, self._waiting.append)
        self._hub = Hub(seat.hub, version=VERSION, weight=membership.weight)
        self.ownership = Ownership(
            self.coordination,
            self.host,
            loop,
            clock,
            hub=self._hub,
            shards_count=seat.shards_count,
            data_place=membership.data_place,
            settle_seconds=membership.settle_seconds,
            expected_count=len(membership.expected),
        )
        self.placement = OwnedPlacement(self.ownership, seat.shards_count, self.is_open_at)

    def peers(self) -> dict[str, str]:
        """Return the addresses of all other live hubs, by id."""
        hubs = self.ownership.hubs.values()
        return {hub.name: hub.address for hub in hubs if hub.name != self.seat.hub and hub.address}

    def gone(self) -> dict[str, GoneHub]:
        """Return the hubs that are to be in the cluster and are not. O(shards)."""
        return self.ownership.gone(self._membership.expected)

    @property
    def ownerless_count(self) -> int:
        """Number of shards that no hub has, as far as this one knows. O(shards)."""
        return sum(not self.ownership.where(shard).hub for shard in range(self.seat.shards_count))

    @property
    def open_shards(self) -> frozenset[int]:
        """Shards whose destinations clients can use here."""
        return self._moves.usable

    @property
    def session(self) -> str | None:
        """Session in which this hub is in the cluster; None: it is in none."""
        return self.coordination.session

    def may_deliver(self) -> bool:
        """Return whether this hub is certain of its session: else another one may deliver the same messages. Asked at
        the moment of delivery, for a stopped process wakes up before its timers run.
        """
        return self.certain_seconds() > 0

    def certain_seconds(self) -> float:
        """Return for how long this hub is certain of its session, from now on; 0 or less: it is not."""
        return self.coordination.certain_until_seconds - self._clock()

    def drain(self) -> None:
        """Hand all shards over, and take none until `resume`, or the next start. Raises NotMovableError."""
        self.ownership.drain()

    def resume(self) -> None:
        """Take shards again, after `drain`."""
        self.ownership.weigh(self._membership.weight)

    async def move(self, shard: int, hub: str) -> None:
        """Have a shard move to a hub, and stay there; an empty name leaves the choice to the cluster. Returns when it
        is agreed, not when it has happened. Raises NotMovableError, MetadataError, ClusterRecordError.
        """
        answered = trio.Event()
        failed: list[Exception] = []

        def done(error: Exception | None) -> None:
            if error is not None:
                failed.append(error)
            answered.set()

        self.ownership.move(shard, hub, done)
        await answered.wait()
        if failed:
            raise failed[0]

    def fenced(self, shard: int, error: FencedError) -> None:
        """Abandon a shard whose store has found another owner; it is claimed anew if it is to be here."""
        log.error("shard abandoned: its store refuses this owner", shard=shard, error=str(error))
        self.ownership.give_up(shard)

    def begin(self, links: Links, clients: str = "") -> None:
        """Join the cluster: shards are opened from now on. `links` accept those of other hubs already. `clients`: URLs
        at which clients reach this hub.
        """
        self._links = links
        address = self.seat.advertised or next(iter(links.addresses), "")
        for task in self._waiting:
            self._spawn(task)
        self.ownership.start(address, clients)
        self._loop.call_later(WORDS_SECONDS, self._say_why_not)

    def _say_why_not(self) -> None:
        """Log why this hub is not in the cluster, as long as it is not."""
        self._loop.call_later(WORDS_SECONDS, self._say_why_not)
        words = self.coordination.words
        if self.coordination.session is not None or self._has_left:
            self._said = ""
        elif words != self._said:
            self._said = words
            log.warning("this hub is not in the cluster: it waits", reason=words)

    async def leave(self) -> None:
        """Close all shards in order, hand them over, and leave the cluster. What is not closed within LEAVE_SECONDS is
        left to the owner of the shards.
        """
        self._has_left = True
        left = trio.Event()
        self.ownership.leave(left.set)
        with trio.move_on_after(LEAVE_SECONDS):
            while not left.is_set():
                with trio.move_on_after(RELEASE_SECONDS):
                    await left.wait()
                if not self._moves.open_count and self.coordination.state is not SessionState.CERTAIN:
                    break  # nobody is there to hear of it
        if not left.is_set():
            log.warning("shards were not handed over", words=self.coordination.words)

    def shards_changed(self, hub: str) -> None:
        """Note that another hub has said which shards it has open."""
        assert self._links is not None, "links come later"
        for shard in self._links.shards_at(hub):
            if self.ownership.where(shard).hub != hub:
                self.ownership.look_again(shard)  # a hint was lost, or is on its way
        self._changed()

    # ------------------------------------------------------------------ what others learn

    def is_open_at(self, hub: str, shard: int) -> bool:
        """Return whether another hub has said that it has a shard open."""
        return self._links is not None and shard in self._links.shards_at(hub)

    def _changed(self) -> None:
        """Have links and sessions look again, once for all that happens in one turn."""
        self.placement.moved()
        if self._links is None:
            return
        is_open = self.open_shards
        if is_open != self._open:  # before anybody else is told
            self._open = is_open
            self._links.announce()
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(0.0, self._look)

    def _look(self) -> None:
        self._is_looking = False
        if self._links is not None:
            self._links.look()


def _nothing() -> None:
    return
