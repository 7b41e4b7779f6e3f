"""Permission entries, compiled to decisions.

The first entry for this user and action that covers the destination decides; without one, the default does. Decisions
are cached for each identity, so that a repeated query costs two look-ups.

A wildcard (SUBSCRIBE to `/queue/a.*`) is allowed if it may match an allowed destination: the matching destinations are
decided one by one, now and when they are made.

Temporary destinations need no entry: they belong to a connection, only it can receive from them, and any connected user
may send to one whose name it knows. An entry that allows `/>` does not allow requests to the broker, which need `admin`
or concern a destination (requests.py).

Bound: DECISIONS_MAX per identity, IDENTITIES_MAX; beyond them the cache is emptied.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs

from sluiceway.protocols.stomp.authorization import Action, Identity
from sluiceway.queues.names import DestinationNameError, covers_name, edges_of, parse
from sluiceway.queues.wildcards import PatternTrie
from sluiceway.security.config import ANY, Permission
from sluiceway.security.patterns import EVERYTHING, USER, covers, for_user, overlaps
from sluiceway.security.users import SecurityError

DECISIONS_MAX: Final = 4096
IDENTITIES_MAX: Final = 1024

ON_DESTINATIONS: Final = frozenset(Action) - {Action.CONNECT}


@attrs.frozen(slots=True)
class Decision:
    """Result of a permission query, with its reason."""

    allowed: bool
    number: int | None
    """Number of the entry that decided, from 1; None: none matched."""
    words: str


@attrs.frozen(slots=True)
class Entry:
    """A compiled entry."""

    number: int
    users: frozenset[str]
    groups: frozenset[str]
    for_all: bool
    actions: frozenset[Action]
    patterns: tuple[str, ...]
    """Patterns; empty: all destinations."""
    listeners: frozenset[str]
    """Listeners; empty: all."""
    allow: bool

    @classmethod
    def of(cls, number: int, permission: Permission) -> Entry:
        if ANY in permission.actions:
            actions = ON_DESTINATIONS if permission.destinations else frozenset(Action)
        else:
            actions = frozenset(Action(name) for name in permission.actions)
        return cls(
            number,
            frozenset(permission.users) - {ANY},
            frozenset(permission.groups),
            ANY in permission.users,
            actions,
            permission.destinations,
            frozenset(permission.listeners),
            permission.allow,
        )

    def is_for(self, identity: Identity) -> bool:
        """Return whether the entry applies to this user."""
        return self.for_all or identity.user in self.users or not self.groups.isdisjoint(identity.groups)

    def patterns_for(self, user: str) -> list[str]:
        """Return the entry's patterns for this user."""
        return [made for pattern in self.patterns or (EVERYTHING,) if (made := for_user(pattern, user)) is not None]

    @property
    def words(self) -> str:
        """Text form: `entry 3 (deny send, create on /queue/a)`."""
        named = ", ".join(action.value for action in Action if action in self.actions)
        actions = "everything" if self.actions == frozenset(Action) else named
        where = f" on {', '.join(self.patterns)}" if self.patterns else ""
        through = f" through {', '.join(sorted(self.listeners))}" if self.listeners else ""
        return f"entry {self.number} ({'allow' if self.allow else 'deny'} {actions}{where}{through})"


