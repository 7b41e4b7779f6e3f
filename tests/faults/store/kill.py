"""Rounds of load and `kill -9`: real broker processes on LevelDB, real sockets, the claims of the power-cut rounds.

One round has one data folder and several lives of `sluiceway serve` on it. Random clients load each of them until it is
killed at a random moment; the last one is drained. When the kill comes is up to the machine, so a seed does not say
all; what a failed round did is in its claims, and its folder is kept.

    python -m tests.faults.store.kill --rounds 100 --kills 5
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import trio

from sluiceway.protocols.streams import SocketStream
from sluiceway.store.shard_folders import make_shards
from tests.faults.rounds import kill_many, play_with_processes
from tests.faults.store.claims import ClaimError, Claims
from tests.faults.store.clients import Connection, Habits, RandomClient, drain
from tests.interop.raw_client import RawClient
from tests.sluiceway.broker_process import BrokerProcess

MODULE: Final = "tests.faults.store.kill"
QUEUES: Final = ("/queue/a", "/queue/b", "/queue/c")
AUTO_QUEUES: Final = ("/queue/auto",)

CONFIGURATION: Final = """
[[listeners]]
address = "127.0.0.1:0"
limits.transaction_bytes_max = {transaction_bytes_max}

[[destinations]]
match = "/queue/a"
memory_bytes = 300000

[[destinations]]
match = "/queue/b"
memory_bytes = 2000000
paging = "throttle"

