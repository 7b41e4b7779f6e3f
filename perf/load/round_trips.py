"""Request and reply: two clients, two queues, one request under way at a time.

Blocking sockets on purpose: nothing else is there to do, and a blocked read costs the least of all ways to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from perf.load import frames
from perf.load.board import MODE, QUIT, QUOTA, WINDOW_FROM_NS, WINDOW_TO_NS, Board
from perf.load.links import BrokerFaultError, RawLink, patient_link
from perf.load.plans import Endpoint, ReplierPlan, RequesterPlan, WorkerReport

_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 10.0


class _Party:
    """One of two connections; reads bodies from one queue and sends them to another."""

    def __init__(self, endpoint: Endpoint, reads_from: str, sends_to: str) -> None:
        self.link: RawLink = patient_link(endpoint)
        self.link.subscribe(reads_from, "s0", "auto", 1)
        self.link.sock.settimeout(_POLL_SECONDS)
        self._head = f"SEND\ndestination:{sends_to}\n\n".encode()
        self._received = b""

    def send(self, body: bytes) -> None:
        self.link.sock.sendall(self._head + body + b"\0")

    def next_tag(self) -> tuple[bytes, bytes, bytes] | None:
        """Return the tag of the next message, or None when none came within the poll time."""
        if b"\0" not in self._received:
            try:
                chunk = self.link.sock.recv(65536)
            except TimeoutError:
                return None
            if not chunk:
                raise BrokerFaultError(f"the broker closed it: {frames.error_text(self._received)}")
            self._received = (self._received + chunk).lstrip(b"\r\n")
        frame, nul, rest = self._received.partition(b"\0")
        if not nul:
            return None
        self._received = rest.lstrip(b"\r\n")
        tag = frames.TAG.search(frame)
        if tag is None:
            raise BrokerFaultError(f"the broker sent what was not asked for: {frames.error_text(frame)}")
        return tag.group(1), tag.group(2), tag.group(3)


class Replier:
    """Answers requests until QUIT."""

    def __init__(self, plan: ReplierPlan, board: Board, must_end: Callable[[], bool]) -> None:
        self._board = board
        self._must_end = must_end
        self._party = _Party(plan.endpoint, plan.request_destination, plan.reply_destination)

    def run(self) -> WorkerReport:
        """Answer each request with its own tag."""
        while self._board[MODE] != QUIT and not self._must_end():
            tag = self._party.next_tag()
            if tag is not None:
                self._party.send(b"#%b.%b.%b#" % tag)
        return WorkerReport()

    def close(self) -> None:
        """Close the connection."""
        self._party.link.close()


class Requester:
    """Makes requests while the quota allows, and until QUIT."""

    def __init__(self, plan: RequesterPlan, board: Board, must_end: Callable[[], bool]) -> None:
        self._plan = plan
        self._board = board
        self._must_end = must_end
        self._party = _Party(plan.endpoint, plan.reply_destination, plan.request_destination)

    def run(self) -> WorkerReport:
        """Ask, wait, take the time."""
        board, party, done, latencies = self._board, self._party, 0, list[int]()
        while board[MODE] != QUIT and not self._must_end():
            if done >= board[QUOTA]:
                time.sleep(0.001)
                continue
            sent_ns = time.monotonic_ns()
            party.send(frames.tagged_body(0, done, sent_ns, self._plan.body_bytes))
            tag = party.next_tag()
            while tag is None:
                if board[MODE] == QUIT:
                    return WorkerReport(latencies_ns=tuple(latencies))
                if time.monotonic_ns() - sent_ns > _ANSWER_SECONDS * 1e9:
                    return WorkerReport((f"request {done} had no answer within {_ANSWER_SECONDS} s",), tuple(latencies))
                tag = party.next_tag()
            if int(tag[1]) != done:
                return WorkerReport((f"request {done} was answered with the reply to {int(tag[1])}",), tuple(latencies))
            now_ns = time.monotonic_ns()
            from_ns, to_ns = board[WINDOW_FROM_NS], board[WINDOW_TO_NS]
            if from_ns and now_ns >= from_ns and not to_ns:
                latencies.append(now_ns - sent_ns)
            done += 1
            board[self._plan.done_slot] = done
        return WorkerReport(latencies_ns=tuple(latencies))

    def close(self) -> None:
        """Close the connection."""
        self._party.link.close()
