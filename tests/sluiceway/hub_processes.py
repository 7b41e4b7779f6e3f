"""`sluiceway serve --hubs N` as processes, for tests that kill owners, stop them, and move shards."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sluiceway.client.address import Address
from sluiceway.client.admin import AdminError, AdminLink
from sluiceway.client.errors import ClientError
from sluiceway.client.link import Link
from sluiceway.store.shard_folders import make_shards
from tests.sluiceway.broker_process import BrokerProcess

SHARDS_COUNT: Final = 4
READY_SECONDS: Final = 120.0
"""Time for all hubs to start, on a machine that is busy with other work."""
WAIT_SECONDS: Final = 90.0


class Hubs(BrokerProcess):
    """A supervisor with its hubs, on a new data folder."""

    def __init__(self, folder: Path, count: int = 2, *arguments: str) -> None:
        make_shards(folder / "data", SHARDS_COUNT)
        super().__init__(
            folder,
            *("--hubs", str(count), "--data", str(folder / "data"), "--admin", "127.0.0.1:0", *arguments),
            ready_seconds=READY_SECONDS,
        )
        self.brokers = "{}:{}".format(*self.address)
        """HOST:PORT by which any hub is reached."""

    def _lines(self, event: str) -> list[dict[str, Any]]:
        said = [json.loads(line) for line in self.log.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in said if line["event"] == event]

    def home_of(self, name: str) -> tuple[int, str]:
        """The shard of a destination, and the hub that has it, once there is one."""
        found: list[tuple[int, str]] = []

        def ask() -> bool:
            try:
                with Link(Address.parse(self.brokers), timeout_seconds=2.0) as link:
                    home = link.ask("cluster", {"names": [name], "shards": False}, timeout_seconds=2.0)["homes"][0]
            except (ClientError, TimeoutError):
                return False  # the kernel gave the connection to the hub that died
            found.append((home["shard"], home["hub"]))
            return bool(home["hub"])

        until(ask)
        return found[-1]

    def signal_owner(self, name: str, number: signal.Signals) -> int:
        """Send a signal to the process of the hub that has a destination. Returns its id."""
        _shard, hub = self.home_of(name)
        pid = {line["hub"]: int(line["pid"]) for line in self._lines("hub ready")}[hub]
        os.kill(pid, number)
        return pid

    def stop_owner(self, name: str, seconds: float) -> None:
        """Have the process of the owner stand still for a while: for less time than after which it is killed."""
        pid = self.signal_owner(name, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def kill_owner(self, name: str) -> None:
        """kill -9 of the process of the owner. The supervisor starts it again."""
        self.signal_owner(name, signal.SIGKILL)

    def move(self, name: str) -> str:
        """Have an operator move the shard of a destination to another hub. Returns that one's name."""
        shard, owner = self.home_of(name)
        to = next(hub for hub in sorted({line["hub"] for line in self._lines("hub ready")}) if hub != owner)
        (admin_url,) = {url for line in self._lines("admin port ready") for url in line["urls"]}

        def act() -> bool:
            try:
                AdminLink(admin_url).act("move-shard", {"shard": shard, "hub": to})
            except (AdminError, ClientError):
                return False  # the hub is not back yet
            return True

        until(act)
        until(lambda: self.home_of(name)[1] == to)
        return to


def until(is_so: Callable[[], bool]) -> None:
    """Wait for it. Polls, because processes do not say."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
