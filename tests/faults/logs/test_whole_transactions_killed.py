"""`kill -9` of a real broker while transactions take records, messages and durable ones, and send: each of them is
there whole, or not at all.

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/logs/test_whole_transactions_killed.py` kills fifty times as often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.faults.logs.whole import IN_LOG, IN_QUEUE, IN_TOPIC, OTHER_LOG, OUTPUTS, SOURCES, Books
from tests.how_often import rounds
from tests.interop.raw_client import RawClient, RawFrame, frame
from tests.sluiceway.broker_process import BrokerProcess

KILLS_COUNT = rounds(2)
KILLS_AT_ONCE = 2
INPUTS_COUNT = 300
ANSWER_SECONDS = 60.0
PATIENCE_SECONDS = 5.0
"""A life ends then at the latest: all of the work may be done before it begins."""

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(240)]


class KillRound:
    """See the module."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.books = Books(self.random)
        self._folder = folder
        self._body_bytes = self.random.choice((30, 3_000))
        (folder / "sluiceway.toml").write_text(
            '[[listeners]]\naddress = "127.0.0.1:0"\nlimits.transaction_bytes_max = 12000\n', encoding="utf-8"
        )

    def run(self) -> None:
        with self._start() as process:
            self._put_in(process)
        for _ in range(KILLS_AT_ONCE):
            with self._start() as process:
                patience = threading.Timer(PATIENCE_SECONDS, process.kill)
                patience.start()
                timer = threading.Timer(0.2 + self.random.random(), process.kill)
                self._work(process, timer.start)
                for each in (patience, timer):
                    each.cancel()
                    if each.ident is not None:
                        each.join()
        with self._start() as process:
            self._audit(process)

    def _start(self) -> BrokerProcess:
        data, config = str(self._folder / "data"), str(self._folder / "sluiceway.toml")
        return BrokerProcess(self._folder, "--data", data, "--config", config, "--log-level", "warning", listen=None)

    def _subscribed(self, process: BrokerProcess) -> RawClient:
        client = RawClient(process.address)
        client.connect(client_id="worker")
        for source, headers in SOURCES.items():
            named = {name.replace("-", "_"): value for name, value in headers.items()}
            client.send(frame("SUBSCRIBE", id=source, ack="client-individual", prefetch_count="20", **named))
        return client

    def _put_in(self, process: BrokerProcess) -> None:
        with self._subscribed(process) as client:
            client.send(frame("DISCONNECT", receipt="there"))
            assert client.frames_to_end()[-1]["receipt-id"] == "there"
        with RawClient(process.address) as client:
            client.connect()
            for name, at in (("g", IN_LOG), ("o", OTHER_LOG), ("q", IN_QUEUE), ("d", IN_TOPIC)):
                bodies = [f"{name} {number}" for number in range(INPUTS_COUNT)]
                client.send(
                    b"".join(frame("SEND", body.encode(), destination=at, persistent="true") for body in bodies)
                )
                for source in {"g": ("g", "h")}.get(name, (name,)):
                    self.books.inputs[source] = set(bodies)
            client.send(frame("DISCONNECT", receipt="sent"))
            assert client.frames_to_end()[-1]["receipt-id"] == "sent"

    def _work(self, process: BrokerProcess, on_progress: Callable[[], None]) -> None:
        """Until the process is dead. `on_progress` is called at the first receipt, however slow the machine is."""
        held: list[RawFrame] = []
        made_progress = False
        try:
            with self._subscribed(process) as client:
                while True:
                    came = client.frame()
                    assert came.command != "ERROR", came
                    if came.command == "RECEIPT":
                        self.books.receipts([came["receipt-id"]])
                        if not made_progress:
                            made_progress = True
                            on_progress()
                        continue
                    held.append(came)
                    if len(held) >= self.random.randint(1, 8):
                        self._transact(client, held)
                        held = []
        except (EOFError, OSError):
            return

    def _transact(self, client: RawClient, held: list[RawFrame]) -> None:
        attempt = self.books.begin(
            [(each["subscription"], each.body.decode()) for each in held],
            output_bytes=self._body_bytes,
            with_receipt=self.random.random() < 0.5,
            refuse_share=0.05,
        )
        name = f"t{attempt.number}"
        frames = [frame("BEGIN", transaction=name)]
        for each in held:
            refused = (each["subscription"], each.body.decode()) in attempt.refused
            frames.append(frame("NACK" if refused else "ACK", id=each["ack"], transaction=name))
        frames += [
            frame("SEND", body.encode(), destination=to, persistent="true", transaction=name)
            for to, body in attempt.outputs
        ]
        receipt = {} if attempt.receipt_id is None else {"receipt": attempt.receipt_id}
        client.send(b"".join([*frames, frame("COMMIT", transaction=name, **receipt)]))

    def _audit(self, process: BrokerProcess) -> None:
        left: dict[str, list[str]] = {source: [] for source in SOURCES}
        outputs: list[str] = []
        with RawClient(process.address) as client:
            client.connect(client_id="worker")
            for source, headers in SOURCES.items():
                named = {name.replace("-", "_"): value for name, value in headers.items()}
                client.send(frame("SUBSCRIBE", id=source, ack="client-individual", prefetch_count="100000", **named))
            for number, out in enumerate(OUTPUTS):
                client.send(frame("SUBSCRIBE", id=f"out {number}", **out))

            def take(came: RawFrame) -> None:
                if came["subscription"] in left:
                    left[came["subscription"]].append(came.body.decode())
                elif "gap-from" not in came.headers:
                    outputs.append(came.body.decode())

            # The silence of a broker that was held up says nothing: it has to answer, and be silent again.
            quiet_count = 0
            while quiet_count < 2:
                client.socket.settimeout(1)
                try:
                    take(client.frame())
                    quiet_count = 0
                except TimeoutError:
                    quiet_count += 1
                    client.socket.settimeout(ANSWER_SECONDS)
                    client.send(frame("BEGIN", transaction=str(quiet_count), receipt="here"))
                    client.send(frame("ABORT", transaction=str(quiet_count)))
                    while (came := client.frame()).command != "RECEIPT":
                        take(came)
                        quiet_count = 0
        self.books.check(left, outputs)


@pytest.mark.parametrize("seed", range(-(-KILLS_COUNT // KILLS_AT_ONCE)))
def test_transactions_are_whole_through_kill_9(tmp_path: Path, seed: int) -> None:
    played = KillRound(tmp_path, seed)
    played.run()
    assert played.books.carried_out_count, "it was under load"
    assert any(attempt.receipted for attempt in played.books.attempts)
