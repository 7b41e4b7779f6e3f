"""Calls of one hub to another: requests of clients, dead letters, actions of operators.

Two hubs have one flow for the calls of each of them. A call has a service, a head (JSON) and a body (bytes), and so has
its answer. A call goes to the home of a name: this hub answers it itself, or the hub that has the name now; where no
hub has it, or none can be reached, the call waits, for a limited time. When a flow is lost its calls are made again, so
services do the same thing twice without harm. A hub that does not have the name any more says `away`, and the home is
looked for again.

    number (8), bytes of the head (4), bytes of the body (4), head, body

Order: a call of a client is made when the other hub has read what the client had sent to it before (`Behind`).

Bounds: CALLS_MAX calls of one service under way, BYTES_MAX bytes of them; more are refused. What the other hubs ask is
bounded by the same limits there. All of it is charged to an account on the flow map.

Not here: what is asked (`asking`, `letters`), and the bytes of a link (`sluiceway.protocols.link`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from struct import Struct
from typing import Any, Final

import attrs

from sluiceway.flow import FlowManager
from sluiceway.protocols.link.flow import FlowUser
from sluiceway.protocols.link.load import LinkLoad, Unread
from sluiceway.protocols.link.records import Kind, LinkFault
from sluiceway.protocols.stomp.hub import Behind
from sluiceway.protocols.stomp.placement import Elsewhere, FlowEnd, Home

OPENING: Final = "calls"
"""Key of the opening record of a flow of calls."""
CALLS_MAX: Final = 1_000
"""Calls of one service under way."""
BYTES_MAX: Final = 32 << 20
"""Bytes of the calls of one service under way."""
WAIT_SECONDS: Final = 30.0
"""Time for which a call waits for a hub, and for its answer from a hub that was lost."""
AWAY_SECONDS: Final = 0.25
"""Pause behind an answer `away`: this hub learns of the new home meanwhile."""
LOOK_SECONDS: Final = 1.0
"""Time between two looks for calls that have waited too long."""
HEAD_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 512 << 20

NO_HUB: Final = "shard-away"
"""Error of a call that found no hub in its time."""
FULL: Final = "TOO_MANY_REQUESTS"
MISTAKE: Final = "INTERNAL_ERROR"

_FRAME: Final = Struct("!QII")

Head = Mapping[str, Any]
Answered = Callable[[Head, bytes], None]
"""Gets head and body of an answer. A head with `error` and `message` says why there is none; `in_doubt`: it may have
been done all the same.
"""
Service = Callable[[str, Head, bytes, Answered], None]
"""Answers a call: gets the hub that asks (empty: this one), head, body, and who is to get the answer, now or later."""
AWAY: Final[Head] = {"away": True}
"""Head of the answer of a hub that does not have the name of a call."""


class _End:
    """One end of a flow of calls: frames in, frames out."""

    def __init__(
        self,
        load: LinkLoad,
        take: Callable[[_End, int, dict[str, Any], bytes], None],
        over: Callable[[_End], None],
    ) -> None:
        """`take` gets each frame; `over`: the flow has ended."""
        self.flow: FlowEnd
        self._load = load
        self._take = take
        self._over = over
        self._data = bytearray()
        self._need_bytes = _FRAME.size
        """Bytes of the next frame, as far as they are known."""
        self._read_bytes = 0
        self._unread = Unread(load.charge)
        self.is_over = False

    def send(self, number: int, head: Head, body: bytes) -> None:
        """Send one frame; nothing when the flow is over."""
        if self.is_over:
            return
        said = json.dumps(head, separators=(",", ":")).encode()
        data = _FRAME.pack(number, len(said), len(body)) + said + body
        self._unread.send(self.flow, data)

    # ------------------------------------------------------------------ FlowUser

    def arrived(self, kind: Kind, data: bytes) -> None:
        """Do `FlowUser.arrived`. Raises LinkFault."""
        if self.is_over or kind not in (Kind.PART, Kind.DATA):
            return
        self._data += data
        self._load.charge(len(data))
        self._read_bytes += len(data)
        while len(self._data) >= self._need_bytes:
            number, head_bytes, body_bytes = _FRAME.unpack_from(self._data)
            if head_bytes > HEAD_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
                raise LinkFault(f"the peer sent a call of {head_bytes} and {body_bytes} bytes, which is too large")
            start, end = _FRAME.size + head_bytes, _FRAME.size + head_bytes + body_bytes
            if len(self._data) < end:
                self._need_bytes = end
                break
            try:
                head = json.loads(self._data[_FRAME.size : start])
            except ValueError as error:
                raise LinkFault(f"the peer sent a call whose head is no JSON: {error}") from None
            if not isinstance(head, dict):
                raise LinkFault("the peer sent a call whose head is no object")
            body = bytes(self._data[start:end])
            del self._data[:end]
            self._need_bytes = _FRAME.size
            self._load.charge(-end)
            self._take(self, number, head, body)

    def settle(self) -> None:
        """Do `FlowUser.settle`."""
        if not self.is_over:
            self.flow.took(self._read_bytes, self._read_bytes)

    def confirmed(self, read_bytes: int, _done_bytes: int) -> None:
        """Do `FlowUser.confirmed`."""
        self._unread.confirmed(read_bytes)

    def ended(self, reason: str, *, lost: bool) -> None:
        """Do `FlowUser.ended`."""
        if not self.is_over:
            if not lost:
                self.flow.end(reason)
            self.close()
            self._over(self)

    def close(self) -> None:
        """Forget what is under way."""
        self.is_over = True
        self._load.charge(-len(self._data))
        self._data.clear()
        self._unread.close()


@attrs.define(eq=False)
class _Asked:
    """One call without its answer."""

    number: int
    place: Callable[[], Home]
    service: str
    head: Head
    body: bytes
    answered: Answered
    behind: Behind | None
    until_seconds: float
    """Clock reading after which it waits for no hub."""
    hub: str | None = None
    """Hub that was asked, empty: this one; None: none is."""
    why: str = ""
    """Reason why none is."""
    is_in_doubt: bool = False
    """Whether a hub was lost that may have got it."""

    @property
    def size_bytes(self) -> int:
        return len(self.body) + 512


class Calls:
    """Calls of this hub to others, and theirs to this one."""

    def __init__(
        self,
        elsewhere: Elsewhere,
        *,
        manager: FlowManager,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        contain: Callable[[Exception], None],
    ) -> None:
        """Make the calls of a hub. `contain` is given mistakes of a service, or of one who gets an answer."""
        self._elsewhere = elsewhere
        self._clock = clock
        self._call_later = call_later
        self._contain = contain
        self._services: dict[str, Service] = {}
        self._load = LinkLoad(lambda: "calls to other hubs", manager, clock)
        self._numbers = count(1)
        self._asked: dict[int, _Asked] = {}
        """Calls without an answer, in the order of asking."""
        self._under_way: dict[str, list[int]] = {}
        """Number of calls of each service, and their bytes."""
        self._ends: dict[str, _End] = {}
        self._served: set[_End] = set()
        self._is_watching = False
        self._looks_later = False
        self._is_closed = False

    def serve(self, name: str, service: Service) -> None:
        """Have this service answer the calls of this name."""
        self._services[name] = service

    @property
    def under_way_count(self) -> int:
        """Calls without an answer."""
        return len(self._asked)

    # ------------------------------------------------------------------ asking

    def others(self) -> list[str]:
        """Return all other hubs that have a shard."""
        return list(self._elsewhere.placement.others())

    def home_of(self, name: str) -> Home:
        """Return the home of a destination, log or query."""
        return self._elsewhere.placement.home_of(name)

    def ask(
        self,
        place: Callable[[], Home],
        service: str,
        head: Head,
        body: bytes,
        answered: Answered,
        *,
        behind: Behind | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Ask the hub of this place, looked up whenever the call is made (again). `answered` is called once, now
        or later. `behind`: see the module; `wait_seconds`: how long the call waits where no hub can be reached:
        with 0 it is not made again when its flow is lost, and fails in doubt.
        """
        load = self._under_way.setdefault(service, [0, 0])
        if load[0] >= CALLS_MAX or load[1] >= BYTES_MAX or self._is_closed:
            words = f"{load[0]:,} calls to other hubs wait for their answers: ask again later"
            answered({"error": FULL, "message": words}, b"")
            return
        until_seconds = self._clock() + wait_seconds
        asked = _Asked(next(self._numbers), place, service, head, body, answered, behind, until_seconds)
        self._asked[asked.number] = asked
        load[0] += 1
        load[1] += asked.size_bytes
        self._load.charge(asked.size_bytes)
        self._make(asked)

    def _make(self, asked: _Asked) -> None:
        home = asked.place()
        if home.why_not:
            self._wait(asked, home.why_not)
        elif not home.hub:
            asked.hub = ""
            self._call(asked.service, "", asked.head, asked.body, partial(self._answered_here, asked))
        elif asked.behind is not None:
            asked.hub = home.hub
            asked.behind(home.hub, partial(self._send, asked, home.hub))
        else:
            asked.hub = home.hub
            self._send(asked, home.hub)

    def _send(self, asked: _Asked, hub: str) -> None:
        if asked.number not in self._asked or asked.hub != hub:
            return
        end = self._end_to(hub)
        if end is None:
            self._wait(asked, f"hub {hub} can't be reached")
        else:
            end.send(asked.number, {**asked.head, "service": asked.service}, asked.body)

    def _end_to(self, hub: str) -> _End | None:
        end = self._ends.get(hub)
        if end is None:
            end = _End(self._load, self._take_answer, partial(self._lost, hub))
            flow = self._elsewhere.open(hub, {OPENING: True}, end)
            if flow is None:
                return None
            end.flow = flow
            self._ends[hub] = end
        return end

    def _wait(self, asked: _Asked, why: str) -> None:
        asked.hub, asked.why = None, why
        if self._clock() >= asked.until_seconds:
            self._give_up(asked)
            return
        if not self._is_watching:
            self._is_watching = True
            self._elsewhere.watch(self.look)
        self._look_later(LOOK_SECONDS)

    def _give_up(self, asked: _Asked) -> None:
        words = f"no hub can answer now: {asked.why}"
        self._done(asked, {"error": NO_HUB, "message": words, "in_doubt": asked.is_in_doubt}, b"")

    def _look_later(self, seconds: float) -> None:
        if not self._looks_later:
            self._looks_later = True
            self._call_later(seconds, self._looked_later)

    def _looked_later(self) -> None:
        self._looks_later = False
        self.look()

    def look(self) -> None:
        """Make the calls that wait for a hub, if there is one now; those that have waited too long fail."""
        if self._is_closed:
            return
        waiting = [asked for asked in self._asked.values() if asked.hub is None]
        for asked in waiting:
            self._make(asked)
        if not waiting and self._is_watching:
            self._is_watching = False
            self._elsewhere.unwatch(self.look)

    def _take_answer(self, end: _End, number: int, head: dict[str, Any], body: bytes) -> None:
        asked = self._asked.get(number)
        if asked is None or asked.hub is None or self._ends.get(asked.hub) is not end:
            return
        if head.get("away"):
            asked.hub, asked.why = None, "the hub that had it has it no more"
            if self._clock() >= asked.until_seconds:
                self._give_up(asked)
            else:
                self._look_later(AWAY_SECONDS)
            return
        self._done(asked, head, body)

    def _answered_here(self, asked: _Asked, head: Head, body: bytes) -> None:
        if asked.number not in self._asked:
            return
        if head.get("away"):
            self._wait(asked, "this hub has it no more")
        else:
            self._done(asked, head, body)

    def _done(self, asked: _Asked, head: Head, body: bytes) -> None:
        del self._asked[asked.number]
        load = self._under_way[asked.service]
        load[0] -= 1
        load[1] -= asked.size_bytes
        self._load.charge(-asked.size_bytes)
        try:
            asked.answered(head, body)
        except Exception as error:  # noqa: BLE001 - one who asked is not to cost the others
            self._contain(error)

    def _lost(self, hub: str, end: _End) -> None:
        """Make the calls of a lost flow again."""
        if self._ends.get(hub) is end:
            del self._ends[hub]
        for asked in [each for each in self._asked.values() if each.hub == hub]:
            asked.is_in_doubt = True
            self._wait(asked, f"hub {hub} was lost")

    # ------------------------------------------------------------------ answering

    def opened(self, peer_hub: str, flow: FlowEnd) -> FlowUser:
        """Serve a flow of calls that another hub has opened."""
        end = _End(self._load, partial(self._take_call, peer_hub), self._served.discard)
        end.flow = flow
        self._served.add(end)
        return end

    def _take_call(self, peer_hub: str, end: _End, number: int, head: dict[str, Any], body: bytes) -> None:
        size_bytes = len(body) + 512
        self._load.charge(size_bytes)
        is_answered = False

        def answered(answer: Head, answer_body: bytes) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                self._load.charge(-size_bytes)
                end.send(number, answer, answer_body)

        self._call(str(head.pop("service", "")), peer_hub, head, body, answered)

    def _call(self, name: str, peer_hub: str, head: Head, body: bytes, answered: Answered) -> None:
        service = self._services.get(name)
        if service is None:
            answered(
                {
                    "error": "not-supported",
                    "message": f"this hub does not answer calls of the kind {name[:40]!r}: run one version on all hubs",
                },
                b"",
            )
            return
        try:
            service(peer_hub, head, body, answered)
        except Exception as error:  # noqa: BLE001 - one call is not to cost the link
            answered({"error": MISTAKE, "message": "the hub made a mistake with this call: its log says more"}, b"")
            self._contain(error)

    # ------------------------------------------------------------------ end

    def close(self) -> None:
        """Forget what is under way: the hub stops."""
        self._is_closed = True
        if self._is_watching:
            self._elsewhere.unwatch(self.look)
        for end in (*self._ends.values(), *self._served):
            end.close()
        self._ends.clear()
        self._served.clear()
        self._asked.clear()
        self._load.close()
