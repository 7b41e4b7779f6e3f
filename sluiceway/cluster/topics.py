"""Interest of the hubs in topics: what this one tells the others, and what it knows of them.

Drives an `InterestBook`: links that come and go, clients that subscribe, timers. Each hub opens one flow over each link
and writes its messages about interest there, each behind its length. A hub of an earlier version refuses that flow.
While there is one, no hub serves the topics of others (`is_on`): all messages of a topic go by way of its owner.

Beside the names and patterns of its clients a hub tells `/durable` with the name of each topic that has a durable
subscription there, and `/shard/N` when it has told all of those of a shard. So the hub of a sender may leave the owner
of a topic out if the owner has told the shard, and no hub a durable subscription.

    length (4), message (`interest.messages`)

Bounds: those of the book; what a hub has not read of it is charged to an account on the flow map.

Not here: the copies of messages (`sluiceway.protocols.stomp.relaying.copies`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, Protocol

import attrs

from sluiceway.cluster.interest.book import InterestBook
from sluiceway.cluster.interest.messages import InterestFault, Message, decode, encode
from sluiceway.cluster.placement import Peers, WithTemporaries
from sluiceway.flow import FlowManager
from sluiceway.protocols.link.flow import REFUSED, FlowUser
from sluiceway.protocols.link.load import LinkLoad, Unread
from sluiceway.protocols.link.records import Kind, LinkFault
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.placement import FlowEnd
from sluiceway.queues.environment import TimerHandle
from sluiceway.queues.names import DestinationName
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.shard_hash import shard_of
from sluiceway.queues.topic import Topic
from sluiceway.queues.wildcards import PatternTrie, path_of

OPENING: Final = "interest"
"""Key of the opening record of a flow about interest."""
DURABLE: Final = "/durable"
SHARD: Final = "/shard/"
MESSAGE_BYTES_MAX: Final = 256 * 1024
EARLY_MAX: Final = 64
"""Messages of a hub that come in the same read as the proof of who it is, and are kept until its link counts."""
_LENGTH: Final = Struct("!I")

log = get_logger("sluiceway.topics")


class Opens(Protocol):
    """Opens flows to other hubs. `Links` fits."""

    def open(self, hub: str, opening: Mapping[str, object], user: FlowUser) -> FlowEnd | None:
        """Open a flow; None: the hub can't be reached now."""


@attrs.define
class CopiesCount:
    """Counts of messages sent to one hub for its subscribers, since the start."""

    messages_count: int = 0
    bytes_count: int = 0
    missed_count: int = 0
    """Messages that the hub did not get, or perhaps not: it lagged, or its link was lost."""


NO_COPIES: Final = CopiesCount()


@attrs.define(eq=False)
class _Awaiting:
    """A callback for when all hubs have a version of the own interest."""

    version: int
    callback: Callable[[], None] | None
    timer: TimerHandle | None = None
    """Ends the patience with hubs that do not answer."""

    def end(self) -> None:
        """Call back, once."""
        callback, self.callback = self.callback, None
        if callback is not None:
            if self.timer is not None:
                self.timer.cancel()
            callback()


class _Outward:
    """Near end of the flow on which this hub tells another one what it is interested in."""

    def __init__(self, topics: TopicInterest, hub: str) -> None:
        self._topics = topics
        self.hub = hub
        self.flow: FlowEnd
        self._unread = Unread(topics.charge)
        self.is_over = False

    def send(self, message: Message) -> None:
        """Send a message; nothing when the flow is over."""
        if not self.is_over:
            payload = encode(message)
            self._unread.send(self.flow, _LENGTH.pack(len(payload)) + payload)

    def close(self) -> None:
        """Count nothing any more."""
        self.is_over = True
        self._unread.close()

    def arrived(self, kind: Kind, data: bytes) -> None:
        """Do `FlowUser.arrived`: the other hub answers over a flow of its own."""

    def settle(self) -> None:
        """Do `FlowUser.settle`."""

    def confirmed(self, read_bytes: int, _done_bytes: int) -> None:
        """Do `FlowUser.confirmed`."""
        self._unread.confirmed(read_bytes)

    def ended(self, reason: str, *, lost: bool) -> None:
        """Do `FlowUser.ended`."""
        if not self.is_over:
            if not lost:
                self.flow.end(reason)
            self.close()
            self._topics.ended(self, is_refused=not lost and reason.startswith(REFUSED))


