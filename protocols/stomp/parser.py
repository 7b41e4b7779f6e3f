"""Bytes to batches of events, in time linear in the bytes whatever the chunking.

How it works. `feed` walks an offset over one buffer. Three ideas make it cheap:

* **Head cache.** The header block of a SEND, as bytes, is looked up in a small dictionary; only a new block is taken
  apart. A `receipt` line is cut out before the look-up, because its value is new on every frame.
* **Runs.** Behind a SEND, every frame that begins with the very same bytes belongs to the same run: one comparison
  and one slice each (strides: less), no search for the headers' end. Plain ACKs: one regular expression per run.
* **Topics without a subscriber.** SENDs to them are passed over and counted (`unheard`): nothing is cut out.
* **Waiting.** When the buffer ends inside a frame, the rest goes into a receive buffer together with what is being
  waited for: a blank line (`HEAD`), a number of bytes (`COUNT`, `BODY`) or a NUL (`NUL`). Only *new* bytes are looked
  at until it is there; then the receive buffer is joined once. For a SEND the receive buffer is already the wire, and
  for a MESSAGE of known length it is the body (`BODY`), so what follows in the socket is never copied.
* **Steps.** One `feed` walks about `step_bytes` and gives about `events_max` events; it stops at a place in the buffer,
  so going on copies nothing. Large frames are counted, not weighed.
* **Large bodies.** Where they are staged, the body of a SEND beyond large_body_bytes is never collected: it is passed
  on in pieces (`LARGE`). One without content-length is collected up to that many bytes, since it may end before.

The parser holds at a CONNECT until `expect` tells it the version (see `transitions`), and ends at a DISCONNECT.

Invariants. The same bytes give the same frames and the same fault whatever the chunking (only the borders of runs and
the cuts of large bodies differ): a fault is decided by positions in the stream, never by what happened to be in the
buffer. At most one frame is held, of at most header_block_bytes_max + body_bytes_max bytes (connect_frame_bytes_max
before CONNECTED). After a fault nothing is read any more.
Lenient on purpose: CR LF line ends in every version (telnet), also mixed with LF; a colon in a value (split at the
first); blanks around numbers. Strict on purpose: undefined escapes (b11), UTF-8, NUL among headers, the NUL behind a
body of known length.
Deliberately not here: required headers and bodies where none may be (`machine`), the meaning of anything.

Source: STOMP 1.2 "Frames", "Size Limits"; checklist b1-b6, b9-b14.
"""

from __future__ import annotations

from sys import maxsize
from typing import Final

from . import faults
from .acks import add_plain_ack, runs_keep_to, take_ack_run
from .dialects import SENDER, leave_own_out
from .errors import ProtocolError
from .escaping import Version
from .frames import Event, Fault, Frame, LargeSendStart, SendRun, UnheardRun
from .head import HeadAccount, SendHead, parse_headers, whole_number
from .headcache import Entry, HeadCache, cut_length
from .largebody import LargeBody
from .limits import StompLimits
from .octets import EOL_OCTETS, PLAIN_OCTETS, skip_eols, split_head, text_of
from .rawhead import COMMAND_LINE_BYTES_MAX, check_raw_head, identify
from .receive_buffer import AwaitedPart, ReceiveBuffer
from .strides import take_alike
from .transitions import NEVER_ESCAPED, WITH_BODY, Role, State, Then, arrivals, refusal
from .unheard import Unheard, pass_counted, pass_receipted, pass_uncounted

_TLS_HANDSHAKE: Final = 0x16

#: A receipt id up to this length is read in the fast loop.
_FAST_RECEIPT_BYTES_MAX: Final = 256

#: Frames of any size that a run may have: about as many as tiny ones make a step. Their bytes are not looked at.
RUN_COUNT_MIN: Final = 512

#: Cost of one frame, as bytes walked: a step of frames without a length ends after that many of them.
_FRAME_COST_BYTES: Final = 48


