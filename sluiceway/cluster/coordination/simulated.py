"""Coordination in one process on virtual time, with faults: the service and the clients of one host (service.py,
client.py) over a network that delays, holds back and cuts.

Everything follows from the calls and one source of chance. Faults:

    expire                  a session ends under a running hub
    hold, release           a partition: messages of a hub wait, in one direction or both, as TCP has it
    cut                     a connection is lost, with what is under way
    stop, start             the service is away, and comes back with its records and sessions
    HubTime                 a hub that is paused (SIGSTOP) or crashed, a clock that is off and runs fast or slow
    Faults                  late messages, watches that come late or never, reads that lag
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

import attrs

from sluiceway.dispatcher.timers import TimerHeap
from sluiceway.store.compare_and_set import Versioned

from .client import ServiceClient
from .messages import Message
from .port import Scheduling, TimerHandle
from .service import Service, Table

TIMERS_AT_ONCE_MAX: Final = 1_000

LOOK_SECONDS: Final = 0.25
"""Time between two looks at what has expired."""


class Time(Scheduling, Protocol):
    """Time of a simulation: of all hubs and the service."""

    def clock(self) -> float:
        """Return the time in seconds."""


class VirtualTime:
    """Time that passes when `run` is called."""

    def __init__(self) -> None:
        self._heap = TimerHeap()
        self._now_seconds = 0.0

    def clock(self) -> float:
        """Return the time in seconds."""
        return self._now_seconds

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back after a delay."""
        return self._heap.add(self._now_seconds + max(delay_seconds, 0.0), callback)

    def run(self, seconds: float) -> None:
        """Let time pass, with all that is due meanwhile."""
        end_seconds = self._now_seconds + seconds
        while (due_seconds := self._heap.next_pending_seconds()) <= end_seconds:
            self._now_seconds = max(due_seconds, self._now_seconds)
            self._heap.run_due(self._now_seconds, TIMERS_AT_ONCE_MAX)
        self._now_seconds = end_seconds


class _HubTimer:
    """Timer that can be cancelled as long as it has not run, also while its hub is paused."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HubTime:
    """Clock and timers of one hub; and whether its process runs at all."""

    def __init__(self, time: Time, *, offset_seconds: float = 0.0, rate: float = 1.0) -> None:
        """`offset_seconds`: added to the clock; `rate`: seconds of the hub in one second."""
        self._time = time
        self._offset_seconds = offset_seconds
        self._rate = rate
        self._missed: deque[Callable[[], None]] | None = None
        self.crashed = False

    @property
    def paused(self) -> bool:
        """Whether the process stands still."""
        return self._missed is not None

    def clock(self) -> float:
        """Return monotonic seconds of the hub."""
        return self._offset_seconds + self._rate * self._time.clock()

    def true_seconds(self, clock_seconds: float) -> float:
        """Return the time of the simulation at which the clock of the hub shows this."""
        return (clock_seconds - self._offset_seconds) / self._rate

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back after a delay by the clock of the hub."""
        timer = _HubTimer()

        def due() -> None:
            if not timer.cancelled:
                callback()

        self._time.call_later(delay_seconds / self._rate, lambda: self.do(due))
        return timer

    def do(self, callback: Callable[[], None]) -> None:
        """Run a callback in the process of the hub: now, when it goes on, or never."""
        if self._missed is not None:
            self._missed.append(callback)
        elif not self.crashed:
            callback()

    def pause(self) -> None:
        """Stop the process where it is."""
        if self._missed is None:
            self._missed = deque()

    def resume(self) -> None:
        """Let the process go on, with all that came meanwhile."""
        missed, self._missed = self._missed, None
        for callback in missed or ():
            self.do(callback)  # to the end of the line, if one of them has paused the process again

    def crash(self) -> None:
        """End the process: none of its callbacks runs any more."""
        self.crashed = True
        self._missed = None


@attrs.define
class Faults:
    """Chances and times of faults. Zero: none."""

    delay_seconds_max: float = 0.0
    """Time of a message on its way."""
    stale_chance: float = 0.0
    """Chance that a read lags as far as it may."""
    watch_lost_chance: float = 0.0
    watch_late_seconds_max: float = 0.0
    """Time by which an event of a watch comes after its change, and after later messages."""


