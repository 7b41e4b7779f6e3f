"""Connections of a simulation: bytes arrive whole and in order, or the connection breaks as a real one would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from sluiceway.client.errors import ConnectionLostError
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.simulation import Client, Faults, SimulatedStream, Simulation, run
from sluiceway.simulation.network import CAPACITY_BYTES

HELLO = ClientMachine().connect("localhost")
SEEDS = range(20)


def play(scenario: Callable[[Simulation], Awaitable[None]], seed: int = 0, **faults: object) -> Simulation:
    """Play a scenario in a world with these faults, and return the world."""

    async def main() -> Simulation:
        async with Simulation(seed=seed, faults=Faults(**faults)) as world:  # type: ignore[arg-type]
            await world.broker()
            await scenario(world)
        return world

    return run(main, seed=seed)


async def everything(stream: SimulatedStream) -> bytes:
    """Read until the connection ends or breaks."""
    found = b""
    try:
        while data := await stream.receive_some():
            found += data
    except trio.BrokenResourceError:
        pass
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_arrive_in_order_however_late_and_in_whatever_pieces(seed: int) -> None:
    async def scenario(world: Simulation) -> None:
        client = await world.client()
        for number in range(30):
            await client.publish("/queue/a", str(number) * 50)
        arrived = await client.subscribe("/queue/a")
        assert [(await arrived.receive()).text for _ in range(30)] == [str(number) * 50 for number in range(30)]

    world = play(scenario, seed, delay_seconds=(0.0, 3.0), split=0.5)
    assert world.injected["split"] > 5


def test_a_delay_passes_in_virtual_time() -> None:
    async def scenario(world: Simulation) -> None:
        began = trio.current_time()
        client = await world.client(heart_beat_ms=0)
        await client.publish("/queue/a", "later")
        assert trio.current_time() - began == pytest.approx(5 * 7)  # connecting, and two frames in each direction

    play(scenario, delay_seconds=(7.0, 7.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_connection_breaks_for_both_sides_at_once(seed: int) -> None:
    async def scenario(world: Simulation) -> None:
        broker = world._the(None)
        client = await world.client()
        await client.subscribe("/queue/a")
        world.cut(client)
        with pytest.raises(ConnectionLostError):
            await client.publish("/queue/a", "never")
        assert not client.is_connected
        await trio.testing.wait_all_tasks_blocked()
        assert not broker.broker.connections

    play(scenario, seed)


def test_what_was_written_before_a_cut_arrives() -> None:
    lengths = set()
    for seed in SEEDS:

        async def scenario(world: Simulation) -> None:
            stream = await world.connect()
            await stream.send_all(HELLO)
            with trio.move_on_after(5):
                lengths.add(len(await everything(stream)))

        play(scenario, seed, cut=0.5)
    assert len(lengths) > 3, "cut at any byte"


def test_a_half_cut_connection_is_found_by_heart_beats_alone() -> None:
    async def scenario(world: Simulation) -> None:
        client = await world.client(heart_beat_ms=10_000)
        other = await world.client(heart_beat_ms=0)
        world.half_cut(client)
        world.half_cut(other)
        began = trio.current_time()
        with pytest.raises(ConnectionLostError, match="silent"):
            await client.publish("/queue/a", "lost")
        assert 20 < trio.current_time() - began <= 40
        with pytest.raises(TimeoutError):
            await other.publish("/queue/a", "lost")
        assert other.is_connected, "nobody has told it"

    play(scenario)


def test_a_direction_holds_no_more_than_its_capacity() -> None:
    """A client that does not read makes the broker wait, and one whose bytes do not arrive waits itself."""

    async def scenario(world: Simulation) -> None:
        stream = await world.connect()
        world.half_cut(stream, to_client=False)
        with trio.move_on_after(5) as waiting:
            await stream.send_all(bytes(CAPACITY_BYTES + 1))
        assert waiting.cancelled_caught
        assert stream.connection.there._size_bytes == CAPACITY_BYTES

    play(scenario)


def test_a_slow_consumer_makes_the_broker_wait_and_loses_nothing() -> None:
    async def scenario(world: Simulation) -> None:
        shop, slow = await world.client(), await world.client(name="slow")
        arrived = await slow.subscribe("/queue/a")
        for number in range(20):
            await shop.publish("/queue/a", str(number) * 10_000)
        for number in range(20):
            assert (await arrived.receive()).text == str(number) * 10_000

    world = play(scenario, stall=0.5, stall_seconds=(5.0, 20.0))
    assert world.injected["stall"] > 5


def test_a_client_for_trio_streams_fits() -> None:
    async def scenario(world: Simulation) -> None:
        stream = await world.connect()
        assert isinstance(stream, trio.abc.HalfCloseableStream)
        await stream.send_all(HELLO)
        assert (await stream.receive_some()).startswith(b"CONNECTED\n")
        await stream.send_eof()
        assert await everything(stream) == b""
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"more")

    play(scenario)


def test_a_client_that_vanishes_gives_its_messages_back() -> None:
    async def scenario(world: Simulation) -> None:
        first: Client = await world.client()
        await first.publish("/queue/a", "42 ducks")
        await (await first.subscribe("/queue/a")).receive(acknowledge=False)
        first.vanish()
        again = await (await (await world.client()).subscribe("/queue/a")).receive()
        assert (again.text, again.headers["redelivered"]) == ("42 ducks", "true")

    play(scenario)
