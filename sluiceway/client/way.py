"""The way of one connection to the hub that has its destination.

A cluster serves every destination at every hub; the owner of a destination saves its messages the way over a link. So
a client asks the hub that it came to (`/sluiceway/cluster`) and connects to the owner; it asks again every
FOLLOW_SECONDS, and goes where the destination has gone. What can't be done is not missed: a client that does not reach
the owner stays where it is. A broker that is no hub is not asked.

`Way` chooses, without sockets; `connected` opens a link to what it has chosen. Addresses that a hub names are tried
with the login and TLS settings that were given, and by the same scheme: a client that came with TLS stays with TLS.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from sluiceway.client.address import Address
from sluiceway.client.errors import CannotConnectError, ClientError, ConnectionLostError, RefusedError
from sluiceway.client.link import Link

FOLLOW_SECONDS: Final = 5.0
"""Time between two questions where the destination is."""
BARRED_SECONDS: Final = 30.0
"""Time for which an address that a hub has named is left alone when it did not answer."""
BARRED_SECONDS_MAX: Final = 3600.0
"""The same for one that never answers, such as a port behind a firewall: each attempt is a pause."""
LOST_SECONDS: Final = 2.0
"""The same for one that was connected: its hub may be starting again."""
TRY_SECONDS: Final = 3.0
"""Time to connect to an address that a hub has named: there are others."""
ASK_SECONDS: Final = 5.0
HOPS_MAX: Final = 2
"""Moves from hub to hub before a client stays where it is: the hubs may not agree for a moment."""
SEPARATOR: Final = "~"
"""Character behind the name of a hub in the names of its sessions."""
REQUEST: Final = "cluster"
QUESTION: Final = f"/sluiceway/{REQUEST}"
_LOOPBACK: Final = ("localhost", "::1")


class Way:
    """Choice of the hub for one connection. From any thread."""

    def __init__(
        self, address: Address, destination: str, *, follow: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`address`: as given, with its `others`. `destination`: in full; empty: any hub will do, and the way goes
        nowhere. `follow`: whether to go to the owner. `clock`: monotonic seconds.
        """
        self.address = address
        self.destination = destination
        self._follow = follow and bool(destination)
        self._clock = clock
        self._lock = threading.Lock()
        self._given = [address, *address.others]
        self._named: dict[str, Address] = {}
        """Address of each hub, as it was told last."""
        self._owner = ""
        """Hub of the destination, as it was told last."""
        self._at = ""
        self._at_address: Address | None = None
        self._barred: dict[str, float] = {}
        """Addresses (HOST:PORT) that did not answer, and until when they are left alone."""
        self._failures: dict[str, int] = {}
        """Number of times in a row that an address did not answer."""

    @property
    def hub(self) -> str:
        """Hub of the present or last connection; empty: a broker of its own, or not known."""
        return self._at

    @property
    def follows(self) -> bool:
        """Whether the present hub is asked where the destination is."""
        return self._follow and bool(self._at)

    @property
    def request(self) -> dict[str, Any]:
        """Facts of the question where the destination is."""
        return {"names": [self.destination], "shards": False}

    def choices(self) -> list[tuple[Address, str]]:
        """Return the addresses to try now, best first, each with the hub that must answer there; empty: any."""
        with self._lock:
            now = self._clock()
            self._barred = {place: until for place, until in self._barred.items() if until > now}
            named = [(address, hub) for hub, address in self._named.items() if str(address) not in self._barred]
            random.shuffle(named)  # clients of a hub that died do not all come to one other hub
            named.sort(key=lambda each: each[1] != self._owner)
            given = [(address, "") for address in self._given]
            # Those that failed last, last.
            given.sort(key=lambda each: self._barred.get(str(each[0]), 0.0))
            return named + given if self._follow else given

    def came(self, address: Address, session: str) -> bool:
        """Note a connection, by the name of its session. Returns whether its hub is to be asked for the owner."""
        with self._lock:
            hub, separator, _rest = session.partition(SEPARATOR)
            self._at, self._at_address = (hub if separator else ""), address
            self._barred.pop(str(address), None)
            self._failures.pop(str(address), None)
            return self._follow and bool(separator)

    def failed(self, address: Address) -> None:
        """Note that an address did not answer."""
        with self._lock:
            place = str(address)
            count = self._failures[place] = self._failures.get(place, 0) + 1
            self._barred[place] = self._clock() + min(BARRED_SECONDS * 2 ** (count - 1), BARRED_SECONDS_MAX)

    def lost(self) -> None:
        """Note that the present connection was lost."""
        with self._lock:
            if self._at_address is not None:
                self._barred[str(self._at_address)] = self._clock() + LOST_SECONDS
            self._at_address = None

    def stop_following(self) -> None:
        """Stay anywhere from now on: the hubs do not know the question."""
        with self._lock:
            self._follow = False

    def told(self, answer: Mapping[str, Any]) -> bool:
        """Take the answer of the present hub. Returns whether the owner is another one, which may be reached: it is
        the first choice then. An answer that makes no sense changes nothing.
        """
        try:
            asked = str(answer["hub"])
            named = {str(hub["name"]): self._address_of(hub["clients"]) for hub in answer["hubs"]}
            owner = str(answer["homes"][0]["hub"])
        except (KeyError, TypeError, ValueError, IndexError):
            return False
        with self._lock:
            self._named = {hub: address for hub, address in named.items() if address is not None}
            self._owner = owner
            if asked != self._at or not owner or owner == self._at or not self._follow:
                return False
            address = self._named.get(owner)
            return address is not None and self._barred.get(str(address), 0.0) <= self._clock()

    def _address_of(self, urls: list[str]) -> Address | None:
        """Return the first address that may be used. Raises ValueError."""
        came_by = self._at_address or self.address
        for url in urls:
            scheme, _separator, place = str(url).partition("://")
            if scheme != ("stomp" if came_by.tls is None else "stomp+ssl"):
                continue
            if place.startswith("*:"):
                host = f"[{came_by.host}]" if ":" in came_by.host else came_by.host
                place = f"{host}{place[1:]}"
            found = Address.parse(f"{scheme}://{place}")
            if _is_loopback(found.host) and not _is_loopback(came_by.host):
                continue  # of that machine, which is not this one
            return attrs.evolve(
                self.address,
                host=found.host,
                port=found.port,
                virtual_host=self.address.virtual_host or self.address.host,
                others=(),
            )
        return None


