"""A log with nothing but a STOMP client: append, read a range, share the work in a group.

python -m examples.logs.plain_stomp
"""

from __future__ import annotations

import queue
from typing import Any

import stomp

from sluiceway import EmbeddedBroker

SECONDS = 30.0


class Inbox(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Listener that keeps frames in their order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[Any] = queue.Queue()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame)


def connected(broker: EmbeddedBroker) -> tuple[Any, Inbox]:
    """Connection with an inbox for its messages."""
    inbox = Inbox()
    connection = stomp.Connection12([(broker.host, broker.port)])
    connection.set_listener("inbox", inbox)
    connection.connect(wait=True)
    return connection, inbox


def append(broker: EmbeddedBroker) -> None:
    """The RECEIPT says which index the record got."""
    connection, inbox = connected(broker)
    for celsius in (19, 21, 24, 22):
        connection.send("/log/temperature", str(celsius), headers={"receipt": "sent", "room": "kitchen"})
        receipt = inbox.receipts.get(timeout=SECONDS)
    print("the last one has the index", receipt.headers["index"])
    connection.disconnect()


def read_a_range(broker: EmbeddedBroker) -> None:
    """Read a range of records; the place is kept here. The range ends with an empty MESSAGE."""
    connection, inbox = connected(broker)
    connection.subscribe("/log/temperature", id="range", headers={"from": "1", "to": "3"})
    while "range-end" not in (message := inbox.messages.get(timeout=SECONDS)).headers:
        print("at", message.headers["index"], "it was", message.body, "in the", message.headers["room"])
    connection.disconnect()


def work_in_a_group(broker: EmbeddedBroker, count: int) -> None:
    """The broker keeps the place. When the RECEIPT of an ACK is here, that record does not come again."""
    connection, inbox = connected(broker)
    headers = {"group": "alarms", "from": "earliest", "prefetch-count": "1"}
    connection.subscribe("/log/temperature", id="group", ack="client-individual", headers=headers)
    for _ in range(count):
        message = inbox.messages.get(timeout=SECONDS)
        print("alarms looks at index", message.headers["index"])
        connection.ack(message.headers["ack"], receipt="done")
        inbox.receipts.get(timeout=SECONDS)
    connection.disconnect()


def main() -> None:
    """Measure the temperature; read it; look at each measurement once, in two goes."""
    with EmbeddedBroker() as broker:
        append(broker)
        read_a_range(broker)
        work_in_a_group(broker, 3)
        work_in_a_group(broker, 1)


if __name__ == "__main__":
    main()
