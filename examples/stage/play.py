"""Acts, and the stage that they need, with its broker, its clients, and an observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs

from examples.stage.account import Account, Check
from examples.stage.clients import Player, Porter, Sleeper, wait_until
from examples.stage.flow_map import FlowMap
from examples.stage.screen import Screen
from examples.stage.server import Server

WAIT_SECONDS: Final = 15.0
"""Longest wait for anything. Far more than it takes; a machine that is busy with something else gets its time."""


class _Leaver(Protocol):
    def vanish(self) -> None: ...


@attrs.define(slots=True)
class Stage:
    """Stage of an act: the broker, the screen, the flow map; a folder for brokers of the act's own; `quick`: small
    numbers and no pauses.
    """

    server: Server
    screen: Screen
    flow_map: FlowMap
    folder: Path
    quick: bool
    _players: list[_Leaver] = attrs.field(factory=list)

    def player(self, name: str, *, client_id: str | None = None, server: Server | None = None) -> Player:
        """A new stomp.py client; leaves at the end of the act. `server`: another one than that of the show."""
        at = server or self.server
        player = Player(name, at.host, at.port, client_id=client_id)
        self._players.append(player)
        self.screen.name(player.address, name)
        return player

    def sleeper(self, name: str, destination: str) -> Sleeper:
        """A new subscriber that does not read."""
        sleeper = Sleeper(name, self.server.host, self.server.port, destination)
        self._players.append(sleeper)
        self.screen.name(sleeper.address, name)
        return sleeper

    def porter(self, name: str) -> Porter:
        """A new client for heavy loads."""
        porter = Porter(name, self.server.host, self.server.port)
        self._players.append(porter)
        self.screen.name(porter.address, name)
        return porter

    def count(self, normal: int, quick: int) -> int:
        """Return the number of messages to play with."""
        return quick if self.quick else normal

    def hold_the_picture(self) -> None:
        """Time for people to read."""
        if not self.quick:
            time.sleep(self.screen.reading_seconds)

    def wait(self, what: str, count: Callable[[], int], total_count: int) -> None:
        """Wait until `count` reaches the total, or the deadline; show the progress."""

        def reached() -> bool:
            now_count = count()
            self.screen.progress(what, now_count, total_count)
            return now_count >= total_count

        wait_until(reached, WAIT_SECONDS)

    def wait_empty(self, destination: str) -> bool:
        """Wait until the broker says that the destination is empty; ACKs need no receipt, so they may still be under
        way.
        """
        return wait_until(lambda: self.flow_map.destination(destination).get("depth_count") == 0, WAIT_SECONDS)

    def clear(self) -> None:
        """All players go."""
        for player in self._players:
            player.vanish()
        self._players.clear()


@attrs.frozen(slots=True)
class Act:
    """One act: its title, its promise, and the function that plays it."""

    title: str
    promise: str
    play: Callable[[Stage], tuple[Account, Sequence[Check]]]
