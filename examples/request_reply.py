"""A question and its answer: the asker's temporary queue travels along as `reply-to`.

    python -m examples.request_reply

`/temp-queue/NAME` belongs to the connection that names it. The broker rewrites the `reply-to` of a SEND to a global
name that the answering side can send to, and deletes the queue when its connection ends.
"""

from __future__ import annotations

import queue
from typing import Any

import stomp

from sluiceway import EmbeddedBroker


class Calculator(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Answers each request where it wants to be answered."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def on_message(self, frame: stomp.utils.Frame) -> None:
        first, second = frame.body.split("+")
        self._connection.send(
            frame.headers["reply-to"],
            str(int(first) + int(second)),
            headers={"correlation-id": frame.headers["correlation-id"]},
        )


class Answers(stomp.ConnectionListener):  # type: ignore[misc]
    """Keeps the answers by the question that they belong to."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[tuple[str, str]] = queue.Queue()

    def on_message(self, frame: stomp.utils.Frame) -> None:
        self.arrived.put((frame.headers["correlation-id"], frame.body))


def main() -> None:
    """Ask three questions at once, and match the answers."""
    with EmbeddedBroker() as broker:
        server = stomp.Connection12([(broker.host, broker.port)])
        server.set_listener("calculator", Calculator(server))
        server.connect(wait=True)
        server.subscribe("/queue/sums", id="1", ack="auto")

        asker, answers = stomp.Connection12([(broker.host, broker.port)]), Answers()
        asker.set_listener("answers", answers)
        asker.connect(wait=True)
        asker.subscribe("/temp-queue/answers", id="1", ack="auto")
        for question in ("1+2", "20+22", "5+8"):
            asker.send("/queue/sums", question, headers={"reply-to": "/temp-queue/answers", "correlation-id": question})
        for _ in range(3):
            question, answer = answers.arrived.get(timeout=10)
            print(f"{question} = {answer}")
        for connection in (asker, server):
            connection.disconnect()


if __name__ == "__main__":
    main()
