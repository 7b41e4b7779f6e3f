"""The reading half of the load on logs: one process, any number of connections, one loop.

*Records*: frames are counted by their NULs (bodies have none), and the index of the last one of each read must be what
the count says. *Batches*: heads are read, bodies skipped by their length without being kept; the indexes of heads must
follow on each other, and every so manieth body is put together and checked, batch by batch, with its checksums and the
indexes in it.

Reads use the same buffers again and again: that is as cheap as reading can be.
"""

from __future__ import annotations

import re
import selectors
from collections.abc import Callable

from perf.load import frames
from perf.load.board import LOAD, MODE, QUIT, Board
from perf.load.cutting import FrameCutter
from perf.load.links import BrokerFaultError, RawLink, patient_link
from perf.load.plans import Endpoint, WorkerReport
from perf.logs.batches import WrongBatchError, checked
from perf.logs.plans import ReaderPlan, ReadPlan

READ_BYTES = 512 * 1024
_BATCH_READ_BYTES = 1024 * 1024
_CHECK_EVERY = 64
_FAULTS_MAX = 10


class _Reader:
    """One connection."""

    def __init__(self, plan: ReaderPlan, endpoint: Endpoint, numbers: memoryview) -> None:
        self.plan = plan
        self.link: RawLink = patient_link(endpoint)
        self.faults: list[str] = []
        self._numbers = numbers
        self._index = re.compile(rb"\n" + plan.index_header.encode() + rb":(\d+)\n")
        self._index_line = b"\n" + plan.index_header.encode() + b":"
        self._round = 0
        self._next: int | None = None
        self._delivered = self._bytes = 0
        self.subscribed = False
        self.over = False
        # Records.
        self._cutter = FrameCutter(READ_BYTES)
        # Batches.
        self._buffer = bytearray(_BATCH_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._carried = self._skip = self._messages = 0
        self._sample: bytearray | None = None
        self._sample_place = 0, 0

    def begin(self) -> None:
        """Subscribe for the next round."""
        plan = self.plan
        self._next = plan.start if plan.stop else None
        group = f"group:{plan.group}-{self._round}\n" if plan.group else ""
        headers = plan.headers
        request = f"SUBSCRIBE\nid:r{self._round}\ndestination:{plan.destination}\nack:{plan.ack}\n{group}{headers}\n\0"
        self.link.send_soon(request.encode())
        self.subscribed = True

    def _round_over(self) -> None:
        self.link.send_soon(f"UNSUBSCRIBE\nid:r{self._round}\n\n\0".encode())
        self._round += 1
        if self.plan.rounds_count and self._round >= self.plan.rounds_count:
            self.over = True
            return
        self.begin()

    def fault(self, what: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(f"reader of {self.plan.destination}: {what}")

    def read(self) -> None:
        """Read once. Raises OSError, ValueError, BrokerFaultError."""
        if self.plan.batch:
            self._read_batches()
        else:
            self._read_records()
        self._numbers[self.plan.delivered_slot] = self._delivered
        self._numbers[self.plan.bytes_slot] = self._bytes

    # Records.

    def _read_records(self) -> None:
        cutter = self._cutter
        length = self.link.sock.recv_into(cutter.room())
        if not length:
            raise BrokerFaultError(f"the broker closed it: {frames.error_text(cutter.carried())}")
        self._bytes += length
        region = cutter.cut(length)
        count = region.count(0)
        if not count:
            return
        if region.startswith(b"ERROR\n") or b"\0ERROR\n" in region or b"\0\nERROR\n" in region:
            raise BrokerFaultError(f"the broker sent an error: {frames.error_text(region)}")
        at = region.rfind(self._index_line)
        found = self._index.match(region, at) if at >= 0 else None
        if found is None:
            raise BrokerFaultError(f"a MESSAGE without an index: {frames.error_text(region)}")
        last = int(found.group(1))
        ended = region.rfind(b"\nrange-end:true", max(0, len(region) - 500)) >= 0
        if ended:
            count -= 1
            last -= 1
        if self._next is None:
            first = self._index.search(region)
            assert first is not None
            self._next = int(first.group(1))
        if self.plan.ack != "auto" and count:
            self._acknowledge(region, last)
        if last != self._next + count - 1:
            self.fault(f"{count} messages from index {self._next} on end with index {last}")
        self._next = last + 1
        self._delivered += count
        stop = self.plan.stop
        if stop and self._next >= stop and (ended or self.plan.group or self.plan.index_header != "index"):
            if self._next > stop and not self.plan.group:
                self.fault(f"index {last} came, {stop} was to be the end")
            self._round_over()

    def _acknowledge(self, region: bytes, last: int) -> None:
        if self.plan.ack == "client":
            at = region.rfind(b"\nack:")
            ids = frames.ACK_ID.findall(region, at) if at >= 0 else []
        else:
            ids = frames.ACK_ID.findall(region)
        if not ids:
            self.fault(f"the message of index {last} has no ack header")
            return
        self.link.send_soon(frames.acks(ids))

    # Batches.

    def _read_batches(self) -> None:
        length = self.link.sock.recv_into(self._view[self._carried :])
        if not length:
            raise BrokerFaultError(f"the broker closed it: {frames.error_text(bytes(self._view[: self._carried]))}")
        self._bytes += length
        end = self._carried + length
        place = 0
        buffer = self._buffer
        while True:
            if self._skip:
                step = min(self._skip, end - place)
                if self._sample is not None:
                    self._sample += self._view[place : place + step]
                self._skip -= step
                place += step
                if self._skip:
                    self._carried = 0
                    return
                if self._sample is not None:
                    self._check_sample(self._sample)
                    self._sample = None
            while place < end and buffer[place] in b"\r\n":
                place += 1
            head_end = buffer.find(b"\n\n", place, end)
            if head_end < 0:
                rest = bytes(self._view[place:end])
                self._carried = len(rest)
                self._view[: len(rest)] = rest
                return
            self._take_head(bytes(self._view[place:head_end]))
            place = head_end + 2

    def _take_head(self, head: bytes) -> None:
        """Take the head of a MESSAGE; its body and its NUL are to be skipped then."""
        if not head.startswith(b"MESSAGE\n"):
            raise BrokerFaultError(f"the broker sent no MESSAGE: {frames.error_text(head)}")
        headers = dict(line.partition(b":")[::2] for line in head.split(b"\n"))
        self._skip = int(headers[b"content-length"]) + 1
        index = int(headers[b"index"])
        if self._next is None:
            self._next = index
        if index != self._next:
            self.fault(f"index {index} came, {self._next} was expected")
        if b"range-end" in headers:
            self._round_over()
            return
        count = int(headers[b"count"])
        self._next = index + count
        self._delivered += count
        self._messages += 1
        if self.plan.ack != "auto":
            self.link.send_soon(frames.acks([headers[b"ack"]]))
        if self._messages % _CHECK_EVERY == 1:
            self._sample = bytearray()
            self._sample_place = index, count

    def _check_sample(self, body: bytearray) -> None:
        """Every batch of this body, whole and right."""
        index, count = self._sample_place
        found = index
        try:
            if body[-1]:
                raise WrongBatchError("no NUL ends the frame")
            for first, records in checked(memoryview(body)[:-1]):
                if first != found:
                    raise WrongBatchError(f"a batch says index {first}, {found} was expected")
                found += records
        except WrongBatchError as error:
            self.fault(f"the body of index {index}: {error}")
            return
        if found != index + count:
            self.fault(f"the body of index {index} has {found - index} records, its head says {count}")


class LogReaders:
    """The readers of a plan. `run` returns at QUIT or when `must_end()`; then `close`. They subscribe when the board
    says LOAD first."""

    def __init__(self, plan: ReadPlan, board: Board, must_end: Callable[[], bool]) -> None:
        self._numbers = board.numbers
        self._must_end = must_end
        self._selector = selectors.DefaultSelector()
        self._readers = [_Reader(one, plan.endpoint, self._numbers) for one in plan.readers]
        for reader in self._readers:
            reader.link.release()
            self._selector.register(reader.link.sock, selectors.EVENT_READ, reader)

    def run(self) -> WorkerReport:
        """Read until the board says QUIT."""
        numbers, select = self._numbers, self._selector.select
        while numbers[MODE] != QUIT and not self._must_end():
            if numbers[MODE] == LOAD:
                for reader in self._readers:
                    if not reader.subscribed:
                        reader.begin()
            for key, _events in select(0.005):
                reader = key.data
                try:
                    reader.read()
                except BlockingIOError:
                    continue
                except (OSError, ValueError, KeyError, BrokerFaultError) as error:
                    reader.fault(f"{type(error).__name__}: {error}")
                    self._selector.unregister(reader.link.sock)
                    reader.link.close()
        return WorkerReport(tuple(fault for reader in self._readers for fault in reader.faults))

    def close(self) -> None:
        """Close all connections."""
        for reader in self._readers:
            reader.link.close()
        self._selector.close()
