"""stompman, a second real client: asyncio, STOMP 1.2, receipts for SENDs, and it subscribes anew when it reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import stompman

from sluiceway import EmbeddedBroker
from tests.asyncio_apart import run_apart
from tests.interop.conftest import PATIENT
from tests.interop.raw_client import DEADLINE_SECONDS


def run(scenario: Callable[[Any], Awaitable[None]], address: tuple[str, int], **options: Any) -> None:
    """Run a coroutine on a connected client; an ERROR frame fails it."""
    errors: list[Any] = []

    async def main() -> None:
        server = stompman.ConnectionParameters(host=address[0], port=address[1], login="ann", passcode="secret")
        async with asyncio.timeout(DEADLINE_SECONDS):
            async with stompman.Client([server], on_error_frame=errors.append, **options) as client:
                await scenario(client)

    run_apart(main())
    assert errors == []


def test_confirmed_sends_and_automatic_acks(address: tuple[str, int]) -> None:
    """Each SEND waits for its RECEIPT; the client acknowledges each message by itself."""
    received: list[bytes] = []

    async def scenario(client: Any) -> None:
        done = asyncio.Event()

        async def handle(message: Any) -> None:
            received.append(message.body)
            if len(received) == 100:
                done.set()

        subscription = await client.subscribe("/queue/q", handle, on_suppressed_exception=print, receipt_timeout=10.0)
        for number in range(100):
            await client.send(b"%d" % number, "/queue/q", receipt_timeout=10.0, headers={"kind": "a:b\n"})
        await done.wait()
        await subscription.unsubscribe()

    run(scenario, address)
    assert received == [b"%d" % number for number in range(100)]


def test_a_failing_handler_nacks_and_the_message_comes_again(address: tuple[str, int]) -> None:
    attempts: list[str | None] = []

    async def scenario(client: Any) -> None:
        done = asyncio.Event()

        async def handle(message: Any) -> None:
            attempts.append(message.headers.get("redelivered"))
            if len(attempts) < 3:
                raise ValueError("not yet")
            done.set()

        subscription = await client.subscribe("/queue/q", handle, on_suppressed_exception=lambda *_: None)
        await client.send(b"try", "/queue/q")
        await done.wait()
        await subscription.unsubscribe()

    run(scenario, address)
    assert attempts == [None, "true", "true"]


def test_transactions_and_manual_acks(address: tuple[str, int]) -> None:
    received: list[bytes] = []

    async def scenario(client: Any) -> None:
        done = asyncio.Event()

        async def handle(message: Any) -> None:
            received.append(message.body)
            await message.ack()
            if len(received) == 10:
                done.set()

        subscription = await client.subscribe_with_manual_ack("/queue/q", handle, ack="client-individual")
        async with client.begin() as transaction:
            for number in range(10):
                await transaction.send(b"%d" % number, "/queue/q")
            assert received == []
        await done.wait()
        await subscription.unsubscribe()

    run(scenario, address)
    assert received == [b"%d" % number for number in range(10)]


def test_heart_beats_keep_an_idle_connection(patient_beats: EmbeddedBroker) -> None:
    """It hears from the server again and again."""

    async def scenario(client: Any) -> None:
        connection = client._connection_manager._active_connection_state.connection
        seen: set[float] = set()
        while len(seen) < 6:
            await asyncio.sleep(0.01)  # nothing announces a heart-beat
            assert client.is_alive()
            seen.add(connection.last_read_time)

    run(
        scenario,
        (patient_beats.host, patient_beats.port),
        heartbeat=stompman.Heartbeat(50, 50),
        check_server_alive_interval_factor=PATIENT,
    )


def test_binary_bodies_of_a_megabyte(address: tuple[str, int]) -> None:
    body = bytes(range(256)) * 4096
    received: list[bytes] = []

    async def scenario(client: Any) -> None:
        done = asyncio.Event()

        async def handle(message: Any) -> None:
            received.append(message.body)
            done.set()

        subscription = await client.subscribe("/queue/q", handle, on_suppressed_exception=print)
        await client.send(body, "/queue/q", receipt_timeout=10.0)
        await done.wait()
        await subscription.unsubscribe()

    run(scenario, address)
    assert received == [body]
