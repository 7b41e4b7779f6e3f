"""An embedded broker for coroutines of asyncio or trio: calls that wait do so in a thread, not in the event loop.

    async with AsyncEmbeddedBroker() as broker:
        await broker.publish("/queue/orders", "42 ducks")
        await broker.wait_for("/queue/orders", depth_count=1)

The broker is an `EmbeddedBroker`, in a thread of its own. A broker inside a trio program is `Broker`.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import sniffio

from sluiceway import embedded_waits as waits
from sluiceway.embedded import EmbeddedBroker
from sluiceway.embedded_messages import TIMEOUT_SECONDS, Message, Subscribing, Subscription, Unopened

T = TypeVar("T")


async def _in_thread(function: Callable[[], T], given_up: threading.Event | None = None) -> T:
    """Run a function in a thread of the event loop that runs here, and return what the function returns. `given_up`: a
    function that ends soon when this event is set; then a coroutine that is cancelled does not wait for the end.
    """
    try:
        if sniffio.current_async_library() == "trio":
            import trio

            return await trio.to_thread.run_sync(function, abandon_on_cancel=given_up is not None)
        import asyncio

        return await asyncio.to_thread(function)
    except BaseException:
        if given_up is not None:
            given_up.set()
        raise


async def _to_the_end(function: Callable[[], object]) -> None:
    """Run a function that ends something in a thread, even where the coroutine is being cancelled."""
    if sniffio.current_async_library() != "trio":
        await _in_thread(function)
        return
    import trio

    with trio.CancelScope(shield=True):
        await _in_thread(function)


class AsyncSubscription:
    """An active subscription of a queue or a topic."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> AsyncIterator[Message]:
        """Return `iterate()`: message after message, each acknowledged."""
        return self.iterate()

    def iterate(
        self, timeout_seconds: float | None = TIMEOUT_SECONDS, *, acknowledge: bool = True
    ) -> AsyncIterator[Message]:
        """Do what `Subscription.iterate` does, for `async for`. Cancelled, a loop takes no message. The loop raises
        TimeoutError, ClientError.
        """
        return _Iteration(partial(self.receive, timeout_seconds, acknowledge=acknowledge))

    async def receive(self, timeout_seconds: float | None = TIMEOUT_SECONDS, *, acknowledge: bool = True) -> Message:
        """Do what `Subscription.receive` does. Raises TimeoutError. Cancelled, it takes no message."""
        given_up = threading.Event()
        receive = self._subscription.receive_unless
        return await _in_thread(partial(receive, given_up, timeout_seconds, acknowledge=acknowledge), given_up)

    async def acknowledge(self, message: Message) -> None:
        """Call `Subscription.acknowledge` in a thread."""
        await _in_thread(partial(self._subscription.acknowledge, message))

    async def nack(self, message: Message, *, requeue: bool = True) -> None:
        """Call `Subscription.nack` in a thread."""
        await _in_thread(partial(self._subscription.nack, message, requeue=requeue))


class _Iteration:
    """Message after message. A class: an asynchronous generator that a loop leaves would have to be closed."""

    def __init__(self, receive: Callable[[], Awaitable[Message]]) -> None:
        self._receive = receive

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        return await self._receive()


class AsyncSubscribing(Unopened):
    """A subscription to be: active inside an `async with` block, which gives the AsyncSubscription."""

    def __init__(self, blocking: Subscribing, destination: str) -> None:
        """`blocking`: subscribes and unsubscribes, in threads."""
        super().__init__(destination, "async with")
        self._blocking = blocking

    async def __aenter__(self) -> AsyncSubscription:
        return AsyncSubscription(await _in_thread(self._blocking.__enter__))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _to_the_end(partial(self._blocking.__exit__, None, None, None))

    def __aiter__(self) -> NoReturn:
        """Say what was forgotten. Raises TypeError."""
        self.__iter__()

    def __await__(self) -> NoReturn:
        """Say what was forgotten. Raises TypeError."""
        raise TypeError(f"nothing to await outside of a block: {self._block()}")


class AsyncEmbeddedBroker:
    """A broker in a thread, with coroutines in place of calls that block. An async context manager."""

    def __init__(self, blocking: EmbeddedBroker | None = None, **arguments: Any) -> None:
        """`blocking`: a broker to use, which may run already; None: one with these arguments of EmbeddedBroker."""
        self.blocking = EmbeddedBroker(**arguments) if blocking is None else blocking

    async def __aenter__(self) -> AsyncEmbeddedBroker:
        await _in_thread(self.blocking.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _to_the_end(self.blocking.stop)

    @property
    def host(self) -> str:
        return self.blocking.host

    @property
    def port(self) -> int:
        return self.blocking.port

    @property
    def url(self) -> str:
        """stomp://HOST:PORT of the first listener."""
        return self.blocking.url

    async def publish(
        self, destination: str, body: str | bytes = "", headers: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        """Call `EmbeddedBroker.publish` in a thread."""
        await _in_thread(partial(self.blocking.publish, destination, body, headers, **options))

    async def messages(self, destination: str, **options: Any) -> list[Message]:
        """Call `EmbeddedBroker.messages` in a thread."""
        return await _in_thread(partial(self.blocking.messages, destination, **options))

    def subscribe(self, destination: str, headers: Mapping[str, str] | None = None, **options: Any) -> AsyncSubscribing:
        """Subscribe for the time of an `async with` block, as `EmbeddedBroker.subscribe` does."""
        return AsyncSubscribing(self.blocking.subscribe(destination, headers, **options), destination)

    async def purge(self, destination: str) -> int:
        """Call `EmbeddedBroker.purge` in a thread."""
        return await _in_thread(partial(self.blocking.purge, destination))

    async def reset(self) -> None:
        """Call `EmbeddedBroker.reset` in a thread."""
        await _in_thread(self.blocking.reset)

    async def wait_until(self, condition: Callable[[], T], *, timeout_seconds: float = TIMEOUT_SECONDS) -> T:
        """Call `EmbeddedBroker.wait_until` in a thread, which calls `condition`."""
        given_up = threading.Event()
        wait = partial(waits.until, self.blocking, condition, timeout_seconds, given_up)
        return await _in_thread(wait, given_up)

    async def wait_for(self, destination: str, *, timeout_seconds: float = TIMEOUT_SECONDS, **figures: object) -> None:
        """Call `EmbeddedBroker.wait_for` in a thread."""
        given_up = threading.Event()
        wait = partial(waits.for_figures, self.blocking, destination, figures, timeout_seconds, given_up)
        await _in_thread(wait, given_up)

    async def destination(self, name: str) -> dict[str, Any]:
        """Call `EmbeddedBroker.destination` in a thread."""
        return await _in_thread(partial(self.blocking.destination, name))

    async def report(self) -> dict[str, Any]:
        """Call `EmbeddedBroker.report` in a thread."""
        return await _in_thread(self.blocking.report)

    async def advance(self, seconds: float) -> None:
        """Call `EmbeddedBroker.advance` in a thread."""
        await _in_thread(partial(self.blocking.advance, seconds))
