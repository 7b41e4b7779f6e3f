"""Coordination by ZooKeeper, through kazoo.

Below the root of a cluster, `/hubs/NAME` is ephemeral and says who is live; every other path is a record. A *session*
of the port is a ZooKeeper session and a number: a hub that has given up by its own clock goes on in the same ZooKeeper
session with the next number, and the number in `/hubs/NAME` tells the others that what it claimed before is free.

The hub is heard from with the answer to a `sync`, which the leader of the ensemble takes part in: a follower that has
lost its leader answers reads, and keeps no session alive.

Threads. kazoo runs three; its answers, watches and states come through `submit` to the dispatch loop, and this module
does nothing else on those threads. Requests are handed to kazoo without waiting. A `create` may have to make the nodes
above, in several requests: later requests of the hub wait for it, so that all take effect in their order.

kazoo drops its watches when the connection is lost. All are set again, and told, when it is back.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import attrs

from sluiceway.dispatcher import DispatcherClosedError
from sluiceway.extras import needs
from sluiceway.store.compare_and_set import (
    BadVersionError,
    MetadataError,
    MetadataFailedError,
    NoRecordError,
    OnDone,
    OnNames,
    OnRead,
    OnWritten,
    Version,
    Versioned,
    checked_path,
    checked_value,
)

from . import port
from .client import BEATS_COUNT, HubWatch, Watches
from .messages import MessageError, decoded, hub_fields, hub_of
from .port import CoordinationEvents, Hub, OnHubs, Scheduling, SessionState, TimerHandle
from .session import SessionClock
from .zookeeper_settings import ZooKeeperSettings, ZooKeeperSettingsError

with needs("cluster", "a cluster on ZooKeeper"):
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        AuthFailedError,
        ConnectionClosedError,
        ConnectionLoss,
        KazooException,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        SessionExpiredError,
    )
    from kazoo.exceptions import (
        BadVersionError as ZooBadVersionError,
    )
    from kazoo.protocol.states import EventType, KazooState, KeeperState
    from kazoo.security import make_digest_acl

__all__ = ["ZooKeeperCoordination", "ZooKeeperSettings", "ZooKeeperSettingsError"]

RETRY_SHARE: Final = 0.1
"""Share of the session time between two attempts to enter the cluster."""

CLOSE_SHARE: Final = 0.3
"""Share of the session time that the end of a session may take before the hub goes without an answer."""

HUBS: Final = "/hubs"

SILENT: Final = logging.getLogger("sluiceway.cluster.kazoo")
"""Logger of kazoo, which says nothing: `words` says what is the matter."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


