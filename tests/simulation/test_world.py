"""Brokers of a simulation: what survives which end, and what misuse is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from sluiceway import Config
from sluiceway.client.errors import ClientError, ConnectionLostError, RefusedError
from sluiceway.simulation import Client, Faults, Simulation, Subscription, run

PERSISTENT = {"persistent": "true"}
SEEDS = range(10)


def play(scenario: Callable[[Simulation], Awaitable[None]], seed: int = 0, **faults: object) -> Simulation:
    """Play a scenario in a world with these faults, and return the world."""

    async def main() -> Simulation:
        async with Simulation(seed=seed, faults=Faults(**faults)) as world:  # type: ignore[arg-type]
            await scenario(world)
        return world

    return run(main, seed=seed)


async def texts(orders: Subscription) -> list[str]:
    """Take what is there."""
    found = []
    while True:
        try:
            message = await orders.receive(1.0)
        except TimeoutError:
            return found
        if "gap" not in message.headers:  # indexes that a log may have used before a power cut
            found.append(message.text)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("power_cut", [False, True])
def test_confirmed_messages_survive_and_others_may_not(seed: int, power_cut: bool) -> None:
    async def scenario(world: Simulation) -> None:
        broker = await world.broker()
        client = await world.client()
        for number in range(10):
            await client.publish("/queue/a", str(number), PERSISTENT)
        await client.publish("/queue/a", "not persistent")
        await world.crash(broker, power_cut=power_cut)
        assert not broker.is_up
        with pytest.raises(RuntimeError, match="down"):
            broker.report()
        await world.restart(broker)
        client = await world.client()
        assert await texts(await client.subscribe("/queue/a")) == [str(number) for number in range(10)]
        assert broker.starts_count == 2

    play(scenario, seed)


def test_a_power_cut_can_lose_what_was_not_confirmed() -> None:
    lost = set()
    for seed in range(30):

        async def scenario(world: Simulation) -> None:
            broker = await world.broker()
            client = await world.client()
            for number in range(20):
                await client.publish("/queue/a", str(number), PERSISTENT, receipt=False)
                await trio.sleep(0.2)
            await world.crash(broker, power_cut=True)
            await world.restart(broker)
            found = await texts(await (await world.client()).subscribe("/queue/a"))
            assert found == [str(number) for number in range(len(found))], "a prefix"
            lost.add(20 - len(found))

        play(scenario, seed)
    assert len(lost) > 1


def test_clients_of_a_crashed_process_are_told_and_those_of_a_machine_without_power_are_not() -> None:
    async def scenario(world: Simulation) -> None:
        broker = await world.broker()
        client = await world.client(heart_beat_ms=0)
        await world.crash(broker)
        await trio.testing.wait_all_tasks_blocked()
        assert not client.is_connected
        await world.restart(broker)
        client = await world.client(heart_beat_ms=0)
        await world.crash(broker, power_cut=True)
        await trio.sleep(1000)
        assert client.is_connected
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        await world.restart(broker)  # the machine is back, and knows nothing of the connection
        await trio.testing.wait_all_tasks_blocked()
        assert not client.is_connected

    play(scenario)


def test_a_broker_without_a_store_forgets() -> None:
    async def scenario(world: Simulation) -> None:
        await world.broker(store={"engine": "none"})
        await (await world.client()).publish("/queue/a", "42 ducks", PERSISTENT)
        await world.crash()
        await world.restart()
        assert await texts(await (await world.client()).subscribe("/queue/a")) == []

    play(scenario)


def test_a_broker_that_stops_in_order_keeps_all() -> None:
    async def scenario(world: Simulation) -> None:
        broker = await world.broker()
        client = await world.client()
        await client.publish("/queue/a", "42 ducks", PERSISTENT, receipt=False)
        await trio.testing.wait_all_tasks_blocked()
        await world.stop(broker)
        await world.stop(broker)
        await world.restart()
        assert await texts(await (await world.client()).subscribe("/queue/a")) == ["42 ducks"]

    play(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_confirmed_records_of_logs_survive_a_power_cut(seed: int) -> None:
    async def scenario(world: Simulation) -> None:
        await world.broker()
        client = await world.client()
        for number in range(10):
            await client.publish("/log/a", str(number), PERSISTENT)
        await world.crash(power_cut=True)
        await world.restart()
        client = await world.client()
        assert await texts(await client.subscribe("/log/a", {"from": "earliest"})) == [str(n) for n in range(10)]

    play(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_confirmed_transaction_is_there_as_a_whole_and_another_one_not_at_all(seed: int) -> None:
    async def scenario(world: Simulation) -> None:
        await world.broker()
        client = await world.client()
        async with client.transaction() as transaction:
            for number in range(3):
                await client.publish("/queue/a", str(number), PERSISTENT, transaction=transaction)
        with pytest.raises(KeyError):
            async with client.transaction() as transaction:
                await client.publish("/queue/a", "never", PERSISTENT, transaction=transaction)
                raise KeyError
        with pytest.raises(ConnectionLostError):
            async with client.transaction() as transaction:
                await client.publish("/queue/a", "lost", PERSISTENT, transaction=transaction)
                await world.crash(power_cut=True)
                await world.restart()
        client = await world.client()
        assert await texts(await client.subscribe("/queue/a")) == ["0", "1", "2"]

    play(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_confirmed_is_there_whatever_happens(seed: int) -> None:
    """All faults at once."""
    confirmed: list[int] = []

    async def scenario(world: Simulation) -> None:
        await world.broker()
        client: Client | None = None
        for number in range(40):
            try:
                if client is None or not client.is_connected:
                    client = await world.client()
                await client.publish("/queue/a", str(number), PERSISTENT)
                confirmed.append(number)
            except (ClientError, OSError, TimeoutError):
                await trio.sleep(1)
        await world.calm()
        found = {int(text) for text in await texts(await (await world.client()).subscribe("/queue/a"))}
        assert set(confirmed) <= found

    faults = {"cut": 0.03, "half_cut": 0.01, "split": 0.2, "disk": 0.05, "crash_seconds": (1.0, 10.0)}
    world = play(scenario, seed, delay_seconds=(0.0, 0.3), **faults)
    assert world.injected["crash"]
    assert confirmed


def test_warnings_of_the_broker_are_in_the_history(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(world: Simulation) -> None:
        await world.broker()
        client = await world.client()
        for _ in range(30):
            await client.publish("/queue/a", "42 ducks", PERSISTENT)

    world = play(scenario, disk=0.3)
    assert any("warning: store cannot write" in line for line in world.history)
    assert capfd.readouterr() == ("", "")


def test_users_log_in() -> None:
    async def scenario(world: Simulation) -> None:
        await world.broker(security={"users": {"ann": "secret"}, "default": "allow"})
        with pytest.raises(RefusedError):
            await world.client(login="ann", passcode="wrong")
        await (await world.client(login="ann", passcode="secret")).close()

    play(scenario)


def test_several_brokers_have_names() -> None:
    async def scenario(world: Simulation) -> None:
        first, second = await world.broker(name="first"), await world.broker(name="second")
        with pytest.raises(ValueError, match="which broker"):
            await world.client()
        with pytest.raises(ValueError, match="another name"):
            await world.broker(name="first")
        await (await world.client(first)).publish("/queue/a", "42 ducks")
        assert first.destination("/queue/a")["depth_count"] == 1
        assert not second.destination("/queue/a")

    play(scenario)


def test_a_configuration_of_production_needs_no_port() -> None:
    async def scenario(world: Simulation) -> None:
        await world.broker(Config())  # its address is fixed
        await world.broker(Config(), name="another")

    play(scenario)


def test_misuse_is_told() -> None:
    async def scenario(world: Simulation) -> None:
        with pytest.raises(ValueError, match="simulated disk"):
            await world.broker(store={"engine": "leveldb"})
        with pytest.raises(TypeError, match="not both"):
            await world.broker(Config(), broker={"name": "b"})

    play(scenario)
    with pytest.raises(ValueError, match="cut is a share"):
        Faults(cut=2)
    with pytest.raises(ValueError, match="least, most"):
        Faults(delay_seconds=(2, 1))


def test_a_simulation_needs_virtual_time() -> None:
    async def main() -> None:
        async with Simulation():
            raise AssertionError

    with pytest.raises(RuntimeError, match="run_seeds"):
        trio.run(main)


def test_a_simulation_runs_on_a_clock_of_the_caller() -> None:
    async def main() -> None:
        async with Simulation() as world:
            await world.broker()
            await (await world.client()).publish("/queue/a", "42 ducks")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_the_block_raises_comes_out_of_it() -> None:
    async def main() -> None:
        async with Simulation() as world:
            await world.broker()
            await world.client()
            raise KeyError

    with pytest.raises(KeyError):
        run(main)
