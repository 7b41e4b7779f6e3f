"""Knowledge of one hub about interest: its own, which it tells the others, and that of every other hub.

Each hub counts versions of its own interest and tells each change once, as a *delta* to every hub to which it has a
link. A hub that has missed one asks for it, and gets the deltas or the whole *table*. A hub that joins asks all: the
first one by name sends it everything it knows, the others their digests, later the lower their rank, so that they don't
answer all at once. Every DIGEST_SECONDS a hub tells version and hash; while they agree nothing else is said.

Safe before it is complete: a hub counts as interested in everything until its table is known and it has said that it
sees the same hubs. A version is *settled* when all hubs that its hub sees have it; what waits for that (the RECEIPT of
a SUBSCRIBE) can rely on every hub.

Pure. Bounds: NAMES_MAX names for each hub, beyond which it counts as interested in everything; LOG_NAMES_MAX names in
deltas that may be asked for; one unfinished table for each hub. Deltas that all have are forgotten.

Not here: subscriptions (their owner calls `add` and `remove`), links, clocks.

Source: seed 004 (staggered answers, one snapshot, digests, delta views); `docs/design/cluster.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from sluiceway.queues.wildcards import PatternTrie, path_of

from .messages import (
    Ask,
    Delta,
    Digest,
    InterestFault,
    Join,
    Message,
    Seen,
    Table,
    added_up,
    hash_of,
    in_pieces,
    view_hash,
)

DIGEST_SECONDS: Final = 5.0
STAGGER_SECONDS: Final = 0.05
"""Time between the answers of two members to a hub that joins."""
ASK_SECONDS: Final = 1.0
"""Time for an answer: then what is missing is asked for again."""
NAMES_MAX: Final = 100_000
LOG_NAMES_MAX: Final = 10_000

Send = Callable[[str, Message], None]


@attrs.define(eq=False)
class _Peer:
    """Interest of another hub, in one run of it."""

    hub: str
    run: int
    is_known: bool = False
    is_mutual: bool = False
    """Whether the other hub has said that it sees the same hubs: so it waits for this one before a version is settled.
    """
    version: int = 0
    received: int = 0
    """Highest version that was heard of."""
    hash: int = 0
    covers_all: bool = False
    names: set[str] = attrs.field(factory=set)
    parts: dict[int, tuple[str, ...]] = attrs.field(factory=dict)
    """Parts of a table that has not come whole."""
    parts_version: int = -1
    acked: int = -1
    """Version of this hub's interest that the other one has; -1: none is known."""
    asks_at: float = 0.0
    answers_at: float | None = None
    """Time of the digest that a hub that joined is to get."""

    @property
    def may_want_all(self) -> bool:
        """Whether the hub counts as interested in everything."""
        return not self.is_known or not self.is_mutual or self.covers_all

    @property
    def is_missing(self) -> bool:
        """Whether more was heard of than is here."""
        return not self.is_known or self.version < self.received


