"""A healthy pair of clients that uses the broker all the while, and notices if anything goes wrong with it."""

from __future__ import annotations

import threading
from types import TracebackType

from tests.interop.raw_client import DEADLINE_SECONDS, RawClient, frame

DESTINATION = "/queue/bystander"


class Bystander:
    """Sends a numbered message, waits for its receipt and its delivery, acknowledges it, and so on, in a thread.

    Leaving the block ends it in order, and raises what went wrong.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._thread = threading.Thread(target=self._run, name="bystander", daemon=True)
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._round_trips_count = 0
        self._failure: BaseException | None = None

    def __enter__(self) -> Bystander:
        self._thread.start()
        self.is_served(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the bystander hangs"
        if self._failure is not None and kind is None:
            raise self._failure

    def is_served(self, round_trips_count: int = 20) -> None:
        """Wait until it made so many more round trips from now on."""
        with self._progress:
            due = self._round_trips_count + round_trips_count
            done = self._progress.wait_for(
                lambda: self._round_trips_count >= due or self._failure is not None, DEADLINE_SECONDS
            )
            assert done, f"only {self._round_trips_count} round trips, {due} were due"
            if self._failure is not None:
                raise AssertionError("the bystander was hurt") from self._failure

    def _run(self) -> None:
        try:
            with RawClient(self._address) as producer, RawClient(self._address) as consumer:
                self._make_round_trips(producer, consumer)
        except BaseException as failure:  # noqa: BLE001 - raised again where the test waits
            with self._progress:
                self._failure = failure
                self._progress.notify_all()

    def _make_round_trips(self, producer: RawClient, consumer: RawClient) -> None:
        producer.connect()
        consumer.connect()
        consumer.send(frame("SUBSCRIBE", id="0", destination=DESTINATION, ack="client-individual", receipt="on"))
        consumer.expect("RECEIPT")
        number = 0
        while not self._stop.is_set():
            number += 1
            body = str(number).encode()
            producer.send(frame("SEND", body, destination=DESTINATION, receipt=str(number)))
            assert producer.expect("RECEIPT")["receipt-id"] == str(number)
            message = consumer.expect("MESSAGE")
            assert message.body == body
            assert "redelivered" not in message.headers
            consumer.send(frame("ACK", id=message["ack"]))
            with self._progress:
                self._round_trips_count = number
                self._progress.notify_all()
        for client in (producer, consumer):
            client.send(frame("DISCONNECT", receipt="bye"))
            assert client.expect("RECEIPT")["receipt-id"] == "bye"
