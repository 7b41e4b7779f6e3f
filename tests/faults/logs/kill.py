"""Rounds of load and `kill -9`: real broker processes (`sluiceway serve --data`), real sockets, the claims of the
power-cut rounds. Since only the process dies, all that anybody has seen is there, too.

One round has one data folder and several lives of a broker on it. Random clients load each of them until it is killed
at a random moment; the last one is audited, and before it the bytes of a bounded read are held against those that the
life before gave. When the kill comes is up to the machine, so a seed does not say all; the folder of a failed round is
kept.

    python -m tests.faults.logs.kill --from N --rounds M
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import trio

from sluiceway.protocols.stomp.frames import Frame
from sluiceway.protocols.streams import SocketStream
from tests.faults.logs.claims import ClaimError, LogClaims
from tests.faults.logs.clients import Auditor, Connection, Habits, RandomClient
from tests.faults.rounds import kill_many, play_with_processes
from tests.sluiceway.broker_process import BrokerProcess

MODULE: Final = "tests.faults.logs.kill"
LOGS: Final = ("/log/a", "/log/b.c")
CONFIGURATION: Final = """
[logs]
data_page_bytes = {page}
index_page_count = {items}

[[destinations]]
match = "/log/>"
memory_bytes = {memory}
log_batch_bytes_max = {batch}
log_sync_seconds = 0.2
"""
BATCH_BYTES_MAX: Final = 65_536
AUDIT_SECONDS: Final = 120.0
Bytes = dict[tuple[str, int, int, str], list[tuple[bytes, tuple[tuple[str, str], ...]]]]
"""Of bounded reads: bodies and headers. Of reads in batches the bodies are joined: how many batches share a MESSAGE
depends on the credit of that moment.
"""


class KillRound:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        random: Random,
        *,
        kills_count: int,
        store: str = "",
        disturb: Callable[[], object] | None = None,
    ) -> None:
        """`store`: the section of the configuration; empty: LevelDB and files. `disturb`: called in a thread, in each
        life, at a random moment; it makes the store fail for a while.
        """
        self.random = random
        self._disturb = disturb
        self._complaints = ("lost", "corrupt", "Traceback") if disturb is None else ("corrupt", "Traceback")
        self.disturbed_count = 0
        self.claims = {log: LogClaims(log) for log in LOGS}
        self.same_reads_count = 0
        self._folder = folder
        self._kills_count = kills_count
        self._connections: list[Connection] = []
        self._names_count = 0
        self._dead = False
        self._read: Bytes = {}
        receipt_share, value_bytes_max = random.choice((0.1, 0.5)), random.choice((20, 300, 3000))
        run_count_max = min(random.choice((5, 60)), BATCH_BYTES_MAX // (value_bytes_max + 100))  # none is refused
        self._habits = Habits(
            receipt_share=receipt_share,
            value_bytes_max=value_bytes_max,
            run_count_max=run_count_max,
            window=random.choice((5, 200)),
            pause_seconds=0.004,
        )
        settings = {
            "batch": BATCH_BYTES_MAX,
            "page": random.choice((131_072, 128 << 20)),
            "items": random.choice((512, 1 << 20)),
            "memory": random.choice((100_000, 10_000_000)),
        }
        (folder / "sluiceway.toml").write_text(CONFIGURATION.format(**settings) + store, encoding="utf-8")

    async def run(self) -> None:
        """All lives, and the audit. Raises ClaimError, with the folder in it."""
        for _ in range(self._kills_count):
            await self._live_and_die()
        with await self._start() as process:
            await self._same_bytes(process)
            with trio.fail_after(AUDIT_SECONDS):
                await Auditor(lambda _name: _connected(process), self.claims).check(0.5)
            self._log_is_clean(process)

    async def _start(self) -> BrokerProcess:
        data, config = str(self._folder / "data"), str(self._folder / "sluiceway.toml")
        return await trio.to_thread.run_sync(
            lambda: BrokerProcess(self._folder, "--data", data, "--config", config, "--log-level", "warning")
        )

    async def _live_and_die(self) -> None:
        random = self.random
        self._connections = []
        self._dead = False
        with await self._start() as process:
            await self._same_bytes(process)
            async with trio.open_nursery() as nursery:
                for _ in range(random.randint(2, 6)):
                    nursery.start_soon(self._come_and_go, process)
                before, deadline = self._progress(), trio.current_time() + 5
                while self._progress() - before < 300 and trio.current_time() < deadline:  # noqa: ASYNC110 - of sockets
                    await trio.sleep(0.02)  # however slow the machine is: it dies under load
                await trio.sleep(random.choice((0.1, 0.6, 1.5)) * random.random())
                if random.random() < 0.5:
                    await self._bounded_reads(process)
                if self._disturb is not None:
                    await trio.to_thread.run_sync(self._disturb)
                    self.disturbed_count += 1
                    await trio.sleep(random.choice((0.0, 0.5, 2.5)) * random.random())
                self._dead = True
                process.kill()
                for connection in self._connections:
                    connection.absorb()  # what left it before
                    connection.ended = True
                nursery.cancel_scope.cancel()
            self._log_is_clean(process)
        for claims in self.claims.values():
            claims.next_life(power_cut=False)

    def _progress(self) -> int:
        return sum(len(claims.receipted) + claims.seen_count for claims in self.claims.values())

    def _log_is_clean(self, process: BrokerProcess) -> None:
        """It complained of nothing that it found."""
        bad = [line for line in process.log.splitlines() if any(word in line for word in self._complaints)]
        if bad:
            raise ClaimError(f"the broker's log: {bad[:3]}")

    async def _come_and_go(self, process: BrokerProcess) -> None:
        random = Random(self.random.random())
        while not self._dead:
            self._names_count += 1
            try:
                stream = _connected(process)
            except OSError:
                return
            connection = Connection(stream, self.claims, f"c{self._names_count}")
            self._connections.append(connection)
            try:
                await RandomClient(connection, random, self._habits, lambda: True).run()
            finally:
                if not self._dead:
                    connection.absorb()
                    self._connections.remove(connection)
                stream.close()
            if connection.stops is not None:
                raise ClaimError(f"{connection} got an ERROR: {connection.stops}")

    # ------------------------------------------------------------------ the same bytes

    async def _bounded_reads(self, process: BrokerProcess) -> None:
        """Of what is there now, in ways that should be repeatable to the byte."""
        for log, claims in self.claims.items():
            end = max(claims.safe, default=-1) + 1
            if end:
                start = self.random.randrange(end)
                end = self.random.randint(start, min(end, start + 500))
                for how in ("", "5000", "100000 gzip,snappy,zstd"):
                    key = log, start, end, how
                    self._read[key] = await self._bounded_read(process, *key)

    async def _same_bytes(self, process: BrokerProcess) -> None:
        for key, before in self._read.items():
            after = await self._bounded_read(process, *key)
            if after != before:
                raise ClaimError(f"the bounded read {key} gave {len(before)} frames, now it gives others: {len(after)}")
            self.same_reads_count += 1

    async def _bounded_read(
        self, process: BrokerProcess, log: str, start: int, end: int, how: str
    ) -> list[tuple[bytes, tuple[tuple[str, str], ...]]]:
        frames: list[Frame] = []
        ended = trio.Event()

        def came(frame: Frame) -> None:
            frames.append(frame)
            if "range-end" in frame.headers:
                ended.set()

        connection = Connection(_connected(process), self.claims, "bounded")
        connection.on_message["s"] = came
        headers = {"destination": log, "id": "s", "from": str(start), "to": str(end), "prefetch-count": "1000000"}
        if how:
            batch, _blank, codecs = how.partition(" ")
            headers |= {"batch": batch} | ({"compression": codecs} if codecs else {})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.read_on)
            await connection.connect()
            await connection.write(connection.encode("SUBSCRIBE", headers))
            with trio.fail_after(AUDIT_SECONDS):
                await ended.wait()
            nursery.cancel_scope.cancel()
        connection.stream.close()
        found = [(frame.body, tuple(sorted(frame.headers.items()))) for frame in frames]
        return [(b"".join([body for body, _headers in found]), ()), found[-1]] if how else found


def _connected(process: BrokerProcess) -> SocketStream:
    return SocketStream(socket.create_connection(process.address, timeout=AUDIT_SECONDS), "broker")


def run_round(folder: Path, seed: int, *, kills_count: int) -> KillRound:
    """One round in this folder. Raises what went wrong."""
    return play_with_processes(MODULE, seed, folder, KillRound(folder, Random(seed), kills_count=kills_count))


def _told(played: KillRound) -> str:
    claims = played.claims.values()
    return (
        f"{sum(len(each.of_value) for each in claims)} records sent, "
        f"{sum(len(each.receipted) for each in claims)} receipted, {sum(each.seen_count for each in claims)} seen, "
        f"{played.same_reads_count} bounded reads the same"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    return kill_many(MODULE, __doc__, run_round, _told, arguments, kills_count=4)


if __name__ == "__main__":
    sys.exit(main())
