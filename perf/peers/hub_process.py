"""One of several hubs with fixed owners, as a process: `python hub_process.py HUB PORT FOLDER HUBS OWNERS`.

HUBS: ids of all hubs, with commas between; they are linked by Unix sockets in FOLDER. OWNERS: `last`, the last hub owns
all destinations, or `number`: the number at the end of a name says which one does. It is run with the packages of the
checkout that is measured, so it imports nothing of this one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from sluiceway.broker import Broker
from sluiceway.cluster.links import Seat
from sluiceway.cluster.placement import TablePlacement
from sluiceway.config import BrokerConfig, Config, Listener
from sluiceway.tuning import tune_allocator, tune_garbage_collector


def owner_among(hubs: Sequence[str], owners: str) -> Callable[[str], str]:
    """Return the function from a destination to its hub."""

    def numbered(name: str) -> str:
        digits = name.rpartition("-")[2]
        return hubs[int(digits) % len(hubs)] if digits.isdigit() else hubs[-1]

    return numbered if owners == "number" else lambda _name: hubs[-1]


async def main(hub: str, port: str, folder: str, hubs: Sequence[str], owners: str) -> None:
    """Serve until the process is ended."""
    tune_garbage_collector()
    tune_allocator()
    addresses = {each: f"unix:{folder}/{each}.sock" for each in hubs}
    seat = Seat(
        cluster="perf",
        hub=hub,
        shards_count=1,
        placement=TablePlacement(hub, owner_among(hubs, owners), hubs),
        peers=lambda: {each: address for each, address in addresses.items() if each != hub},
        listen=addresses[hub],
    )
    config = Config(
        broker=BrokerConfig(data_dir=Path(folder, f"data-{hub}")),
        listeners=(Listener(address=f"127.0.0.1:{port}"),),
    )
    async with Broker(config, serving=True, seat=seat):
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:4], sys.argv[4].split(","), sys.argv[5])
