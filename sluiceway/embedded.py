"""A broker for programs that are not trio programs, and for tests: the broker runs in a thread of its own.

    with EmbeddedBroker() as broker:
        broker.publish("/queue/orders", "42 ducks")
        assert [message.text for message in broker.messages("/queue/orders")] == ["42 ducks"]

Starts in some milliseconds on a free port of the loop-back interface, and stops in good order at the end of the block.
Calls block; `embedded_async` has the same for asyncio and trio.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from sluiceway import embedded_waits as waits
from sluiceway.broker import Broker
from sluiceway.client.errors import RefusedError
from sluiceway.config import BrokerConfig, Config, Listener
from sluiceway.config.model import configuration
from sluiceway.embedded_messages import TIMEOUT_SECONDS, Headers, Message, Subscribing, Subscription, browse, publish
from sluiceway.embedded_waits import POLL_SECONDS
from sluiceway.embedded_words import INSTEAD_OF_BROWSING, Missing
from sluiceway.queues.names import parse

if TYPE_CHECKING:
    from trio.testing import MockClock

    from sluiceway.client.link import Link

T = TypeVar("T")

START_SECONDS_MAX = 30.0
JUMPS_COUNT_MAX: Final = 100
"""Largest number of jumps in which the clock is advanced, so that timers that follow from timers run, too."""


def embedded_config(*tables: Mapping[str, Any], sources: Sequence[str] = ()) -> Config:
    """Return the configuration of an embedded broker: a free port on 127.0.0.1, and a short shutdown.

    `tables`: sections of a TOML file, with values as there ("64 KiB", "30 s"); later ones override earlier ones.
    `destinations` may be a mapping of patterns to settings. `sources`: where the tables come from, for the error.
    Raises ConfigError, which names source and key.
    """
    if not any(tables):
        return Config(listeners=(Listener(address="127.0.0.1:0"),), broker=BrokerConfig(shutdown_seconds=2.0))
    from sluiceway.config.sources import Layer, load

    layers = [Layer("default", {"listeners": ["127.0.0.1:0"], "broker": {"shutdown_seconds": 2.0}})]
    for given, source in zip(tables, sources or ["argument"] * len(tables), strict=True):
        data = dict(given)
        if isinstance(destinations := data.get("destinations"), Mapping):
            data["destinations"] = [{"match": pattern, **settings} for pattern, settings in destinations.items()]
        layers.append(Layer(source, data))
    return load(flags=layers)


class EmbeddedBroker:
    """A broker in a thread. A plain context manager, or `start()` and `stop()`."""

    def __init__(self, config: Config | None = None, *, fake_clock: bool = False, **tables: Any) -> None:
        """`config`: default is a free port on the loop-back interface; for a fixed one give listeners. Or `tables`: the
        sections of a TOML file as keywords, such as `destinations={"/queue/>": {"memory_bytes": "64 KiB"}}`.
        `fake_clock`: `advance` makes time pass at once.

        Raises TypeError for anything else than a Config and for both at once, ConfigError for wrong tables.
        """
        if config is not None and tables:
            raise TypeError(f"EmbeddedBroker takes a Config or {', '.join(tables)}, not both: use attrs.evolve")
        self.config = configuration(config, lambda: embedded_config(tables), "EmbeddedBroker")
        self._clock: MockClock | None = None
        if fake_clock:
            from trio.testing import MockClock

            self._clock = MockClock(rate=1.0)
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._broker: Broker | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> EmbeddedBroker:
        """Start it and wait until clients can connect. Raises what starting raised (ListenError), RuntimeError if it
        runs already.
        """
        if self._thread is not None:
            raise RuntimeError("this EmbeddedBroker was started before: make a new one")
        self._thread = threading.Thread(target=self._run, name="sluiceway", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the broker was not ready within {START_SECONDS_MAX:g} seconds")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop the broker cleanly and wait for the end. Does nothing if it is not running. Raises the exception that
        ended the broker.
        """
        thread = self._thread
        if thread is None:
            return
        if thread.is_alive() and self._token is not None and self._stop is not None:
            try:
                self._token.run_sync_soon(self._stop.set)
            except trio.RunFinishedError:
                # The thread ended in this instant; joining tells why.
                self._token = None
        thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            trio.run(self._main, clock=self._clock)
        except BaseExceptionGroup as group:
            self._failure = group.exceptions[0] if len(group.exceptions) == 1 else group
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that started the broker
            self._failure = failure
        finally:
            if self._broker is not None:
                self._broker.abandon()
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        clock = self._clock
        if clock is None:
            broker = Broker(self.config)
        else:
            epoch_ms, began = time.time_ns() // 1_000_000, clock.current_time()
            broker = Broker(self.config, now_ms=lambda: epoch_ms + int((clock.current_time() - began) * 1000))
        async with broker as self._broker:
            self._ready.set()
            await self._stop.wait()

    # ------------------------------------------------------------------ where it is

    @property
    def broker(self) -> Broker:
        """The broker itself. It lives in its own thread: read it through `call` only."""
        if self._broker is None:
            raise RuntimeError("the broker is not started: use it inside `with EmbeddedBroker() as broker:`")
        return self._broker

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener."""
        return self.broker.addresses[0]

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def url(self) -> str:
        """stomp://HOST:PORT of the first listener."""
        return self.broker.urls[0]

    # ------------------------------------------------------------------ messages

    @contextmanager
    def connect(self, *, login: str | None = None, passcode: str | None = None) -> Iterator[Link]:
        """Connect a client of this process to the default virtual host, whatever the listeners ask for: without TLS,
        WebSocket or a port. Where the broker has users, `login` and `passcode` count as for any client. Raises
        RefusedError.
        """
        from sluiceway.client.address import Address
        from sluiceway.client.link import Link
        from sluiceway.client.stream import TcpStream

        ours, theirs = socket.socketpair()
        address = Address(self.host, self.port, login=login, passcode=passcode, virtual_host="/")
        link = Link(address, beats=False, connecting=lambda _address, _seconds: TcpStream(ours))
        try:
            self.call(lambda broker: broker.connect_socket(theirs, name="embedding program"))
            with link:
                yield link
        finally:
            ours.close()
            if link.session:
                self._wait_for_end(link.session)

    def _wait_for_end(self, session: str) -> None:
        """Wait until a connection that was closed is no longer in the report, or the broker has stopped."""
        from sluiceway.embedded_reset import open_sessions

        deadline = time.monotonic() + TIMEOUT_SECONDS
        try:
            while time.monotonic() < deadline and session in self.call(open_sessions):
                time.sleep(POLL_SECONDS)
        except RuntimeError:
            return

    def publish(
        self,
        destination: str,
        body: str | bytes = "",
        headers: Headers | None = None,
        *,
        persistent: bool = False,
        login: str | None = None,
        passcode: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Send a message, and wait until the broker has processed the message. `persistent`: short for the header
        `persistent:true`. Raises RefusedError, and TimeoutError if
        the destination takes nothing, TypeError for a body or a header that is not text, ValueError for a body in the
        place of the destination.
        """
        with self.connect(login=login, passcode=passcode) as link:
            try:
                pairs = {**(headers or {}), **({"persistent": "true"} if persistent else {})}
                publish(link, destination, body, pairs, timeout_seconds)
            except TimeoutError as error:
                raise TimeoutError(f"{error}: {self.blockages()}") from None

    def messages(
        self,
        destination: str,
        *,
        selector: str | None = None,
        login: str | None = None,
        passcode: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> list[Message]:
        """Return the messages of a queue without consuming any, those that consumers hold included. Raises
        RefusedError: topics keep no messages, so `subscribe` before something is sent there.
        """
        headers = {} if selector is None else {"selector": selector}
        with self.connect(login=login, passcode=passcode) as link:
            try:
                return browse(link, destination, headers, timeout_seconds)
            except RefusedError as error:
                instead = INSTEAD_OF_BROWSING.get(parse(destination).kind)
                if instead is None:
                    raise
                raise RefusedError(instead.format(destination), error.code) from None

    def subscribe(
        self,
        destination: str,
        headers: Headers | None = None,
        *,
        login: str | None = None,
        passcode: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Subscribing:
        """Subscribe for the time of a `with` block: `subscription.receive()` gives the next message. The block raises
        RefusedError.
        """

        @contextmanager
        def subscribed() -> Iterator[Subscription]:
            with self.connect(login=login, passcode=passcode) as link:
                yield Subscription(link, destination, headers or {}, timeout_seconds)

        return Subscribing(subscribed(), destination)

    def purge(self, destination: str) -> int:
        """Drop the messages of a queue that no consumer holds. Returns their number."""
        from sluiceway.embedded_reset import purge

        def purged(broker: Broker) -> int:
            there = broker.registry.destinations.get(parse(destination).canonical)
            return 0 if there is None else purge(there)

        self._check_prefix(destination)
        return self.call(purged)

    def sessions(self) -> frozenset[str]:
        """Return the ids of the sessions of all connections, for `reset`."""
        from sluiceway.embedded_reset import open_sessions

        return self.call(open_sessions)

    def reset(self, *, keep: frozenset[str] = frozenset()) -> None:
        """Empty the broker: end all connections but those with sessions in `keep`, remove durable subscriptions, logs,
        and destinations with all messages.
        """
        from sluiceway.embedded_reset import reset

        self._call_async(lambda broker: reset(broker, keep))

    # ------------------------------------------------------------------ waiting

    def wait_until(self, condition: Callable[[], T], *, timeout_seconds: float = TIMEOUT_SECONDS) -> T:
        """Call `condition` until the result is true, and return the result. Raises TimeoutError."""
        return waits.until(self, condition, timeout_seconds)

    def wait_for(self, destination: str, *, timeout_seconds: float = TIMEOUT_SECONDS, **figures: object) -> None:
        """Wait until figures of a destination have these values: `broker.wait_for("/queue/orders", depth_count=0)`. The
        figures are those of `destination`. Raises TimeoutError, which has the last values, KeyError for an unknown
        figure, and ValueError for an impossible name.
        """
        waits.for_figures(self, destination, figures, timeout_seconds)

    def blockages(self) -> str:
        """Return who blocks whom, in words."""
        report = self.report()
        waits = report["bottlenecks"] or report["chains"]  # of a moment, too: a timeout may be short
        return "; ".join(found["words"] for found in waits) or "no sender is blocked"

    def _check_prefix(self, name: str) -> None:
        """Raise ValueError for a name with a slip, as the broker refuses for clients."""
        self.call(lambda broker: broker.registry.check_prefix(parse(name), to_send=False))

    def destination(self, name: str) -> dict[str, Any]:
        """Return the row of a destination in `report()["destinations"]`; empty if there is no such destination. Raises
        ValueError for an impossible name.
        """
        canonical = parse(name).canonical
        rows: list[dict[str, Any]] = self.report()["destinations"]
        found = next((row for row in rows if row["name"] == canonical), None)
        if found is None:
            self._check_prefix(name)
            return Missing(canonical, rows)
        return found

    def advance(self, seconds: float) -> None:
        """Make time pass at once, for a broker with `fake_clock`: messages expire, delayed ones come, heart-beats are
        missed. Returns when the broker has done what was due. Raises RuntimeError without a fake clock.
        """
        clock = self._clock
        if clock is None:
            raise RuntimeError(
                "the clock of this broker is real: @pytest.mark.sluiceway(fake_clock=True) gives the test one that can "
                "be advanced; outside pytest, EmbeddedBroker(fake_clock=True)"
            )

        async def jump(_broker: Broker) -> None:
            end = clock.current_time() + seconds
            while (left := end - clock.current_time()) > 0:
                due_seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
                clock.jump(min(left, max(due_seconds, seconds / JUMPS_COUNT_MAX)))
                await trio.testing.wait_all_tasks_blocked()

        self._call_async(jump)

    # ------------------------------------------------------------------ the broker

    def call(self, function: Callable[[Broker], T]) -> T:
        """Run a plain function with the broker, in its thread, and return its result.

        Raises what the function raises, RuntimeError if the broker is not running.
        """
        broker = self.broker
        assert self._token is not None
        try:
            return trio.from_thread.run_sync(function, broker, trio_token=self._token)
        except trio.RunFinishedError:
            raise RuntimeError("the broker has stopped: ask it before the end of its `with` block") from None

    def _call_async(self, function: Callable[[Broker], Awaitable[T]]) -> T:
        broker = self.broker
        assert self._token is not None
        try:
            return trio.from_thread.run(function, broker, trio_token=self._token)
        except trio.RunFinishedError:
            raise RuntimeError("the broker has stopped: ask it before the end of its `with` block") from None

    def metrics(self) -> str:
        """Return the page that Prometheus would scrape, in its text format. Raises RuntimeError if the broker is not
        running.
        """
        return self._call_async(lambda broker: broker.metrics_page()).decode()

    def report(self) -> dict[str, Any]:
        """The state of the broker: flow map, destinations, connections; what `sluiceway stat` shows."""
        return self.call(lambda broker: broker.report())
