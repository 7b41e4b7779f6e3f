"""Pages as programs get them: in real time, from a broker that does other things; never too many of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from sluiceway import metrics
from sluiceway.broker import Broker
from sluiceway.config import Config, Listener
from sluiceway.embedded import EmbeddedBroker
from sluiceway.metrics import gather, outside
from sluiceway.metrics.config import MetricsConfig
from sluiceway.metrics.gather import Metrics
from sluiceway.metrics.outside import SystemValues
from sluiceway.queues.names import parse
from tests.scenarios.scrape import Page

CONFIG = Config(listeners=(Listener(address="127.0.0.1:0"),))


async def test_a_broker_in_a_trio_program_has_its_page() -> None:
    """With what the system knows of the process."""
    async with Broker(CONFIG) as broker:
        page = Page((await broker.metrics_page()).decode())
        assert page("process_resident_memory_bytes") > 1_000_000
        assert page("process_open_fds") > 3
        assert page("sluiceway_connections", listener="127.0.0.1:0") == 0
        assert (await broker.metrics_page(openmetrics=True)).endswith(b"# EOF\n")


def test_an_embedded_broker_has_its_page() -> None:
    with EmbeddedBroker() as broker:
        assert Page(broker.metrics())("sluiceway_draining") == 0


class Clock:
    """Passes a tenth of a millisecond at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.0001
        return self.now


async def test_who_asks_too_often_gets_the_last_page_again(autojump_clock: MockClock) -> None:
    """A page that took a while to make is good for nine times as long: a tenth of the time goes into them."""
    async with Broker(CONFIG) as broker:
        clock = Clock()
        broker.metrics = Metrics(broker, clock)
        first = await broker.metrics_page()
        took = clock.now
        while await broker.metrics_page() is first:
            assert clock.now < 100 * took
        assert clock.now > 5 * took


async def test_the_system_is_asked_again_when_some_seconds_have_passed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each page it would take a thread."""
    looked: list[float] = []
    clock = Clock()

    def look(folder: Path | None) -> SystemValues:
        looked.append(clock.now)
        return outside.look(folder)

    monkeypatch.setattr(gather, "look", look)
    async with Broker(CONFIG) as broker:
        broker.metrics = Metrics(broker, clock)
        while len(looked) < 3:
            await broker.metrics_page()
            clock.now += 0.5
    assert all(gather.LOOK_SECONDS <= later - earlier < gather.LOOK_SECONDS + 1 for earlier, later in pairwise(looked))


async def test_all_who_ask_at_once_get_one_page(autojump_clock: MockClock) -> None:
    async with Broker(CONFIG) as broker:
        broker.metrics = Metrics(broker, Clock())
        pages: list[bytes] = []

        async def ask() -> None:
            pages.append(await broker.metrics_page())

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
        assert len({id(page) for page in pages}) == 1


async def test_one_who_does_not_wait_for_the_page_leaves_it_to_the_others() -> None:
    async with Broker(CONFIG) as broker:
        with trio.CancelScope() as scope:
            scope.cancel()
            await broker.metrics_page()
        assert await broker.metrics_page()


def test_the_format_is_the_older_one_unless_a_client_can_read_the_other() -> None:
    """Accept headers of Prometheus, of a browser, of nobody."""
    prometheus = (
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    )
    assert metrics.wants_openmetrics(prometheus)
    assert metrics.wants_openmetrics("application/openmetrics-text")
    for other in ("", "*/*", "text/html", "text/plain;version=0.0.4", "application/openmetrics-text;version=9.0.0"):
        assert not metrics.wants_openmetrics(other)
    assert not metrics.wants_openmetrics("application/openmetrics-text;q=0,text/plain")


async def test_how_many_destinations_have_names_may_change_while_it_runs() -> None:
    """Those that have one keep it."""
    async with Broker(CONFIG) as broker:
        broker.registry.get(parse("/queue/a"))
        assert broker.reloading.may_change("metrics.destinations_max")
        await broker.metrics_page()
        broker.reload(attrs.evolve(CONFIG, metrics=MetricsConfig(destinations_max=1)))
        broker.registry.get(parse("/queue/b"))
        broker.metrics = Metrics(broker)
        page = Page((await broker.metrics_page()).decode())
        assert page.get("sluiceway_destination_messages", destination="/queue/a") == 0
        assert page.get("sluiceway_destination_messages", destination="/queue/b") is None
