"""Receipts and backlogs with PostgreSQL beside LevelDB: `python -m perf.probes.postgresql URL`.

Brokers with both engines run in turns, each on a store of its own: LevelDB in a temporary folder, PostgreSQL in the
database of the URL, in a new schema each time. Prints medians of RUNS: receipts a second with a window of 100 and with
ten producers that wait for each, with the messages to a batch (a round trip and a commit); and filling and draining of
a backlog, with the peak of the broker's resident memory. No consumer is there while receipts are measured. With `logs`
as a second argument the same for a log, which is read from its beginning by messages and by batches; beside LevelDB
logs are mapped files.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import psycopg

from perf.probes.memory import Probed
from sluiceway.client.address import Address
from sluiceway.client.link import Link

RUNS: Final = 3
SECONDS: Final = 4.0
BODY: Final = b"x" * 1024
PREFETCH_COUNT: Final = 5000
ACK_EVERY: Final = 500
MIB: Final = 1 << 20


@contextmanager
def broker(url: str | None) -> Iterator[Probed]:
    """A broker with an empty store: in this database, or without a URL on LevelDB."""
    settings = {"SLUICEWAY_STORE__ENGINE": "leveldb"}
    if url is not None:
        schema = f"probe_{secrets.token_hex(4)}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        mark = "&" if "?" in url else "?"
        settings = {
            "SLUICEWAY_STORE__ENGINE": "postgresql",
            "SLUICEWAY_STORE__URL": f"{url}{mark}options=-csearch_path%3D{schema}",
        }
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluiceway", "serve", "--listen", "127.0.0.1:0", "--data", f"{folder}/data"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **settings},
        )
        try:
            assert process.stdout is not None
            yield Probed(int(process.stdout.readline().decode().strip().rpartition(":")[2]), process)
        finally:
            process.terminate()
            process.wait(60)


def _sends(first: int, count: int, name: bytes = b"/queue/probe") -> bytes:
    head = b"SEND\ndestination:%s\npersistent:true\ncontent-length:%d\n" % (name, len(BODY))
    return b"".join([b"%sreceipt:%d\n\n%s\0" % (head, first + place, BODY) for place in range(count)])


def receipts(
    probed: Probed, connections_count: int, window_count: int, name: bytes = b"/queue/probe"
) -> tuple[float, float]:
    """Send with a receipt for each, so many in flight on each connection. Returns receipts a second, and messages to a
    batch.
    """
    socks = [probed.connect() for _ in range(connections_count)]
    before = _store(probed)
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            sock.setblocking(True)
            selector.register(sock, selectors.EVENT_READ)
            sock.sendall(_sends(0, window_count, name))
        got_count = 0
        began_seconds = time.monotonic()
        while (now_seconds := time.monotonic()) < began_seconds + SECONDS:
            for key, _events in selector.select(1.0):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                count = sock.recv(1 << 16).count(b"\0")
                got_count += count
                if count:
                    sock.sendall(_sends(got_count, count, name))
    after = _store(probed)
    for sock in socks:
        sock.close()
    batches_count = max(1, int(after["batches_count"]) - int(before["batches_count"]))
    return got_count / (now_seconds - began_seconds), (
        int(after["written_count"]) - int(before["written_count"])
    ) / batches_count


def backlog(probed: Probed, count: int) -> tuple[float, float, float]:
    """Fill a queue, then drain it. Returns messages a second of both, and MiB of resident memory at the peak."""
    sock = probed.connect()
    sock.setblocking(True)
    began_seconds = time.monotonic()
    plain = b"SEND\ndestination:/queue/probe\npersistent:true\ncontent-length:%d\n\n%s\0" % (len(BODY), BODY)
    for at in range(0, count, 1000):
        sock.sendall(plain * min(1000, count - at))
    sock.sendall(b"SEND\ndestination:/queue/probe\npersistent:true\nreceipt:last\n\nlast\0")
    while not sock.recv(1 << 16):
        pass
    filled_seconds = time.monotonic()
    sock.sendall(
        b"SUBSCRIBE\nid:s\ndestination:/queue/probe\nack:client\nprefetch-count:%d\n\n\0" % PREFETCH_COUNT,
    )
    got_count = acked_count = 0
    tail = b""
    while got_count < count + 1:
        tail += sock.recv(1 << 20)
        frames = tail.split(b"\0")
        tail = frames.pop()
        got_count += len(frames)
        if frames and (got_count - acked_count >= ACK_EVERY or got_count == count + 1):
            acked_count = got_count
            ack = frames[-1].partition(b"\nack:")[2].partition(b"\n")[0]
            sock.sendall(b"ACK\nid:%s\n\n\0" % ack)
    drained_seconds = time.monotonic()
    sock.close()
    return (
        count / (filled_seconds - began_seconds),
        count / (drained_seconds - filled_seconds),
        probed.status_bytes("VmHWM") / MIB,
    )


def log_backlog(probed: Probed, count: int) -> tuple[float, float, float, float]:
    """Fill a log, then read it from its beginning, by messages and by batches of 1 MiB. Returns records a second of the
    three, and MiB of resident memory at the peak.
    """
    sock = probed.connect()
    sock.setblocking(True)
    began_seconds = time.monotonic()
    for at in range(0, count, 1000):
        plain = b"SEND\ndestination:/log/probe\ncontent-length:%d\n\n%s\0" % (len(BODY), BODY)
        sock.sendall(plain * min(1000, count - at))
    sock.sendall(b"SEND\ndestination:/log/probe\nreceipt:last\n\nlast\0")
    while not sock.recv(1 << 16):
        pass
    rates = [count / (time.monotonic() - began_seconds)]
    sock.close()
    for lines in (b"", b"batch:1048576\n"):
        sock = probed.connect()
        sock.setblocking(True)
        began_seconds = time.monotonic()
        sock.sendall(
            b"SUBSCRIBE\nid:s\ndestination:/log/probe\nack:auto\nfrom:earliest\nto:%d\n%s\n\0" % (count, lines)
        )
        tail = b""
        while b"range-end:true" not in tail:
            tail = tail[-64:] + sock.recv(1 << 20)
        rates.append(count / (time.monotonic() - began_seconds))
        sock.close()
    added, by_message, by_batch = rates
    return added, by_message, by_batch, probed.status_bytes("VmHWM") / MIB


def logs(url: str, count: int) -> None:
    """Measure logs, and print."""
    for name, place in {"files": None, "postgresql": url}.items():
        found: dict[str, list[float]] = {"window of 100": [], "ten lonely producers": []}
        for _ in range(RUNS):
            for load, sizes in zip(found, ((1, 100), (10, 1)), strict=True):
                with broker(place) as probed:
                    found[load].append(receipts(probed, *sizes, b"/log/probe")[0])
        for load, rates in found.items():
            print(f"{load}, log in {name}: {statistics.median(rates):,.0f} receipts a second", flush=True)
        with broker(place) as probed:
            added, by_message, by_batch, peak = log_backlog(probed, count)
        print(
            f"{count:,} records, {name}: {added:,.0f} in, {by_message:,.0f} out by messages, {by_batch:,.0f} by "
            f"batches a second, peak {peak:.0f} MiB",
            flush=True,
        )


def _store(probed: Probed) -> Mapping[str, object]:
    with Link(Address("127.0.0.1", probed.port)) as link:
        store: Mapping[str, object] = link.ask("stat", timeout_seconds=60.0)["store"]
        return store


def main(arguments: list[str]) -> None:
    """Measure, and print."""
    if arguments[1:2] == ["logs"]:
        logs(arguments[0], int(arguments[2]) if len(arguments) > 2 else 200_000)
        return
    url, count = arguments[0], int(arguments[1]) if len(arguments) > 1 else 200_000
    engines: dict[str, str | None] = {"leveldb": None, "postgresql": url}
    loads: dict[str, Callable[[Probed], tuple[float, ...]]] = {
        "window of 100": lambda probed: receipts(probed, 1, 100),
        "ten lonely producers": lambda probed: receipts(probed, 10, 1),
    }
    for load, measure in loads.items():
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in engines}
        for _ in range(RUNS):
            for name, place in engines.items():
                with broker(place) as probed:
                    found[name].append(measure(probed))
        for name, runs in found.items():
            rate, per_batch = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"{load}, {name}: {rate:,.0f} receipts a second, {per_batch:.1f} messages to a batch", flush=True)
    for name, place in engines.items():
        with broker(place) as probed:
            filled, drained, peak = backlog(probed, count)
        print(f"backlog of {count:,}, {name}: {filled:,.0f} in, {drained:,.0f} out a second, peak {peak:.0f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
