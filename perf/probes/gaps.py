"""Time for which one client's expensive frame or request blocks all other clients: the real gaps behind `tests/limits`.

An unconcerned pair sends itself a message each millisecond. The gap is the pair's largest delay while a client does one
expensive thing. The probe prints the gap beside the largest delay of an idle time, which is the noise of the machine
(and of this program, which shares it with the broker).
"""

from __future__ import annotations

import socket
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Final

import attrs

from perf.load.plans import Endpoint

TICK_SECONDS: Final = 0.001
SETTLED_SECONDS: Final = 0.3
"""Seconds of observation after the act: some of its effects may come later."""

PATIENCE_SECONDS: Final = 60.0


@attrs.frozen
class Gap:
    """Effect of one act on other clients."""

    act: str
    seconds: float
    """Largest delay of the pair during the act."""
    idle_seconds: float
    """The same before it, with nothing else to do."""

    @property
    def ratio(self) -> float:
        """Ratio of the delay to the noise."""
        return self.seconds / self.idle_seconds


class Client:
    """A STOMP client that writes given bytes and reads until it has seen something."""

    def __init__(self, endpoint: Endpoint, **headers: str) -> None:
        self._socket = socket.create_connection((endpoint.host, endpoint.port), PATIENCE_SECONDS)
        self._receipts = 0
        self._seen = b""
        self.send(frame("CONNECT", accept_version="1.2", host="perf", **headers))
        self.read_until(b"CONNECTED")

    def send(self, data: bytes) -> None:
        """Write all of it."""
        self._socket.sendall(data)

    def sync(self, data: bytes = b"") -> None:
        """Write it, and wait until it has taken effect."""
        self._receipts += 1
        name = f"gap-{self._receipts}"
        self.send(data + frame("BEGIN", transaction=name) + frame("ABORT", transaction=name, receipt=name))
        self.read_until(f"receipt-id:{name}\n".encode())

    def read_until(self, wanted: bytes, count: int = 1) -> bytes:
        """Read until these bytes have come so often; returns all that was read. Raises OSError."""
        pieces = [self._seen]
        found = self._seen.count(wanted)
        while found < count:
            piece = self._socket.recv(1 << 20)
            if not piece:
                raise ConnectionError(f"the broker closed: {b''.join(pieces)[-300:]!r}")
            seam = pieces[-1][-len(wanted) + 1 :] if len(wanted) > 1 else b""
            found += (seam + piece).count(wanted)
            pieces.append(piece)
        self._seen = b""
        return b"".join(pieces)

    def close(self) -> None:
        """Close the socket without DISCONNECT."""
        self._socket.close()


def frame(command: str, body: bytes = b"", /, **headers: object) -> bytes:
    """The bytes of a frame; header names are written with `_` for `-`."""
    lines = [command, *(f"{name.replace('_', '-')}:{value}" for name, value in headers.items())]
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


# ---------------------------------------------------------------------- the pair


def _tick(endpoint: Endpoint, pipe: Connection) -> None:
    """A process of its own: answers each word with the largest delay since the last one, until there is none more."""
    client = Client(endpoint)
    client.sync(frame("SUBSCRIBE", id="tick", destination="/queue/perf.tick"))
    tick = frame("SEND", b"tick", destination="/queue/perf.tick", priority=4)
    largest = 0.0
    pipe.send(0.0)
    while True:
        if pipe.poll():
            if pipe.recv() == "end":
                return
            pipe.send(largest)
            largest = 0.0
        began = time.perf_counter()
        client.send(tick)
        client.read_until(b"tick\0")
        took = time.perf_counter() - began
        largest = max(largest, took)
        time.sleep(max(0.0, TICK_SECONDS - took))