class ZooKeeperCoordination:
    """Coordination of one hub."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        scheduling: Scheduling,
        clock: Callable[[], float],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        """`submit` runs a callback on the dispatch loop, from any thread."""
        self._settings = settings
        self._root = settings.root
        self._scheduling = scheduling
        self._clock = clock
        self._submit = submit
        self._hub: Hub | None = None
        self._session: SessionClock | None = None
        self._session_seconds = settings.session_seconds
        self._sessions_count = 0
        self._zoo: Any = None
        self._zoo_session = 0
        """ZooKeeper session in which the hub has entered; 0: none."""
        self._connected = False
        self._entering = False
        self._beating = False
        self._timer: TimerHandle | None = None
        self._is_closing = False
        self._done: Callable[[], None] | None = None
        self._watches = Watches()
        self._watched_hubs: set[str] = set()
        self._hub_names: frozenset[str] = frozenset()
        """Hubs that were there at the last look."""
        self._line: deque[Callable[[], None]] = deque()
        self._line_is_held = False
        self._words = "not started"
        self._heard_at_seconds = clock()

    # State.

    @property
    def certain_until_seconds(self) -> float:
        """See Coordination."""
        return -1.0 if self._session is None else self._session.certain_until_seconds

    @property
    def state(self) -> SessionState:
        """See Coordination."""
        return SessionState.NONE if self._session is None else self._session.state

    @property
    def session(self) -> str | None:
        """See Coordination."""
        return None if self._session is None else self._session.session

    @property
    def words(self) -> str:
        """See Coordination."""
        if self.state is SessionState.CERTAIN:
            return ""
        if self.state is SessionState.UNCERTAIN:
            silent_seconds = self._clock() - self._heard_at_seconds
            return f"ZooKeeper at {self._settings.servers} has not answered for {silent_seconds:.1f} s"
        return self._words

    # Calls of the user.

    def start(self, hub: Hub, events: CoordinationEvents) -> None:
        """See Coordination."""
        self._hub = hub
        self._hubs_changed = events.hubs_changed
        self._session = SessionClock(self._scheduling, self._clock, events, self._gave_up)
        self._connect()
        self._beat()

    def advertise(self, hub: Hub) -> None:
        """See Coordination."""
        self._hub = hub
        session = self.session
        if session is not None:
            value = _hub_value(attrs.evolve(hub, session=session))
            self.call(lambda zoo: zoo.set_async(self._hub_path(hub.name), value), _ignored)

    def read(self, path: str, done: OnRead[bytes]) -> None:
        """See Records."""
        node = self._node(path)

        def answered(result: Any) -> None:
            if isinstance(result, NoNodeError):
                done(None)
            elif isinstance(result, Exception):
                done(self._failed(result, path))
            else:
                value, stat = result
                done(Versioned(value, Version(stat.version)))

        self._ask(lambda zoo: zoo.get_async(node), answered, done)

    def write(self, path: str, value: bytes, version: Version, done: OnWritten) -> None:
        """See Records."""
        node = self._node(path)
        checked_value(value)

        def created(result: Any) -> None:
            self._go_on()
            if isinstance(result, NodeExistsError):
                self._explain(node, path, version, done)
            elif isinstance(result, Exception):
                done(self._failed(result, path))
            else:
                done(Version(0))

        def written(result: Any) -> None:
            if isinstance(result, NoNodeError):
                done(NoRecordError(f"there is no {path}"))
            elif isinstance(result, ZooBadVersionError):
                self._explain(node, path, version, done)
            elif isinstance(result, Exception):
                done(self._failed(result, path))
            else:
                done(Version(result.version))

        if version == Version.NEW:
            self._ask(lambda zoo: zoo.create_async(node, value, makepath=True), created, done, holds=True)
        else:
            number = -1 if version == Version.ANY else version.number
            self._ask(lambda zoo: zoo.set_async(node, value, version=number), written, done)

    def delete(self, path: str, version: Version, done: OnDone) -> None:
        """See Records."""
        node = self._node(path)
        number = -1 if version == Version.ANY else version.number

        def deleted(result: Any) -> None:
            if isinstance(result, NoNodeError):
                done(NoRecordError(f"there is no {path}"))
            elif isinstance(result, ZooBadVersionError):
                self._explain(node, path, version, done)
            elif isinstance(result, Exception):
                done(self._failed(result, path))
            else:
                done(None)

        if version == Version.NEW:  # ZooKeeper would take its number for any version
            self._ask(lambda zoo: zoo.exists_async(node), lambda _found: self._explain(node, path, version, done), done)
        else:
            self._ask(lambda zoo: zoo.delete_async(node, version=number), deleted, done)

    def children(self, path: str, done: OnNames) -> None:
        """See Records."""
        node = self._node(path)

        def answered(result: Any) -> None:
            if isinstance(result, NoNodeError):
                done([])
            elif isinstance(result, Exception):
                done(self._failed(result, path))
            else:
                done(sorted(result))

        self._ask(lambda zoo: zoo.get_children_async(node), answered, done)

    def read_hubs(self, done: OnHubs) -> None:
        """See Coordination."""

        def listed(result: Any) -> None:
            if isinstance(result, Exception):
                done(self._failed(result, HUBS))
                return
            _HubsReading(self, self._members(result), done).begin()

        self._ask(lambda zoo: zoo.get_children_async(self._root + HUBS), listed, done)

    def _members(self, names: Iterable[str]) -> list[str]:
        """Return the names of hubs: of more than HUBS_MAX, those that were there before. The others leave again."""
        return sorted(names, key=lambda name: (name not in self._hub_names, name))[: port.HUBS_MAX]

    def watch(self, path: str, changed: Callable[[], None]) -> HubWatch:
        """See Coordination."""
        node = self._node(path)
        watch = HubWatch(path, changed, self._watches.remove)
        if self._watches.add(watch) and self._connected:
            _NodeWatch(self, path, node).set()
        return watch

    def close(self, done: Callable[[], None]) -> None:
        """See Coordination."""
        self._done = done
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.close()
        zoo, self._zoo, self._connected = self._zoo, None, False

        def stop() -> None:
            if zoo is not None:
                zoo.stop()  # ends the session: the node of the hub goes at once
                zoo.close()
            self._hand_over(self._closed)

        threading.Thread(target=stop, name="zookeeper-close", daemon=True).start()
        # A server that does not answer ends the session by itself.
        self._scheduling.call_later(self._session_seconds * CLOSE_SHARE, self._closed)

    def _closed(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()

    # The connection.

    def _hand_over(self, callback: Callable[[], None]) -> None:
        """Run a callback on the dispatch loop, from a thread of kazoo."""
        try:
            self._submit(callback)
        except DispatcherClosedError:
            pass  # the broker has ended, and waits for nothing

    def _connect(self) -> None:
        settings = self._settings
        self._words = f"no ZooKeeper server answers at {settings.servers}: it can't be reached, or is starting"
        zoo = self._zoo = KazooClient(
            hosts=settings.servers,
            timeout=settings.session_seconds,
            **credentials(settings),
            logger=SILENT,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
        )
        connection = zoo._connection
        connect = connection._connect

        def connecting(*arguments: Any) -> Any:
            """Note the session time that the ensemble has granted; kazoo keeps two thirds of it as a time limit."""
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
            granted_seconds = read_timeout_ms * 3 / 2 / 1000
            self._hand_over(partial(self._granted, zoo, granted_seconds))
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connecting
        zoo.add_listener(partial(self._heard_state, zoo))
        zoo.start_async()

    def _heard_state(self, zoo: Any, state: KazooState) -> None:
        """Hand a state of kazoo over, from its thread."""
        failed = zoo.client_state == KeeperState.AUTH_FAILED
        session = zoo.client_id[0] if state == KazooState.CONNECTED and zoo.client_id else 0
        self._hand_over(partial(self._state_changed, zoo, state, session, failed))

    def _granted(self, zoo: Any, session_seconds: float) -> None:
        if zoo is self._zoo:
            self._session_seconds = session_seconds

    def _state_changed(self, zoo: Any, state: KazooState, session: int, auth_failed: bool) -> None:
        if zoo is not self._zoo or self._session is None:
            return
        self._connected = state == KazooState.CONNECTED
        if auth_failed:
            self._words = f"ZooKeeper at {self._settings.servers} refuses the credentials of {self._settings.user!r}"
            self._session.end(self._words)
        elif state == KazooState.LOST:
            self._zoo_session = 0
            self._words = "the ZooKeeper session has expired"
            self._session.end(self._words)
        elif state == KazooState.CONNECTED:
            if self._zoo_session and session != self._zoo_session:
                self._zoo_session = 0
                self._session.end("the ZooKeeper session has expired")
            self._beating = False
            self._enter_or_go_on()

    def _enter_or_go_on(self) -> None:
        """Set the watches again: they went with the connection. Without a session, ask for one."""
        if self.session is None:
            self._enter()
            return
        self._set_all_watches()
        self._beat_once()

    # The session.

    def _beat(self) -> None:
        """Look after the session: be heard, or enter anew."""
        if not self._is_closing:
            self._timer = self._scheduling.call_later(self._session_seconds / BEATS_COUNT, self._beat)
            if self._connected:
                self._beat_once()

    def _beat_once(self) -> None:
        if self._beating:
            return
        self._beating = True
        asked_at_seconds = self._clock()

        def answered(result: Any) -> None:
            self._beating = False
            if isinstance(result, Exception):
                return
            self._heard_at_seconds = self._clock()
            if self.session is None:
                self._enter()
            elif self._session is not None:
                self._session.heard(asked_at_seconds)

        self.call(lambda zoo: zoo.sync_async(self._root), answered)

    def _gave_up(self, session: str, words: str) -> None:
        """Note that the session has ended by the clock of the hub. The next beat enters anew."""
        self._words = words

    def _enter(self) -> None:
        """Enter the cluster: see whether it is there, then make the node of the hub."""
        if self._entering or self._hub is None or not self._connected or self.session is not None:
            return
        self._entering = True
        asked_at_seconds = self._clock()
        self._sessions_count += 1
        zoo = self._zoo
        identity = zoo.client_id
        if identity is None:  # the connection is lost, and the event of it on its way
            self._entering = False
            return
        zoo_session = identity[0]
        session = f"{zoo_session:x}-{self._sessions_count}"
        hub = attrs.evolve(self._hub, session=session)
        node = self._hub_path(hub.name)

        def refused(words: str) -> None:
            self._entering = False
            self._words = words
            # Not at the same moment as others that were refused together.
            self._scheduling.call_later(self._session_seconds * RETRY_SHARE * random.uniform(0.75, 1.25), self._enter)

        def looked(result: Any) -> None:
            if isinstance(result, Exception):
                refused(str(self._failed(result, self._root)))
            elif result is None and not self._settings.makes_root:
                refused(
                    f"there is no cluster at {self._settings.hosts}: make it with `sluiceway cluster init`, or correct "
                    "the path"
                )
            else:
                self.call(lambda zoo: zoo.exists_async(self._root + HUBS), counted)

        def counted(result: Any) -> None:
            if isinstance(result, Exception):
                refused(str(self._failed(result, self._root)))
            elif result is not None and result.numChildren >= port.HUBS_MAX:
                self.call(lambda zoo: zoo.get_async(node), there)
            else:
                self.call(lambda zoo: zoo.create_async(node, _hub_value(hub), ephemeral=True, makepath=True), made)

        def made(result: Any) -> None:
            if isinstance(result, NodeExistsError):
                self.call(lambda zoo: zoo.get_async(node), there)
            elif isinstance(result, Exception):
                refused(str(self._failed(result, node)))
            else:
                self.call(lambda zoo: zoo.exists_async(self._root + HUBS), counted_again)

        def counted_again(result: Any) -> None:
            if isinstance(result, Exception):
                refused(str(self._failed(result, self._root)))
            elif result is not None and result.numChildren > port.HUBS_MAX:  # others came at the same moment
                self.call(lambda zoo: zoo.delete_async(node), lambda _done: refused(port.too_many()))
            else:
                entered()

        def there(result: Any) -> None:
            if isinstance(result, NoNodeError):
                refused(port.too_many())
                return
            if isinstance(result, Exception):
                refused(str(self._failed(result, node)))
                return
            value, stat = result
            if stat.ephemeralOwner == zoo_session:
                self.call(lambda zoo: zoo.set_async(node, _hub_value(hub)), replaced)
                return
            address = _hub_in(value, hub.name).address or "an unknown address"
            refused(
                f"{hub.name} is in the cluster already, from {address}: every hub needs a name of its own. If that is "
                f"an earlier run of this hub, its session ends in {self._session_seconds:.0f} s at most"
            )

        def replaced(result: Any) -> None:
            if isinstance(result, Exception):
                refused(str(self._failed(result, node)))
            else:
                entered()

        def entered() -> None:
            self._entering = False
            if self._session is None or self._is_closing or zoo is not self._zoo:
                return
            self._zoo_session = zoo_session
            self._heard_at_seconds = self._clock()
            if not self._connected or not self._session.began(session, self._session_seconds, asked_at_seconds):
                return  # the next beat enters anew
            if self._hub is not None and self._hub != attrs.evolve(hub, session=self._hub.session):
                self.advertise(self._hub)
            self._set_all_watches()

        self.call(lambda zoo: zoo.exists_async(self._root), looked)

    # Watches.

    def _set_all_watches(self) -> None:
        self._watched_hubs.clear()
        self._watch_hubs()
        for path in self._watches.paths:
            _NodeWatch(self, path, self._root + path).set()
        self._watches.all_changed()

    def _watch_hubs(self, *, anew: bool = True) -> None:
        """Watch the node of each hub, and read them. `anew`: watch the list of hubs, too."""

        def listed(result: Any) -> None:
            if not isinstance(result, Exception):
                for name in self._members(result):
                    self._watch_hub(name)
                self.read_hubs(self._looked_at_hubs)

        told = self.telling(self._watch_hubs) if anew else None
        self.call(lambda zoo: zoo.get_children_async(self._root + HUBS, watch=told), listed)

    def _watch_hub(self, name: str) -> None:
        if name in self._watched_hubs:
            return
        self._watched_hubs.add(name)

        def noticed() -> None:
            self._watched_hubs.discard(name)
            self._watch_hubs(anew=False)  # one that has gone is not watched again

        told = self.telling(noticed)
        self.call(lambda zoo: zoo.exists_async(self._hub_path(name), watch=told), _ignored)

    def _looked_at_hubs(self, hubs: Mapping[str, Hub] | MetadataError) -> None:
        if not isinstance(hubs, MetadataError) and self.session is not None:
            self._hubs_changed(hubs)

    def saw(self, names: Iterable[str]) -> None:
        """Note which hubs were there at the last look."""
        self._hub_names = frozenset(names)

    def is_watched(self, path: str) -> bool:
        """Return whether the user watches a path."""
        return path in self._watches.paths

    def changed(self, path: str) -> None:
        """Tell the watches of a path."""
        self._watches.changed(path)

    def telling(self, noticed: Callable[[], None]) -> Callable[[Any], None]:
        """Return a watch for kazoo, which hands its event over to the dispatch loop. The end of a connection comes to
        watches, too; it is no change.
        """
        zoo = self._zoo

        def told(event: Any) -> None:
            if event.type != EventType.NONE:
                self._hand_over(lambda: noticed() if zoo is self._zoo and self._connected else None)

        return told

    # Requests.

    def _ask(
        self,
        request: Callable[[Any], Any],
        answered: Callable[[Any], None],
        done: Callable[[Any], None],
        *,
        holds: bool = False,
    ) -> None:
        """Request something for the user, behind earlier requests. `holds`: later ones wait for the answer, which calls
        `_go_on`.
        """
        if self.session is None or not self._connected:
            why = self._words if self.session is None else "the connection is lost"
            error = MetadataFailedError(f"no session with ZooKeeper: {why}")
            self._scheduling.call_later(0, lambda: done(error))
            return

        def begin() -> None:
            self._line_is_held = holds
            self.call(request, answered)

        if self._line_is_held:
            self._line.append(begin)
        else:
            begin()

    def _go_on(self) -> None:
        self._line_is_held = False
        while self._line and not self._line_is_held:
            self._line.popleft()()

    def call(self, request: Callable[[Any], Any], answered: Callable[[Any], None]) -> None:
        """Give a request to kazoo; the answer, or its exception, comes on the dispatch loop."""
        zoo = self._zoo
        if zoo is None or not self._connected:  # kazoo would keep the request until there is a connection
            self._scheduling.call_later(0, partial(answered, ConnectionClosedError("there is no connection")))
            return

        def completed(result: Any) -> None:
            exception = result.exception
            self._hand_over(partial(answered, result.value if exception is None else exception))

        request(zoo).rawlink(completed)

    def _explain(self, node: str, path: str, given: Version, done: Callable[[Any], None]) -> None:
        """Answer a refused compare-and-set with the version that is there."""

        def looked(result: Any) -> None:
            if isinstance(result, Exception):
                done(self._failed(result, path))
            elif result is None:
                done(NoRecordError(f"there is no {path} any more"))
            else:
                done(BadVersionError(path, given=given, current=Version(result.version)))

        self.call(lambda zoo: zoo.exists_async(node), looked)

    def _failed(self, error: Exception, what: str) -> MetadataFailedError:
        return failed(error, what, self._settings)

    def _node(self, path: str) -> str:
        if checked_path(path) == HUBS or path.startswith(HUBS + "/"):
            raise ValueError(f"{path} is no path of a record: hubs are listed there")
        return self._root + path

    def _hub_path(self, name: str) -> str:
        return f"{self._root}{HUBS}/{name}"

    def _read_hub(self, name: str, answered: Callable[[Any], None]) -> None:
        self.call(lambda zoo: zoo.get_async(self._hub_path(name)), answered)


def failed(error: Exception, what: str, settings: ZooKeeperSettings) -> MetadataFailedError:
    """Return an error of kazoo for users, in words. `what`: path that was asked for."""
    match error:
        case NoAuthError():
            user = settings.user
            who = f"the credentials of {user!r} do not allow it" if user else "it asks for credentials"
            words = f"ZooKeeper refuses access to {what} at {settings.hosts}: {who}"
        case AuthFailedError():
            words = f"ZooKeeper at {settings.servers} refuses the credentials of {settings.user!r}"
        case SessionExpiredError():
            words = "the ZooKeeper session has expired"
        case ConnectionLoss() | ConnectionClosedError():
            words = f"the connection to ZooKeeper was lost: whether {what} was changed is not known"
        case KazooException():
            words = f"ZooKeeper could not serve {what}: {type(error).__name__} {error}".rstrip()
        case _:
            words = f"ZooKeeper could not be asked for {what}: {error!r}"
    return MetadataFailedError(words)


def credentials(settings: ZooKeeperSettings) -> dict[str, Any]:
    """Return the arguments of KazooClient that say who asks, and to whom new nodes belong."""
    if not settings.user:
        return {"auth_data": None, "default_acl": None}
    return {
        "auth_data": [("digest", f"{settings.user}:{settings.password}")],
        "default_acl": [make_digest_acl(settings.user, settings.password, all=True)],
    }


class _NodeWatch:
    """Watch of a node and of the names below it. Both tell once, and are set again then."""

    def __init__(self, coordination: ZooKeeperCoordination, path: str, node: str) -> None:
        self._coordination = coordination
        self._path = path
        self._node = node
        self._record_is_watched = False
        self._names_are_watched = False

    def set(self) -> None:
        """Set what is not set, as long as the user watches the path."""
        if not self._coordination.is_watched(self._path):
            return
        if not self._record_is_watched:
            self._record_is_watched = True
            record_told = self._coordination.telling(self._record_noticed)
            self._coordination.call(lambda zoo: zoo.exists_async(self._node, watch=record_told), _ignored)
        if not self._names_are_watched:
            self._names_are_watched = True
            names_told = self._coordination.telling(self._names_noticed)
            self._coordination.call(lambda zoo: zoo.get_children_async(self._node, watch=names_told), self._named)

    def _named(self, result: Any) -> None:
        if isinstance(result, Exception):  # there is no node: the watch of the record tells when there is
            self._names_are_watched = False

    def _record_noticed(self) -> None:
        self._record_is_watched = False
        self.set()
        self._coordination.changed(self._path)

    def _names_noticed(self) -> None:
        self._names_are_watched = False
        self.set()
        self._coordination.changed(self._path)


class _HubsReading:
    """One look at all hubs: their names are known, each is read."""

    def __init__(self, coordination: ZooKeeperCoordination, names: list[str], done: OnHubs) -> None:
        self._coordination = coordination
        self._names = names
        self._done = done
        self._hubs: dict[str, Hub] = {}
        self._left_count = len(names)
        self._failed: MetadataError | None = None

    def begin(self) -> None:
        if not self._names:
            self._done({})
        for name in self._names:
            self._coordination._read_hub(name, partial(self._read, name))

    def _read(self, name: str, result: Any) -> None:
        self._left_count -= 1
        if not isinstance(result, Exception):
            self._hubs[name] = _hub_in(result[0], name)
        elif not isinstance(result, NoNodeError):  # one that has just left is no failure
            self._failed = self._coordination._failed(result, HUBS)
        if not self._left_count:
            if self._failed is None:
                self._coordination.saw(self._hubs)
            self._done(self._failed or {one: self._hubs[one] for one in sorted(self._hubs)})


def _watch_node(node: str, told: Callable[[Any], None], zoo: Any) -> Any:
    return zoo.exists_async(node, watch=told)


def _hub_value(hub: Hub) -> bytes:
    return json.dumps(hub_fields(hub)).encode()


def _hub_in(value: bytes, name: str) -> Hub:
    """Return the hub of its node. One that another program has written is there without an address."""
    try:
        return hub_of(decoded(value))
    except MessageError:
        return Hub(name)


def _ignored(_result: Any) -> None:
    """Take an answer that changes nothing."""