def connected(way: Way, make: Callable[[Address, float | None], Link]) -> Link:
    """Return an open link to the owner of the destination, or to any other hub. `make` makes the link, which is not
    open yet; its second argument: seconds to connect, None: as usual. Tries each address once. Raises
    CannotConnectError or RefusedError, of the last one tried.
    """
    hops = 0
    tried: set[str] = set()
    last: ClientError | None = None
    while True:
        choice = next((each for each in way.choices() if str(each[0]) not in tried), None)
        if choice is None:
            assert last is not None, "an address is always given"
            raise last
        address, hub = choice
        link = make(address, TRY_SECONDS if hub else None)
        try:
            link.open()
        except (CannotConnectError, RefusedError) as error:
            last = error
            tried.add(str(address))
            way.failed(address)
            continue
        if hub and link.session.partition(SEPARATOR)[0] != hub:
            link.cut()
            last = CannotConnectError(f"another broker than {hub} answers at {address.url}")
            tried.add(str(address))
            way.failed(address)
            continue
        if not way.came(address, link.session):
            return link
        try:
            moves = way.told(link.ask(REQUEST, way.request, timeout_seconds=ASK_SECONDS))
        except TimeoutError:
            return link  # it is slow: it is asked again later
        except ConnectionLostError as error:
            last = CannotConnectError(str(error))
            tried.add(str(address))
            way.lost()
            continue
        except ClientError:
            link.cut()
            way.stop_following()  # hubs of an earlier version
            continue
        if not moves or hops >= HOPS_MAX:
            return link
        hops += 1
        link.cut()


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in _LOOPBACK