[[destinations]]
match = "/queue/*"
auto_delete_seconds = 0.5
"""
DRAIN_SECONDS: Final = 60.0
UNDER_WAY_SECONDS_MAX: Final = 5.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class KillRound:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        random: Random,
        *,
        kills_count: int,
        store: str = "",
        shards_count: int = 1,
        disturb: Callable[[], object] | None = None,
    ) -> None:
        """`store`: the section of the configuration; empty: LevelDB. `shards_count`: number of shards; with several
        there are no transactions, which must not span them. `disturb`: called in a thread, in each life that ends with
        a kill, at a random moment; it makes the store fail for a while.
        """
        self.random = random
        self._disturb = disturb
        self.claims = Claims(time.monotonic, _now_ms, exact=False)
        # What the kernel took and the reader never saw is gone, with ack `auto`.
        self.claims.lossy.update(AUTO_QUEUES)
        self._folder = folder
        self._kills_count = kills_count
        self._clients: list[RandomClient] = []
        self._clients_count = 0
        self._dead = False
        self.disturbed_count = 0
        if shards_count > 1:
            make_shards(folder / "data", shards_count)
        self._habits = Habits(
            queues=QUEUES,
            auto_queues=AUTO_QUEUES,
            priorities=random.choice(((4,), (4, 4, 9))),
            groups=random.choice(((), ("x", "y", "z"))),
            persistent_share=0.9,
            receipt_share=random.choice((0.05, 0.5)),
            transaction_share=random.choice((0.02, 0.2)) if shards_count == 1 else 0.0,
            date_share=0.05,
            body_bytes_max=random.choice((100, 1500, 60_000)),
            run_count_max=random.choice((5, 100)),
            prefetch_counts=(1, 10, 200),
            ack_share=0.95,
            pause_seconds=0.003,
            long_pause_seconds=0.05,
            large_share=random.choice((0.0, 0.1, 0.5)) if shards_count == 1 else 0.0,
            large_count_max=random.choice((200, 1_000)),
        )
        configuration = CONFIGURATION.format(transaction_bytes_max=random.choice((60_000, 64 << 20)))
        (folder / "sluiceway.toml").write_text(configuration + store, encoding="utf-8")

    async def run(self) -> None:
        """All lives, and the drain. Raises ClaimError, with the folder in it."""
        for _ in range(self._kills_count):
            await self._live_and_die()
        await self._drain()

    async def _start(self) -> BrokerProcess:
        data, config = str(self._folder / "data"), str(self._folder / "sluiceway.toml")
        return await trio.to_thread.run_sync(
            lambda: BrokerProcess(
                self._folder, "--data", data, "--config", config, "--log-level", "warning", listen=None
            )
        )

    async def _live_and_die(self) -> None:
        random = self.random
        self._clients = []
        self._dead = False
        with await self._start() as process:
            async with trio.open_nursery() as nursery:
                for _ in range(random.randint(1, 4)):
                    nursery.start_soon(self._come_and_go, process)
                before, deadline = self._progress(), trio.current_time() + UNDER_WAY_SECONDS_MAX
                while self._progress() == before and trio.current_time() < deadline:  # noqa: ASYNC110 - of sockets
                    await trio.sleep(0.02)  # however slow the machine is: it dies under load
                if self._disturb is not None and random.random() < 0.7:
                    self.claims.disk_fails = True
                    await trio.sleep(0.3 * random.random())
                    await trio.to_thread.run_sync(self._disturb)
                    self.disturbed_count += 1
                await trio.sleep(random.choice((0.1, 0.6, 1.2)) * random.random())
                self._dead = True
                process.kill()
                for client in self._clients:
                    client.absorb()
                    client.ended = True
                nursery.cancel_scope.cancel()
            self._log_is_clean(process)
        self.claims.next_life(in_order=False)

    def _progress(self) -> int:
        return self.claims.receipted_count + self.claims.delivered_count

    def _log_is_clean(self, process: BrokerProcess) -> None:
        """It complained of nothing that it found."""
        words = ("corrupt", "Traceback") if self._disturb is not None else ("lost", "corrupt", "Traceback")
        bad = [line for line in process.log.splitlines() if any(word in line for word in words)]
        if bad:
            raise ClaimError(f"the broker's log: {bad[:3]}")

    async def _come_and_go(self, process: BrokerProcess) -> None:
        random = Random(self.random.random())
        while not self._dead:
            self._clients_count += 1
            client = RandomClient(
                _connected(process),
                self.claims,
                f"c{self._clients_count}",
                random=random,
                habits=self._habits,
                now_ms=_now_ms,
                may_act=lambda: True,
            )
            client.may_be_cut = True
            self._clients.append(client)
            try:
                await client.run()
            finally:
                client.stream.close()
                if not self._dead:
                    self._clients.remove(client)

    async def _drain(self) -> None:
        with await self._start() as process:
            async with trio.open_nursery() as nursery:
                reader = Connection(_connected(process), self.claims, "drain")
                nursery.start_soon(reader.read_on)
                await reader.connect("1.2")
                for name in (*QUEUES, *AUTO_QUEUES):
                    await reader.subscribe(name, ack="client-individual", prefetch_count=1000)
                with trio.fail_after(DRAIN_SECONDS):
                    await self._acknowledge_all(process, reader)
                nursery.cancel_scope.cancel()
                reader.stream.close()
            self._log_is_clean(process)
        self.claims.drained(drain(reader))
        self.claims.nothing_is_lost()

    async def _acknowledge_all(self, process: BrokerProcess, reader: Connection) -> None:
        """Until nothing has come for a while, and the broker says that there is nothing."""
        acknowledged = 0
        quiet_since = trio.current_time()
        while trio.current_time() - quiet_since < 0.7 or not await trio.to_thread.run_sync(_is_drained, process):
            await trio.sleep(0.01)
            pieces: list[bytes] = []
            for sent, _priority, subscription, held in reader.found[acknowledged:]:
                self.claims.settling([sent])
                headers = held.naming
                if len(pieces) % 50 == 0:
                    headers = headers | reader.receipt(lambda _said, sent=sent: self.claims.settled([sent]))  # type: ignore[misc]
                subscription.held.pop(sent, None)
                pieces.append(reader.encode("ACK", headers))
            acknowledged += len(pieces)
            if reader.ended:
                raise ClaimError("the connection of the drain broke")
            if pieces or reader.receipts_are_due:
                quiet_since = trio.current_time()
            await reader.write(b"".join(pieces))


def _connected(process: BrokerProcess) -> SocketStream:
    return SocketStream(socket.create_connection(process.address, timeout=DRAIN_SECONDS), "broker")


def _is_drained(process: BrokerProcess) -> bool:
    """Silence alone may be that of a broker which was held up."""
    with RawClient(process.address) as client:
        client.connect()
        depths = {each["name"]: each["depth_count"] for each in client.report()["destinations"]}
    return not any(depths.get(name) for name in (*QUEUES, *AUTO_QUEUES))


def run_round(folder: Path, seed: int, *, kills_count: int, shards_count: int = 1) -> KillRound:
    """One round in this folder. Raises what went wrong."""
    played = KillRound(folder, Random(seed), kills_count=kills_count, shards_count=shards_count)
    return play_with_processes(MODULE, seed, folder, played)


def _told(played: KillRound) -> str:
    claims = played.claims
    return (
        f"{len(claims.messages)} sent, {claims.receipted_count} receipted, {claims.delivered_count} delivered, "
        f"{claims.came_again_count} of them again"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    return kill_many(MODULE, __doc__, run_round, _told, arguments, kills_count=5)


if __name__ == "__main__":
    sys.exit(main())