class Pair:
    """The pair, in a process of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_tick, args=(endpoint, theirs), daemon=True)
        self._process.start()
        self._pipe.recv()

    def largest_seconds(self) -> float:
        """The largest delay since the last call."""
        self._pipe.send("how long")
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise TimeoutError("the pair was not served at all")
        seconds: float = self._pipe.recv()
        return seconds

    def close(self) -> None:
        """End it."""
        self._pipe.send("end")
        self._process.join(5)
        self._process.kill()


# ---------------------------------------------------------------------- the acts

Act = Callable[[], None]

Q: Final = "/queue/perf.gaps"


@attrs.frozen
class Scene:
    """Broker and clients of the acts."""

    endpoint: Endpoint
    http: str
    """The admin port, as a URL."""

    @contextmanager
    def holding(self, queue: str, count: int, ack: str) -> Iterator[tuple[Client, list[bytes]]]:
        """Return a client with `count` unacknowledged messages of a queue, which is empty before, and their ids."""
        client, sender = Client(self.endpoint), Client(self.endpoint)
        client.sync(frame("SUBSCRIBE", id="s", destination=queue, ack=ack, credit=f"{count},67108864"))
        sender.sync(frame("SEND", b"x", destination=queue) * count)
        read = client.read_until(b"\n\nx\0", count)
        sender.close()
        yield client, [line[4:] for line in read.split(b"\n") if line.startswith(b"ack:")]
        client.close()


def acts(scene: Scene, count: int) -> Iterator[tuple[str, Act]]:
    """Name and act; what stands before a `yield` is made ready unmeasured. `count`: of things that are many."""
    with ExitStack() as stack:
        yield from _acts(scene, count, lambda: stack.enter_context(closing(Client(scene.endpoint))))


def _acts(scene: Scene, count: int, connect: Callable[[], Client]) -> Iterator[tuple[str, Act]]:
    client, many = connect(), min(1000, count)
    yield "nothing", lambda: time.sleep(many / 1000)
    yield "SENDs of one head", lambda: client.sync(frame("SEND", b"x", destination=Q) * count * 10)
    different = b"".join(frame("SEND", b"x", destination=Q, k=n) for n in range(count))
    yield "SENDs of different heads", lambda: client.sync(different)
    queues = b"".join(frame("SEND", b"x", destination=f"{Q}.{n}") for n in range(count))
    yield "SENDs to new queues", lambda: client.sync(queues)
    yield (
        "SUBSCRIBE to all of them",
        lambda: client.sync(frame("SUBSCRIBE", id="all", destination=f"{Q}.>", ack="client")),
    )
    yield "UNSUBSCRIBE from all of them", lambda: client.sync(frame("UNSUBSCRIBE", id="all"))
    subscribes = b"".join(frame("SUBSCRIBE", id=n, destination=f"/topic/perf.gaps.{n}") for n in range(many))
    yield f"{many:,} SUBSCRIBEs", lambda: client.sync(subscribes)
    yield "the end of that connection", client.close
    client = connect()
    client.sync(frame("SUBSCRIBE", id="r", destination="/temp-queue/r"))

    def stat() -> None:
        client.send(frame("SEND", destination="/sluiceway/stat", reply_to="/temp-queue/r"))
        client.read_until(b"MESSAGE")

    yield "/sluiceway/stat", stat
    for view in ("/api/v1/overview", "/api/v1/destinations?limit=500", "/api/v1/map", "/metrics"):
        yield f"GET {view}", lambda view=view: urllib.request.urlopen(scene.http + view).read()
    with scene.holding("/queue/perf.held.0", count * 5, "client") as (held, ids):
        yield "one cumulative ACK", lambda: held.sync(frame("ACK", id=ids[-1].decode()))
    with scene.holding("/queue/perf.held.1", count * 5, "client") as (held, ids):
        yield "one cumulative NACK", lambda: held.sync(frame("NACK", id=ids[-1].decode()))
    with scene.holding("/queue/perf.held.2", count, "client-individual") as (held, ids):
        apart = b"".join(frame("ACK", id=each.decode()) for each in ids[::-2])
        yield "ACKs that lie apart", lambda: held.sync(apart)
        yield "the end of a connection with the other half", held.close
    client = connect()
    for end in ("ABORT", "COMMIT"):
        client.sync(frame("BEGIN", transaction="t") + frame("SEND", b"x", destination=Q, transaction="t") * count)
        yield f"{end} of a transaction", lambda end=end: client.sync(frame(end, transaction="t"))
    readers = [connect() for _ in range(10)]
    for reader in readers:
        reader.sync(b"".join(frame("SUBSCRIBE", id=n, destination="/topic/perf.gaps") for n in range(many)))
    yield (
        f"one message for {10 * many:,} subscriptions",
        lambda: client.sync(frame("SEND", b"x", destination="/topic/perf.gaps")),
    )
    yield "the end of a tenth of them", readers[0].close


def measure(
    scene: Scene, count: int, tell: Callable[[str], None], *, settled_seconds: float = SETTLED_SECONDS
) -> list[Gap]:
    """Plays all acts. Raises OSError if the broker does not serve them."""
    pair = Pair(scene.endpoint)
    found: list[Gap] = []
    idle: list[float] = []
    try:
        for name, act in acts(scene, count):
            time.sleep(settled_seconds)
            pair.largest_seconds()
            time.sleep(settled_seconds)
            idle.append(pair.largest_seconds())
            tell(name)
            act()
            time.sleep(settled_seconds)
            found.append(Gap(name, pair.largest_seconds(), statistics.median(idle)))
    finally:
        pair.close()
    return found


def lines(gaps: list[Gap]) -> Iterator[str]:
    """A table, as text."""
    width = max(len(gap.act) for gap in gaps)
    yield f"{'':{width}}  {'gap':>9}  {'idle':>9}  times"
    for gap in gaps:
        yield (f"{gap.act:{width}}  {gap.seconds * 1000:6.1f} ms  {gap.idle_seconds * 1000:6.1f} ms  {gap.ratio:5.1f}")