class Permissions:
    """All entries of a broker."""

    __slots__ = ("_by_pattern", "_decided", "_default_allows", "_entries", "_origin_of", "_personal")

    def __init__(
        self,
        permissions: Sequence[Permission],
        *,
        default_allows: bool,
        origin_of: Callable[[str], str | None] | None = None,
    ) -> None:
        """Take `default_allows`, whether actions without a matching entry are allowed, except `admin`. `origin_of`
        returns, for a log of the broker's own, the destination whose messages it holds: receiving from the log needs
        what that destination needs. It returns the log's own name for one that holds nothing, and None for all other
        names.
        """
        self._entries = tuple(Entry.of(number, permission) for number, permission in enumerate(permissions, 1))
        self._by_pattern: PatternTrie[int] = PatternTrie()
        """Numbers of entries by their patterns without a user."""
        self._personal: list[tuple[int, str]] = []
        """Numbers of entries with their patterns that contain the user."""
        for place, entry in enumerate(self._entries):
            for pattern in entry.patterns or (EVERYTHING,):
                if USER in pattern:
                    self._personal.append((place, pattern))
                else:
                    self._by_pattern.add(edges_of(pattern), place)
        self._default_allows = default_allows
        self._origin_of = origin_of
        self._decided: dict[Identity, dict[tuple[Action, str | None], bool]] = {}

    def may(self, identity: Identity, action: Action, destination: str | None) -> bool:
        """Return whether the action is allowed. O(1) for a repeated query, else O(entries)."""
        if self._origin_of is not None and destination is not None and self._origin_of(destination) is not None:
            return self.decide(identity, action, destination).allowed  # the origin may change: not cached
        decided = self._decided.get(identity)
        if decided is None:
            if len(self._decided) >= IDENTITIES_MAX:
                self._decided.clear()
            decided = self._decided[identity] = {}
        key = action, destination
        allowed = decided.get(key)
        if allowed is None:
            if len(decided) >= DECISIONS_MAX:
                decided.clear()
            allowed = decided[key] = self.decide(identity, action, destination).allowed
        return allowed

    def decide(self, identity: Identity, action: Action, destination: str | None) -> Decision:
        """Decide with the reason. `destination`: for CONNECT the name of the listener, None: any; for other actions a
        full name or wildcard, None: the broker as a whole. O(entries).
        """
        if identity.user is None:
            return Decision(False, None, "no user is logged in")
        if action is Action.CONNECT:
            return self._decide_connect(identity, destination)
        if destination is None:
            return self._decide_by(identity, action, lambda pattern: covers(pattern, EVERYTHING))
        try:
            address = parse(destination)
        except DestinationNameError as error:
            return Decision(False, None, str(error))
        name = address.canonical
        if address.temporary_local or (address.temporary_global and action is Action.SEND):
            return Decision(True, None, "temporary destinations belong to their connection: no entry is needed")
        if address.temporary_global and action in (Action.RECEIVE, Action.CREATE):
            return Decision(False, None, "only its connection can receive from a temporary destination")
        if self._origin_of is not None and (origin := self._origin_of(name)) is not None:
            if action in (Action.SEND, Action.CREATE):
                return Decision(False, None, f"{name} is written by the broker alone")
            if origin != name:
                return self.decide(identity, action, origin)
            if action is not Action.ADMIN:
                return Decision(False, None, f"{name} holds nothing")
        # Entries that name no virtual host are about destinations of the host that the connection uses.
        said = name.removeprefix(identity.host) if name.startswith(f"{identity.host}/") else name
        if address.wildcard:
            return self._decide_wildcard(identity, action, name, said)
        return self._decide_name(identity, action, name, said)

    def _decide_name(self, identity: Identity, action: Action, name: str, said: str) -> Decision:
        """Decide about a full name, `said` without its virtual host. O(levels + matching entries + patterns with a
        user).
        """
        assert identity.user is not None
        places = {place for place in self._by_pattern.matching(edges_of(name)) if place is not None}
        if said is not name:
            places.update(place for place in self._by_pattern.matching(edges_of(said)) if place is not None)
        for place, pattern in self._personal:
            own = for_user(pattern, identity.user)
            if own is not None and (covers_name(own, name) or covers_name(own, said)):
                places.add(place)
        for place in sorted(places):
            entry = self._entries[place]
            if action in entry.actions and entry.is_for(identity):
                return Decision(entry.allow, entry.number, f"{entry.words} decides")
        return self._by_default(action)

    def _decide_by(self, identity: Identity, action: Action, matches: Callable[[str], bool]) -> Decision:
        assert identity.user is not None
        for entry in self._for(identity, action):
            if any(matches(pattern) for pattern in entry.patterns_for(identity.user)):
                return Decision(entry.allow, entry.number, f"{entry.words} decides")
        return self._by_default(action)

    def _decide_connect(self, identity: Identity, listener: str | None) -> Decision:
        for entry in self._for(identity, Action.CONNECT):
            if not entry.listeners or listener in entry.listeners or (listener is None and entry.allow):
                return Decision(entry.allow, entry.number, f"{entry.words} decides")
        return self._by_default(Action.CONNECT)

    def _decide_wildcard(self, identity: Identity, action: Action, name: str, said: str) -> Decision:
        """Return whether a destination that the wildcard matches may be allowed: unless an earlier entry denies all of
        them.
        """
        assert identity.user is not None
        for entry in self._for(identity, action):
            for pattern in entry.patterns_for(identity.user):
                if covers(pattern, name) or covers(pattern, said):
                    return Decision(entry.allow, entry.number, f"{entry.words} decides")
                if entry.allow and (overlaps(pattern, name) or overlaps(pattern, said)):
                    return Decision(True, entry.number, f"{entry.words} allows a part of it")
        return self._by_default(action)

    def _by_default(self, action: Action) -> Decision:
        if self._default_allows and action is not Action.ADMIN:
            return Decision(True, None, 'no entry matches, and default = "allow"')
        return Decision(False, None, "no entry matches, so it is refused")

    def _for(self, identity: Identity, action: Action) -> Iterable[Entry]:
        return (entry for entry in self._entries if action in entry.actions and entry.is_for(identity))


