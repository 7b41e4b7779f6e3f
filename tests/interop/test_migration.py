"""Messages moved from the real RabbitMQ and ActiveMQ, by a run that is killed and another one. Skipped where they are
not installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest

from perf.peers.activemq import ActiveMq
from perf.peers.rabbitmq import RabbitMq
from sluiceway import EmbeddedBroker
from sluiceway.client.address import Address
from sluiceway.client.link import Link

MESSAGES = 1500
PREFETCH = 100
KILLED_AFTER = 3
"""Batches."""
PATIENCE_SECONDS = 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "needed", "login", "is_exact"),
    [
        (RabbitMq, "/usr/lib/rabbitmq/bin/rabbitmq-server", "guest:guest@", False),
        (ActiveMq, "/usr/share/activemq/bin/activemq.jar", "", True),
    ],
    ids=["rabbitmq", "activemq"],
)
def test_a_killed_move_is_continued(
    broker: EmbeddedBroker, tmp_path: Path, peer: type[RabbitMq | ActiveMq], needed: str, login: str, is_exact: bool
) -> None:
    if not Path(needed).exists():
        pytest.skip(f"there is no {needed}")
    old = peer()
    endpoint = old.start(tmp_path)
    try:
        source = f"stomp://{login}{endpoint.host}:{endpoint.port}"
        ledger = tmp_path / "ledger"
        command = [sys.executable, "-m", "sluiceway", "migrate", old.name, source, "--messages", "--queue", "orders"]
        command += [
            "--url",
            f"stomp://{broker.host}:{broker.port}",
            "--ledger",
            str(ledger),
            "--prefetch",
            str(PREFETCH),
        ]
        with Link(attrs.evolve(Address.parse(source), virtual_host="/")) as link:
            for number in range(MESSAGES):
                link.send("/queue/orders", str(number).encode(), {"persistent": "true"}, receipt=True)
                link.wait_receipts(PREFETCH)
            link.wait_receipts()
        _run_and_kill(command, ledger)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        old.stop()
    seen, moved, _left, doubled = done.stdout.splitlines()[-1].replace(",", "").split()[1:5]
    assert (int(seen), int(moved)) == (MESSAGES, MESSAGES)
    arrived = _drained(broker)
    assert set(arrived) == {str(number).encode() for number in range(MESSAGES)}
    assert arrived.total() - MESSAGES <= int(doubled) <= PREFETCH
    if is_exact:
        assert (int(doubled), arrived.total()) == (0, MESSAGES)


def _run_and_kill(command: list[str], ledger: Path) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ledger.exists() or ledger.read_bytes().count(b'"moved"') < KILLED_AFTER:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


def _drained(broker: EmbeddedBroker) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with Link(Address.parse(f"stomp://{broker.host}:{broker.port}")) as link:
        link.send("/queue/orders", b"end", {"priority": "0"})
        link.subscribe("/queue/orders")
        while (frame := link.next_message(10)) is not None and frame.body != b"end":
            found[frame.body] += 1
    return found
