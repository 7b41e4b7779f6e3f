"""A body far larger than memory should be passes through a broker process that hardly grows. Source: issue 3."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.faults.large_transfer import Wire, checksum_of
from tests.sluiceway.broker_process import BrokerProcess

MIB = 1024 * 1024
BODY_BYTES = 256 * MIB
GROWTH_BYTES_MAX = 32 * MIB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc"),
]


class Watch:
    """The most memory that a process has taken since this was made."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._before_bytes = self._most_bytes = broker.rss_bytes()

    def look(self) -> None:
        self._most_bytes = max(self._most_bytes, self._broker.rss_bytes())

    @property
    def growth_bytes(self) -> int:
        self.look()
        return self._most_bytes - self._before_bytes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        # Once with a small body: what an interpreter needs only the first time does not count.
        with Wire(broker.address) as wire:
            wire.send_large(b"destination:/queue/warm\n", 2 * MIB, between=lambda: None)
        yield broker


@pytest.mark.parametrize("persistent", [b"persistent:true\n", b""], ids=["persistent", "not persistent"])
@pytest.mark.timeout(300)
def test_a_large_body_passes_through_a_broker_that_does_not_grow(broker: BrokerProcess, persistent: bytes) -> None:
    """Stored first and then read, byte for byte."""
    watch = Watch(broker)
    with Wire(broker.address) as sender, Wire(broker.address) as receiver:
        sender.send_large(b"destination:/queue/q\n" + persistent, BODY_BYTES, between=watch.look)
        receiver.send(b"SUBSCRIBE\nid:s\ndestination:/queue/q\n\n\0")
        assert receiver.receive_large(between=watch.look) == (BODY_BYTES, checksum_of(BODY_BYTES))
    assert watch.growth_bytes < GROWTH_BYTES_MAX


@pytest.mark.timeout(300)
def test_several_large_bodies_at_once_share_what_memory_there_is(broker: BrokerProcess) -> None:
    """Four ways in and four ways out at the same time: the buffers on the way to the disk are bounded together."""
    size_bytes = BODY_BYTES // 4
    watch = Watch(broker)

    def pass_one(name: bytes, results: list[tuple[int, int]]) -> None:
        with Wire(broker.address) as sender, Wire(broker.address) as receiver:
            receiver.send(b"SUBSCRIBE\nid:s\ndestination:/queue/%s\n\n\0" % name)
            sender.send_large(b"destination:/queue/%s\n" % name, size_bytes, between=watch.look)
            results.append(receiver.receive_large(between=watch.look))

    results: list[tuple[int, int]] = []
    threads = [Thread(target=pass_one, args=(b"q%d" % number, results)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(size_bytes, checksum_of(size_bytes))] * 4
    assert watch.growth_bytes < GROWTH_BYTES_MAX
