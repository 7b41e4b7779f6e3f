"""One end of a link, without its stream: bytes in, flows served, bytes out.

Life: GREETING (until the HELLO of the peer), PROVING (until its PROOF), OPEN, ENDED. `moves` says what may come when.
The side that dialled numbers its flows odd, the other one even.

Fair turns: flows that have something to write stand in a line. Each write takes `TURN_BYTES` of the first, which goes
to the end of the line if it has more, and so on up to `WRITE_BYTES`. So a flow with a gigabyte delays the others by one
portion each, and all that many flows have at the end of a dispatch turn is one write.

Half-open links: a PING is said every `PING_SECONDS`; nothing heard for `SILENCE_SECONDS` is the end.

Lease: an end that hears nothing gives the link up, and gives what it had sent to other clients. So what comes may be
delivered only while it is certain that the other end has not done so: for as long as its last PONG has said, from the
moment at which the answered PING was said. The other end has heard this one no earlier than that, and waits longer. It
grants no more than the certainty of its own session: behind that the next owner delivers. A link whose stream has ended
brings no deliveries either, though bytes are left to read.

Pure: the clock is passed in, random challenges in the greeting. Bounds: `FLOWS_MAX`; what waits is charged
by the users of flows; records of the link itself are few and short, since each answers a record of the peer, or
happens once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from math import inf
from types import MappingProxyType
from typing import Final

from . import greeting as greetings
from .flow import REFUSED, Flow, FlowUser
from .greeting import Greeting
from .records import (
    DATA_BYTES_MAX,
    DATA_KINDS,
    PREFACE,
    WORDS_BYTES_MAX,
    Kind,
    LinkFault,
    OpeningTooLargeError,
    Record,
    RecordReader,
    decode_lease,
    decode_size,
    decode_taken,
    encode,
    encode_lease,
)

TURN_BYTES: Final = 64 * 1024
"""Bytes of one flow before the next one has its turn."""
WRITE_BYTES: Final = 1 << 20
"""Approximate size of one write."""
SILENCE_SECONDS: Final = 15.0
"""Silence that is the end of a link: the peer is gone, or the network between."""
LEASE_SECONDS: Final = SILENCE_SECONDS * 2 / 3
"""Time behind a PING that was answered, in which the peer has not given this end up: clocks may run apart by a tenth,
and processes be late, as with sessions.
"""
PING_SECONDS: Final = 5.0
"""Time between two PINGs; less where leases are shorter than `LEASE_SECONDS`."""
PING_SECONDS_MIN: Final = 0.25
FLOWS_MAX: Final = 100_000
"""Flows of one link: one for each client connection that uses the other hub."""


class _Nobody:
    """User of a flow that was opened too late, or is refused."""

    def arrived(self, kind: Kind, data: bytes) -> None:
        """Drop the data."""

    def settle(self) -> None:
        """Do nothing."""

    def confirmed(self, read_bytes: int, done_bytes: int) -> None:
        """Do nothing."""

    def ended(self, reason: str, *, lost: bool) -> None:
        """Do nothing."""


_NOBODY: Final = _Nobody()


class LinkState(IntEnum):
    """States of one end of a link, in the order of its life."""

    GREETING = 0
    PROVING = 1
    OPEN = 2
    ENDED = 3


_FLOW_KINDS: Final = frozenset({Kind.OPEN, *DATA_KINDS, Kind.LARGE, Kind.TAKEN, Kind.END, Kind.FACTS, Kind.MISSED})
ARRIVALS: Final[Mapping[LinkState, frozenset[Kind]]] = MappingProxyType(
    {
        LinkState.GREETING: frozenset({Kind.HELLO}),
        LinkState.PROVING: frozenset({Kind.PROOF, Kind.GOODBYE}),
        LinkState.OPEN: frozenset({Kind.GOODBYE, Kind.PING, Kind.PONG, Kind.SHARDS, *_FLOW_KINDS}),
        LinkState.ENDED: frozenset(),
    }
)
"""Kinds of records that may come in each state."""

Opened = Callable[[Flow, bytes], FlowUser]
"""Makes the user of a flow that the peer has opened, from its opening record. Raises LinkFault for an invalid one,
before it has said anything: then the flow is refused, and the link goes on.
"""


class LinkMachine:
    """One end of a link."""

    def __init__(
        self,
        ours: Greeting,
        *,
        dialled: bool,
        secret: bytes | None,
        clock: Callable[[], float],
        opened: Opened,
        request_write: Callable[[], None],
        expected_hub: str | None = None,
        prove: Callable[[Greeting], None] | None = None,
        certain_seconds: Callable[[], float] = lambda: inf,
    ) -> None:
        """Make an end. `ours`: the greeting of this hub; `secret`: shared by the hubs of the cluster; None: the stream
        proves who the peer is, and `prove` checks that it does (raises LinkFault). `request_write`: call `gather` at
        the end of the turn. `certain_seconds`: time for which this hub is certain of its session, from now on.
        """
        self._ours = ours
        self._dialled = dialled
        self._secret = secret
        self._prove = prove
        self._opened = opened
        self._request_write = request_write
        self._expected_hub = expected_hub
        self._reader = RecordReader()
        self.state = LinkState.GREETING
        self.peer: Greeting | None = None
        """Greeting of the peer, when it has said it. Proved when `state` is OPEN."""
        self.flows: dict[int, Flow] = {}
        self._next_number = 1 if dialled else 2
        self._peer_number = 0
        """Highest number of the flows that the peer has opened."""
        self._line: deque[Flow] = deque()
        self._own: list[bytes] = [PREFACE, encode(Kind.HELLO, 0, ours.encode())]
        self._clock = clock
        self._certain_seconds = certain_seconds
        self._heard_seconds = clock()
        self._asked_seconds = -inf
        """Time of the last PING."""
        self._is_asked = False
        """Whether the last PING is not answered yet."""
        self._pause_seconds = PING_SECONDS_MIN
        """Time from one PING to the next."""
        self._leased_until_seconds = -inf
        self._was_over = False
        """Whether the lease was over when it was asked for, since the last PONG."""
        self.is_hung_up = False
        """Whether the peer has closed its end: deliveries that are left to read are with other clients."""
        self.look_again: Callable[[], None] = _nothing
        """Callback when `look` is due earlier than it has said."""
        self.lease_renewed: Callable[[], None] = _nothing
        """Callback when deliveries may go on that `may_deliver` has refused."""
        self.goodbye: str | None = None
        """Reason for which the peer leaves in order; None: it has not said so."""
        self._has_parted = False
        self.shards: frozenset[int] | None = None
        """Shards that the peer has open; None: it has not said so."""
        self.shards_changed: Callable[[], None] = _nothing
        """Callback when the peer has said which shards it has open."""

    # ------------------------------------------------------------------ in

    def receive(self, data: bytes) -> None:
        """Receive bytes of the peer. Raises LinkFault: the link is to end."""
        self._heard_seconds = self._clock()
        touched: dict[Flow, None] = {}
        try:
            for record in self._reader.feed(data):
                if record.kind not in ARRIVALS[self.state]:
                    raise LinkFault(f"the peer sent {record.kind.name} in the state {self.state.name} of the link")
                self._take(record, touched)
        finally:
            for flow in touched:
                flow.user.settle()

    def _take(self, record: Record, touched: dict[Flow, None]) -> None:
        kind, number, payload = record
        if number == 0:
            if kind in _FLOW_KINDS:
                raise LinkFault(f"the peer sent {kind.name} without a flow")
            self._take_own(kind, payload)
            return
        if kind not in _FLOW_KINDS:
            raise LinkFault(f"the peer sent {kind.name} with a flow")
        if kind is Kind.OPEN:
            self._take_open(number, payload)
            return
        flow = self.flows.get(number)
        if flow is None or flow.ended_there:
            if kind is Kind.TAKEN and (flow is not None or self._was_opened(number)):
                return  # nobody waits for it any more
            raise LinkFault(f"the peer sent {kind.name} for the flow {number}, which is not open")
        touched[flow] = None
        if kind is Kind.TAKEN:
            self._take_confirmation(flow, payload)
        elif kind is Kind.END:
            flow.ended_there = True
            flow.user.ended(payload.decode("utf-8", "replace"), lost=False)
            if flow.ended_here and not flow.is_waiting:
                self.closed(flow)
        else:
            if kind is Kind.LARGE:
                decode_size(payload)
            flow.user.arrived(kind, payload)

    def _was_opened(self, number: int) -> bool:
        """Return whether a flow had this number at any time."""
        is_own = number % 2 == (1 if self._dialled else 0)
        return number < self._next_number if is_own else number <= self._peer_number

    def _take_confirmation(self, flow: Flow, payload: bytes) -> None:
        read_bytes, done_bytes = decode_taken(payload)
        if not (flow.peer_read_bytes <= read_bytes <= flow.sent_bytes and flow.peer_done_bytes <= done_bytes):
            raise LinkFault(
                f"the peer confirms bytes of the flow {flow.number} that were never sent, or takes some back"
            )
        flow.peer_read_bytes, flow.peer_done_bytes = read_bytes, done_bytes
        flow.user.confirmed(read_bytes, done_bytes)

    def _take_own(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.HELLO:
            self.peer = peer = greetings.decode(payload)
            greetings.check(self._ours, peer, expected_hub=self._expected_hub)
            self.state = LinkState.PROVING
            made = (
                b"" if self._secret is None else greetings.proof(self._secret, self._ours, peer, dialled=self._dialled)
            )
            self._say(Kind.PROOF, made)
        elif kind is Kind.PROOF:
            assert self.peer is not None
            if self._secret is not None:
                expected = greetings.proof(self._secret, self.peer, self._ours, dialled=not self._dialled)
                greetings.check_proof(payload, expected, self.peer.hub)
            elif self._prove is not None:
                self._prove(self.peer)
            self.state = LinkState.OPEN
            self._reader.payload_bytes_max = DATA_BYTES_MAX
            self._ask()  # before any flow: its answer comes before what flows bring
        elif kind is Kind.PING:
            self._say(Kind.PONG, encode_lease(min(max(self._certain_seconds(), 0.0), LEASE_SECONDS)))
        elif kind is Kind.PONG:
            self._take_pong(payload)
        elif kind is Kind.GOODBYE:
            self.goodbye = payload.decode("utf-8", "replace")
        elif kind is Kind.SHARDS:
            self.shards = _shards_of(payload)
            self.shards_changed()

    def _take_pong(self, payload: bytes) -> None:
        if not self._is_asked:
            raise LinkFault("the peer answered a PING that was not said")
        self._is_asked = False
        lease_seconds = min(decode_lease(payload, LEASE_SECONDS), LEASE_SECONDS)
        self._leased_until_seconds = self._asked_seconds + lease_seconds
        self._pause_seconds = max(min(PING_SECONDS, lease_seconds / 3), PING_SECONDS_MIN)
        self.look_again()
        if self._was_over:
            self._was_over = False
            self.lease_renewed()

    def _take_open(self, number: int, payload: bytes) -> None:
        if number % 2 == (1 if self._dialled else 0):
            raise LinkFault(f"the peer opened the flow {number}, which is one of this side")
        if number in self.flows:
            raise LinkFault(f"the peer opened the flow {number}, which is open")
        if len(self.flows) >= FLOWS_MAX:
            raise LinkFault(f"the peer opened more than {FLOWS_MAX} flows")
        self._peer_number = max(self._peer_number, number)
        flow = self.flows[number] = Flow(number, self)
        if self._has_parted:
            flow.user = _NOBODY
            flow.end("this hub stops")
        else:
            try:
                flow.user = self._opened(flow, payload)
            except LinkFault as fault:  # one client is not to cost the others their flows
                flow.user = _NOBODY
                flow.end(f"{REFUSED}{fault}")

    # ------------------------------------------------------------------ out

    def open(self, opening: bytes, user: FlowUser) -> Flow:
        """Open a flow. Only while the link is OPEN. Raises OpeningTooLargeError, with nothing sent."""
        assert self.state is LinkState.OPEN, "ask for the state first"
        if len(opening) > WORDS_BYTES_MAX:
            raise OpeningTooLargeError(len(opening))
        number = self._next_number
        self._next_number += 2
        flow = self.flows[number] = Flow(number, self)
        flow.user = user
        flow.say(Kind.OPEN, opening)
        return flow

    @property
    def has_ended(self) -> bool:
        """Whether the link is over."""
        return self.state is LinkState.ENDED

    @property
    def takes_flows(self) -> bool:
        """Whether a flow can be opened."""
        return (
            self.state is LinkState.OPEN
            and self.goodbye is None
            and not self._has_parted
            and len(self.flows) < FLOWS_MAX
        )

    def part(self, reason: str) -> None:
        """Say goodbye: no new flow is opened; those that are open end by themselves."""
        if not self._has_parted and self.state is not LinkState.ENDED:
            self._has_parted = True
            self._say(Kind.GOODBYE, reason.encode("utf-8", "replace")[:1000])

    def announce(self, shards: Iterable[int]) -> None:
        """Say which shards this hub has open. What flows say later comes later. Only while the link is OPEN."""
        self._say(Kind.SHARDS, json.dumps(sorted(shards)).encode())

    def _say(self, kind: Kind, payload: bytes = b"") -> None:
        self._own.append(encode(kind, 0, payload))
        self._request_write()

    def gather(self) -> list[bytes | memoryview]:
        """Return the bytes of one write, in pieces: a portion of each flow in turn. Empty: nothing waits."""
        pieces: list[bytes | memoryview] = []
        taken = 0
        if self._own:
            pieces.extend(self._own)
            taken = sum(map(len, self._own))
            self._own.clear()
        line = self._line
        while line and taken < WRITE_BYTES:
            flow = line.popleft()
            taken += flow.take(TURN_BYTES, pieces)
            if flow.is_waiting:
                line.append(flow)
        return pieces

    @property
    def has_output(self) -> bool:
        """Whether `gather` would return something."""
        return bool(self._own or self._line)

    def ready(self, flow: Flow) -> None:
        """Do `Outlet.ready`."""
        if self.state is not LinkState.ENDED:
            self._line.append(flow)
            self._request_write()

    def closed(self, flow: Flow) -> None:
        """Do `Outlet.closed`."""
        self.flows.pop(flow.number, None)

    # ------------------------------------------------------------------ time, and the end

    def look(self) -> float:
        """Look at the time: ask the peer for a sign of life, or give it up. Returns the seconds until the next look, if
        `look_again` is not called before. Raises LinkFault after a long silence.
        """
        now_seconds = self._clock()
        silent_seconds = now_seconds - self._heard_seconds
        if silent_seconds >= SILENCE_SECONDS:
            raise LinkFault(f"nothing was heard from the peer for {silent_seconds:.0f} seconds")
        left_seconds = SILENCE_SECONDS - silent_seconds
        if self.state is not LinkState.OPEN or self._is_asked:
            return left_seconds
        due_seconds = self._asked_seconds + self._pause_seconds - now_seconds
        if due_seconds > 0:
            return min(due_seconds, left_seconds)
        self._ask()
        return left_seconds

    def _ask(self) -> None:
        """Say PING."""
        self._is_asked = True
        self._asked_seconds = self._clock()
        self._say(Kind.PING)

    def may_deliver(self) -> bool:
        """Do `Outlet.may_deliver`."""
        if not self.is_hung_up and self._clock() < self._leased_until_seconds:
            return True
        self._was_over = True
        return False

    def end(self, reason: str) -> None:
        """End the link, whose stream is gone: all flows are lost. Again: nothing happens."""
        if self.state is LinkState.ENDED:
            return
        self.state = LinkState.ENDED
        self._own.clear()
        self._line.clear()
        flows, self.flows = list(self.flows.values()), {}
        for flow in flows:
            was_over = flow.ended_there
            flow.drop()
            if not was_over:
                flow.user.ended(reason, lost=True)
            flow.user.settle()


def _shards_of(payload: bytes) -> frozenset[int]:
    """Read numbers of shards. Raises LinkFault."""
    try:
        shards = json.loads(payload)
    except ValueError:
        shards = None
    if not isinstance(shards, list) or not all(type(shard) is int and shard >= 0 for shard in shards):
        raise LinkFault("the peer named shards in an invalid record")
    return frozenset(shards)


def _nothing() -> None:
    return
