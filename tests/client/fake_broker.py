"""A broker of logs that fails on command: receipts that come late, refusals, connections cut in the middle, gaps.

On a real socket, with the project's own sans-I/O machine and batches; two threads for each connection. It keeps logs in
memory and knows as much of them as the client needs. `python -m tests.client.fake_broker` serves until its input ends,
for measuring.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import attrs

from perf.peers.daemon import free_port
from sluiceway.protocols.stomp.encoder import encode_frame, receipt
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.frames import Connect, Event, Fault, Frame, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from sluiceway.queues.logs.batches import CONTENT_TYPE, Batch, encode, split, stamped

TIMESTAMP_MS = 1_700_000_000_000
"""Of the first record; each batch is one millisecond later."""
CUT = b"<cut the connection here>"


@attrs.define
class FakeLog:
    """Batches, each with the place in its log."""

    name: str
    batches: list[Batch] = attrs.field(factory=list)
    first: int = 0
    next: int = 0
    groups: dict[str, FakeGroup] = attrs.field(factory=dict)
    deleted: bool = False

    def append(self, batch: Batch) -> int:
        """Stamp it and keep it; returns its first index."""
        first = self.next
        start = stamped(bytes(batch.data[:32]), first, TIMESTAMP_MS + len(self.batches))
        self.batches.append(Batch(start + bytes(batch.data[32:])))
        self.next = first + batch.count
        return first

    def batch_of(self, index: int) -> Batch:
        """The one that holds this record."""
        return next(batch for batch in self.batches if batch.first_index <= index < batch.end_index)

    @property
    def values(self) -> list[bytes]:
        """All records."""
        return [bytes(value) for batch in self.batches for value in batch.values()]


@attrs.define
class FakeGroup:
    """A group's place: what was never delivered begins at `next`, what came back is in `returned`."""

    next: int
    returned: deque[tuple[int, int]] = attrs.field(factory=deque)
    acknowledged: list[tuple[int, int]] = attrs.field(factory=list)


@attrs.define
class Faults:
    """What goes wrong, until it is told otherwise."""

    hold_receipts: bool = False
    """Receipts wait for `FakeBroker.release_receipts`."""
    cut_at_appends: list[int] = attrs.field(factory=list)
    """After so many appended batches in all: cut that connection instead of sending the receipt."""
    cut_at_messages: list[int] = attrs.field(factory=list)
    """In the middle of that MESSAGE, counted over all connections, from 1."""
    refuse: Callable[[Batch], bool] | None = None
    """Batches to answer with an ERROR that names their receipt."""
    refuse_code: str = "log-refused"
    refuse_without_receipt: bool = False
    """The ERROR does not say which one it means."""
    refuse_connect: str | None = None
    refuse_subscribe: str | None = None
    silent: bool = False
    """Takes connections and says nothing."""


