"""What selectors need is made when a broker serves, so that nobody's delivery waits for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from sluiceway import serving
from sluiceway.config import BrokerConfig, Config, Listener

DEADLINE_SECONDS = 20


async def test_the_parser_is_made_in_another_thread_when_clients_can_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[list[str]] = []
    prepared = threading.Event()
    where: list[tuple[bool, bool]] = []

    def prepare() -> None:
        where.append((threading.current_thread() is threading.main_thread(), bool(ready)))
        prepared.set()

    monkeypatch.setattr(serving, "prepare_selectors", prepare)
    monkeypatch.setattr(serving, "tune_garbage_collector", lambda: None)  # of the whole process
    monkeypatch.setattr(serving, "tune_allocator", lambda: None)
    config = Config(broker=BrokerConfig(data_dir=tmp_path), listeners=[Listener(address="127.0.0.1:0")])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serving.serve(config, on_ready=ready.append))
        assert await trio.to_thread.run_sync(prepared.wait, DEADLINE_SECONDS)
        nursery.cancel_scope.cancel()
    assert where == [(False, True)]
