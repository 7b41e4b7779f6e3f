"""Memory of the process while clients ask for more than the budget: `python -m perf.probes.memory`.

Each scenario starts a broker of its own with a small `memory_bytes` of `[broker]`, sends until the broker takes no more
(or everything), and prints the peak of its resident memory beside the budget: the excess over the configured value, as
a constant (the process by itself) and a factor (objects and allocator). docs/flow-control.md has the figures.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from perf.load import links
from perf.load.plans import Endpoint
from sluiceway.client.address import Address
from sluiceway.client.link import Link

MIB = 1 << 20
BUDGET_BYTES = 128 * MIB
PATIENCE_SECONDS = 4.0
"""Seconds without a byte taken, after which the broker counts as full."""


@attrs.frozen
class Probed:
    """A broker that runs."""

    port: int
    process: subprocess.Popen[bytes]

    def status_bytes(self, name: str) -> int:
        """`VmRSS` or `VmHWM`, of the kernel."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        return 0 if found is None else int(found[1]) * 1024

    def connect(self) -> socket.socket:
        """Connect, and return the socket of a connection that is CONNECTED."""
        return links.RawLink(Endpoint("127.0.0.1", self.port)).sock

    def used_bytes(self) -> int:
        """Ask the broker what its memory account holds."""
        with Link(Address("127.0.0.1", self.port)) as link:
            return int(link.ask("stat", timeout_seconds=60.0)["memory"]["used_bytes"])


@contextmanager
def broker(*, paging: str = "page", engine: str = "leveldb") -> Iterator[Probed]:
    """A broker in a folder of its own, with a budget of BUDGET_BYTES."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.toml"
        path.write_text(
            f'[broker]\nmemory_bytes = {BUDGET_BYTES}\ndata_dir = "{folder}/data"\n[store]\nengine = "{engine}"\n'
            f'[[destinations]]\nmatch = "/>"\npaging = "{paging}"\n'
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "sluiceway", "serve", "--config", str(path), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            yield Probed(int(line.strip().rpartition(":")[2]), process)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def flood(socks: list[socket.socket], frames: Callable[[int], bytes], total_bytes: int) -> int:
    """Send on all connections in turn until the total is sent or none takes a byte for a while; returns the number of
    bytes.
    """
    left = dict.fromkeys(socks, b"")
    number = sent_bytes = 0
    latest = time.monotonic()
    for sock in socks:
        sock.setblocking(False)
    while sent_bytes < total_bytes and time.monotonic() - latest < PATIENCE_SECONDS:
        progress = False
        for sock in socks:
            data = left[sock]
            if not data:
                data = frames(number)
                number += 1
            with suppress(BlockingIOError):
                count = sock.send(data)
                data = data[count:]
                sent_bytes += count
                progress = True
            left[sock] = data
        if progress:
            latest = time.monotonic()
        else:
            time.sleep(0.01)
    return sent_bytes


def send_frame(destination: str, size_bytes: int) -> bytes:
    """One SEND."""
    return b"SEND\ndestination:%s\ncontent-length:%d\n\n%s\0" % (destination.encode(), size_bytes, b"x" * size_bytes)


def composite(count: int, size_bytes: int, total_bytes: int) -> Callable[[Probed], int]:
    """One connection that sends to many queues at once."""
    destination = ",".join(f"/queue/c{number}" for number in range(count))

    def run(probed: Probed) -> int:
        return flood([probed.connect()], lambda _number: send_frame(destination, size_bytes), total_bytes)

    return run


def spread(kind: str, count: int, connections: int, size_bytes: int, total_bytes: int) -> Callable[[Probed], int]:
    """Make a scenario: many connections send to many destinations; topics have a subscriber that does not read."""

    def run(probed: Probed) -> int:
        reader = probed.connect()
        if kind == "topic":
            for number in range(count):
                reader.sendall(b"SUBSCRIBE\nid:%d\nack:client\ndestination:/topic/d%d\n\n\0" % (number, number))
            time.sleep(1)
        socks = [probed.connect() for _ in range(connections)]
        return flood(socks, lambda number: send_frame(f"/{kind}/d{number % count}", size_bytes), total_bytes)

    return run


SCENARIOS: dict[str, tuple[dict[str, str], Callable[[Probed], int]]] = {
    "nothing": ({}, lambda _probed: 0),
    "composite of 100 queues, 1 MB bodies, 30 MB on the wire": ({}, composite(100, 1_000_000, 30_000_000)),
    "the same, nothing is paged": ({"paging": "throttle"}, composite(100, 1_000_000, 30_000_000)),
    "the same, bodies of 1 KB": ({"paging": "throttle"}, composite(100, 1000, 30_000_000)),
    "the same, bodies of 20 B": ({"paging": "throttle"}, composite(100, 20, 30_000_000)),
    "1,000 queues, 1 KB": ({}, spread("queue", 1000, 4, 1000, 400_000_000)),
    "1,000 queues, 1 KB, nothing is paged": ({"paging": "throttle"}, spread("queue", 1000, 4, 1000, 400_000_000)),
    "1,000 topics with a reader that stands still": ({}, spread("topic", 1000, 4, 1000, 300_000_000)),
    "500 connections, 100 queues, nothing is paged": (
        {"paging": "throttle"},
        spread("queue", 100, 500, 10_000, 600_000_000),
    ),
    "no store": ({"engine": "none"}, spread("queue", 1000, 10, 1000, 400_000_000)),
}


def main() -> None:
    """Run all scenarios, or those whose names have the words that were given."""
    words = sys.argv[1:]
    print(f"budget {BUDGET_BYTES / MIB:.0f} MiB; all in MiB")
    print(f"{'scenario':60}{'on the wire':>12}{'budget says':>12}{'peak RSS':>10}{'over budget':>12}")
    for name, (options, run) in SCENARIOS.items():
        if not all(word in name for word in words):
            continue
        with broker(**options) as probed:
            sent_bytes = run(probed)
            used = probed.used_bytes()
            peak_bytes = probed.status_bytes("VmHWM")
            over_bytes = peak_bytes - BUDGET_BYTES
            print(
                f"{name:60}{sent_bytes / MIB:12.1f}{used / MIB:12.1f}{peak_bytes / MIB:10.1f}{over_bytes / MIB:12.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