# -------------------------------------------------------------------- checking entries


def check(permissions: Sequence[Permission], identities: Mapping[str, Identity], listeners: Iterable[str]) -> list[str]:
    """Check entries before they are in force. Returns warnings about entries without effect because earlier ones decide
    the same. Raises SecurityError for unknown names, and for entries without effect because earlier ones decide the
    opposite: such an entry was meant to have an effect.
    """
    entries = [Entry.of(number, permission) for number, permission in enumerate(permissions, 1)]
    problems = [*_unknown(entries, identities, set(listeners))]
    warnings: list[str] = []
    if not problems:
        for place, entry in enumerate(entries):
            _look_for_shadows(entry, entries[:place], identities, problems, warnings)
    if problems:
        raise SecurityError(problems)
    return warnings


def _unknown(entries: Iterable[Entry], identities: Mapping[str, Identity], listeners: set[str]) -> Iterable[str]:
    groups = {group for identity in identities.values() for group in identity.groups}
    for entry in entries:
        where = f"security.permissions[{entry.number - 1}]"
        for kind, given, known in (
            ("user", entry.users, set(identities)),
            ("group", entry.groups, groups),
            ("listener", entry.listeners, listeners),
        ):
            for name in sorted(given - known):
                near = difflib.get_close_matches(name, sorted(known), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                if kind == "user" and not known:
                    hint = "; there are no users yet: add them to users or users_file of [security]"
                yield f"{where}: there is no {kind} {name!r}{hint}"


def _look_for_shadows(
    entry: Entry,
    before: Sequence[Entry],
    identities: Mapping[str, Identity],
    problems: list[str],
    warnings: list[str],
) -> None:
    where = f"security.permissions[{entry.number - 1}]"
    users = {user for user, identity in identities.items() if entry.is_for(identity)}
    dead: list[tuple[str, list[Entry]]] = []
    alive = False
    for pattern in entry.patterns or (EVERYTHING,):
        deciding: dict[int, Entry] = {}
        left = any(_left(entry, action, pattern, users, before, identities, deciding) for action in entry.actions)
        if left:
            alive = True
        else:
            dead.append((pattern, list(deciding.values())))
    for pattern, deciders in dead if alive else dead[:1]:
        by = " and ".join(decider.words for decider in deciders)
        what = f"its pattern {pattern}" if alive else f"the entry ({entry.words})"
        why = (
            f"because {by} {'decides' if len(deciders) == 1 else 'decide'} before"
            if by
            else "because it matches no user"
        )
        said = f"{where}: {what} never matters, {why}"
        if any(decider.allow is not entry.allow for decider in deciders):
            problems.append(f"{said}. The first entry that matches counts: move it up, or take one of them out")
        else:
            warnings.append(f"{said}, and says the same" if by else said)


def _left(
    entry: Entry,
    action: Action,
    pattern: str,
    users: set[str],
    before: Sequence[Entry],
    identities: Mapping[str, Identity],
    deciding: dict[int, Entry],
) -> bool:
    """Return whether the entry decides about this action and pattern for some user."""
    left = set(users)
    for other in before:
        if not left:
            break
        if action not in other.actions or not _is_decided(other, entry, action, pattern):
            continue
        decided = {user for user in left if other.is_for(identities[user])}
        if decided:
            deciding[other.number] = other
            left -= decided
    return bool(left)


def _is_decided(other: Entry, entry: Entry, action: Action, pattern: str) -> bool:
    if action is Action.CONNECT:
        return not other.listeners or (bool(entry.listeners) and entry.listeners <= other.listeners)
    # Compared as text: {user} covers only itself, which is right for every user.
    return any(covers(wide, pattern) for wide in other.patterns or (EVERYTHING,) if USER not in wide or USER in pattern)
