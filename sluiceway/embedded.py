"""A broker for programs that are not trio programs: it runs in a thread of its own.

    with EmbeddedBroker() as broker:
        connection = stomp.Connection([(broker.host, broker.port)])

Starts in some milliseconds on a free port of the loop-back interface, and stops in good order at the end of the block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import trio

from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, Listener
from sluiceway.config.model import configuration

T = TypeVar("T")

START_SECONDS_MAX = 30.0


def embedded_config() -> Config:
    """A free port on 127.0.0.1, and a short good-bye."""
    return Config(listeners=(Listener(address="127.0.0.1:0"),), broker=BrokerConfig(shutdown_seconds=2.0))


class EmbeddedBroker:
    """A broker in a thread. A plain context manager, or `start()` and `stop()`."""

    def __init__(self, config: Config | None = None) -> None:
        """`config`: default is a free port on the loop-back interface; for a fixed one give listeners. Raises TypeError
        for anything else than a Config.
        """
        self.config = configuration(config, embedded_config, "EmbeddedBroker")
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
        """Stop it in good order and wait for the end. Does nothing if it is not running. Raises what the broker died
        of.
        """
        thread = self._thread
        if thread is None:
            return
        if thread.is_alive() and self._token is not None and self._stop is not None:
            try:
                self._token.run_sync_soon(self._stop.set)
            except trio.RunFinishedError:
                # It ended by itself in this instant; joining tells why.
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
            trio.run(self._main)
        except BaseExceptionGroup as group:
            self._failure = group.exceptions[0] if len(group.exceptions) == 1 else group
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that started us
            self._failure = failure
        finally:
            if self._broker is not None:
                self._broker.abandon()
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with Broker(self.config) as self._broker:
            self._ready.set()
            await self._stop.wait()

    # ------------------------------------------------------------------ use

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

    def call(self, function: Callable[[Broker], T]) -> T:
        """Run a plain function on the broker, in its thread, and return what it returns.

        Raises what the function raises, RuntimeError if the broker is not running.
        """
        broker = self.broker
        assert self._token is not None
        try:
            return trio.from_thread.run_sync(function, broker, trio_token=self._token)
        except trio.RunFinishedError:
            raise RuntimeError("the broker has stopped: ask it before the end of its `with` block") from None

    def metrics(self) -> str:
        """What Prometheus would scrape, in its text format. Raises RuntimeError if the broker is not running."""
        broker = self.broker
        assert self._token is not None
        try:
            return trio.from_thread.run(broker.metrics_page, trio_token=self._token).decode()
        except trio.RunFinishedError:
            raise RuntimeError("the broker has stopped: ask it before the end of its `with` block") from None

    def report(self) -> dict[str, Any]:
        """The state of the broker: flow map, destinations, connections; what `sluiceway stat` shows."""
        return self.call(lambda broker: broker.report())