class _Inward:
    """Far end of such a flow of another hub."""

    def __init__(self, topics: TopicInterest, hub: str, flow: FlowEnd) -> None:
        self._topics = topics
        self._hub = hub
        self._flow = flow
        self._data = bytearray()
        self._read_bytes = 0

    def arrived(self, kind: Kind, data: bytes) -> None:
        """Do `FlowUser.arrived`. Raises LinkFault."""
        if kind is not Kind.PART:
            return
        self._read_bytes += len(data)
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (size_bytes,) = _LENGTH.unpack_from(self._data)
            if size_bytes > MESSAGE_BYTES_MAX:
                raise LinkFault(f"the peer sent a message about interest of {size_bytes} bytes, which is too large")
            end = _LENGTH.size + size_bytes
            if len(self._data) < end:
                return
            payload = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            try:
                self._topics.received(self._hub, decode(payload))
            except InterestFault as fault:
                raise LinkFault(f"the peer told what can't be: {fault}") from None

    def settle(self) -> None:
        """Do `FlowUser.settle`."""
        self._flow.took(self._read_bytes, self._read_bytes)

    def confirmed(self, read_bytes: int, done_bytes: int) -> None:
        """Do `FlowUser.confirmed`: nothing is sent here."""

    def ended(self, reason: str, *, lost: bool) -> None:
        """Do `FlowUser.ended`."""
        if not lost:
            self._flow.end(reason)
        self._topics.inward_ended(self._hub)


