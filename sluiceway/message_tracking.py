"""Observers of messages: trails, tracing, both or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from sluiceway.config import Config
from sluiceway.extras import needs
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.queues.environment import ObserverOf
from sluiceway.queues.observer import CompositeObserver, Observer
from sluiceway.queues.queue import MessageQueue
from sluiceway.tracing.spans import SpanSink, Tracing
from sluiceway.trails.answering import BrokerTrails
from sluiceway.version import VERSION

if TYPE_CHECKING:
    from sluiceway.tracing.exporting import SdkSpans

CLOSING_SECONDS: Final = 6.0
"""Maximum time for the last spans."""


class MessageTracking:
    """Trails and tracing of one broker."""

    def __init__(
        self,
        config: Config,
        *,
        trails: BrokerTrails | None,
        spans: SpanSink | None,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        """Make the observers. `trails`: None if they are switched off; `spans`: destination of traces, in place of the
        configured collector.
        """
        self._config = config
        self._spans = spans
        self._clock = clock
        self._now_ms = now_ms
        self._exporter: SdkSpans | None = None
        self.trails = trails
        self.tracing: Tracing | None = None
        """None: not begun, or switched off."""
        self.on_marked_sends: Callable[[SendHead, int, int], None] | None = None
        """See Hub."""

    def begin(self, token: bytes) -> ObserverOf | None:
        """Begin to observe messages whose ids begin with `token`. Returns a function that makes the observer of a
        queue; None: there is no observer. Raises MissingExtraError.
        """
        tracing, clock, spans = self._config.tracing, self._clock, self._spans
        if spans is None and tracing.enabled:
            spans = self._exporter = _exporter(self._config)
        if spans is not None:
            # Not a date, which may be set: the time of the broker, counted from the date of its start.
            epoch_ns = self._now_ms() * 1_000_000 - int(clock() * 1e9)
            self.tracing = Tracing(
                spans,
                ratio=tracing.sample_ratio,
                now_ns=lambda: epoch_ns + int(clock() * 1e9),
                token=token.decode(),
            )
        self.on_marked_sends = self._on_marked_sends()
        return self._observer_of()

    def _on_marked_sends(self) -> Callable[[SendHead, int, int], None] | None:
        trails, tracing = self.trails, self.tracing
        if trails is None or tracing is None:
            return trails.came if trails is not None else tracing.came if tracing is not None else None

        def both(head: SendHead, number: int, count: int) -> None:
            trails.came(head, number, count)
            tracing.came(head, number, count)

        return both

    def _observer_of(self) -> ObserverOf | None:
        trails, tracing = self.trails, self.tracing
        if trails is None or tracing is None:
            return (
                trails.trails.observer_of
                if trails is not None
                else tracing.observer_of
                if tracing is not None
                else None
            )

        def both(queue: MessageQueue) -> Observer:
            return CompositeObserver(trails.trails.observer_of(queue), tracing.observer_of(queue))

        return both

    async def close(self) -> None:
        """Post the last spans. A second call does nothing."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            with trio.move_on_after(CLOSING_SECONDS):
                await trio.to_thread.run_sync(exporter.close, abandon_on_cancel=True)


def _exporter(config: Config) -> SdkSpans:
    with needs("tracing", "[tracing] enabled = true"):
        from sluiceway.tracing.exporting import otlp_spans
    return otlp_spans(config.tracing, name=config.broker.name, version=VERSION)
