"""Both ends of a link, joined without a stream."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from sluiceway.protocols.link.flow import Flow
from sluiceway.protocols.link.greeting import Greeting
from sluiceway.protocols.link.machine import LinkMachine, LinkState
from sluiceway.protocols.link.records import Kind

SECRET = b"secret"


def greeting(name: str, **changes: object) -> Greeting:
    """A greeting of a hub of the cluster `c`."""
    facts: dict[str, object] = {
        "cluster": "c",
        "hub": name,
        "software": "sluiceway/1",
        "shards_count": 4,
        "challenge": f"of {name}",
    }
    return Greeting(**{**facts, **changes})  # type: ignore[arg-type]


class Noting:
    """A user of a flow that notes everything."""

    def __init__(self) -> None:
        self.data: list[tuple[Kind, bytes]] = []
        self.confirmations: list[tuple[int, int]] = []
        self.settled_count = 0
        self.end: tuple[str, bool] | None = None
        self.opening = b""
        self.flow: Flow | None = None

    @property
    def received(self) -> bytes:
        return b"".join(data for kind, data in self.data if kind is not Kind.LARGE)

    def arrived(self, kind: Kind, data: bytes) -> None:
        self.data.append((kind, data))

    def settle(self) -> None:
        self.settled_count += 1

    def confirmed(self, read_bytes: int, done_bytes: int) -> None:
        self.confirmations.append((read_bytes, done_bytes))

    def ended(self, reason: str, *, lost: bool) -> None:
        self.end = (reason, lost)


@attrs.define
class Time:
    """Clock of an end."""

    seconds: float = 0.0
    certain_seconds: float = math.inf

    def clock(self) -> float:
        return self.seconds


@attrs.define
class End:
    """One end, and the users of the flows that the other end has opened."""

    machine: LinkMachine
    opened: list[Noting]
    time: Time


def end_of(
    ours: Greeting,
    *,
    dialled: bool,
    secret: bytes | None = SECRET,
    expected_hub: str | None = None,
    prove: Callable[[Greeting], None] | None = None,
) -> End:
    """Make an end."""
    opened: list[Noting] = []
    time = Time()

    def take(flow: Flow, payload: bytes) -> Noting:
        user = Noting()
        user.flow, user.opening = flow, payload
        opened.append(user)
        return user

    machine = LinkMachine(
        ours,
        dialled=dialled,
        secret=secret,
        clock=time.clock,
        opened=take,
        request_write=lambda: None,
        expected_hub=expected_hub,
        prove=prove,
        certain_seconds=lambda: time.certain_seconds,
    )
    return End(machine, opened, time)


def written(end: End) -> bytes:
    """One write of an end."""
    return b"".join(end.machine.gather())


def talk(one: End, other: End, now: float = 0.0) -> None:
    """Carry bytes to and fro until nothing waits."""
    one.time.seconds = other.time.seconds = now
    while True:
        there, back = written(one), written(other)
        if not there and not back:
            return
        if there:
            other.machine.receive(there)
        if back:
            one.machine.receive(back)


def linked() -> tuple[End, End]:
    """Both ends of an open link."""
    one, other = end_of(greeting("a"), dialled=True), end_of(greeting("b"), dialled=False)
    talk(one, other)
    assert one.machine.state is other.machine.state is LinkState.OPEN
    return one, other
