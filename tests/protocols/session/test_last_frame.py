"""A client that was sent an ERROR gets nothing behind it, whatever happens while the connection lingers (b29, b52)."""

from __future__ import annotations

from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.stage import Stage


def test_no_receipt_follows_the_error() -> None:
    """A parked SEND goes to its queue after the ERROR was written, and would be answered then. Messages that the client
    does not read keep the ERROR from being taken at once.
    """

    async def scenario() -> None:
        async with Stage({"/queue/full": {"full": "block", "count_max": 2}}, linger_seconds=5) as stage:
            producer, helper, client = [await stage.connect() for _ in range(3)]
            await client.subscribe("/queue/large")
            await client.send_all("/queue/full", range(3))
            await client.sync()
            await client.send("/queue/full", "parked", receipt="late")
            await producer.send_all("/queue/large", ["x" * 10_000] * 20)
            await producer.sync()
            await client.send_raw(b"NONSENSE\n\n\0")
            await stage.settled_down()
            await helper.subscribe("/queue/full")
            assert await helper.next_texts(4) == ["0", "1", "2", "parked"]
            # Not read as frames: a client would not look at what follows an ERROR.
            last = (await client.raw_bytes(60.0)).rpartition(b"\0")[0].rpartition(b"\0")[2].lstrip(b"\n")
            assert last.startswith(b"ERROR\n")

    run_in_virtual_time(scenario)