class FakeBroker:
    """Listens from `with` to its end, or from `start` to `stop`; then again, on the same port."""

    def __init__(self, hub: str = "", others: FakeBroker | None = None) -> None:
        """`hub`: its name, if it is one of a cluster; `others`: a hub with which it shares all logs."""
        self.hub = hub
        self.hubs: dict[str, FakeBroker] = {} if others is None else others.hubs
        """Hubs of the cluster by name."""
        self.owners: list[str] = [""] if others is None else others.owners
        """Hub that has all logs, alone in a list, which the hubs share."""
        self.logs: dict[str, FakeLog] = {} if others is None else others.logs
        self.faults = Faults()
        self.changed = threading.Condition() if others is None else others.changed
        if hub:
            self.hubs[hub] = self
        self.appends_count = 0
        self.known: dict[tuple[str, str, str], int] = {}
        """First index of each SEND of a producer that numbers them, by log, producer and number."""
        self.messages_count = 0
        self.connects_count = 0
        self.subscribes: list[dict[str, str]] = []
        self.port = free_port()
        self.sessions: list[_Session] = []
        self._listener: socket.socket | None = None

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> FakeBroker:
        """Listen."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Cut all connections, and listen no more. What was appended stays."""
        assert self._listener is not None
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # some systems do not know it of listeners
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for session in list(self.sessions):
            session.cut()

    def release_receipts(self) -> None:
        """Send what `hold_receipts` held back, the last first, and hold no more."""
        with self.changed:
            self.faults.hold_receipts = False
            for session in self.sessions:
                session.out.extend(reversed(session.held_receipts))
                session.held_receipts.clear()
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float = 10.0) -> None:
        """Wait for something that happens here."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_seconds), "the broker waited in vain"

    def log(self, name: str) -> FakeLog:
        """The log, made if need be."""
        return self.logs.setdefault(name, FakeLog(name))

    def fill(self, name: str, values: list[bytes], *, in_batches_of: int = 10) -> FakeLog:
        """Append records."""
        with self.changed:
            log = self.log(name)
            for at in range(0, len(values), in_batches_of):
                log.append(Batch(encode(values[at : at + in_batches_of])))
            self.changed.notify_all()
        return log

    def __enter__(self) -> FakeBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                stream, _peer = listener.accept()
            except OSError:
                return
            with self.changed:
                self.connects_count += 1
                self.sessions.append(_Session(self, stream))
                self.changed.notify_all()


@attrs.define(eq=False)
class _Reading:
    """A subscription to a log."""

    id: str
    log: FakeLog
    group: FakeGroup | None
    at: int
    end: int | None
    batch_bytes: int
    credit_bytes: int
    unsettled: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)
    over: bool = False


class _Session:
    """One connection: a thread that reads and judges, a thread that writes."""

    def __init__(self, broker: FakeBroker, stream: socket.socket) -> None:
        self.out: deque[bytes] = deque()
        self.held_receipts: list[bytes] = []
        self._broker = broker
        self._stream = stream
        self._machine = ServerMachine(StompLimits())
        self._readings: list[_Reading] = []
        self._replies_id: str | None = None
        self._tokens = 0
        self._ending = False
        self._ended = False
        for target in (self._read, self._write):
            threading.Thread(target=target, daemon=True).start()

    def cut(self) -> None:
        """End at once."""
        with self._broker.changed:
            if self._ended:
                return
            self._ended = True
            self._broker.sessions.remove(self)
            for reading in self._readings:
                if reading.group is not None:
                    for first, end, _size in reading.unsettled.values():
                        reading.group.returned.append((first, end))
            self._broker.changed.notify_all()
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first
        self._stream.close()

    # ------------------------------------------------------------------ out

    def _write(self) -> None:
        try:
            while True:
                with self._broker.changed:
                    self._broker.changed.wait_for(lambda: self._ended or self.out or self._ending or self._pump())
                    if self._ended:
                        return
                    out = list(self.out)
                    self.out.clear()
                    ending = self._ending or CUT in out
                self._stream.sendall(b"".join(out[: out.index(CUT)] if CUT in out else out))
                if ending:
                    self.cut()
        except OSError:
            self.cut()

    def _pump(self) -> bool:
        """One MESSAGE for each subscription that may have one."""
        for reading in self._readings:
            message = None if reading.over else self._next_message(reading)
            if message is not None:
                self._broker.messages_count += 1
                if self._broker.messages_count in self._broker.faults.cut_at_messages:
                    self.out += [message[: len(message) // 2], CUT]
                    return True
                self.out.append(message)
        return bool(self.out)

    def _next_message(self, reading: _Reading) -> bytes | None:
        log, group = reading.log, reading.group
        if log.deleted:
            reading.over = True
            return self._message(reading, {"log-deleted": "true"}, b"")
        if group is not None:
            if sum(size for _first, _end, size in reading.unsettled.values()) >= reading.credit_bytes:
                return None
            if group.returned:
                first, stop = group.returned.popleft()
            else:
                first, stop = group.next, log.next
        else:
            first, stop = reading.at, log.next if reading.end is None else min(reading.end, log.next)
            if reading.end is not None and first >= reading.end:
                reading.over = True
                return self._message(reading, {"range-end": "true", "index": str(reading.end)}, b"")
        if first < log.first:
            if group is None:
                reading.at = log.first
            else:
                group.next = log.first
            facts = {"gap": "true", "gap-from": str(first), "gap-to": str(log.first), "gap-reason": "retention"}
            return self._message(reading, facts, b"")
        if first >= stop:
            return None
        body = b""
        end = first
        while end < stop and (not body or len(body) + log.batch_of(end).total_bytes <= reading.batch_bytes):
            batch = log.batch_of(end)
            body += batch.data
            end = min(batch.end_index, stop)
        headers = {"index": str(first), "count": str(end - first), "content-type": CONTENT_TYPE}
        if group is None:
            reading.at = end
        else:
            if first == group.next:
                group.next = end
            elif end < stop:
                group.returned.appendleft((end, stop))
            self._tokens += 1
            headers["ack"] = str(self._tokens)
            reading.unsettled[headers["ack"]] = (first, end, len(body))
        return self._message(reading, headers, body)

    def _message(self, reading: _Reading, headers: dict[str, str], body: bytes) -> bytes:
        common = {"subscription": reading.id, "destination": f"/log/{reading.log.name}"}
        common["message-id"] = f"{reading.log.name}-{headers.get('index', '')}"
        return encode_frame("MESSAGE", (common | headers).items(), body, version="1.2")

    # ------------------------------------------------------------------ in

    def _read(self) -> None:
        try:
            while data := self._stream.recv(1 << 18):
                if self._broker.faults.silent:
                    continue
                for event in self._machine.receive_data(data):
                    with self._broker.changed:
                        self._judge(event)
                        self._broker.changed.notify_all()
        except OSError:
            pass  # cut by the other thread
        self.cut()

    def _judge(self, event: Event) -> None:
        if isinstance(event, Connect):
            if self._broker.faults.refuse_connect is not None:
                self.out.append(self._machine.reject(self._broker.faults.refuse_connect))
                self._ending = True
                return
            session = f"{self._broker.hub}~1" if self._broker.hub else "fake"
            self.out.append(self._machine.accept(session, heart_beat=(10_000, 10_000)))
            self._machine.receive_data(b"")
        elif isinstance(event, SendRun):
            for place, wire in enumerate(event.wires):
                asked = event.receipts[place] if event.receipts is not None else None
                self._send(event.head.headers, wire[event.head.body_offset : -1], asked)
        elif isinstance(event, Frame):
            self._frame(event)
        elif isinstance(event, Fault):
            raise AssertionError(f"the client made a mistake: {event.error}")
        else:  # ACKs
            for token in event.tokens:  # type: ignore[union-attr]
                self._acknowledge(token.decode())  # type: ignore[union-attr]

    def _send(self, headers: dict[str, str], body: bytes, asked: str | None) -> None:
        destination = headers["destination"]
        if destination.startswith("/sluiceway/"):
            is_about_hubs = destination == "/sluiceway/cluster"
            facts = json.loads(body)
            reply = self._directions() if is_about_hubs else self._request(destination.rpartition("/")[2], facts)
            facts = {"subscription": self._replies_id or "", "correlation-id": headers.get("correlation-id", "")}
            facts |= {"destination": headers["reply-to"], "message-id": "reply"}
            self.out.append(encode_frame("MESSAGE", facts.items(), json.dumps(reply).encode(), version="1.2"))
            return
        log = self._broker.log(destination.removeprefix("/log/"))
        faults = self._broker.faults
        batches = list(split(body)) if headers.get("content-type") == CONTENT_TYPE else [Batch(encode([body]))]
        for batch in batches:
            batch.check(plain_bytes_max=1 << 30)
            if faults.refuse is not None and faults.refuse(batch):
                error = ProtocolError(faults.refuse_code, "the log does not want it", "It said so.")
                if not faults.refuse_without_receipt:
                    error.receipt_id = asked
                self.out.append(self._machine.fail(error))
                self._ending = True
                return
        first = log.next
        origin = destination, headers.get("producer-id", ""), headers.get("producer-sequence", "")
        known = self._broker.known.get(origin) if origin[1] else None
        if known is not None:
            first = known
        else:
            self._broker.known[origin] = first
            for batch in batches:
                log.append(batch)
        self._broker.appends_count += 1
        if self._broker.appends_count in faults.cut_at_appends:
            self.out.append(CUT)
            return
        if asked is not None:
            extra = (
                ("index", str(first)),
                ("count", str(sum(batch.count for batch in batches))),
                ("durability", "disk"),
            )
            (self.held_receipts if faults.hold_receipts else self.out).append(receipt(asked, "1.2", extra))

    def _directions(self) -> dict[str, Any]:
        broker = self._broker
        hubs = [{"name": name, "clients": [f"stomp://*:{hub.port}"]} for name, hub in broker.hubs.items()]
        return {"ok": True, "hub": broker.hub, "hubs": hubs, "homes": [{"hub": broker.owners[0]}]}

    def _request(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        log = self._broker.logs.get(arguments.get("log", ""))
        if name == "describe" and log is not None:
            size = log.next - log.first
            described = {"log": log.name, "first": log.first, "next": log.next, "size": size, "bytes": 0}
            return {"ok": True, **described, "groups": list(log.groups)}
        if log is None:
            return {"ok": False, "error": "TOPIC_NOT_EXIST", "message": f"there is no log {arguments.get('log')}"}
        return {"ok": False, "error": "INVALID_REQUEST", "message": "the fake does not know that"}

    def _frame(self, frame: Frame) -> None:
        headers = frame.headers
        if frame.command == "SUBSCRIBE" and headers["destination"].startswith("/log/"):
            if self._broker.faults.refuse_subscribe is not None:
                error = ProtocolError("log-refused", self._broker.faults.refuse_subscribe, "It said so.")
                error.receipt_id = headers.get("receipt")
                self.out.append(self._machine.fail(error))
                self._ending = True
                return
            self._broker.subscribes.append(headers)
            self._readings.append(self._subscribe(headers))
        elif frame.command == "SUBSCRIBE":
            self._replies_id = headers["id"]
        elif frame.command == "ACK":
            self._acknowledge(headers["id"])
        elif frame.command == "DISCONNECT":
            self._ending = True
        if "receipt" in headers:
            self.out.append(receipt(headers["receipt"], "1.2"))

    def _subscribe(self, headers: dict[str, str]) -> _Reading:
        log = self._broker.log(headers["destination"].removeprefix("/log/"))
        start = headers.get("from", "next")
        at = {"earliest": log.first, "latest": max(log.first, log.next - 1), "next": log.next}.get(start)
        if at is None:
            at = int(start)
        group = None
        if "group" in headers:
            group = log.groups.setdefault(headers["group"], FakeGroup(at))
        return _Reading(
            id=headers["id"],
            log=log,
            group=group,
            at=at,
            end=int(headers["to"]) if "to" in headers else None,
            batch_bytes=int(headers["batch"]),
            credit_bytes=int(headers["credit"].partition(",")[2]) if "credit" in headers else 1 << 30,
        )

    def _acknowledge(self, token: str) -> None:
        for reading in self._readings:
            if token in reading.unsettled and reading.group is not None:
                first, end, _size = reading.unsettled.pop(token)
                reading.group.acknowledged.append((first, end))


if __name__ == "__main__":
    with FakeBroker() as served:
        print(served.port, flush=True)
        sys.stdin.read()
