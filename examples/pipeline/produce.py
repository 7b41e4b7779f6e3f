"""Send web-access events: all into a log, partitioned by user; incidents into a work queue, too.

    python -m examples.pipeline.produce --brokers 127.0.0.1:61613 --events 300000

The log is spread over the brokers by a hash of the user, so the events of one user stay in order. A producer that loses
its connection sends unconfirmed events again, so an event may come twice: to count money, count distinct ids.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import click
import stomp

from examples.pipeline.events import Event, events
from sluiceway.client import Producer
from sluiceway.client.address import Address

LOG: Final = "access"
QUEUE: Final = "/queue/incidents"
NEWS_EVERY: Final = 20_000
RECEIPT_SECONDS_MAX: Final = 30.0


class _Receipts(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Knows when the last message is safe."""

    def __init__(self) -> None:
        self.last = threading.Event()

    def on_receipt(self, frame: stomp.utils.Frame) -> None:
        if frame.headers["receipt-id"] == "last":
            self.last.set()


def produce(
    brokers: Sequence[str],
    some: Sequence[Event],
    *,
    log: str = LOG,
    news: Callable[[int], None] = lambda _count: None,
) -> None:
    """Send events and wait until they are on the brokers' disks. `news`: called with the number of events sent so
    far.
    """
    with Producer(brokers, log, partitioner="hash", compression="zstd") as producer:
        for count, each in enumerate(some, 1):
            producer.send(each.to_json(), key=each.user)
            if count % NEWS_EVERY == 0:
                news(count)
    _report_incidents(brokers[0], [each for each in some if each.is_incident])
    news(len(some))


def _report_incidents(broker: str, incidents: Sequence[Event]) -> None:
    """Any STOMP client will do for a queue. The RECEIPT of the last one is for all before it."""
    if not incidents:
        return
    address = Address.parse(broker)
    receipts = _Receipts()
    connection = stomp.Connection12([(address.host, address.port)])
    connection.set_listener("receipts", receipts)
    connection.connect(address.login, address.passcode, wait=True)
    for number, each in enumerate(incidents, 1):
        receipt = {"receipt": "last"} if number == len(incidents) else {}
        connection.send(QUEUE, each.to_json(), headers={"persistent": "true", **receipt})
    if not receipts.last.wait(RECEIPT_SECONDS_MAX):
        raise TimeoutError(f"{broker} did not confirm the incidents within {RECEIPT_SECONDS_MAX:g} s")
    connection.disconnect()


@click.command()
@click.option(
    "--brokers",
    envvar="SLUICEWAY_URL",
    default="127.0.0.1:61613",
    show_default=True,
    help="HOST:PORT of each, with commas. Also from SLUICEWAY_URL.",
)
@click.option("--events", "count", default=100_000, show_default=True, help="How many the day has.")
def main(brokers: str, count: int) -> None:
    """Send the events of a day."""
    began_seconds = time.monotonic()
    produce(brokers.split(","), list(events(0, count, count)))
    seconds = time.monotonic() - began_seconds
    click.echo(f"{count:,} events sent in {seconds:.1f} s")


if __name__ == "__main__":
    main()
