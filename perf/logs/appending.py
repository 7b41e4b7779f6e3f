"""The appending half of the load on logs: one process, one connection, frames made before.

A batch SEND is two pieces, its head (which differs by the receipt) and its body (the same for all), given to the kernel
together; plain SENDs are cut from a block of many. Receipts are read as they come: each must say the index that follows
from the one before, or records were lost or doubled.
"""

from __future__ import annotations

import re
import select
import time
from collections import deque
from collections.abc import Callable
from random import Random

from perf.load import frames
from perf.load.board import LOAD, MODE, QUIT, Board
from perf.load.cutting import FrameCutter
from perf.load.links import BrokerFaultError, RawLink, patient_link
from perf.load.plans import WorkerReport
from perf.logs.batches import CONTENT_TYPE, batch_of
from perf.logs.plans import AppendPlan

_PLAIN_BLOCK_COUNT = 1000
_PIECES_MAX = 64
_NAP_SECONDS = 0.0005
_RECEIPT = re.compile(rb"RECEIPT\n[^\0]*\0")
_INDEX = re.compile(rb"\nindex:(\d+)")
_SEED = 4


def values_of(body_bytes: int, count: int) -> list[bytes]:
    """Make different records without a NUL: the same ones each time."""
    random = Random(_SEED)
    noise = bytes(33 + byte % 90 for byte in random.randbytes(body_bytes + count))
    return [noise[place : place + body_bytes] for place in range(count)]


class Appender:
    """Appends as its plan says. `run` returns at QUIT or when `must_end()`; then `close`."""

    def __init__(self, plan: AppendPlan, board: Board, must_end: Callable[[], bool]) -> None:
        self._plan = plan
        self._numbers = board.numbers
        self._must_end = must_end
        self._link: RawLink = patient_link(plan.endpoint)
        self._link.release()
        self._cutter = FrameCutter(1 << 18)
        self._faults: list[str] = []
        self._pieces: deque[memoryview] = deque()
        self._sends = self._sent = self._asked = self._receipts = 0
        self._next_index: int | None = None
        self._due_from = 0.0
        self._poll = select.poll()
        self._poll.register(self._link.sock, select.POLLIN | select.POLLOUT)
        if plan.batch_count:
            self._body = memoryview(batch_of(values_of(plan.body_bytes, plan.batch_count)) + b"\0")
            self._head = (
                f"SEND\ndestination:{plan.destination}\ncontent-type:{CONTENT_TYPE}\n"
                f"content-length:{len(self._body) - 1}\n"
            ).encode()
        else:
            head = f"SEND\ndestination:{plan.destination}\ncontent-length:{plan.body_bytes}\n".encode()
            count = min(_PLAIN_BLOCK_COUNT, plan.receipt_every) if plan.window_count else _PLAIN_BLOCK_COUNT
            bodies = values_of(plan.body_bytes, count)
            lines = [head + b"\n" + body + b"\0" for body in bodies]
            self._plain_bytes = len(lines[0])
            if plan.window_count:
                self._last = head, b"\n" + bodies[-1] + b"\0"
                lines.pop()
            self._block = memoryview(b"".join(lines))
            self._block_count = count

    def run(self) -> WorkerReport:
        """Append until the board says QUIT."""
        numbers, plan = self._numbers, self._plan
        try:
            while numbers[MODE] != QUIT and not self._must_end():
                if not self._pieces and numbers[MODE] == LOAD:
                    self._take_more()
                mask = select.POLLIN | (select.POLLOUT if self._pieces else 0)
                self._poll.modify(self._link.sock, mask)
                for _descriptor, events in self._poll.poll(1 if self._pieces else 0):
                    if events & select.POLLOUT:
                        self._send()
                    if events & ~select.POLLOUT:
                        self._read()
                if not self._pieces:
                    self._wait()
        except (OSError, ValueError, BrokerFaultError) as error:
            self._faults.append(f"appending to {plan.destination}: {type(error).__name__}: {error}")
        return WorkerReport(tuple(self._faults))

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _wait(self) -> None:
        """Wait for a receipt or for more quota: there is nothing to send now."""
        if self._plan.window_count and self._asked - self._receipts >= self._plan.window_count:
            self._poll.poll(20)
        else:
            time.sleep(_NAP_SECONDS)

    def _allowance(self) -> int:
        """Return the number of records that may be sent now."""
        plan = self._plan
        left = int(self._numbers[plan.quota_slot]) - self._sent
        if plan.rate_per_second and left > 0:
            now = time.monotonic()
            if not self._due_from:
                self._due_from = now - self._sent / plan.rate_per_second
            due = int((now - self._due_from) * plan.rate_per_second) - self._sent
            # A delay of more than a second is not made up for.
            if due > plan.rate_per_second:
                self._due_from = now - (self._sent + 1) / plan.rate_per_second
            left = min(left, due)
        return left

    def _take_more(self) -> None:
        plan = self._plan
        left = self._allowance()
        step = plan.batch_count or self._block_count
        while len(self._pieces) < _PIECES_MAX and left >= step:
            asks = bool(plan.window_count) and (not plan.batch_count or (self._sends + 1) % plan.receipt_every == 0)
            if asks and self._asked - self._receipts >= plan.window_count:
                return
            receipt = b"receipt:%d\n" % self._asked if asks else b""
            self._asked += asks
            self._sends += 1
            if plan.batch_count:
                self._pieces.append(memoryview(self._head + receipt + b"\n"))
                self._pieces.append(self._body)
            else:
                self._pieces.append(self._block)
                if asks:
                    self._pieces.append(memoryview(self._last[0] + receipt + self._last[1]))
            self._sent += step
            left -= step

    def _send(self) -> None:
        pieces = self._pieces
        try:
            taken = self._link.sock.sendmsg(pieces)
        except BlockingIOError:
            return
        while taken:
            length = len(pieces[0])
            if taken < length:
                pieces[0] = pieces[0][taken:]
                break
            pieces.popleft()
            taken -= length
        self._numbers[self._plan.sent_slot] = self._sent

    def _read(self) -> None:
        try:
            length = self._link.sock.recv_into(self._cutter.room())
        except BlockingIOError:
            return
        if not length:
            raise BrokerFaultError(f"the broker closed the connection: {frames.error_text(self._cutter.carried())}")
        region = self._cutter.cut(length)
        if b"ERROR\n" in region:
            raise BrokerFaultError(f"the broker sent an error: {frames.error_text(region)}")
        count = 0
        for match in _RECEIPT.finditer(region):
            count += 1
            found = _INDEX.search(match.group())
            if found is None:
                continue  # a broker that does not say it
            index = int(found.group(1))
            step = self._plan.batch_count * self._plan.receipt_every if self._plan.batch_count else self._block_count
            if self._next_index is not None and index != self._next_index:
                self._faults.append(f"a receipt says index {index}, {self._next_index} was expected")
            self._next_index = index + step
        if count:
            self._receipts += count
            step = (self._plan.batch_count or 1) * (
                self._plan.receipt_every if self._plan.batch_count else self._block_count
            )
            self._numbers[self._plan.confirmed_slot] = self._receipts * step
