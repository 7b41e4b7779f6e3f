"""What selectors need is made when a broker serves, so that nobody's delivery waits for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from sluiceway import selector_preparation, serving
from sluiceway.config import BrokerConfig, Config, Listener
from sluiceway.queues.selectors import table
from tests.scenarios.stage import Stage

DEADLINE_SECONDS = 20


class RealStage(Stage):
    """A stage on the real clock, where nobody knows when everything has settled."""

    async def check_all_accounted_for(self) -> None:
        """That the books are in order is what tests/scenarios are for."""


async def test_the_parser_is_made_in_another_thread_when_clients_can_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[list[str]] = []
    prepared = threading.Event()
    where: list[tuple[bool, bool]] = []

    def prepare() -> None:
        where.append((threading.current_thread() is threading.main_thread(), bool(ready)))
        prepared.set()

    monkeypatch.setattr(selector_preparation, "prepare", prepare)
    monkeypatch.setattr(selector_preparation, "is_prepared", lambda: False)
    monkeypatch.setattr(serving, "tune_garbage_collector", lambda: None)  # of the whole process
    monkeypatch.setattr(serving, "tune_allocator", lambda: None)
    config = Config(broker=BrokerConfig(data_dir=tmp_path), listeners=[Listener(address="127.0.0.1:0")])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serving.serve(config, on_ready=ready.append))
        assert await trio.to_thread.run_sync(prepared.wait, DEADLINE_SECONDS)
        nursery.cancel_scope.cancel()
    assert where == [(False, True)]


async def test_a_subscribe_that_comes_before_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is behind it on its connection; others don't."""
    may_go_on = threading.Event()
    made: list[str] = []

    def prepare() -> None:
        assert may_go_on.wait(DEADLINE_SECONDS)
        made.append(threading.current_thread().name)

    monkeypatch.setattr(selector_preparation, "prepare", prepare)
    monkeypatch.setattr(selector_preparation, "is_prepared", lambda: bool(made))
    monkeypatch.setattr(table, "is_prepared", lambda: bool(made))
    with trio.fail_after(DEADLINE_SECONDS):
        async with RealStage() as stage:
            client, other = await stage.connect(), await stage.connect()
            await client.send_raw(
                client.encode("SUBSCRIBE", {"id": "s", "destination": "/queue/a", "selector": "k = 1", "receipt": "r"})
                + client.encode("SEND", {"destination": "/queue/a", "k": "1"}, b"mine")
            )
            await other.sync()
            assert "/queue/a" not in stage.broker.registry.destinations
            may_go_on.set()
            await client.expect_receipt("r")
            assert await client.next_texts(1) == ["mine"]
    assert made == ["selectors"]


async def test_a_connection_that_ends_meanwhile_does_not_wait_and_what_could_not_be_made_is_made_by_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There the one who needs it finds out why."""
    may_go_on = threading.Event()

    def prepare() -> None:
        assert may_go_on.wait(DEADLINE_SECONDS)

    monkeypatch.setattr(selector_preparation, "prepare", prepare)
    monkeypatch.setattr(selector_preparation, "is_prepared", lambda: False)
    monkeypatch.setattr(table, "is_prepared", lambda: False)
    with trio.fail_after(DEADLINE_SECONDS):
        async with RealStage() as stage:
            gone, stays, waits = await stage.connect(), await stage.connect(), await stage.connect()
            for client in (gone, stays):
                await client.frame("SUBSCRIBE", {"id": "s", "destination": "/queue/a", "selector": "k = 1"})
            await waits.sync()
            gone.vanish()
            await waits.sync()
            may_go_on.set()
            await stays.sync()
            assert stage.broker.registry.attachments.used_count == 1
