"""The last line of defence: an unexpected exception costs the objects whose work it interrupted, and nothing else.

Every outermost shell hands what it caught to `Faults.contain`: the dispatcher (contexts, timers, callbacks from other
threads, the end of a turn), connections and whatever runs for them, the store's and the metadata's answers, tasks of
the broker. Whose state is not known to be whole any more is read from the traceback: every destination and every
connection that has a frame in it was interrupted. They are abandoned:

- a connection gets the ERROR `internal-error` and is closed; what it held goes back;
- a destination is closed, whoever sends to it or reads it gets the ERROR `destination-failed`. Nothing of it is written
  any more: what the disk has of it stays as it was when all was well, and the next start recovers that. Until then its
  name is refused. Without a store there is nothing to recover, and its name is free. What a transaction binds to it and
  is not on disk yet goes the same way, for a transaction must not come apart.

The exception is logged once, with its traceback, and counted. A frame of the store's queue or of the metadata's line
means that what all share is broken: then the broker ends, loudly, and a restart goes on from the disk. So it does when
an answer of a thread is lost for which all wait.

What a thread raises has no frames of who asked: that is read from the callback that is not called now.

Source: issue 13 item 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CellType, TracebackType
from typing import Any, Final

import trio

from sluiceway.connections import Connections
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.delivery import StompSubscription
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.session import Session
from sluiceway.protocols.warning_limiter import WarningLimiter
from sluiceway.queues.destination import Destination
from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.log import Log
from sluiceway.queues.partitioned import PartitionedQueue
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.steps import Line
from sluiceway.queues.subscription import Subscription
from sluiceway.shards import Shards
from sluiceway.store.gradual import Gradual
from sluiceway.store.metadata.operations import OperationLine
from sluiceway.store.spool import StoreSpools
from sluiceway.store.storequeue import StoreQueue
from sluiceway.store.together import Shelf, Together

SHARED: Final = (StoreQueue, Together, Gradual, OperationLine)
"""Parts whose frame in a traceback means that the broker itself is broken."""
AWAITED: Final = (*SHARED, StoreSpools)
"""Parts that wait for answers without end, and on which others depend: one lost answer is a fault of the whole
broker.
"""
MISTAKE: Final = "the broker made a mistake with it"
_SESSION_PARTS: Final = (
    "_committer", "_heart_beat", "_large", "_log_publisher", "_machine", "_queue_publisher", "_replies", "_requests",
    "_router", "_sender", "_temporary", "entering", "lanes", "outbound", "subscriptions", "transactions",
)  # fmt: skip
KINDS: Final = ("destination", "connection", "other", "shared")
"""Cost of a fault: a destination (and perhaps connections), a connection only, nothing (a request, a piece of periodic
work), or the broker.
"""
DEPTH_MAX: Final = 6
"""Maximum depth of the search for the owner of an object: a subscription's queue, a source's resource."""
PACKAGES: Final = ("sluiceway.queues.", "sluiceway.store.", "sluiceway.flow.")
"""Packages of the classes of all parts of queues, topics and logs."""
ONLOOKERS: Final = "sluiceway.queues.trails."
"""Package of observers, which follow or show queues and change nothing in them."""
WHOLES: Final = ("_queue", "queue", "_log", "log", "_outlet", "_topic", "_shelf", "owner", "_controller", "resource")
"""Names of the attribute by which a part refers to its whole: a destination, or a nearer part. Every part has one of
these attributes.
"""

log = get_logger("sluiceway.faults")


class Faults:
    """Faults of one broker."""

    def __init__(
        self, shards: Shards, connections: Connections, call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """Make the containment. `call_later`: that of the dispatcher, which ends with an exception of a timer."""
        self._shards = shards
        self._connections = connections
        self._call_later = call_later
        self.counts = dict.fromkeys(KINDS, 0)
        self._bursts = WarningLimiter(trio.current_time)
        self.destinations_count = 0
        """Abandoned."""
        self.connections_count = 0
        self._dying = False

    def contain(self, error: Exception) -> None:
        """Abandon the objects that this exception has interrupted. The first frame is that of the shell that caught it.
        Raises the exception if a shared part is broken.
        """
        if self._dying:
            raise error
        met, waiting = _concerned(error.__traceback__)
        if any(isinstance(each, SHARED) for each in met) or any(isinstance(each, AWAITED) for each in waiting):
            self._dying = True
            self.counts["shared"] += 1
            log.critical("the store's queue is broken: the broker ends", error=repr(error))
            # Also where the shell that caught it, or a caller, answers a request with the exception.
            self._call_later(0.0, partial(_raise, error))
            raise error
        parts = self._sessions_by_part()
        found = [self._owner_of(each, parts) for each in (*met, *waiting)]
        owners = list(dict.fromkeys(owner for owner in found if owner is not None))
        self.counts[_kind_of(owners)] += 1
        place = _place_of(error)
        more_count = self._bursts.say(place)
        if owners or more_count is not None:  # abandoned objects are logged in any case
            log.error(
                "internal error",
                error=repr(error),
                abandoned=[self._name_of(owner) for owner in owners],
                more_since_last=more_count or 0,
                remedy="please report it; restart the broker to have abandoned destinations back",
                exc_info=error,
            )
        error.__traceback__ = None  # its frames hold messages
        self._abandon_all(owners)
        for each in waiting:
            if isinstance(each, Line):
                self._safely(each.go_on)

    @property
    def count(self) -> int:
        """Number of faults of all kinds."""
        return sum(self.counts.values())

    def report(self) -> dict[str, Any]:
        """Return the counts, for statistics."""
        return {
            "count": self.count,
            **self.counts,
            "destinations_abandoned": self.destinations_count,
            "connections_abandoned": self.connections_count,
        }

    # ------------------------------------------------------------------ whose it is

    def _owner_of(self, met: object, parts: Mapping[int, Session]) -> Destination | Log | Session | None:
        for _ in range(DEPTH_MAX):
            match met:
                case Session() | Log() | Destination():
                    return met
                case MessageQueue():
                    found = self._shards.registry.destinations.get(met.destination_name)
                    return found if found is not None and met in found.queues else None
                case PartitionedQueue():
                    found = self._shards.registry.destinations.get(met.name)
                    return found if found is not None and met is found.queue else None
                case Connection():
                    return met.session
            if (session := parts.get(id(met))) is not None:
                return session
            met = _whole_of(met)
        return None

    def _sessions(self) -> Iterator[Session]:
        for connection in tuple(self._connections):
            yield connection.session

    def _sessions_by_part(self) -> dict[int, Session]:
        """Return the session of each sender, replies, subscription and so on, by the part's id. O(all of them): faults
        are rare.
        """
        found: dict[int, Session] = {}
        for session in self._sessions():
            parts = [getattr(session, name, None) for name in _SESSION_PARTS]
            parts += [session.subscriptions.work.line, session.subscriptions.implicit]
            found.update((id(part), session) for part in [*parts, *session.subscriptions.known] if part is not None)
        return found

    def _name_of(self, owner: Destination | Log | Session) -> str:
        return owner.peer if isinstance(owner, Session) else owner.name

    # ------------------------------------------------------------------ what becomes of it

    def _abandon_all(self, owners: Iterable[Destination | Log | Session]) -> None:
        waiting = list(owners)
        done: set[int] = set()
        while waiting:
            owner = waiting.pop()
            if id(owner) in done:
                continue
            done.add(id(owner))
            if isinstance(owner, Session):
                self._safely(lambda session=owner: self._abandon_session(session))  # type: ignore[misc]
                continue
            self.destinations_count += 1
            inlets: list[Any] = [owner, *owner.outlets] if isinstance(owner, Log) else list(owner.queues)
            sessions = self._users_of(inlets)
            for kept in self._forsake(owner):
                bound = self._owner_of(kept, {})
                if bound is not None:
                    waiting.append(bound)
            close = self._close_log if isinstance(owner, Log) else self._close_destination
            self._safely(lambda close=close, owner=owner: close(owner))  # type: ignore[misc]
            for session in sessions:
                self._safely(lambda session=session, name=owner.name: self._tell(session, name))  # type: ignore[misc]

    def _safely(self, work: Callable[[], None]) -> None:
        """Run a step of abandoning; its own failure is logged, for nothing of the abandoned part is needed any more."""
        try:
            work()
        except Exception as error:
            log.error("internal error while abandoning", error=repr(error), exc_info=error)

    def _users_of(self, inlets: list[Any]) -> list[Session]:
        """Connections that send to these, or read them."""
        ids = {id(inlet) for inlet in inlets}
        readers = {
            id(subscription.consumer)
            for inlet in inlets
            for subscription in _subscriptions_of(inlet)
            if isinstance(subscription.consumer, StompSubscription)
        }
        return [
            session
            for session in self._sessions()
            if any(id(lane.inlet) in ids for lane in session.lanes.lanes)
            or any(id(each) in readers for each in session.subscriptions.known)
        ]

    def _forsake(self, owner: Destination | Log) -> list[Shelf]:
        """Stop all writes for the owner. Returns what transactions bind to it."""
        store = owner.environment.store
        if not isinstance(store, StoreQueue):
            return []
        if isinstance(owner, Log):
            shelves: list[Any] = [outlet.place for outlet in owner.outlets if isinstance(outlet, Group)]
        else:
            shelves = [queue.storage for queue in owner.queues]
        return [bound for shelf in shelves if shelf is not None for bound in store.abandon(shelf)]

    def _close_destination(self, destination: Destination) -> None:
        self._shards.registry.abandon(destination, MISTAKE)

    def _close_log(self, abandoned: Log) -> None:
        try:
            if self._shards.logs is not None:
                self._shards.logs.abandon(abandoned)
        finally:
            if self._shards.claims is not None:
                self._shards.claims.abandon(abandoned)

    def _tell(self, session: Session, name: str) -> None:
        session.fail(
            ProtocolError(
                "destination-failed",
                f"{name} was closed: {MISTAKE}",
                "Confirmed messages are safe, and available again after a restart; the broker's log has the details.",
            ),
            peers_fault=False,
        )

    def _abandon_session(self, session: Session) -> None:
        self.connections_count += 1
        session.fail(
            ProtocolError(
                "internal-error",
                "the broker made a mistake with this connection",
                "This is a bug of the broker; its log has the details. Please report it.",
            ),
            peers_fault=False,
        )


def _whole_of(met: object) -> object:
    """Return the whole of which an object is a part; None: none that is known."""
    module = type(met).__module__
    if not module.startswith(PACKAGES) or module.startswith(ONLOOKERS):
        return None
    return next((whole for name in WHOLES if (whole := getattr(met, name, None)) is not None), None)


def _raise(error: Exception) -> None:
    raise error


def _kind_of(owners: list[Destination | Log | Session]) -> str:
    if not owners:
        return "other"
    return "connection" if all(isinstance(owner, Session) for owner in owners) else "destination"


def _place_of(error: Exception) -> str:
    """The line that raised it, and what: the same place again is not said each time."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"{type(error).__name__} {where}"


