"""One flow of a client to another hub: the near end of a proxy session.

SENDs stay here until the other hub has done them, in order, so that they can be sent again over another flow. Whatever
else is under way is counted until the other hub has read it. What comes back goes to the output of the client as it
lies; when the client has taken it the other hub is told.

A hub that is not certain of its session may have been given up by the others: what it was to deliver they have given to
other clients, who may have acknowledged it. So messages that arrive then *wait* here, with all behind them: they go on
when the same session is certain again. Over a flow of an earlier session nothing is delivered: it counts as lost. Its
bytes may lie in the socket of a process that was stopped, before their end. Likewise where the other hub may have given
the link up: messages wait until it has answered a PING, or the link ends (`link.machine` says why).

Deliberately not here: which frame goes over which flow (`relay`). Bounds: those of the owner, which counts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from ...link.flow import REFUSED
from ...link.load import Unread
from ...link.records import Kind, decode_size
from ...outbound import Outbound
from ..encoder import BEHIND_NUL, encode_frame
from ..escaping import Version, escape_value
from ..frames import Frame, PassedRun
from ..head import SendHead
from ..placement import Elsewhere, FlowEnd
from .copies import CopyLine
from .inward import LargeInward
from .kept import ENTRY_BYTES, Kept

NUL_LF: Final = b"\0" + BEHIND_NUL
_DELIVERIES: Final = frozenset({Kind.DATA, Kind.PART, Kind.LARGE})
_TERM_OVER: Final = "this hub was not in the cluster for a while"


class FarOwner(Protocol):
    """Owner of the flows of one client. `Relay` fits."""

    @property
    def version(self) -> Version:
        """Version that the client speaks."""

    @property
    def own_receipt(self) -> str:
        """Beginning of receipts that are not asked for by the client, who can't guess it."""

    @property
    def charge(self) -> Callable[[int], None]:
        """Counts bytes that are on their way, or fewer: they have arrived, or are dropped."""

    def copy_line(self, hub: str, flow: FlowEnd) -> CopyLine:
        """Return the line of copies for the subscribers of a hub, over a new flow."""

    def control(self, far: Far, data: bytes) -> None:
        """Take frames that are no ordinary MESSAGEs."""

    def lost(self, far: Far) -> None:
        """Take back what a lost flow had to do."""

    def refused(self, far: Far, reason: str) -> None:
        """End the connection: the other hub does not accept what is told of the client."""

    def ended(self, far: Far) -> None:
        """Note that the session has ended in order, behind a DISCONNECT."""

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run this once at the end of the dispatch turn."""


class Far:
    """One flow to another hub: the session of the client there."""

    __slots__ = (
        "_collected",
        "_control",
        "_elsewhere",
        "_group",
        "_group_bytes",
        "_groups",
        "_inward",
        "_is_over",
        "_kept",
        "_key",
        "_marks",
        "_outbound",
        "_read_bytes",
        "_relay",
        "_term",
        "_undone",
        "_unread",
        "_waiting",
        "asked",
        "copies",
        "flow",
        "hub",
        "in_doubt",
        "is_leaving",
        "prefix",
        "session_id",
        "shards",
        "subs",
        "tokens",
    )

    def __init__(self, relay: FarOwner, hub: str, serial: int, outbound: Outbound) -> None:
        """`serial`: number of the flow among all that the client ever had; names its deliveries."""
        self._relay = relay
        self._outbound = outbound
        self.hub = hub
        self.prefix = b"%d." % serial
        self.flow: FlowEnd
        self.session_id = ""
        """Session of the client."""
        self.copies: CopyLine
        """Copies of SENDs to topics, for the subscribers of the other hub."""
        self.tokens: frozenset[bytes] = frozenset()
        self.shards: frozenset[int] = frozenset()
        """Beginnings of the message-ids of the other hub."""
        self.subs: dict[str, Frame] = {}
        self.asked: dict[str, str] = {}
        """Receipts of SUBSCRIBEs that are not back, by subscription."""
        self.in_doubt: dict[bytes, str] = {}
        """Commands whose receipts are not back, and that can't be repeated."""
        self._kept: dict[bytes | int, Kept] = {}
        """SENDs that may have to be sent again, in order: by receipt, or by a number."""
        self._key = 0
        self._undone: deque[tuple[int, int]] = deque()
        """End offset of runs without receipts, with their keys."""
        self._unread = Unread(relay.charge)
        """Other bytes, which are not sent again."""
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()
        """Callbacks for when the other hub has read up to an offset."""
        self._read_bytes = 0
        self._group: list[bytes] = []
        self._group_bytes = 0
        self._groups: deque[tuple[int, int]] = deque()
        """Offset in the output of the client, and size, of what the client has not taken."""
        self._control = b""
        self._inward: LargeInward | None = None
        self._is_over = False
        self._elsewhere: Elsewhere
        self._term: str | None = None
        """Session of this hub in which the flow was opened."""
        self._waiting: list[tuple[Kind, bytes]] = []
        """Records that have arrived since this hub is not certain of that session, or of the link. Bounded, like all
        that the client has not taken, by the output of the other hub.
        """
        self.is_leaving = False

    def has_message(self, token: bytes, shard: int, elsewhere: Elsewhere) -> bool:
        """Return whether a message-id with this token, and a number of this shard, is of the other hub."""
        return token in self.tokens and (shard in self.shards or shard in elsewhere.shards_at(self.hub))

    @property
    def kept_count(self) -> int:
        """Runs of SENDs that may have to be sent again."""
        return len(self._kept)

    def open(self, elsewhere: Elsewhere, opening: Mapping[str, object]) -> bool:
        """Open the flow. False: the hub can't be reached. Raises OpeningTooLargeError."""
        flow = elsewhere.open(self.hub, {**opening, "ack_prefix": self.prefix.decode()}, self)
        if flow is None:
            return False
        self.flow = flow
        self.session_id = str(opening["session"])
        self._elsewhere, self._term = elsewhere, elsewhere.term
        self.copies = self._relay.copy_line(self.hub, flow)
        version = opening["version"]
        client_id = opening["client_id"]
        assert isinstance(client_id, str), "the session makes it"
        lines = f"CONNECT\naccept-version:{version}\nhost:{self.hub}\n"
        if client_id:
            lines += f"client-id:{client_id}\n"
        self.flow.send_frames(lines.encode() + b"\n\0")
        return True

    # ------------------------------------------------------------------ out

    def send(self, data: bytes) -> None:
        """Send bytes that are not sent again when the flow is lost."""
        self._flush_copies()
        self._unread.send(self.flow, data)

    def _flush_copies(self) -> None:
        """Send copies that wait before what comes behind them."""
        if self.copies.waits:
            self.copies.flush()

    def _send_behind_copies(self, data: bytes) -> None:
        self._flush_copies()
        self.flow.send_frames(data)

    def send_frame(self, frame: Frame, version: Version) -> None:
        """Send a frame without a body."""
        receipt_id = frame.headers.get("receipt")
        if receipt_id is not None:
            if frame.command == "SUBSCRIBE":
                key = frame.headers.get("id", f"destination {frame.headers['destination']}")
                self.asked[key] = receipt_id
            else:
                self.in_doubt[escape_value(receipt_id, version).encode()] = frame.command
        self.send_again_safe(frame, version)

    def send_again_safe(self, frame: Frame, version: Version) -> None:
        """Send a frame without a body. Nothing is in doubt when the flow is lost: another one has its effect then."""
        self.send(encode_frame(frame.command, frame.headers.items(), version=version))

    def send_passed(self, run: PassedRun) -> None:
        """Send SENDs as they lie, and keep them until they are done."""
        data = run.data
        self._key += 1
        self._kept[self._key] = Kept(run.head, [], None, len(data), passed=run)
        self._relay.charge(len(data))
        self._send_behind_copies(data)
        self._undone.append((self.flow.sent_bytes, self._key))

    def send_run(self, kept: Kept) -> None:
        """Send SENDs, and keep them until they are done."""
        head, wires, receipts = kept.head, kept.wires, kept.receipts
        own = self._kept
        if receipts is None:
            data = b"SEND\n" + b"SEND\n".join(wires)
            self._key += 1
            own[self._key] = Kept(head, wires, None, len(data))
            self._relay.charge(len(data))
            self._send_behind_copies(data)
            self._undone.append((self.flow.sent_bytes, self._key))
            return
        version = head.version
        parts: list[bytes] = []
        for receipt_id, wire in zip(receipts, wires, strict=True):
            escaped = escape_value(receipt_id, version).encode()
            parts += (b"SEND\nreceipt:", escaped, b"\n", wire)
            size_bytes = len(wire) + ENTRY_BYTES
            earlier = own.pop(escaped, None)
            if earlier is None:
                own[escaped] = Kept(head, [wire], [receipt_id], size_bytes)
            else:  # the client uses a receipt id again before its RECEIPT
                self._key += 1
                own[self._key] = earlier
                own[escaped] = Kept(head, [wire], [receipt_id], size_bytes)
            self._relay.charge(size_bytes)
        self._send_behind_copies(b"".join(parts))

    def send_in_transaction(
        self, head: SendHead, wires: Iterable[bytes], receipts: list[str] | None, transaction: str
    ) -> None:
        """Send SENDs of a transaction: they are lost with the flow."""
        lead = b"SEND\ntransaction:" + escape_value(transaction, head.version).encode() + b"\n"
        if receipts is None:
            self.send(lead + lead.join(wires))
            return
        parts: list[bytes] = []
        for receipt_id, wire in zip(receipts, wires, strict=True):
            escaped = escape_value(receipt_id, head.version).encode()
            self.in_doubt[escaped] = "SEND"
            parts += (lead, b"receipt:", escaped, b"\n", wire)
        self.send(b"".join(parts))

    def begin_large(self, head: SendHead, receipt_id: str | None) -> None:
        """Send the head of a SEND whose body follows in pieces."""
        lines = b"SEND\n"
        if head.transaction is not None:
            lines += b"transaction:" + escape_value(head.transaction, head.version).encode() + b"\n"
        if receipt_id is not None:
            escaped = escape_value(receipt_id, head.version).encode()
            self.in_doubt[escaped] = "a large SEND"
            lines += b"receipt:" + escaped + b"\n"
        self.send(lines + head.block + b"\n\n")

    def end_large(self) -> None:
        """Send the end of that body."""
        self.send(b"\0")

    def when_read(self, callback: Callable[[], None]) -> None:
        """Call this when the other hub has read what was sent so far. If the flow is lost: see `take_marks`."""
        if self.flow.unread_bytes:
            self._marks.append((self.flow.sent_bytes, callback))
        else:
            callback()

    def take_marks(self) -> list[Callable[[], None]]:
        """Return the callbacks of `when_read` that were not called, and forget them."""
        marks = [callback for _offset, callback in self._marks]
        self._marks.clear()
        return marks

    def disconnect(self, receipt_id: str | None) -> None:
        """Say DISCONNECT, once."""
        if not self.is_leaving:
            self.is_leaving = True
            lines = b"" if receipt_id is None else b"receipt:" + self._relay.own_receipt.encode() + b"0\n"
            self._send_behind_copies(b"DISCONNECT\n" + lines + b"\n\0")

    def close(self) -> None:
        """End the flow: the client has gone."""
        taken_bytes = self._outbound.taken_bytes
        for start, size_bytes in self._groups:
            if taken_bytes > start:
                self._take(min(taken_bytes - start, size_bytes))
        self._is_over = True
        self._wait_no_more()
        self._kept.clear()
        self._groups.clear()
        self.copies.flush()
        self.flow.end("its client has gone")
        if self._inward is not None:
            self._inward.break_off("the client has gone")

    # ------------------------------------------------------------------ FlowUser

    def arrived(self, kind: Kind, data: bytes) -> None:
        """Do `FlowUser.arrived`."""
        if self._is_over:
            return
        if self._waiting or (kind in _DELIVERIES and not self._may_deliver()):
            self._wait(kind, data)
        else:
            self._act(kind, data)

    def _may_deliver(self) -> bool:
        return self._elsewhere.may_deliver(self._term) and self.flow.may_deliver()

    def _wait(self, kind: Kind, data: bytes) -> None:
        if self._elsewhere.term != self._term:
            self.ended(_TERM_OVER, lost=True)
            return
        if not self._waiting:
            self._elsewhere.watch(self._look)
        self._waiting.append((kind, data))

    def _look(self) -> None:
        """Act on what waits, if this hub is certain of its session and the link again; give the flow up if it is in
        another session now.
        """
        if self._elsewhere.term != self._term:
            self.ended(_TERM_OVER, lost=True)
        elif self._may_deliver():
            for kind, data in self._wait_no_more():
                self._act(kind, data)

    def _wait_no_more(self) -> list[tuple[Kind, bytes]]:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._elsewhere.unwatch(self._look)
        return waiting

    def _act(self, kind: Kind, data: bytes) -> None:
        if self._is_over:
            return
        if kind is Kind.CONTROL:
            self._take(len(data))
            self._control += data
            if self._control.endswith(NUL_LF):
                data, self._control = self._control, b""
                self._relay.control(self, data)
        elif kind is Kind.LARGE:
            self._inward = LargeInward(decode_size(data), self._take, self._relay.at_turn_end)
            self._inward.begin(self._outbound)
        elif kind is Kind.FACTS:
            facts = json.loads(data)
            self.tokens = frozenset(token.encode() for token in facts.get("tokens", ()))
            self.shards = frozenset(facts.get("shards", ()))
        elif self._inward is not None:
            self._inward.arrived(data)
            if kind is Kind.DATA:
                self._inward = None
        else:
            self._group.append(data)
            self._group_bytes += len(data)
            if kind is Kind.DATA:
                group, size_bytes = self._group, self._group_bytes
                self._group, self._group_bytes = [], 0
                self._groups.append((self._outbound.appended_bytes, size_bytes))
                self._outbound.send_messages(group, size_bytes, None, partial(self._written, size_bytes))

    def settle(self) -> None:
        """Do `FlowUser.settle`."""

    def confirmed(self, read_bytes: int, done_bytes: int) -> None:
        """Do `FlowUser.confirmed`."""
        if self._is_over:
            return
        self.copies.confirmed(read_bytes)
        self._unread.confirmed(read_bytes)
        undone = self._undone
        while undone and undone[0][0] <= done_bytes:
            kept = self._kept.pop(undone.popleft()[1], None)
            if kept is not None:
                self._relay.charge(-kept.charge_bytes)
        while self._marks and self._marks[0][0] <= read_bytes:
            self._marks.popleft()[1]()

    def ended(self, reason: str, *, lost: bool) -> None:
        """Do `FlowUser.ended`."""
        if self._is_over or self._ends_with_what_waits():
            return
        self._is_over = True
        self.flow.end(reason)
        if self._inward is not None:
            self._inward.break_off(reason)
        self._unread.close()
        self.copies.close()
        if self.is_leaving and not lost:
            for kept in self._kept.values():
                self._relay.charge(-kept.charge_bytes)
            self._kept.clear()
            self._relay.ended(self)
        elif not lost and reason.startswith(REFUSED):
            self._relay.refused(self, reason.removeprefix(REFUSED))
        else:
            self._relay.lost(self)

    def _ends_with_what_waits(self) -> bool:
        """Act on what waits and is no delivery: those are with other clients now, RECEIPTs stay true. Returns whether
        the flow is over behind it: there was an ERROR.
        """
        for kind, data in self._wait_no_more():
            if kind not in _DELIVERIES:
                self._act(kind, data)
        return self._is_over

    def _take(self, size_bytes: int) -> None:
        """Give credit for bytes; none when the flow is over."""
        if self._is_over:
            return
        self._read_bytes += size_bytes
        self.flow.took(self._read_bytes, self._read_bytes)

    def _written(self, size_bytes: int, taken: bool) -> None:
        """Tell the other hub that the client has them: that settles deliveries with ack auto."""
        if taken and not self._is_over:
            self._groups.popleft()
            self._take(size_bytes)

    def receipted(self, receipt_id: bytes) -> None:
        """Forget what a RECEIPT confirms."""
        kept = self._kept.pop(receipt_id, None)
        if kept is not None:
            self._relay.charge(-kept.charge_bytes)
            return
        if self.in_doubt:
            self.in_doubt.pop(receipt_id, None)
        if self.asked:
            for key, asked in list(self.asked.items()):
                if escape_value(asked, self._relay.version).encode() == receipt_id:
                    del self.asked[key]

    def take_kept(self) -> list[Kept]:
        """Return the SENDs that must be sent again."""
        kept = list(self._kept.values())
        self._kept.clear()
        for each in kept:
            each.in_doubt = each.is_part = True
            each.cut()
        return kept