class TopicInterest:
    """Implements `sluiceway.protocols.stomp.placement.Topics` for one hub."""

    def __init__(
        self,
        hub: str,
        run: int,
        shards_count: int,
        placement: WithTemporaries,
        peers: Peers,
        links: Opens,
        *,
        clock: Callable[[], float],
        tell: Callable[[], None],
    ) -> None:
        """`run`: number of this start of the hub; `tell`: have sessions look for their destinations again."""
        self._hub = hub
        self._shards_count = shards_count
        self._placement = placement
        self._peers = peers
        self._links = links
        self._clock = clock
        self._tell = tell
        self.book = InterestBook(hub, run, self._send)
        self._generation = self.book.generation
        self._own: PatternTrie[str] = PatternTrie()
        """Names and patterns of this hub's clients, and durable topics by their own name."""
        self._durables: dict[str, int] = {}
        self._open_shards: frozenset[int] = frozenset()
        self._runs: dict[str, int] = {}
        """Run of each hub to which there was a link."""
        self._refusing: dict[str, int] = {}
        """Hubs of an earlier version, each with its run."""
        self._outward: dict[str, _Outward] = {}
        self._inward: dict[str, int] = {}
        self._early: dict[str, list[Message]] = {}
        self._waiting: deque[_Awaiting] = deque()
        self._flush_is_due = False
        self._timer: TimerHandle | None = None
        self._load: LinkLoad | None = None
        """Bytes on their way to other hubs; None: this hub takes no part."""
        self.copies: dict[str, CopiesCount] = {}
        """Copies by hub."""
        self._call_later: Callable[[float, Callable[[], None]], TimerHandle] | None = None
        self._registry: Callable[[], DestinationRegistry]
        self._is_usable: Callable[[str], bool] = _always
        self._has_ordered: Callable[[], bool] = _never
        self._shards_open: Callable[[], Iterable[int]] = _none

    def begin(
        self,
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        registry: Callable[[], DestinationRegistry],
        manager: FlowManager,
        *,
        is_usable: Callable[[str], bool],
        has_ordered: Callable[[], bool],
        shards_open: Callable[[], Iterable[int]],
    ) -> None:
        """Take part. Before that no topic goes direct. `is_usable`: see `Topics`; `has_ordered`: whether the
        configuration sends some topics by way of their owner; `shards_open`: shards whose durable subscriptions are
        known here.
        """
        self._call_later = call_later
        self._registry = registry
        self._load = LinkLoad(lambda: "interest, to other hubs", manager, self._clock)
        self._is_usable = is_usable
        self._has_ordered = has_ordered
        self._shards_open = shards_open
        durables = registry().durables
        for durable in durables:
            self._durable_changed(durable.destination, True)
        durables.on_change = self._durable_changed
        durables.when_told = self.when_told
        self.look()

    def close(self) -> None:
        """Do nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._load is not None:
            self._load.close()
            self._load = None
        self._call_later = None

    def charge(self, size_bytes: int) -> None:
        """Count bytes on their way to other hubs, or fewer; nothing behind the end."""
        if self._load is not None:
            self._load.charge(size_bytes)

    # ------------------------------------------------------------------ Topics

    @property
    def is_on(self) -> bool:
        return self._call_later is not None and not self._refusing

    @property
    def has_ordered(self) -> bool:
        return self._has_ordered()

    def goes_direct(self, address: DestinationName) -> bool:
        if not self.is_on or not address.kind.is_topic or address.is_temporary:
            return False
        return self._registry().policy_for(address).goes_direct

    def hubs_of(self, name: str) -> Sequence[str]:
        return self.book.interested(name)

    def is_heard_here(self, name: str) -> bool:
        return any(found is not None for found in self._own.matching(path_of(name)))

    def may_be_kept(self, owner: str, name: str) -> bool:
        marker = DURABLE + name
        if self.book.own(marker) or self.book.tellers(marker):
            return True
        return self.book.has_told(owner, f"{SHARD}{shard_of(name, self._shards_count)}") is not True

    def is_usable(self, name: str) -> bool:
        return self._is_usable(name)

    def add(self, name: str) -> None:
        if not self.book.own(name):
            self._own.add(path_of(name), name)
            self._placement.noted()
        self.book.add(name)
        self._flush_soon()

    def remove(self, name: str) -> None:
        self.book.remove(name)
        if not self.book.own(name):
            self._own.discard(path_of(name), name)
            self._placement.noted()
        self._flush_soon()

    def when_told(self, callback: Callable[[], None], *, patience_seconds: float | None = None) -> None:
        version = self.book.flush()
        if self.book.told_version >= version:
            callback()
            return
        awaiting = _Awaiting(version, callback)
        self._waiting.append(awaiting)
        if patience_seconds is not None and self._call_later is not None:
            awaiting.timer = self._call_later(patience_seconds, awaiting.end)

    def copied(self, hub: str, count: int, size_bytes: int) -> None:
        counts = self.copies.setdefault(hub, CopiesCount())
        counts.messages_count += count
        counts.bytes_count += size_bytes

    def missed(self, hub: str, count: int) -> None:
        self.copies.setdefault(hub, CopiesCount()).missed_count += count

    def report(self, missed: Mapping[str, int]) -> None:
        """Tell the subscribers of topics here how many messages they do not get. `missed`: by name."""
        for names, count in missed.items():
            for name in names.split(","):
                destination = self._registry().destinations.get(name)
                for queue in () if destination is None else destination.queues:
                    if isinstance(queue, Topic) and not queue.closed:
                        queue.incoming_dropped(count)

    # ------------------------------------------------------------------ what this hub is interested in

    def _durable_changed(self, topic: str, is_more: bool) -> None:
        count = self._durables.get(topic, 0) + (1 if is_more else -1)
        if count:
            self._durables[topic] = count
        else:
            del self._durables[topic]
        if is_more:
            self.book.add(DURABLE + topic)
            if count == 1:
                self._own.add(path_of(topic), DURABLE)
                self._placement.noted()
        else:
            self.book.remove(DURABLE + topic)
            if not count:
                self._own.discard(path_of(topic), DURABLE)
                self._placement.noted()
        self._flush_soon()

    def look_at_shards(self) -> None:
        """Tell which shards are open here: all durable subscriptions of a new one are known, and none of one that is
        told no more was forgotten yet.
        """
        if self._call_later is None:
            return
        now = frozenset(self._shards_open())
        if now == self._open_shards:
            return
        for shard in self._open_shards - now:
            self.book.remove(f"{SHARD}{shard}")
        for shard in now - self._open_shards:
            self.book.add(f"{SHARD}{shard}")
        self._open_shards = now
        self._flush()

    def _flush_soon(self) -> None:
        if not self._flush_is_due and self._call_later is not None:
            self._flush_is_due = True
            self._call_later(0.0, self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self.book.flush()
        self._tend()

    # ------------------------------------------------------------------ links

    def look(self) -> None:
        """Act on changed hubs."""
        peers = self._peers()
        was_on = self.is_on
        for table in (self._runs, self._refusing):
            for hub in [hub for hub in table if hub not in peers]:
                del table[hub]
        for gone in (self.copies, self._early):
            for hub in [hub for hub in gone if hub not in peers]:
                del gone[hub]
        self._view()
        self.look_at_shards()
        self._tend()
        if self.is_on is not was_on:
            self._placement.noted()

    def _view(self) -> None:
        self.book.view({hub: run for hub, run in self._runs.items() if hub not in self._refusing}, self._clock())

    def linked(self, hub: str, run: int) -> None:
        """Note a new link to a hub, in this run of it."""
        if self._call_later is None:
            return
        if self._runs.get(hub) != run:
            self._runs[hub] = run
            was_on = self.is_on
            self._refusing.pop(hub, None)
            self._view()
            if self.is_on is not was_on:
                self._changed_mode()
        older = self._outward.pop(hub, None)
        if older is not None:
            older.close()
        outward = _Outward(self, hub)
        flow = self._links.open(hub, {OPENING: 1}, outward)
        if flow is not None:
            outward.flow = flow
            self._outward[hub] = outward
            self.book.linked(hub, self._clock())
        for message in self._early.pop(hub, ()):
            self.book.receive(hub, message, self._clock())
        self._tend()

    def ended(self, outward: _Outward, *, is_refused: bool) -> None:
        """Note the end of a flow to a hub. `is_refused`: the hub does not know what it is for."""
        hub = outward.hub
        if self._outward.get(hub) is not outward:
            return
        del self._outward[hub]
        self.book.unlinked(hub)
        if is_refused:
            log.info("topics go by way of their owners: a hub of an earlier version", hub=hub)
            was_on = self.is_on
            self._refusing[hub] = self._runs.get(hub, 0)
            self._view()
            if was_on:
                self._changed_mode()
        self._tend()

    def _changed_mode(self) -> None:
        self._placement.noted()
        if self._call_later is not None:
            self._call_later(0.0, self._tell)

    def flows_count(self, hub: str) -> int:
        """Return the number of flows about interest of the link to a hub, in both directions."""
        return (hub in self._outward) + self._inward.get(hub, 0)

    def opened(self, hub: str, flow: FlowEnd) -> FlowUser:
        """Serve the flow of another hub."""
        self._inward[hub] = self._inward.get(hub, 0) + 1
        return _Inward(self, hub, flow)

    def inward_ended(self, hub: str) -> None:
        """Note the end of the flow of another hub."""
        self._inward[hub] -= 1
        if not self._inward[hub]:
            del self._inward[hub]

    def received(self, hub: str, message: Message) -> None:
        """Take a message of another hub. Raises InterestFault."""
        if hub not in self._outward:
            early = self._early.setdefault(hub, [])
            if len(early) < EARLY_MAX:
                early.append(message)
            return
        self.book.receive(hub, message, self._clock())
        self._tend()

    def _send(self, hub: str, message: Message) -> None:
        outward = self._outward.get(hub)
        if outward is not None:
            outward.send(message)

    def _tend(self) -> None:
        """Do what is due, and what all hubs have been waiting for."""
        if self._call_later is None:
            return
        now = self._clock()
        due = self.book.tick(now)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_later(max(0.0, due - now), self._tend)
        if self.book.generation != self._generation:
            self._generation = self.book.generation
            self._placement.noted()
        if self._waiting:
            told = self.book.told_version
            while self._waiting and self._waiting[0].version <= told:
                self._waiting.popleft().end()


def is_about_interest(opening_record: bytes) -> bool:
    """Return whether a flow that begins with this record is one about interest."""
    try:
        opening = json.loads(opening_record)
    except ValueError:
        return False
    return isinstance(opening, dict) and OPENING in opening


def _always(_name: str) -> bool:
    return True


def _never() -> bool:
    return False


def _none() -> Iterable[int]:
    return ()
