"""Answers of other hubs beside MESSAGEs: RECEIPTs, ERRORs and notices.

Those of the client are passed on as they lie. The relay asks for receipts of its own, whose ids the client can't guess:
one for each hub of a SEND to several hubs, of which the client's is made when all are there, and others for which
something waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ..escaping import escape_value, unescape
from ..replies import MEMORY, Leg, Owed, Replies
from .far import NUL_LF, Far
from .near import NearSession

_RECEIPT: Final = b"RECEIPT\nreceipt-id:"
_FLOW_ENDS: Final = (b"\ncode:shutdown\n", b"\ncode:shard-away\n")
"""Part of an ERROR behind which the flow ends, and another hub has its destinations, or will have them."""


class _Then(Leg):
    """A receipt of the relay's own, at this hub."""

    def __init__(self, replies: Replies, receipt_id: str | None, callback: Callable[[], None]) -> None:
        """`receipt_id`: that of the client."""
        super().__init__(replies, Owed([] if receipt_id is None else [receipt_id], 1), "")
        self._callback = callback

    def done(self, durability: str, indexes: Iterable[tuple[str, tuple[int, int]]] = ()) -> None:
        self._callback()


class Answers:
    """Answers to one client that come from other hubs, and the relay's own receipts."""

    def __init__(self, near: NearSession) -> None:
        self._near = near
        self._replies = near.replies
        self._awaited: dict[bytes, Callable[[], None]] = {}
        """RECEIPTs of other hubs for which something waits."""
        self._asked: dict[bytes, Callable[[Mapping[str, str]], None]] = {}
        """RECEIPTs of other hubs whose headers are an answer."""
        self.own_receipt = f"sluiceway-relay-{near.hub.new_session_id()}-"
        """See `FarOwner.own_receipt`."""
        self._own_bytes = self.own_receipt.encode()
        self._last = 0

    # ------------------------------------------------------------------ receipts of the relay's own

    def _next(self) -> str:
        self._last += 1
        return f"{self.own_receipt}{self._last}"

    def leg(self, owed: Owed, name: str) -> str:
        """Return a receipt for the part of a SEND to several hubs that goes to these destinations."""
        receipt_id = self._next()
        self._replies.legs[receipt_id] = Leg(self._replies, owed, name)
        return receipt_id

    def told_by_hub(self, callback: Callable[[], None]) -> str:
        """Return a receipt whose RECEIPT comes from another hub, and is answered by a callback."""
        receipt_id = self._next()
        self._awaited[receipt_id.encode()] = callback
        return receipt_id

    def asked_of_hub(self, callback: Callable[[Mapping[str, str]], None]) -> str:
        """Return a receipt whose RECEIPT comes from another hub; the callback takes its headers."""
        receipt_id = self._next()
        self._asked[receipt_id.encode()] = callback
        return receipt_id

    def take_question_back(self, receipt_id: str) -> Callable[[Mapping[str, str]], None] | None:
        """Return what waits for the headers of a RECEIPT, which does not come any more."""
        return self._asked.pop(receipt_id.encode(), None)

    def told_here(self, asked: str | None, callback: Callable[[], None]) -> str:
        """Return a receipt for this hub, which is answered by a callback. `asked`: that of the client."""
        receipt_id = self._next()
        self._replies.legs[receipt_id] = _Then(self._replies, asked, callback)
        return receipt_id

    def take_back(self, receipt_id: str) -> Callable[[], None] | None:
        """Return what waits for a RECEIPT of another hub, which does not come any more."""
        return self._awaited.pop(receipt_id.encode(), None)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._awaited.clear()
        self._asked.clear()

    # ------------------------------------------------------------------ what comes back

    def take(self, far: Far, data: bytes) -> None:
        """Pass RECEIPTs on, and look at them; an ERROR ends the connection."""
        passed: list[bytes] = []
        for frame in data.split(NUL_LF)[:-1]:
            if frame.startswith(_RECEIPT):
                receipt_id = frame[len(_RECEIPT) : frame.index(b"\n", len(_RECEIPT))]
                far.receipted(receipt_id)
                if receipt_id.startswith(self._own_bytes):
                    self._own_receipted(receipt_id, frame)
                else:
                    passed.append(frame)
            elif frame.startswith(b"ERROR\n"):
                self._pass_on(passed)
                passed = []
                if not any(code in frame for code in _FLOW_ENDS):
                    self._near.pass_on_error(self._with_asked_receipt(frame) + b"\0")
            elif not frame.startswith(b"CONNECTED\n"):
                passed.append(frame)  # a notice, such as the end of what a browser sees
        self._pass_on(passed)

    def _pass_on(self, frames: list[bytes]) -> None:
        if frames:
            self._near.outbound.send_control(NUL_LF.join(frames) + b"\0", len(frames))

    def _own_receipted(self, receipt_id: bytes, frame: bytes) -> None:
        leg = self._replies.legs.pop(receipt_id.decode(), None)
        if leg is not None:
            headers = self._headers_of(frame)
            leg.done(headers.get("durability", MEMORY), list(_places_of(headers)))
            return
        asked = self._asked.pop(receipt_id, None)
        if asked is not None:
            asked(self._headers_of(frame))
            return
        awaited = self._awaited.pop(receipt_id, None)
        if awaited is not None:
            awaited()

    def _headers_of(self, frame: bytes) -> dict[str, str]:
        lines = (line.partition(b":") for line in frame.split(b"\n"))
        return {name.decode(): unescape(value.decode(), self._near.version) for name, _colon, value in lines}

    def _with_asked_receipt(self, frame: bytes) -> bytes:
        """Return an ERROR with the receipt that the client has asked for, in place of that of one leg of its SEND."""
        start = b"\nreceipt-id:" + self._own_bytes
        if start not in frame:
            return frame
        before, _found, rest = frame.partition(start)
        digits, _newline, behind = rest.partition(b"\n")
        asked = self._replies.asked_for(self.own_receipt + digits.decode())
        if asked is None or asked.startswith(self.own_receipt):
            return before + b"\n" + behind
        return before + b"\nreceipt-id:" + escape_value(asked, self._near.version).encode() + b"\n" + behind


def _places_of(headers: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what a RECEIPT says of logs: log (empty: it names none), first index, count of records."""
    if "index" in headers:
        yield "", (int(headers["index"]), int(headers["count"]))
    for place in headers["indexes"].split(",") if "indexes" in headers else ():
        log, _sign, index = place.rpartition("=")
        yield log, (int(index), int(headers["count"]))