class _LaggingTable(Table):
    """Values with their history: a reader may lag, and never goes back."""

    def __init__(self, random: Random, faults: Faults) -> None:
        super().__init__()
        self._random = random
        self._faults = faults
        self._number = 0
        self._history: dict[str, list[tuple[int, Versioned[bytes] | None]]] = {}
        self._seen: dict[str, int] = {}

    def get(self, key: str, reader: str) -> Versioned[bytes] | None:
        return self._at(key, self._look(reader))

    def names(self, prefix: str, reader: str) -> list[str]:
        view = self._look(reader)
        found = [key for key in self._history if key.startswith(prefix) and self._at(key, view) is not None]
        return sorted({key[len(prefix) :].partition("/")[0] for key in found})

    def put(self, key: str, value: Versioned[bytes] | None, writer: str) -> None:
        super().put(key, value, writer)
        self._number += 1
        self._history.setdefault(key, []).append((self._number, value))
        if writer:
            self._seen[writer] = self._number

    def _look(self, reader: str) -> int:
        """Move the view of a reader on, all the way or not."""
        seen = self._seen.get(reader, 0)
        if self._faults.stale_chance and self._random.random() < self._faults.stale_chance:
            seen = self._random.randint(seen, self._number)
        else:
            seen = self._number
        self._seen[reader] = seen
        return seen

    def _at(self, key: str, view: int) -> Versioned[bytes] | None:
        for number, value in reversed(self._history.get(key, ())):
            if number <= view:
                return value
        return None


class _Pipe:
    """One direction of a connection: messages in order, each some time after it was sent."""

    def __init__(self, network: SimulatedService, deliver: Callable[[Message | None], None]) -> None:
        self._network = network
        self._deliver = deliver
        self._waiting: deque[tuple[float, Message | None]] = deque()
        self._held = False
        self.closed = False

    def send(self, message: Message | None) -> None:
        """Send a message; None is the end."""
        arrives_at_seconds = self._network.now_seconds + self._network.delay_seconds()
        if self._waiting:
            arrives_at_seconds = max(arrives_at_seconds, self._waiting[-1][0])
        self._waiting.append((arrives_at_seconds, message))
        self._network.time.call_later(arrives_at_seconds - self._network.now_seconds, self._pump)

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._network.time.call_later(0, self._pump)

    def _pump(self) -> None:
        while self._waiting and not self._held and not self.closed:
            if self._waiting[0][0] > self._network.now_seconds + 1e-9:
                return
            self._deliver(self._waiting.popleft()[1])


class _Connection:
    """Connection of one hub, as a Peer."""

    def __init__(self, network: SimulatedService, channel: SimulatedChannel) -> None:
        self._network = network
        self._channel = channel
        self.to_service = _Pipe(network, self._arrived_at_service)
        self.to_hub = _Pipe(network, self._arrived_at_hub)

    # Peer.

    def send(self, message: Message) -> None:
        faults, random = self._network.faults, self._network.random
        if message.get("event") in ("changed", "hubs"):
            if faults.watch_lost_chance and random.random() < faults.watch_lost_chance:
                return
            if faults.watch_late_seconds_max:
                late_seconds = random.uniform(0, faults.watch_late_seconds_max)
                self._network.time.call_later(late_seconds, lambda: self.to_hub.send(message))
                return
        self.to_hub.send(message)

    def hang_up(self, why: str) -> None:
        self.to_hub.send(None)
        self.to_service.closed = True

    # Both ends.

    def cut(self, words: str) -> None:
        """Lose the connection and what is under way."""
        self.to_hub.closed = self.to_service.closed = True
        self._network.service_lost(self)
        self._channel.lost(self, words)

    def closed_by_hub(self) -> None:
        """Send the end to the service; nothing more comes from there."""
        self.to_hub.closed = True
        self.to_service.send(None)

    def _arrived_at_service(self, message: Message | None) -> None:
        self._network.arrived(self, message)

    def _arrived_at_hub(self, message: Message | None) -> None:
        self._channel.arrived(self, message)


