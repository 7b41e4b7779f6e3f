"""Answer to `/sluiceway/cluster`: which hubs there are, where clients reach them, and which one has a destination.

Clients that know connect to the hub that has their destination, which saves them the way over a link. Nothing rests on
the answer: whoever goes by one that is out of date is served over a link. So it is asked for again now and then, and
nothing is pushed. A broker without a cluster answers with one hub, itself.

Every client may ask: the answer tells where hubs are, and not whether a destination exists. It is made in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from sluiceway.flow.graph import Steps
from sluiceway.log_service import BadRequestError, Send
from sluiceway.protocols.stomp.placement import Placement
from sluiceway.queues.names import DestinationName, DestinationNameError, parse
from sluiceway.queues.shard_hash import shard_of

if TYPE_CHECKING:
    from sluiceway.cluster.host import Member

HASH: Final = "blake2b-64"
"""The hash of names: BLAKE2b with a digest of 8 bytes, as a number in big-endian, modulo the number of shards."""
NAMES_MAX: Final = 100
NOWHERE: Final = "none"
"""Value of `cluster.advertise_clients` that gives clients no address."""
ANY_HOST: Final = "*"
"""Stand-in for a host: the one by which the client has reached the hub that answers."""
TOLD_CHARACTERS_MAX: Final = 255
"""Limit of what a hub tells the others: TEXT_CHARACTERS_MAX of the coordination."""
_ANY_HOSTS: Final = ("0.0.0.0:", "[::]:")
_OWN: Final = "/sluiceway/"

Row = dict[str, Any]


@attrs.frozen(kw_only=True)
class Directions:
    """Knowledge of one hub of all of them, for clients."""

    hub: str
    """Name of this hub."""
    urls: Callable[[], Sequence[str]]
    """URLs for clients of this hub, if there is no cluster."""
    shards_count: Callable[[], int]
    cluster: str = ""
    """Id of the cluster; empty: there is none."""
    placement: Placement | None = None
    """Homes of destinations; None: all are here."""
    member: Member | None = None
    """Part of this hub in its cluster; None: there is none, or its shards are fixed."""

    def answer(self, request: Mapping[str, Any], send: Send) -> None:
        """Answer a request: a handler. Raises BadRequestError."""
        names = request.get("names", [])
        if not isinstance(names, list) or len(names) > NAMES_MAX or not all(isinstance(name, str) for name in names):
            raise BadRequestError(f'"names" must be a list of {NAMES_MAX} destinations at most')
        with_shards = request.get("shards", True)
        if not isinstance(with_shards, bool):
            raise BadRequestError('"shards" must be true or false')
        send(self._told([_one_destination(name) for name in names], with_shards=with_shards))

    def _told(self, names: list[DestinationName], *, with_shards: bool) -> Steps[Row]:
        homes = []
        for name in names:
            homes.append(self._home(name))
            yield
        told: Row = {
            "cluster": self.cluster,
            "hub": self.hub,
            "words": self._words(),
            "hash": HASH,
            "shards_count": self.shards_count(),
            "hubs": list(self._hubs()),
            "homes": homes,
        }
        yield
        if with_shards:
            told["shards"] = rows = []
            for shard in range(told["shards_count"]):
                rows.append({"shard": shard, **self._owner(shard)})
                yield
        return told

    def _home(self, name: DestinationName) -> Row:
        told: Row = {"name": name.canonical}
        if self.placement is None or name.temporary_local or name.canonical.startswith(_OWN):
            hub, words = self.hub, ""
        else:
            home = self.placement.home_of(name.canonical)
            hub, words = home.hub or ("" if home.why_not else self.hub), home.why_not
        if name.is_temporary or name.canonical.startswith(_OWN):
            return {**told, "shard": None, "hub": hub, "epoch": 0, "words": words}
        shard = shard_of(name.canonical, self.shards_count())
        return {**told, "shard": shard, "hub": hub, "epoch": self._owner(shard)["epoch"], "words": words}

    def _owner(self, shard: int) -> Row:
        if self.member is not None:
            where = self.member.ownership.where(shard)
            return {"hub": where.hub, "epoch": where.epoch}
        return {"hub": self.hub if self.placement is None else "", "epoch": 0}

    def _hubs(self) -> Iterator[Row]:
        if self.member is None:
            others = () if self.placement is None else self.placement.others()
            yield {"name": self.hub, "clients": list(self.urls()), "state": "serving"}
            for name in others:
                yield {"name": name, "clients": [], "state": "serving"}
            return
        for hub in sorted(self.member.ownership.hubs.values(), key=lambda hub: hub.name):
            state = "serving" if hub.weight > 0 else "drained"
            yield {"name": hub.name, "clients": hub.clients.split(), "state": state}

    def _words(self) -> str:
        member = self.member
        if member is None or (member.coordination.session is not None and not member.host.is_held):
            return ""
        return member.coordination.words


def _one_destination(text: str) -> DestinationName:
    """Raises BadRequestError."""
    try:
        name = parse(text)
    except DestinationNameError as error:
        raise BadRequestError(f'"names": {error}') from None
    if name.wildcard or "," in text:
        raise BadRequestError(f'"names": {text[:80]!r} is not one destination: name each')
    return name


def for_clients(urls: Iterable[str], any_host: str = ANY_HOST) -> list[str]:
    """Return URLs of listeners as clients are told them, each once: with `any_host` in place of 0.0.0.0."""
    told: dict[str, None] = {}
    for url in urls:
        scheme, separator, place = url.partition("://")
        for host in _ANY_HOSTS:
            if place.startswith(host):
                place = f"{any_host}:{place.removeprefix(host)}"
        told[f"{scheme}{separator}{place}"] = None
    return list(told)


def in_one_text(urls: Iterable[str]) -> str:
    """Return as many of the URLs as a hub can tell the others, with blanks between."""
    told = ""
    for url in urls:
        longer = f"{told} {url}".strip()
        if len(longer) <= TOLD_CHARACTERS_MAX:
            told = longer
    return told