def _subscriptions_of(inlet: Any) -> list[Subscription]:
    found = getattr(inlet, "subscriptions", ())
    return list(found.values() if isinstance(found, dict) else found)


def _concerned(trace: TracebackType | None) -> tuple[list[object], list[object]]:
    """Return the objects whose methods were interrupted, without the shell that caught the fault; and the objects that
    wait for an answer of a thread's job. An object in its constructor does not count: its maker is among them.
    """
    met: list[object] = []
    waiting: list[object] = []
    half_made: set[int] = set()
    while trace is not None and (trace := trace.tb_next) is not None:
        found = trace.tb_frame.f_locals
        if "self" in found:
            met.append(found["self"])
            if trace.tb_frame.f_code.co_name == "__init__":
                half_made.add(id(found["self"]))
        done = found.get("done")
        if done is not None:
            waiting += _inside(done)
    return [each for each in met if id(each) not in half_made], waiting


def _inside(callback: object, depth: int = 1) -> Iterator[object]:
    """Yield the objects that a callback is bound to, and those of the callbacks (`depth` of them behind each other)
    that it continues with.
    """
    if isinstance(callback, partial):
        yield from _inside(callback.func, depth)
        bound = [*callback.args, *callback.keywords.values()]
    else:
        bound = [_content(cell) for cell in getattr(callback, "__closure__", None) or ()]
        if (owner := getattr(callback, "__self__", None)) is not None:
            yield owner
    for each in bound:
        yield each
        if depth and callable(each):
            yield from _inside(each, depth - 1)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # the cell has no content yet