class SimulatedChannel:
    """Channel of one hub. `client` is set before the first call."""

    client: ServiceClient

    def __init__(self, network: SimulatedService, time: HubTime) -> None:
        self._network = network
        self._time = time
        self._connection: _Connection | None = None
        self.held = (False, False)
        """Whether messages to the service and to the hub wait."""

    @property
    def crashed(self) -> bool:
        """Whether the process of the hub has crashed."""
        return self._time.crashed

    def connect(self) -> None:
        """See Channel."""
        self._network.time.call_later(self._network.delay_seconds(), self._try)

    def _try(self) -> None:
        if self._time.crashed:
            return
        if self._network.is_stopped or any(self.held):
            words = "the coordination service can't be reached"
            self._time.do(lambda: self.client.disconnected(words))
            return
        connection = self._connection = _Connection(self._network, self)
        self._network.accepted(connection)
        self._time.do(lambda: self.client.connected() if self._connection is connection else None)

    def send(self, message: Message) -> None:
        """See Channel."""
        if self._connection is not None:
            self._connection.to_service.send(message)

    def hang_up(self) -> None:
        """See Channel."""
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.closed_by_hub()
            self._time.call_later(0, lambda: self.client.disconnected("the hub hung up"))

    def hold(self, *, to_service: bool = True, to_hub: bool = True) -> None:
        """Let messages wait."""
        self.held = (to_service, to_hub)
        if self._connection is not None:
            if to_service:
                self._connection.to_service.hold()
            if to_hub:
                self._connection.to_hub.hold()

    def release(self) -> None:
        """Let messages pass again."""
        self.held = (False, False)
        if self._connection is not None:
            self._connection.to_service.release()
            self._connection.to_hub.release()

    def cut(self, words: str = "the connection was lost") -> None:
        """Lose the connection."""
        if self._connection is not None:
            self._connection.cut(words)

    def lost(self, connection: _Connection, words: str) -> None:
        """Tell the client of a lost connection."""

        def told() -> None:
            if self._connection is connection:
                self._connection = None
                self.client.disconnected(words)

        self._time.do(told)

    def arrived(self, connection: _Connection, message: Message | None) -> None:
        """Give a message to the client."""
        if message is None:
            self.lost(connection, "the coordination service hung up")
        else:
            self._time.do(lambda: self.client.received(message) if self._connection is connection else None)


class SimulatedService:
    """The service, and the network between it and the hubs."""

    def __init__(
        self,
        time: Time,
        random: Random,
        faults: Faults | None = None,
        *,
        ends_with_connection: bool = False,
    ) -> None:
        """`ends_with_connection`: a hub whose connection is lost is gone at once, as on one host."""
        self.time = time
        self.random = random
        self.faults = Faults() if faults is None else faults
        self._table = _LaggingTable(random, self.faults)
        self._run_number = 1
        self._ends_with_connection = ends_with_connection
        self.service = self._started()
        self._connections: dict[_Connection, None] = {}
        self.is_stopped = False
        self._look()

    @property
    def now_seconds(self) -> float:
        """Time in seconds."""
        return self.time.clock()

    def channel(self, hub_time: HubTime, *, session_seconds: float = 10.0) -> SimulatedChannel:
        """Return the channel of a hub with this clock; its `client` is the Coordination."""
        channel = SimulatedChannel(self, hub_time)
        channel.client = ServiceClient(channel, hub_time, hub_time.clock, session_seconds=session_seconds)
        return channel

    def expire(self, hub: str) -> bool:
        """End the session of a hub. Returns whether there was one."""
        found = self.service.hubs.get(hub)
        if found is None or self.is_stopped:
            return False
        self.service.end(found.session, "the session has expired")
        return True

    def stop(self) -> None:
        """Stop the service; connections are lost."""
        if not self.is_stopped:
            self.is_stopped = True
            for connection in list(self._connections):
                connection.cut("the coordination service went away")

    def start(self) -> None:
        """Start the service again. Sessions have their whole time."""
        if self.is_stopped:
            self.is_stopped = False
            self._run_number += 1
            sessions = [change for change in self.service.snapshot() if "opened" in change]
            self.service = self._started()
            self.service.restore(sessions)

    def _started(self) -> Service:
        return Service(
            self.time.clock,
            table=self._table,
            run_number=self._run_number,
            ends_with_connection=self._ends_with_connection,
        )

    # For connections.

    def delay_seconds(self) -> float:
        """Return the time of a message on its way."""
        return self.random.uniform(0, self.faults.delay_seconds_max) if self.faults.delay_seconds_max else 0.0

    def accepted(self, connection: _Connection) -> None:
        """Take in a connection."""
        self._connections[connection] = None
        self.service.connected(connection)

    def arrived(self, connection: _Connection, message: Message | None) -> None:
        """Take a message, or the end of a connection."""
        if message is None:
            self.service_lost(connection)
        elif not self.is_stopped:
            self.service.received(connection, message)
            self.service.take_changes()

    def service_lost(self, connection: _Connection) -> None:
        """Forget a connection."""
        if self._connections.pop(connection, self) is None:
            self.service.disconnected(connection)

    def _look(self) -> None:
        """End sessions in time, as a service does: now and then."""
        if not self.is_stopped:
            self.service.expire()
        self.time.call_later(LOOK_SECONDS, self._look)
