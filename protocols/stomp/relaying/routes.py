"""Homes of the destinations of one client, and the hubs that are to get its messages to topics.

Answers are remembered until `Placement.generation` changes, or `forget`. Pure knowledge: nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from ....queues.durables import DurableNameError
from ....queues.names import DestinationName, DestinationNameError, parse_composite
from ..browsing import wants_to_browse
from ..errors import ProtocolError
from ..head import SendHead
from ..placement import Elsewhere
from ..routing import ADMIN_PREFIX
from ..subscribe_headers import durable_name_of
from ..temporary import LOCAL_PREFIXES

ROUTES_MAX: Final = 1024
"""Destinations of one client whose homes are remembered."""
HERE: Final = ""
NOWHERE: Final = "?"
"""Beginning of the name in place of a hub: none has the destination now."""
TOPIC: Final = "topic"
"""Part of every destination header that names a topic."""
Legs = tuple[tuple[str, str], ...]
"""Hub (empty: this one) and destinations there, of one destination header."""
Route = tuple[Legs | None, Legs]
"""Hubs that confirm SENDs (None: this one alone), and those that get a copy."""

Found = TypeVar("Found")


class Routes:
    """Routes of one client's destination headers."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self._topics = elsewhere.topics
        self._homes: dict[str, Legs | None] = {}
        self._sends: dict[str, Route] = {}
        self._generation = elsewhere.placement.generation

    @property
    def generation(self) -> int:
        """The same number as long as no home has changed."""
        return self._elsewhere.placement.generation

    def forget(self) -> None:
        """Forget all: permissions or homes have changed."""
        self._homes.clear()
        self._sends.clear()

    def homes(self, destination: str) -> Legs | None:
        """Return where a destination header is at home; None: at this hub alone. Also names that are no destinations go
        here, where their ERROR is made.
        """
        return self._remembered(destination, self._homes, self._find_homes)

    def of(self, destination: str) -> Route:
        """Return where SENDs to a destination header go."""
        if TOPIC not in destination or not self._topics.is_on:
            return self.homes(destination), ()
        return self._remembered(destination, self._sends, self._find_route)

    def goes_elsewhere(self, destination: str) -> bool:
        """Return whether SENDs to a destination header go to other hubs, too."""
        return self.of(destination) != (None, ())

    def may_pass(self, head: SendHead) -> bool:
        """Return whether SENDs with this head go to one other hub as they lie, as far as is known now."""
        if head.transaction is not None or (head.reply_to is not None and head.reply_to.startswith(LOCAL_PREFIXES)):
            return False
        if head.retain is not None:
            return False  # its ERROR is made when it is taken
        legs, copied = self.of(head.destination)
        return legs is not None and len(legs) == 1 and legs[0][0] != HERE and not copied

    def goes_to(self, hub: str, destination: str) -> bool:
        """Return whether a destination header is at home at a hub, or was, or nowhere now."""
        return any(leg.removeprefix(NOWHERE) in (hub, "") for leg, _name in self.homes(destination) or ())

    def hearing(self, headers: dict[str, str]) -> Legs | None:
        """Return the hubs of a subscription; None: this one alone."""
        destination = headers["destination"]
        heard = self.heard(headers)
        if not heard:
            return self.homes(destination)
        names: dict[str, list[str]] = {}
        for address in parse_composite(destination):
            name = address.canonical
            if name not in heard:
                self._add_homes(address, names)
                continue
            is_usable = address.wildcard or self._topics.is_usable(name)
            names.setdefault(HERE if is_usable else NOWHERE, []).append(name)
            if address.wildcard and self._topics.has_ordered:
                for hub in self._elsewhere.placement.others():
                    names.setdefault(hub, []).append(name)
        return _legs_with(names)

    def heard(self, headers: dict[str, str]) -> list[str]:
        """Return the topics and patterns of a subscription that this hub serves itself, whoever has their shards."""
        destination = headers["destination"]
        topics = self._topics
        if TOPIC not in destination or not topics.is_on or wants_to_browse(headers):
            return []
        try:
            if durable_name_of(headers, destination) is not None:
                return []
            addresses = parse_composite(destination)
        except (DestinationNameError, DurableNameError, ProtocolError):
            return []  # its ERROR is made elsewhere
        return [
            address.canonical
            for address in addresses
            if (address.wildcard and address.kind.is_topic and not address.is_temporary) or topics.goes_direct(address)
        ]

    def _remembered(self, destination: str, known: dict[str, Found], find: Callable[[str], Found]) -> Found:
        generation = self._elsewhere.placement.generation
        if generation != self._generation:
            self._generation = generation
            self.forget()
        try:
            return known[destination]
        except KeyError:
            pass
        found = find(destination)
        if len(known) >= ROUTES_MAX:
            known.clear()
        known[destination] = found
        return found

    def _find_homes(self, destination: str) -> Legs | None:
        if destination.startswith(ADMIN_PREFIX):
            return None
        try:
            addresses = parse_composite(destination)
        except DestinationNameError:
            return None
        names: dict[str, list[str]] = {}
        for address in addresses:
            self._add_homes(address, names)
        return _legs_with(names)

    def _add_homes(self, address: DestinationName, names: dict[str, list[str]]) -> None:
        """Add the hub at which a destination is at home, for a wildcard all hubs."""
        if address.temporary_local:
            names.setdefault(HERE, []).append(address.canonical)
        elif address.wildcard:
            for hub in (HERE, *self._elsewhere.placement.others()):
                names.setdefault(hub, []).append(address.canonical)
        else:
            names.setdefault(self._home(address.canonical), []).append(address.canonical)

    def _home(self, name: str) -> str:
        home = self._elsewhere.placement.home_of(name)
        return f"{NOWHERE}{home.hub}" if home.why_not else home.hub

    def _find_route(self, destination: str) -> Route:
        try:
            addresses = parse_composite(destination)
        except DestinationNameError:
            return None, ()
        if any(address.wildcard for address in addresses):
            return None, ()  # its ERROR is made here
        confirming: dict[str, list[str]] = {}
        copied: dict[str, list[str]] = {}
        for address in addresses:
            if self._topics.goes_direct(address):
                self._add_hearers(address.canonical, confirming, copied)
            else:
                self._add_homes(address, confirming)
        return _legs_with(confirming), tuple((hub, ",".join(of_hub)) for hub, of_hub in copied.items())

    def _add_hearers(self, name: str, confirming: dict[str, list[str]], copied: dict[str, list[str]]) -> None:
        """Add the hubs that are to get messages of a topic. One that is for no hub is dropped at this one."""
        topics = self._topics
        home = self._home(name)
        keeper = HERE
        if home != HERE and topics.may_be_kept(home.removeprefix(NOWHERE), name):
            keeper = home
            confirming.setdefault(keeper, []).append(name)
        hearers = [hub for hub in topics.hubs_of(name) if hub != keeper]
        for hub in hearers:
            copied.setdefault(hub, []).append(name)
        if topics.is_heard_here(name) or (not hearers and keeper == HERE):
            confirming.setdefault(HERE if topics.is_usable(name) else NOWHERE, []).append(name)


def is_pattern(destination: str) -> bool:
    """Return whether a destination header names a wildcard. Raises DestinationNameError."""
    return any(sign in destination for sign in "*>#") and any(each.wildcard for each in parse_composite(destination))


def _legs_with(names: Mapping[str, Sequence[str]]) -> Legs | None:
    """Return legs to hubs, each with its destinations; None: this hub alone."""
    if names.keys() == {HERE}:
        return None
    return tuple((hub, ",".join(of_hub)) for hub, of_hub in names.items())