class InterestBook:
    """Interest as one hub knows it. `send` is called with the name of a hub to which there is a link, and a message.

    Attributes:
        version: of this hub's own interest, as it was told last.
        generation: another number whenever an answer of `interested` may have become another.
    """

    def __init__(
        self, hub: str, run: int, send: Send, *, names_max: int = NAMES_MAX, log_names_max: int = LOG_NAMES_MAX
    ) -> None:
        """`run`: number of this start of the hub, greater than that of any before."""
        self.hub = hub
        self.run = run
        self.version = 0
        self.generation = 0
        self._send = send
        self._names_max = names_max
        self._log_names_max = log_names_max
        self._counts: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._told: set[str] = set()
        """Names of `version`."""
        self._hash = 0
        self._covers_all = False
        self._log: deque[Delta] = deque()
        self._log_names_count = 0
        self._view: tuple[tuple[str, int], ...] = ((hub, run),)
        self._view_hash = view_hash(self._view)
        self._peers: dict[str, _Peer] = {}
        self._links: set[str] = set()
        self._trie: PatternTrie[str] = PatternTrie()
        self._digest_at = 0.0

    # ------------------------------------------------------------------ this hub's own interest

    def add(self, name: str) -> None:
        """Note a subscription to this canonical name or pattern. `flush` tells the others."""
        self._counts[name] = self._counts.get(name, 0) + 1
        self._changed[name] = None

    def remove(self, name: str) -> None:
        """Note the end of a subscription. Raises KeyError if there is none."""
        count = self._counts[name] - 1
        if count:
            self._counts[name] = count
        else:
            del self._counts[name]
        self._changed[name] = None

    def flush(self) -> int:
        """Tell all linked hubs what has changed, if anything has. Returns the version that says it all."""
        changed, self._changed = self._changed, {}
        if self._covers_all:
            if len(self._counts) <= self._names_max // 2:
                self._retell(covers_all=False)
            return self.version
        if len(self._counts) > self._names_max:
            self._retell(covers_all=True)
            return self.version
        added = [name for name in changed if name in self._counts and name not in self._told]
        removed = [name for name in changed if name not in self._counts and name in self._told]
        if added:
            for piece in in_pieces(added):
                self._tell(piece, ())
        if removed:
            for piece in in_pieces(removed):
                self._tell((), piece)
        return self.version

    def _tell(self, added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        self._told.update(added)
        self._told.difference_update(removed)
        for name in added:
            self._hash = added_up(self._hash, hash_of(name))
        for name in removed:
            self._hash = added_up(self._hash, -hash_of(name))
        delta = Delta(self.run, self.version, self.version + 1, added, removed)
        self.version += 1
        self._log.append(delta)
        self._log_names_count += len(added) + len(removed)
        self._trim_log()
        for hub in self._linked_peers():
            self._send(hub, delta)

    def _retell(self, *, covers_all: bool) -> None:
        """Begin a version that no delta leads to: all get the table."""
        self._covers_all = covers_all
        self._told = set() if covers_all else set(self._counts)
        self._hash = 0
        for name in self._told:
            self._hash = added_up(self._hash, hash_of(name))
        self.version += 1
        self._log.clear()
        self._log_names_count = 0
        for hub in self._linked_peers():
            self._send_own_table(hub)

    def _trim_log(self) -> None:
        settled = self.settled_version
        log = self._log
        while log and (log[0].version <= settled or self._log_names_count > self._log_names_max):
            gone = log.popleft()
            self._log_names_count -= len(gone.added) + len(gone.removed)

    @property
    def settled_version(self) -> int:
        """Version of this hub's interest that all live hubs have at least. O(hubs)."""
        return min([self.version, *(peer.acked for peer in self._peers.values())])

    @property
    def told_version(self) -> int:
        """Version of this hub's interest that all hubs have to which there is a link. O(hubs)."""
        return min([self.version, *(self._peers[hub].acked for hub in self._linked_peers())])

    @property
    def log_names_count(self) -> int:
        """Names in deltas that are kept for hubs that may ask."""
        return self._log_names_count

    # ------------------------------------------------------------------ questions

    def interested(self, name: str) -> Sequence[str]:
        """Return the other live hubs that may have a subscriber for this canonical name, in order. O(levels + hubs)."""
        found = {hub for hub in self._trie.matching(path_of(name)) if hub is not None}
        return [hub for hub, peer in self._peers.items() if hub in found or peer.may_want_all]

    def has_told(self, hub: str, name: str) -> bool | None:
        """Return whether a hub has told this very name; None: more may be known of it soon, or it covers everything."""
        peer = self._peers.get(hub)
        return None if peer is None or peer.may_want_all else name in peer.names

    def tellers(self, name: str) -> Sequence[str]:
        """Return the other live hubs that have told this very name. O(hubs)."""
        return [hub for hub, peer in self._peers.items() if name in peer.names]

    def own(self, name: str) -> bool:
        """Return whether this hub has a subscription of this very name or pattern."""
        return name in self._counts

    def is_complete(self) -> bool:
        """Return whether everything that was heard of is here."""
        return not any(peer.is_missing for peer in self._peers.values())

    def table_of(self, hub: str) -> tuple[int, frozenset[str]] | None:
        """Return version and names of another hub's interest, as far as known; None: nothing is."""
        peer = self._peers.get(hub)
        return None if peer is None or not peer.is_known else (peer.version, frozenset(peer.names))

    def sees(self, hub: str, run: int) -> bool:
        """Return whether a hub is live in this run, as far as this one knows."""
        return (hub, run) in self._view

    def is_seen_by(self, hub: str) -> bool:
        """Return whether another hub has said that it sees the same hubs, so that it waits for this one."""
        peer = self._peers.get(hub)
        return peer is not None and peer.is_mutual

    @property
    def held_names_count(self) -> int:
        """Names that are held of other hubs, unfinished tables included."""
        return sum(len(peer.names) + sum(map(len, peer.parts.values())) for peer in self._peers.values())

    # ------------------------------------------------------------------ hubs and links

    def view(self, hubs: Mapping[str, int], now: float) -> None:
        """Set the live hubs, each with its run. What was known of another run is forgotten."""
        view = tuple(sorted({**hubs, self.hub: self.run}.items()))
        if view == self._view:
            return
        self._view, self._view_hash = view, view_hash(view)
        before, self._peers = self._peers, {}
        new: list[str] = []
        for hub, run in view:
            if hub == self.hub:
                continue
            peer = before.pop(hub, None)
            if peer is not None and peer.run == run:
                self._peers[hub] = peer
                continue
            if peer is not None:
                self._forget(peer)
            self._peers[hub] = _Peer(hub, run)
            new.append(hub)
        for peer in before.values():
            self._forget(peer)
        self.generation += 1
        for hub in new:
            if hub in self._links:
                self._greet(hub, now)
        self._digest_at = now  # all are to know soon that they see the same hubs
        self._trim_log()

    def linked(self, hub: str, now: float) -> None:
        """Note a new link to a hub, live or not yet."""
        self._links.add(hub)
        if hub in self._peers:
            self._greet(hub, now)

    def unlinked(self, hub: str) -> None:
        """Note that the link to a hub is gone. What is known stays."""
        self._links.discard(hub)

    def _greet(self, hub: str, now: float) -> None:
        peer = self._peers[hub]
        if not any(each.is_known for each in self._peers.values()):
            peer.asks_at = now + ASK_SECONDS  # one member sends it all
            self._send(hub, Join(self.run))
        self._send(hub, self._digest())

    def _forget(self, peer: _Peer) -> None:
        for name in peer.names:
            self._trie.discard(path_of(name), peer.hub)

    def _linked_peers(self) -> list[str]:
        return [hub for hub in self._peers if hub in self._links]

    # ------------------------------------------------------------------ messages

    def receive(self, hub: str, message: Message, now: float) -> None:
        """Take a message from the link to a hub. Raises InterestFault for one that no hub may send; nothing of it was
        done then.
        """
        peer = self._peers.get(hub)
        if peer is None:
            return  # it has left, or this hub has not heard of it: there will be a digest
        match message:
            case Delta():
                self._take_delta(peer, message, now)
            case Table():
                self._take_table(hub, message, now)
            case Digest():
                self._take_digest(peer, message, now)
            case Seen():
                if message.run == self.run:
                    self._acked(peer, message.applied)
            case Ask():
                if message.run == self.run:
                    self._answer(hub, message)
            case Join():
                if message.run == peer.run:
                    self._welcome(peer, now)

    def _take_delta(self, peer: _Peer, delta: Delta, now: float) -> None:
        if delta.run != peer.run:
            return
        peer.received = max(peer.received, delta.version)
        if not peer.is_known and not delta.base:
            self._know(peer, 0, (), covers_all=False)
        if peer.is_known and delta.base <= peer.version < delta.version and not peer.covers_all:
            if len(peer.names) + len(delta.added) > 2 * self._names_max:
                raise InterestFault(f"hub {peer.hub!r} told more than {2 * self._names_max} names")
            for name in delta.removed:
                if name in peer.names:
                    peer.names.discard(name)
                    peer.hash = added_up(peer.hash, -hash_of(name))
                    self._trie.discard(path_of(name), peer.hub)
            for name in delta.added:
                if name not in peer.names:
                    peer.names.add(name)
                    peer.hash = added_up(peer.hash, hash_of(name))
                    self._trie.add(path_of(name), peer.hub)
            peer.version = delta.version
            self.generation += 1
        if delta.version <= peer.version:  # one that came before may mean that the answer was lost
            self._tell_seen(peer)
        if peer.is_missing:
            self._ask(peer, now)

    def _take_table(self, sender: str, table: Table, now: float) -> None:
        peer = self._peers.get(table.hub)
        if peer is None or table.run != peer.run:
            return
        peer.received = max(peer.received, table.version)
        if peer.is_known and table.version <= peer.version:
            return
        if table.version != peer.parts_version:
            if table.version < peer.parts_version:
                return
            peer.parts_version, peer.parts = table.version, {}
        if sum(map(len, peer.parts.values())) + len(table.names) > self._names_max:
            raise InterestFault(f"hub {sender!r} told more than {self._names_max} names of hub {table.hub!r}")
        peer.parts[table.part] = table.names
        if len(peer.parts) < table.parts_count:
            return
        names = [name for part in peer.parts.values() for name in part]
        self._know(peer, table.version, names, covers_all=table.covers_all)
        self._tell_seen(peer)
        if peer.is_missing:
            self._ask(peer, now)

    def _know(self, peer: _Peer, version: int, names: Sequence[str], *, covers_all: bool) -> None:
        """Replace what is known of a hub."""
        self._forget(peer)
        peer.names = set(names)
        peer.hash = 0
        for name in peer.names:
            peer.hash = added_up(peer.hash, hash_of(name))
            self._trie.add(path_of(name), peer.hub)
        peer.version, peer.covers_all, peer.is_known = version, covers_all, True
        peer.parts, peer.parts_version = {}, -1
        self.generation += 1

    def _take_digest(self, peer: _Peer, digest: Digest, now: float) -> None:
        if digest.run != peer.run:
            return
        if digest.view == self._view_hash and len(digest.seen) == len(self._view):
            place = self._view.index((self.hub, self.run))
            if not peer.is_mutual:
                peer.is_mutual = True
                self.generation += 1
            self._acked(peer, digest.seen[place][0])
        peer.received = max(peer.received, digest.version)
        if not peer.is_known and not digest.version:
            self._know(peer, 0, (), covers_all=False)
            self._tell_seen(peer)
        elif peer.is_known and digest.version == peer.version and digest.hash != peer.hash:
            peer.is_known = False  # not what it says: the whole table, and until then everything
            self.generation += 1
        if peer.is_missing:
            self._ask(peer, now)

    def _acked(self, peer: _Peer, version: int) -> None:
        if peer.acked < version <= self.version:
            peer.acked = version
            self._trim_log()

    def _tell_seen(self, peer: _Peer) -> None:
        if peer.hub in self._links and peer.is_known:
            self._send(peer.hub, Seen(peer.run, peer.version, max(peer.version, peer.received)))

    def _ask(self, peer: _Peer, now: float) -> None:
        """Ask a hub for what is missing of its interest, not too often; `tick` asks again."""
        if peer.hub in self._links and now >= peer.asks_at:
            peer.asks_at = now + ASK_SECONDS
            self._send(peer.hub, Ask(peer.run, peer.version, whole=not peer.is_known))

    def _answer(self, hub: str, ask: Ask) -> None:
        if not ask.whole and self._log and self._log[0].base <= ask.version < self.version:
            touched = {
                name: None
                for delta in self._log
                if delta.version > ask.version
                for name in (*delta.added, *delta.removed)
            }
            added = tuple(name for name in touched if name in self._told)
            removed = tuple(name for name in touched if name not in self._told)
            if len(list(in_pieces(added + removed))) == 1:
                self._send(hub, Delta(self.run, ask.version, self.version, added, removed))
            else:
                self._send_own_table(hub)
        elif not ask.whole and ask.version == self.version:
            self._send(hub, self._digest())
        else:
            self._send_own_table(hub)

    def _welcome(self, peer: _Peer, now: float) -> None:
        """Answer a hub that has joined: by all that is known, or later by a digest."""
        members = [hub for hub, _run in self._view if hub != peer.hub]
        rank = members.index(self.hub)
        if rank:
            peer.answers_at = now + rank * STAGGER_SECONDS
            return
        self._send_own_table(peer.hub)
        for other in self._peers.values():
            if other is not peer and other.is_known:
                self._send_table(peer.hub, other.hub, other.run, other.version, other.names, other.covers_all)

    def _send_own_table(self, to: str) -> None:
        self._send_table(to, self.hub, self.run, self.version, self._told, self._covers_all)

    def _send_table(self, to: str, hub: str, run: int, version: int, names: set[str], covers_all: bool) -> None:
        pieces = list(in_pieces(sorted(names)))
        for part, piece in enumerate(pieces):
            self._send(to, Table(hub, run, version, covers_all, part, len(pieces), piece))

    def _digest(self) -> Digest:
        seen = [
            (self.version, self.version) if hub == self.hub else _seen_of(self._peers[hub]) for hub, _run in self._view
        ]
        return Digest(self.run, self.version, self._hash, self._view_hash, tuple(seen))

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> float:
        """Do what is due: digests, answers to hubs that have joined, questions again. Returns when to call next."""
        if now >= self._digest_at:
            self._digest_at = now + DIGEST_SECONDS
            digest = self._digest()
            for hub in self._linked_peers():
                self._peers[hub].answers_at = None
                self._send(hub, digest)
        due = self._digest_at
        for hub in self._linked_peers():
            peer = self._peers[hub]
            if peer.answers_at is not None:
                if now >= peer.answers_at:
                    peer.answers_at = None
                    self._send(hub, self._digest())
                else:
                    due = min(due, peer.answers_at)
            if peer.is_missing:
                self._ask(peer, now)
                due = min(due, peer.asks_at)
        return due


def _seen_of(peer: _Peer) -> tuple[int, int]:
    version = peer.version if peer.is_known else 0
    return version, max(version, peer.received)
