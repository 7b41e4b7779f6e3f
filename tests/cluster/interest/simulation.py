"""Hubs that tell each other their interest over a network that loses, delays, repeats and reorders, from one seed."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from sluiceway.cluster.interest.book import InterestBook
from sluiceway.cluster.interest.messages import Message, decode, encode

STEMS: Final = tuple(f"/topic/{kind}.{number}" for kind in "abc" for number in range(6))
NAMES: Final = (*STEMS, "/topic/a.*", "/topic/>", "/topic/*.3", "/queue/q")


@attrs.define(eq=False)
class Hub:
    """One hub in one run of it."""

    name: str
    run: int
    book: InterestBook
    own: Counter[str] = attrs.field(factory=Counter)
    said: dict[str, int] = attrs.field(factory=dict)
    """Version that says each name that is there now."""


class World:
    """Hubs, links and virtual time."""

    def __init__(self, seed: int, count: int, *, names_max: int = 1000, log_names_max: int = 40) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.faults = True
        self.kinds: Counter[str] = Counter()
        self.bytes = 0
        self.injected: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._last_run = 0
        self._limits = {"names_max": names_max, "log_names_max": log_names_max}
        self.hubs: dict[str, Hub] = {}
        self.links: set[frozenset[str]] = set()
        for number in range(count):
            self.start(f"hub-{number}")

    # ------------------------------------------------------------------ time

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now + seconds, self._serial, act))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _serial, act = heapq.heappop(self._events)
            act()
        self.now = until

    # ------------------------------------------------------------------ hubs

    def start(self, name: str) -> None:
        self._last_run += 1
        run = self._last_run
        hub = self.hubs[name] = Hub(name, run, InterestBook(name, run, partial(self._send, name, run), **self._limits))
        self._tick(hub)
        self._tell_views()
        for other in self.hubs:
            if other != name:
                self.link(name, other)

    def stop(self, name: str) -> None:
        for other in self.hubs:
            if other != name:
                self.cut(name, other)
        del self.hubs[name]
        self._tell_views()

    def _tick(self, hub: Hub) -> None:
        if self.hubs.get(hub.name) is hub:
            due = hub.book.tick(self.now)
            self.at(max(0.01, due - self.now), partial(self._tick, hub))

    def _tell_views(self) -> None:
        """Each hub hears of it when its watch comes."""
        for hub in self.hubs.values():
            late = self.chance.random() * (3 if self.faults else 0.1)
            self.at(late, partial(self._look, hub))

    def _look(self, hub: Hub) -> None:
        if self.hubs.get(hub.name) is hub:
            hub.book.view({each.name: each.run for each in self.hubs.values()}, self.now)

    # ------------------------------------------------------------------ links

    def link(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        if pair in self.links or len(pair & self.hubs.keys()) < 2:
            return
        self.links.add(pair)
        self.hubs[one].book.linked(other, self.now)
        self.hubs[other].book.linked(one, self.now)

    def cut(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        if pair in self.links:
            self.links.discard(pair)
            for hub, peer in ((one, other), (other, one)):
                if hub in self.hubs:
                    self.hubs[hub].book.unlinked(peer)

    def _send(self, sender: str, run: int, to: str, message: Message) -> None:
        assert frozenset((sender, to)) in self.links, "only over links"
        data = encode(message)
        self.kinds[type(message).__name__] += 1
        self.bytes += len(data)
        delays = [self.chance.random() * 0.05]
        if self.faults:
            fault = self.chance.random()
            if fault < 0.1:
                self.injected["lost"] += 1
                return
            if fault < 0.2:
                self.injected["delayed"] += 1
                delays = [self.chance.random() * 4]
            elif fault < 0.25:
                self.injected["repeated"] += 1
                delays.append(self.chance.random() * 4)
        for delay in delays:
            self.at(delay, partial(self._arrive, sender, to, self.hubs.get(to), data))

    def _arrive(self, sender: str, to: str, hub: Hub | None, data: bytes) -> None:
        if hub is not None and self.hubs.get(to) is hub and frozenset((sender, to)) in self.links:
            hub.book.receive(sender, decode(data), self.now)

    # ------------------------------------------------------------------ life

    def change(self) -> None:
        """One thing happens."""
        hub = self.chance.choice(list(self.hubs.values()))
        what = self.chance.random()
        if what < 0.5 or not hub.own:
            self.subscribe(hub, self.chance.choice(NAMES))
        elif what < 0.85:
            name = self.chance.choice(sorted(hub.own))
            hub.book.remove(name)
            hub.own[name] -= 1
            if not hub.own[name]:
                del hub.own[name]
                hub.said.pop(name)
            hub.book.flush()
        elif what < 0.92 and len(self.hubs) > 1:
            one, other = self.chance.sample(sorted(self.hubs), 2)
            self.injected["cut"] += 1
            self.cut(one, other)
            self.at(self.chance.random() * 8, partial(self.link, one, other))
        elif what < 0.96 and len(self.hubs) > 2:
            self.injected["restarted"] += 1
            self.stop(hub.name)
            self.at(self.chance.random() * 5, partial(self._start_again, hub.name))

    def _start_again(self, name: str) -> None:
        if name not in self.hubs:
            self.start(name)

    def subscribe(self, hub: Hub, name: str) -> None:
        is_new = not hub.own[name]
        hub.own[name] += 1
        hub.book.add(name)
        version = hub.book.flush()
        if is_new:
            hub.said[name] = version

    def heal(self) -> None:
        """No more faults, all links, and all hubs see each other."""
        self.faults = False
        self.run(6)
        for hub in self.hubs.values():
            self._look(hub)
        for one in self.hubs:
            for other in self.hubs:
                self.link(one, other)

    # ------------------------------------------------------------------ laws

    def check_settled(self) -> None:
        """What is settled is known to each hub that its hub sees, and to each that does not know whether it is seen."""
        for hub in self.hubs.values():
            settled = hub.book.settled_version
            for name, version in hub.said.items():
                if version > settled or "*" in name or ">" in name:
                    continue
                for other in self.hubs.values():
                    if other is hub or not other.book.sees(hub.name, hub.run):
                        continue
                    if hub.book.sees(other.name, other.run) or not other.book.is_seen_by(hub.name):
                        assert hub.name in other.book.interested(name), f"{other.name} misses {name} of {hub.name}"

    def check_bounds(self, log_names_max: int) -> None:
        for hub in self.hubs.values():
            assert hub.book.log_names_count <= log_names_max
            assert hub.book.held_names_count <= len(self.hubs) * 2 * len(NAMES)

    def check_agreement(self) -> None:
        for hub in self.hubs.values():
            assert hub.book.is_complete()
            for other in self.hubs.values():
                if other is not hub:
                    assert other.book.table_of(hub.name) == (hub.book.version, frozenset(hub.own))
                    for name in STEMS:
                        wanted = {each.name for each in self.hubs.values() if any(_covers(p, name) for p in each.own)}
                        assert set(other.book.interested(name)) == wanted - {other.name}
            assert hub.book.settled_version == hub.book.version


def _covers(pattern: str, name: str) -> bool:
    if pattern == "/topic/>":
        return name.startswith("/topic/")
    if pattern == "/topic/a.*":
        return name.startswith("/topic/a.")
    if pattern == "/topic/*.3":
        return name.startswith("/topic/") and name.endswith(".3")
    return pattern == name