class Parser:
    """Parser of a stream of bytes to events. Feed it all input; feed it ``b""`` after `expect` to continue with held
    bytes.

    One instance per connection and direction. Costs O(bytes); holds what the module docstring allows.
    """

    __slots__ = (
        "_acks_in_runs",
        "_ends",
        "_frame_bytes_max",
        "_head_bytes_max",
        "_heads",
        "_held",
        "_inline_bytes_max",
        "_large",
        "_legal",
        "_limits",
        "_marks_sends",
        "_open_frame",
        "_open_head",
        "_open_receipt",
        "_parked",
        "_receipt_bytes_max",
        "_rest",
        "_rest_blank",
        "_rest_pos",
        "_role",
        "_safe_head_bytes_max",
        "_send_bytes_max",
        "_sends",
        "_stages",
        "_state",
        "_step_end",
        "_tail",
        "_target_bytes",
        "_version",
        "_wait",
        "events_max",
        "has_more",
        "receive_buffer",
        "sender",
        "sender_lasts",
        "stamp",
        "step_bytes",
        "unheard",
    )

    def __init__(self, limits: StompLimits, *, role: Role = "server", stages: bool = False) -> None:
        """`stages`: large bodies come in pieces, as large_body_bytes says."""
        self._limits = limits
        self.unheard: Unheard | None = None  #: The topics to which SENDs may be passed over.
        self._stages = stages and limits.large_body_bytes > 0
        self.stamp = b""  #: A header line for each SEND, which its sender can't forge.
        self.sender = ""  #: What marks SENDs of a client that wants none of its own; empty: none is marked.
        self.sender_lasts = False  #: The client says the same of itself in its next session.
        self._marks_sends = False
        self.events_max = maxsize  #: About how many events one `feed` gives; the others come with ``feed(b"")``.
        self.step_bytes = maxsize  #: About how many bytes one `feed` walks; the same.
        self.has_more = False  #: They are held.
        #: What is held then, from which place on, and where its next LF LF is.
        self._rest = b""
        self._rest_pos = 0
        self._rest_blank = -1
        self._step_end = 0
        self._large: LargeBody | None = None
        self._receipt_bytes_max = min(_FAST_RECEIPT_BYTES_MAX, limits.header_line_bytes_max - len("receipt:"))
        self._role: Role = role
        self.receive_buffer = (
            ReceiveBuffer()
        )  #: What of an unfinished frame is here. Its `room` may be filled in place of a `feed`.
        self._wait = AwaitedPart.NOTHING
        self._target_bytes = 0
        self._tail = b""
        self._open_frame: Frame | None = None
        self._open_head: SendHead | None = None
        self._open_receipt: str | None = None
        self._heads = HeadCache()
        self._held = False
        self._ends = False
        self._parked = False
        self.expect(State.GREETING, None)

    def expect(self, state: State, version: Version | None) -> None:
        """Set what may arrive from now on, and in which version; ends a hold. The held bytes are read by the next
        `feed`."""
        self._state = state
        self._version: Version | None = version
        self._legal = arrivals(self._role, state, version)
        self._sends = version is not None and b"SEND" in self._legal
        self._held = False
        limits = self._limits
        self._acks_in_runs = self._sends and runs_keep_to(limits)
        greeting_max = limits.connect_frame_bytes_max
        self._head_bytes_max = (
            limits.header_block_bytes_max if version is not None else min(greeting_max, limits.header_block_bytes_max)
        )
        #: Heads up to this size can't exceed any limit by a longer number in them.
        self._safe_head_bytes_max = min(self._head_bytes_max, limits.header_line_bytes_max)
        self._frame_bytes_max = limits.body_bytes_max if version is not None else greeting_max
        #: The largest body of a SEND, and the largest that is collected.
        self._send_bytes_max = self._inline_bytes_max = self._frame_bytes_max
        if self._stages:
            self._send_bytes_max = limits.large_body_bytes_max
            self._inline_bytes_max = min(limits.large_body_bytes, self._frame_bytes_max, self._send_bytes_max)

    def count_heads(self, account: HeadAccount) -> None:
        """Count the memory of heads of SENDs in this account from now on."""
        self._heads.account = account

    def park(self) -> None:
        """Stop parsing; drop held bytes."""
        self._parked = True
        self._drop_rest()
        self.receive_buffer.clear()
        self._heads.clear()
        self._open_frame = self._open_head = None
        self._large = None

    @property
    def held(self) -> bool:
        """True between a CONNECT and its answer: what arrives is kept, up to stash_bytes_max."""
        return self._held

    @property
    def pending_bytes(self) -> int:
        """Bytes that are held in memory: of an unfinished frame, behind a CONNECT, or not walked yet."""
        return self.receive_buffer.held_bytes + len(self._rest) - self._rest_pos

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order. A fault is the last of them, and parks the parser. Never raises
        `ProtocolError`."""
        events: list[Event] = []
        if self._parked:
            return events
        try:
            if self.has_more:
                rest, pos, blank = self._rest, self._rest_pos, self._rest_blank
                self._drop_rest()
                if data:
                    rest, pos, blank = rest[pos:] + data, 0, -1
                self._parse(rest, pos, events, blank)
            else:
                self._advance(data, events)
        except ProtocolError as error:
            self.park()
            events.append(Fault(error))
        return events

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _advance(self, data: bytes, events: list[Event]) -> None:
        receive_buffer = self.receive_buffer
        if self._held:
            self._hold(data)
            return
        wait = self._wait
        if wait is AwaitedPart.NOTHING:
            self._parse(receive_buffer.take(data) if receive_buffer.size_bytes else data, 0, events)
            return
        if wait is AwaitedPart.HEAD:
            if not self._head_needs_a_look(data):
                receive_buffer.add(data)
                self._tail = (self._tail + data)[-2:]
                return
            self._wait = AwaitedPart.NOTHING
            self._parse(receive_buffer.take(data), 0, events)
            return
        if wait is AwaitedPart.COUNT:
            missing = self._target_bytes - receive_buffer.size_bytes
            if len(data) < missing:
                receive_buffer.add(data)
                receive_buffer.reserve(self._target_bytes)
                return
        elif wait is AwaitedPart.BODY:
            self._fill_frame(data, events)
            return
        elif wait is AwaitedPart.LARGE:
            pos = self._pass_on(data, 0, events)
            if 0 <= pos < len(data):
                self._parse(data, pos, events)
            return
        else:
            missing = data.find(b"\0") + 1
            if receive_buffer.size_bytes + (missing or len(data) + 1) > self._target_bytes:
                if self._open_head is not None:
                    self._turn_large(data, events)
                    return
                missing = len(data)  # The walk sees it again, and refuses it.
            elif not missing:
                receive_buffer.add(data)
                return
        whole = receive_buffer.take(memoryview(data)[:missing])
        self._wait = AwaitedPart.NOTHING
        head = self._open_head
        if head is not None:
            self._open_head = None
            self._add_one(head, whole, self._open_receipt, events)
        else:
            self._parse(whole, 0, events)
        if missing < len(data) and not self._parked:
            if self.held:
                self._hold(data[missing:])
            else:
                self._parse(data, missing, events)

    def _drop_rest(self) -> None:
        self.has_more = False
        self._rest = b""
        self._rest_pos = 0

    def _hold(self, data: bytes) -> None:
        if not data:
            return
        self.receive_buffer.add(data)
        if self.receive_buffer.size_bytes > self._limits.stash_bytes_max:
            raise faults.too_much_before_connected(self._limits.stash_bytes_max)

    def _head_needs_a_look(self, data: bytes) -> bool:
        """True if `data` may end the headers that are being waited for, or may make them wrong."""
        if b"\n\n" in data or b"\n\r\n" in data or b"\0" in data:
            return True
        seam = self._tail + data[:2]
        if b"\n\n" in seam or b"\n\r\n" in seam:
            return True
        after = (before := self.receive_buffer.size_bytes) + len(data)
        return after > self._head_bytes_max or before <= COMMAND_LINE_BYTES_MAX < after

    def _wait_for_head(self, buf: bytes, pos: int) -> None:
        raw = buf[pos : pos + self._head_bytes_max + 3]
        # A line end here may be the first half of the blank line, which does not count.
        self._check_raw_head(raw[:-2] if raw.endswith(b"\n\r") else raw.removesuffix(b"\n"))
        self._wait = AwaitedPart.HEAD
        self._tail = buf[pos:][-2:]
        self.receive_buffer.add(buf[pos:] if pos else buf)

    def _wait_for_body(self, buf: bytes, pos: int, body_start: int, length: int) -> None:
        """Keep an unfinished frame from `pos` on, until its body of `length` octets (-1: up to a NUL) is there."""
        self.receive_buffer.add(buf[pos:] if pos else buf)
        if length < 0:
            self._wait = AwaitedPart.NUL
            self._target_bytes = body_start - pos + self._inline_bytes_max + 1
        else:
            self._wait = AwaitedPart.COUNT
            self._target_bytes = body_start - pos + length + 1

    def _open_body(self, frame: Frame, begun: bytes, length: int) -> None:
        """Keep `frame`, of whose body of `length` octets `begun` is here, until the rest and the NUL are there."""
        self._open_frame = frame
        self._wait = AwaitedPart.BODY
        self._target_bytes = length
        self.receive_buffer.add(begun)
        self.receive_buffer.reserve(length)

    def _fill_frame(self, data: bytes, events: list[Event]) -> None:
        """Add `data` to the body of the open frame, and continue behind the frame if that completes it."""
        receive_buffer = self.receive_buffer
        missing = self._target_bytes - receive_buffer.size_bytes
        if len(data) <= missing:
            if data:
                receive_buffer.add(data)
                receive_buffer.reserve(self._target_bytes)
            return
        frame, self._open_frame = self._open_frame, None
        assert frame is not None
        self._wait = AwaitedPart.NOTHING
        if data[missing]:
            error = faults.missing_nul(frame.command, self._target_bytes)
            error.identify(frame.command, frame.headers)
            raise error
        frame.body = receive_buffer.take(memoryview(data)[:missing])
        events.append(frame)
        if missing + 1 < len(data):
            self._parse(data, missing + 1, events)

    def _add_one(self, head: SendHead, wire: bytes, receipt: str | None, events: list[Event]) -> None:
        if wire[-1]:
            raise self._fault_in_send(faults.missing_nul("SEND", head.content_length), head, receipt)
        events.append(SendRun(head, [wire], len(wire), None if receipt is None else [receipt]))

    # -- the walk ----------------------------------------------------------------------------------------------------

    def _parse(self, buf: bytes, pos: int, events: list[Event], blank: int = -1) -> None:
        """Walk from `pos` on. `blank`: where the next LF LF is, if that is known (`size`: there is none)."""
        size = len(buf)
        version = self._version
        sends = self._sends
        self._step_end = step_end = pos + self.step_bytes
        # `blank` is searched again only when `pos` has passed it, or CR LF clients would cost O(n²).
        while pos < size:
            first = buf[pos]
            if first in EOL_OCTETS:
                pos = skip_eols(buf, pos)
                continue
            if (first == 65 or first == 78) and version is not None and self._acks_in_runs:  # A, N
                end = take_ack_run(buf, pos, step_end, version, first == 78, events)
                if end != pos:
                    pos = end
                    if pos >= step_end and pos < size:
                        self._keep_rest(buf, pos, blank)
                        return
                    continue
            if first == _TLS_HANDSHAKE and version is None:
                raise faults.tls_handshake()
            if blank < pos:
                blank = buf.find(b"\n\n", pos)
                if blank < 0:
                    blank = size
            head_end = buf.find(b"\n\r\n", pos, blank + 1)
            if head_end >= 0:
                body_start = head_end + 3
            elif blank < size:
                head_end = blank
                body_start = blank + 2
            else:
                self._wait_for_head(buf, pos)
                return
            if sends and first == 83 and (buf.startswith(b"SEND\n", pos) or buf.startswith(b"SEND\r\n", pos)):
                pos, step_end = self._take_sends(buf, pos, head_end, body_start, events), self._step_end
            else:
                try:
                    pos = self._take_frame(buf, pos, head_end, body_start, events)
                except ProtocolError as error:
                    identify(error, buf[pos:head_end], version)
                    raise
            if pos < 0:
                return
            if (pos >= step_end or len(events) >= self.events_max) and pos < size and not self._held and not self._ends:
                self._keep_rest(buf, pos, blank)
                return
            if self._held or self._ends:
                if self._ends:
                    self.park()
                elif pos < size:
                    self._hold(buf[pos:])
                return

    def _keep_rest(self, buf: bytes, pos: int, blank: int) -> None:
        self._rest, self._rest_pos, self._rest_blank = buf, pos, blank
        self.has_more = True

    def _check_raw_head(self, raw: bytes) -> None:
        check_raw_head(raw, self._head_bytes_max, self._role, self._state, self._version)

    def _fault_in_send(self, error: ProtocolError, head: SendHead, receipt: str | None) -> ProtocolError:
        error.identify("SEND", head.headers if receipt is None else {**head.headers, "receipt": receipt})
        return error

    def _send_too_large(self, *, collected: bool = False) -> ProtocolError:
        if collected or not self._stages:
            return faults.send_too_large(self._frame_bytes_max, "body_bytes_max")
        return faults.send_too_large(self._send_bytes_max, "large_body_bytes_max")

    def _take_sends(self, buf: bytes, pos: int, head_end: int, body_start: int, events: list[Event]) -> int:
        """Take the SEND at `pos` and all that follow with the same head. Returns where the next frame starts, -1 if
        none is left."""
        found = buf.find(b"\nreceipt:", pos, head_end)
        cached: Entry | None
        if found < 0:
            before = buf[pos:body_start]
            cached = self._heads.get(before)
            if cached is None:
                raw = buf[pos:head_end]
                cached, receipt = self._new_head(before, raw, raw)
                if receipt is not None:
                    return self._take_one(buf, pos, body_start, cached[0], receipt, events)
            length = cached[0].content_length
            if length > self._inline_bytes_max and not cached[0].to_log:
                return self._take_large(buf, body_start, cached[0], None, events)
            if self.unheard is not None and cached[0].destination in self.unheard.names:
                end = self._pass_unheard(buf, pos, before, None, cached[0], events)
                if end > pos:
                    return end
            if length >= 0:
                end = body_start + length + 1
                if (
                    end < len(buf)
                    and not buf[end - 1]
                    and buf[end] not in EOL_OCTETS
                    and not buf.startswith(before, end)
                ):
                    # The frame is a run of one, as where two priorities alternate.
                    wire = buf[pos + 5 : end] if cached[1] else cached[0].block + b"\n\n" + buf[body_start:end]
                    events.append(SendRun(cached[0], [wire], len(wire)))
                    return end
                return self._take_counted(buf, pos, before, cached[0], cached[1], events)
            return self._take_uncounted(buf, pos, before, cached[0], cached[1], events)
        value_at = found + 9
        value_end = buf.find(b"\n", value_at, head_end)
        if value_end < 0:
            value_end = head_end
        value = buf[value_at:value_end]
        plain = 0 < len(value) <= self._receipt_bytes_max and not value.translate(None, PLAIN_OCTETS)
        before, behind = buf[pos:value_at], buf[value_end:body_start]
        if plain and body_start - pos <= self._head_bytes_max:
            key = buf[pos:found] + behind
            cached = self._heads.get(key)
            if cached is None:
                # The whole head, receipt and all, is judged first: what is in the cache has passed every limit.
                self._check_raw_head(buf[pos:head_end])
                cached, other = self._new_head(key, buf[pos:found] + buf[value_end:head_end], buf[pos:head_end])
                if other is not None:  # A second receipt line, or one with blanks around its name.
                    cached = None
            if cached is not None and cached[0].content_length <= self._inline_bytes_max:
                if self.unheard is not None and cached[0].destination in self.unheard.names:
                    end = self._pass_unheard(buf, pos, before, behind, cached[0], events)
                    if end > pos:
                        return end
                return self._take_receipted(buf, pos, before, behind, cached[0], events)
        raw = buf[pos:head_end]
        head, receipt = self._uncached_head(raw, raw)
        return self._take_one(buf, pos, body_start, head, receipt, events)

    def _new_head(self, key: bytes, raw: bytes, seen: bytes) -> tuple[Entry, str | None]:
        """Make a head and keep it under `key`, unless it holds a receipt, which is returned beside it."""
        lengthless, length = cut_length(key)
        if lengthless and length <= self._send_bytes_max and len(seen) <= self._safe_head_bytes_max:
            entry = self._heads.derive(key, lengthless, length)
            if entry is not None:
                return entry, None
        head, receipt = self._uncached_head(raw, seen)
        return ((head, False) if receipt is not None else self._heads.put(key, lengthless, head)), receipt

    def _leaves_own_out(self, headers: dict[str, str]) -> bool:
        try:
            return leave_own_out(headers, self.sender, lasts=self.sender_lasts)
        except ProtocolError as error:
            error.identify("SUBSCRIBE", headers)
            raise

    def _mark_sends(self) -> None:
        """Mark the SENDs behind the SUBSCRIBE that is read."""
        if not self._marks_sends:
            self._marks_sends = True
            mark = f"{SENDER}:{self.sender}".encode()
            self.stamp = self.stamp + b"\n" + mark if self.stamp else mark
            self._heads.clear()

    def _uncached_head(self, raw: bytes, seen: bytes) -> tuple[SendHead, str | None]:
        """Parse command and headers of a SEND. Returns its head and its receipt. `seen`: bytes that a fault is reported
        of.
        """
        version = self._version
        assert version is not None
        try:
            self._check_raw_head(raw)
            head, receipt = SendHead.parse(split_head(raw, version)[1], version, self._limits, stamp=self.stamp)
            head.count(self._heads.account)
            if head.content_length > (self._frame_bytes_max if head.to_log else self._send_bytes_max):
                raise self._send_too_large(collected=head.to_log)
        except ProtocolError as error:
            identify(error, seen, version)
            raise
        return head, receipt

    def _pass_unheard(
        self, buf: bytes, pos: int, before: bytes, behind: bytes | None, head: SendHead, events: list[Event]
    ) -> int:
        """Pass over the SENDs at `pos` with this head that are whole and plain, if no subscriber is to get them.
        `behind`: what follows their receipts. Returns where the first one left begins: at `pos`, if none was passed.
        """
        assert self.unheard is not None, "asked for before"
        if not self.unheard.may_pass(head, events):
            return pos
        length = head.content_length
        span = len(before) + length
        head_bytes = len(before) + (0 if behind is None else len(behind))
        stop = min(len(buf), max(self._step_end, pos + RUN_COUNT_MIN * (head_bytes + max(1, length))))
        receipts: list[str] | None = None
        if behind is not None:
            room = min(self._receipt_bytes_max, self._head_bytes_max - head_bytes)
            end, receipts = pass_receipted(buf, pos, stop, before, behind, room, length, self._inline_bytes_max)
            count = len(receipts)
        elif length >= 0:
            end, count = pass_counted(buf, pos, min(stop, len(buf) - span), before, span)
        else:
            end, count = pass_uncounted(buf, pos, stop, before, self._inline_bytes_max)
        if count:
            events.append(UnheardRun(head, count, receipts))
        return end

    def _take_counted(
        self, buf: bytes, pos: int, before: bytes, head: SendHead, verbatim: bool, events: list[Event]
    ) -> int:
        size = len(buf)
        head_bytes = len(before)
        span = head_bytes + head.content_length  # From the start of a frame to its NUL.
        whole_before = size - span  # A frame that begins later does not end in this buffer.
        stop = min(whole_before, max(self._step_end, pos + RUN_COUNT_MIN * span))
        wires: list[bytes] = []
        add = wires.append
        startswith = buf.startswith
        intact = True
        # How much of a frame is not part of its wire: the command line, or all the head.
        cut = 5 if verbatim else head_bytes
        pos = take_alike(buf, pos, stop, before, cut, span, wires)
        while pos < stop:
            end = pos + span
            if buf[end]:
                intact = False
                break
            add(buf[pos + cut : end + 1])
            pos = end + 1
            if not startswith(before, pos):
                if startswith(before, pos + 1) and buf[pos] in EOL_OCTETS:
                    pos += 1
                    continue
                break
        else:
            # The frame begins with the head of this run, but is for the next step, or does not end in this buffer.
            self._add_run(head, wires, verbatim, events)
            if pos < whole_before:
                return pos
            return self._open_send(buf, pos, head_bytes, head, verbatim, None)
        self._add_run(head, wires, verbatim, events)
        if not intact:
            raise self._fault_in_send(faults.missing_nul("SEND", head.content_length), head, None)
        return pos

    def _take_uncounted(
        self, buf: bytes, pos: int, before: bytes, head: SendHead, verbatim: bool, events: list[Event]
    ) -> int:
        size = len(buf)
        head_bytes = len(before)
        body_max = self._inline_bytes_max
        self._step_end = step_end = min(self._step_end, pos + self.step_bytes // _FRAME_COST_BYTES * (head_bytes + 1))
        wires: list[bytes] = []
        cut = 5 if verbatim else head_bytes
        while True:
            end = buf.find(b"\0", pos + head_bytes)
            if (end if end >= 0 else size) - pos - head_bytes > body_max:
                self._add_run(head, wires, verbatim, events)
                return self._take_large(buf, pos + head_bytes, head, None, events)
            if end < 0:
                self._add_run(head, wires, verbatim, events)
                return self._open_send(buf, pos, head_bytes, head, verbatim, None)
            wires.append(buf[pos + cut : end + 1])
            pos = end + 1
            if pos >= step_end and len(wires) >= RUN_COUNT_MIN:
                break
            if not buf.startswith(before, pos):
                if buf.startswith(before, pos + 1) and buf[pos] in EOL_OCTETS:
                    pos += 1
                    continue
                break
        self._add_run(head, wires, verbatim, events)
        return pos

    def _take_receipted(
        self, buf: bytes, pos: int, before: bytes, behind: bytes, head: SendHead, events: list[Event]
    ) -> int:
        """Like the other two, for frames that differ in their receipt only: it stands between `before` and `behind`."""
        size = len(buf)
        length = head.content_length
        body_max = self._inline_bytes_max
        step_end = self._step_end
        before_bytes = len(before)
        behind_bytes = len(behind)
        # How long a receipt may be in here: its line and the block must stay inside their limits, which only the slow
        # path checks.
        room = min(self._receipt_bytes_max, self._head_bytes_max - before_bytes - behind_bytes)
        start = head.block + b"\n\n"
        wires: list[bytes] = []
        raw_receipts: list[bytes] = []
        starts: list[int] = []
        find = buf.find
        startswith = buf.startswith
        unfinished = large = False
        fault: ProtocolError | None = None
        while True:
            value_at = pos + before_bytes
            value_end = find(behind, value_at, value_at + room + behind_bytes)
            if value_end <= value_at:
                break  # Too long, empty, or with other headers behind it: the slow path knows. Never so for the first.
            value = buf[value_at:value_end]
            body = value_end + behind_bytes
            if length >= 0:
                end = body + length
                if end >= size:
                    unfinished = True
                elif buf[end]:
                    fault = faults.missing_nul("SEND", length)
            else:
                end = find(b"\0", body)
                if (end if end >= 0 else size) - body > body_max:
                    large = True
                elif end < 0:
                    unfinished = True
            starts.append(pos)
            raw_receipts.append(value)
            if unfinished or large or fault is not None:
                break
            wires.append(start + buf[body : end + 1])
            pos = end + 1
            if pos >= step_end and len(wires) >= RUN_COUNT_MIN:
                break
            if not startswith(before, pos):
                if startswith(before, pos + 1) and buf[pos] in EOL_OCTETS:
                    pos += 1
                    continue
                break
        if b"".join(raw_receipts).translate(None, PLAIN_OCTETS):
            # Something to unescape, to trim or to refuse: that frame and all behind it are taken one by one.
            odd = next(i for i, value in enumerate(raw_receipts) if value.translate(None, PLAIN_OCTETS))
            del wires[odd:], raw_receipts[odd:]
            pos = starts[odd]
            unfinished, large, fault = False, False, None
        receipts = [value.decode() for value in raw_receipts]
        if wires:
            events.append(SendRun(head, wires, sum(map(len, wires)), receipts[: len(wires)]))
        if fault is not None:
            raise self._fault_in_send(fault, head, receipts[-1])
        if large:
            return self._take_large(buf, body, head, receipts[-1], events)
        if unfinished:
            return self._open_send(buf, pos, body - pos, head, False, receipts[-1])
        return pos

    def _take_one(
        self, buf: bytes, pos: int, body_start: int, head: SendHead, receipt: str | None, events: list[Event]
    ) -> int:
        """Take one SEND whose head is of no use for others."""
        head_bytes = body_start - pos
        if head.content_length > self._inline_bytes_max and not head.to_log:
            return self._take_large(buf, body_start, head, receipt, events)
        if head.content_length >= 0:
            end = body_start + head.content_length
            if end >= len(buf):
                return self._open_send(buf, pos, head_bytes, head, False, receipt)
        else:
            end = buf.find(b"\0", body_start)
            if (end if end >= 0 else len(buf)) - body_start > self._inline_bytes_max:
                return self._take_large(buf, body_start, head, receipt, events)
            if end < 0:
                return self._open_send(buf, pos, head_bytes, head, False, receipt)
        self._add_one(head, head.block + b"\n\n" + buf[body_start : end + 1], receipt, events)
        return end + 1

    def _add_run(self, head: SendHead, wires: list[bytes], verbatim: bool, events: list[Event]) -> None:
        if not wires:
            return
        if not verbatim:
            start = head.block + b"\n\n"
            wires = [start + wire for wire in wires]
        events.append(SendRun(head, wires, sum(map(len, wires))))

    def _open_send(
        self, buf: bytes, pos: int, head_bytes: int, head: SendHead, verbatim: bool, receipt: str | None
    ) -> int:
        """Keep the unfinished SEND at `pos` as the beginning of its wire. Always returns -1."""
        self._open_head = head
        self._open_receipt = receipt
        if verbatim:
            self._wait_for_body(buf, pos + 5, pos + head_bytes, head.content_length)
        else:
            self.receive_buffer.add(head.block + b"\n\n")
            self._wait_for_body(buf, pos + head_bytes, pos + head_bytes, head.content_length)
            self._target_bytes += head.body_offset
        if head.content_length >= 0:
            self.receive_buffer.reserve(self._target_bytes)
        return -1

    # -- large bodies ------------------------------------------------------------------------------------------------

    def _take_large(self, buf: bytes, body_start: int, head: SendHead, receipt: str | None, events: list[Event]) -> int:
        """Take the SEND whose body is too large to be collected. Returns where the next frame starts, -1 if the body is
        incomplete.
        """
        if not self._stages or self._inline_bytes_max == self._send_bytes_max:
            raise self._fault_in_send(self._send_too_large(), head, receipt)
        events.append(LargeSendStart(head, receipt))
        self._large = LargeBody(head, receipt, self._send_bytes_max)
        return self._pass_on(buf, body_start, events)

    def _pass_on(self, buf: bytes, pos: int, events: list[Event]) -> int:
        large = self._large
        assert large is not None
        try:
            pos = large.take(buf, pos, events)
        except ProtocolError as error:
            self._fault_in_send(error, large.head, large.receipt)
            raise
        if pos < 0:
            self._wait = AwaitedPart.LARGE
        else:
            self._wait = AwaitedPart.NOTHING
            self._large = None
        return pos

    def _turn_large(self, data: bytes, events: list[Event]) -> None:
        """A body without content-length has become too large to be collected further."""
        head, receipt = self._open_head, self._open_receipt
        assert head is not None
        if not self._stages:
            raise self._fault_in_send(self._send_too_large(), head, receipt)
        whole = self.receive_buffer.take(data)
        self._open_head = None
        pos = self._take_large(whole, head.body_offset, head, receipt, events)
        if 0 <= pos < len(whole):
            self._parse(whole, pos, events)

    # -- everything else ---------------------------------------------------------------------------------------------

    def _take_frame(self, buf: bytes, pos: int, head_end: int, body_start: int, events: list[Event]) -> int:
        """Take one frame of any kind. Returns where the next one starts, -1 if this one is not complete."""
        raw = buf[pos:head_end]
        self._check_raw_head(raw)
        line, block = split_head(raw, self._version)
        legal = self._legal.get(line)
        if legal is None:
            raise refusal(self._role, self._state, self._version, text_of(line))
        command, then = legal
        version = self._version
        unescape_as = None if command in NEVER_ESCAPED else version
        headers = parse_headers(block, self._limits, unescape_as=unescape_as, trim=version == "1.0")
        length = whole_number(headers, "content-length", 2**63 - 1, absent=-1)
        # A body where none may be is refused by the machine; until then it must not be larger than headers may be.
        body_max = self._frame_bytes_max if command in WITH_BODY else min(self._frame_bytes_max, self._head_bytes_max)
        if length >= 0:
            end = body_start + length
            too_large = length > body_max
        else:
            end = buf.find(b"\0", body_start)
            too_large = (end if end >= 0 else len(buf)) - body_start > body_max
        if too_large:
            raise faults.body_too_large(command, body_max)
        if end < 0 or end >= len(buf):
            if command == "MESSAGE" and length >= 0:
                self._open_body(Frame(command, headers), buf[body_start:], length)
                return -1
            self._wait_for_body(buf, pos, body_start, length)
            if length < 0:
                self._target_bytes = body_start - pos + body_max + 1
            return -1
        if buf[end]:
            raise faults.missing_nul(command, length)
        body = buf[body_start:end]
        is_bare_ack = command in ("ACK", "NACK") and not body
        if is_bare_ack and version is not None and add_plain_ack(headers, version, command == "NACK", events):
            return end + 1
        if command == "SUBSCRIBE" and self.sender and self._leaves_own_out(headers):
            self._mark_sends()
        events.append(Frame(command, headers, body))
        if then is Then.HOLD:
            self._held = True
        elif then is Then.END:
            self._ends = True
        return end + 1
