"""Producers, consumers and requests while hubs are killed and stopped, and shards moved: real processes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sluiceway.client import Consumer, LogClient, Producer
from sluiceway.client.errors import ClientError, RequestError
from tests.client.conftest import quick
from tests.sluiceway.hub_processes import Hubs, until

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(240)]

LOG = "orders"
NAME = f"/log/{LOG}"


class Load:
    """Threads that continue until they are stopped; what they raise fails the test."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], None]) -> threading.Thread:
        def caught() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - of any kind, for the test
                self.errors.append(error)
                self.over.set()

        thread = threading.Thread(target=caught)
        thread.start()
        self._threads.append(thread)
        return thread

    def stop(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.errors, self.errors


def test_nothing_confirmed_is_lost_and_readers_see_every_index_once(tmp_path: Path) -> None:
    """An operator moves the log, its new owner pauses for a moment, and is killed; all clients follow it."""
    with Hubs(tmp_path) as hubs:
        load = Load()
        faults: list[Callable[[str], object]]
        faults = [hubs.move, partial(hubs.stop_owner, seconds=1.0), hubs.kill_owner]
        confirmed: dict[int, bytes] = {}
        """By index."""
        read: list[tuple[int, bytes]] = []
        grouped: list[tuple[int, bytes]] = []
        sizes: list[int] = []
        done = threading.Event()
        producer = Producer(hubs.brokers, LOG, mode="sync", backoff=quick)

        def produce() -> None:
            number = 0
            while not load.over.wait(0.01):
                value = b"%d" % number
                confirmed[producer.send(value)] = value
                number += 1

        def consume(group: str | None, into: list[tuple[int, bytes]]) -> None:
            with Consumer(hubs.brokers, group=group, from_="earliest", on_gap="error", backoff=quick) as consumer:
                stream = consumer.stream(LOG)
                while not done.is_set():
                    into += [(record.index, record.value) for record in stream.poll(0.1)]

        def ask() -> None:
            with LogClient(hubs.brokers) as client:
                while not load.over.wait(0.05):
                    try:
                        sizes.append(client.size(LOG))
                    except RequestError as error:
                        assert error.code == "shard-away", error
                    except (ClientError, TimeoutError):
                        pass  # its hub died; the next request goes to another one

        def continues() -> None:
            count = len(confirmed)
            until(lambda: bool(load.errors) or len(confirmed) > count + 20)

        producing = load.run(produce)
        until(lambda: bool(load.errors or confirmed))  # it is there
        for work in (ask, lambda: consume(None, read), lambda: consume("billing", grouped)):
            load.run(work)
        try:
            continues()
            for fault in faults:
                fault(NAME)
                continues()
            load.over.set()
            producing.join(60)  # its last record is confirmed
            until(lambda: bool(load.errors) or max(confirmed) in dict(read))
            until(lambda: bool(load.errors) or max(confirmed) in dict(grouped))
        finally:
            done.set()
            load.stop()
            producer.close(10)

        assert [index for index, _value in read] == list(range(len(read))), "each index once, in order"
        by_index = dict(read)
        assert {index: by_index[index] for index in confirmed} == confirmed
        assert dict(grouped) == by_index, "at least once in a group, and the same"
        twice = sum(count - 1 for count in Counter(by_index.values()).values())
        # One record is under way at a time: the producer sends it again, or a hub by which it had come.
        assert twice <= producer.statistics().resent_count + len(faults), "a record is there twice if it was sent twice"
        assert sizes and max(sizes) <= len(read)
