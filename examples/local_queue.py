"""A queue in the program that sends, on its own disk: work continues while the broker is away, and nothing is lost.

    python -m examples.local_queue

A till in a shop writes its sales to a queue of its own: an embedded broker that stores them in LevelDB and holds one
MiB of them in memory, whatever the backlog. A carrier takes them to the broker of the head office, in order, whenever
that one is there, and acknowledges a sale in the shop when the head office has confirmed it.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluiceway import EmbeddedBroker
from sluiceway.client import ClientError
from sluiceway.client.address import Address
from sluiceway.client.link import Link
from sluiceway.protocols.stomp.frames import Frame

SALES = 4_000
SALE_BYTES = 1024
OUTGOING = "/queue/outgoing"
UNDER_WAY_MAX = 500
"""Sales that the head office has not confirmed; after a cut so many may come to it a second time, with a mark."""
PAUSE_SECONDS = 0.1


class Carrier:
    """Takes messages of a local queue to a queue far away, in a thread of its own."""

    def __init__(self, local: EmbeddedBroker, far: Address, destination: str) -> None:
        self._local = local
        self._far = far
        self._destination = destination
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="carrier")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Carry while the block runs. What is still in the local queue then waits for the next time."""
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with Link(self._far) as far, self._local.connect() as near:
                    near.subscribe(OUTGOING, ack="client-individual", headers={"prefetch-count": str(UNDER_WAY_MAX)})
                    self._carry(near, far)
            except ClientError:  # nothing is acknowledged but what was confirmed, so all else is carried again
                self._ending.wait(PAUSE_SECONDS)

    def _carry(self, near: Link, far: Link) -> None:
        while not self._ending.is_set():
            taken: list[Frame] = []
            while len(taken) < UNDER_WAY_MAX:
                message = near.next_message(0 if taken else PAUSE_SECONDS)
                if message is None:
                    break
                again = {"possible-duplicate": "true"} if "redelivered" in message.headers else {}
                far.send(self._destination, bytes(message.body), {"persistent": "true", **again}, receipt=True)
                taken.append(message)
            far.wait_receipts()
            for message in taken:
                near.acknowledge(message.headers["ack"])


def main() -> None:
    """Sell while the head office is away, let it come back, and count there."""
    with tempfile.TemporaryDirectory() as folder:
        disk = {"broker": {"data_dir": str(Path(folder) / "till")}, "store": {"engine": "leveldb"}}
        with EmbeddedBroker() as office:
            far = Address(office.host, office.port)
        limits = {OUTGOING: {"memory_bytes": "1 MiB"}}
        with EmbeddedBroker(**disk, destinations=limits) as till, Carrier(till, far, "/queue/sales").at_work():
            with till.connect() as sales:
                for number in range(SALES):
                    sales.send(OUTGOING, b"%08d" % number + bytes(SALE_BYTES - 8), {"persistent": "true"}, receipt=True)
                sales.wait_receipts()
            there = till.destination(OUTGOING)
            memory_kib = there["memory_bytes"] // 1024
            print(f"the head office is away: {there['depth_count']:,} sales in the shop, {memory_kib} KiB in memory")
            with EmbeddedBroker(listeners=[str(far)]) as office:
                till.wait_for(OUTGOING, depth_count=0, timeout_seconds=60)
                arrived = [int(message.body[:8]) for message in office.messages("/queue/sales")]
        assert arrived == list(range(SALES)), "each sale once and in order: no cut came between"
        print(f"the head office is back: {len(arrived):,} sales there, in order")


if __name__ == "__main__":
    main()
