"""What a data folder of an earlier version holds: how the folder was written, and what a later broker must give.

The folders beside this file were written by the broker of commit 783d283, ended in order and killed. To write such a
folder again, or that of another version (`CHECKOUT`: where that version is checked out):

    PYTHONPATH=CHECKOUT python PATH/TO/books.py FOLDER ordered|killed

and then pack what is in FOLDER: `tar --sparse --sort=name -cJf tests/compatibility/ordered.tar.xz -C FOLDER .`
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from sluiceway.config import Config
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from tests.interop.raw_client import RawClient, RawFrame, frame

LOGS_SECTION: Final = "logs" if hasattr(Config(), "logging") else "journal"
"""What the version that writes the folder calls it."""
CONFIG: Final = f"""\
[[listeners]]
address = "127.0.0.1:0"
limits.large_body_bytes = "64 KiB"

[{LOGS_SECTION}]
delete_passcode = "let me"
data_page_bytes = "1 MiB"

[[destinations]]
match = "/queue/paged"
memory_bytes = "64 KiB"

[[destinations]]
match = "/queue/failing"
redeliveries_max = 0
"""
LOG: Final = "/log/orders"
BATCHES: Final = "/log/batches"
COUNTS: Final = "/log/counts"
STAGE: Final = "/log/sluiceway.stage."
TOPIC: Final = "/topic/news"
REPLIES: Final = "/temp-queue/replies"
LOG_COUNT: Final = 100
SETTLED: Final = frozenset({*range(10), 15, *range(20, 25)})
"""Of the group g, whose consumer held as many more as its prefetch allows."""
PREFETCH: Final = 40
LARGE: Final = b"0123456789abcdef" * 8192
DELAY_MS: Final = 60_000


class Peer(RawClient):
    """A client that waits for what it asked for."""

    def __init__(self, address: tuple[str, int], **headers: str) -> None:
        super().__init__(address)
        self.connect(**headers)
        self.came: list[RawFrame] = []
        """MESSAGEs that came beside what was waited for."""
        self._receipts_count = 0

    def ask(self, command: str, body: bytes = b"", *, length: bool = False, **headers: str) -> RawFrame:
        """Send a frame and wait for its RECEIPT."""
        self._receipts_count += 1
        receipt = f"r{self._receipts_count}"
        self.send(frame(command, body, length=length, receipt=receipt, **headers))
        while (found := self.frame()).command == "MESSAGE":
            self.came.append(found)
        assert found.command == "RECEIPT" and found["receipt-id"] == receipt, found
        return found

    def put(self, destination: str, bodies: Iterable[str], **headers: str) -> None:
        for body in bodies:
            self.ask("SEND", body.encode(), destination=destination, persistent="true", **headers)

    def take(self, count: int) -> list[RawFrame]:
        """So many MESSAGEs."""
        while len(self.came) < count:
            self.came.append(self.expect("MESSAGE"))
        found, self.came = self.came[:count], self.came[count:]
        return found

    def join(self, destination: str, *, prefetch: int = 1000, **headers: str) -> None:
        headers = {"id": "s", "ack": "client-individual", "prefetch_count": str(prefetch), **headers}
        self.ask("SUBSCRIBE", destination=destination, **headers)

    def request(self, name: str, **facts: Any) -> dict[str, Any]:
        """A request, and its reply; a subscription to REPLIES is there."""
        self.send(
            frame("SEND", json.dumps(facts).encode(), length=True, destination=f"/sluiceway/{name}", reply_to=REPLIES)
        )
        (reply,) = self.take(1)
        answer = json.loads(reply.body)
        assert isinstance(answer, dict) and answer["ok"] is True, answer
        return answer

    def __enter__(self) -> Peer:
        return self

    def leave(self) -> None:
        self.ask("DISCONNECT")
        self.close()


def planner(address: tuple[str, int]) -> Peer:
    peer = Peer(address)
    peer.ask("SUBSCRIBE", destination=REPLIES, id="replies")
    return peer


def texts(messages: Iterable[RawFrame]) -> list[str]:
    return [message.body.decode() for message in messages]


def numbered(start: int, end: int) -> list[str]:
    return [str(number) for number in range(start, end)]


# ---------------------------------------------------------------------- writing


def write(address: tuple[str, int]) -> list[Peer]:
    """Put all in. Returns the connections that hold what is in flight."""
    producer = Peer(address)
    producer.put("/queue/plain", numbered(0, 10))
    with Peer(address) as consumer:
        consumer.join("/queue/plain", prefetch=4)
        for message in (held := consumer.take(4))[:3]:
            consumer.ask("ACK", id=message["ack"])
        consumer.came.clear()
        consumer.ask("NACK", id=held[3]["ack"])
        consumer.ask("UNSUBSCRIBE", id="s")
        consumer.leave()

    producer.put("/queue/paged", [number.ljust(500) for number in numbered(0, 400)])
    producer.ask("SEND", LARGE, length=True, destination="/queue/large", persistent="true")
    producer.put("/queue/later", ["later"], delay=str(DELAY_MS))
    producer.put("/queue/failing", ["fails"])
    with Peer(address) as consumer:
        consumer.join("/queue/failing")
        (message,) = consumer.take(1)
        consumer.ask("NACK", id=message["ack"])
        consumer.leave()

    audit = Peer(address, client_id="audit")
    audit.join(TOPIC, durable="true", id="audit")
    producer.put(TOPIC, numbered(0, 10))
    for message in audit.take(10)[:2]:
        audit.ask("ACK", id=message["ack"])

    group, other = Peer(address), Peer(address)
    group.join(LOG, prefetch=PREFETCH, group="g", **{"from": "earliest"})
    other.join(LOG, prefetch=1, group="h", **{"from": "earliest"})
    producer.put(LOG, numbered(0, LOG_COUNT), key="k")
    held = group.take(PREFETCH)
    for index in sorted(SETTLED):
        group.ask("ACK", id=held[index]["ack"])
    batch = b"".join(encode([f"{first} {n}".encode() for n in range(5)]) for first in range(3))
    producer.ask("SEND", batch, length=True, destination=BATCHES, content_type=CONTENT_TYPE)

    asker = planner(address)
    producer.put("/queue/work", numbered(0, 6))
    about = {"queue": "/queue/work", "group": "c"}
    for number in (1, 2):
        asker.request("claim/claim", claim=number, max=2, **about)
    asker.request("claim/ack", claim=1, **about)
    for stage in ("a", "b"):
        asker.ask(
            "SEND", encode([f"{stage} {n}".encode() for n in range(3)]), length=True,
            destination=STAGE + stage, content_type=CONTENT_TYPE,
        )  # fmt: skip
    asker.request("sink/commit", query="q", batch=0, parts=[{"stage": STAGE + "a", "to": COUNTS}])
    return [producer, audit, group, other, asker]


def main(folder: Path, end: str) -> None:
    folder.mkdir()
    config = folder / "sluiceway.toml"
    config.write_text(CONFIG, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "sluiceway", "serve", "--config", str(config), "--data", str(folder / "data")],
        stdout=subprocess.PIPE,
        cwd=folder,  # so that nothing of this checkout is found first
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        host, _colon, port = said.partition("://")[2].partition("/")[0].strip().rpartition(":")
        peers = write((host, int(port)))
        process.send_signal(signal.SIGTERM if end == "ordered" else signal.SIGKILL)
        process.wait()
        for peer in peers:
            peer.close()
    finally:
        process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
