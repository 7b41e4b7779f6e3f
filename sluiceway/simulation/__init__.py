"""Simulation of a broker, its disk, its clients and the network between them, in virtual time and from one seed.

    async def orders_arrive(seed: int) -> None:
        async with Simulation(seed=seed, faults=Faults(cut=0.01, delay_seconds=(0.0, 0.2))) as world:
            broker = await world.broker()
            client = await world.client()
            ...

    run_seeds(orders_arrive, seeds=200)      # or: python -m sluiceway.simulation my_tests:orders_arrive --seeds 200

The same seed is the same history: time, order of tasks, chance of the program and every byte. docs/simulation.md says
how it is used.

    seeds      many histories, and the smallest one that fails        running    one history, in virtual time
    world      brokers, clients and faults of one history             machine    one broker with its disk
    network    connections in memory that break                       client     a client for trio programs
    faults     settings and chance     faulty_engine, faulty_files    disks that lose what is not synced
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from sluiceway.simulation.client import Client, Subscription
    from sluiceway.simulation.faults import Faults
    from sluiceway.simulation.machine import SimulatedBroker
    from sluiceway.simulation.network import SimulatedStream
    from sluiceway.simulation.running import run
    from sluiceway.simulation.seeds import Played, SeedError, run_seeds
    from sluiceway.simulation.world import Simulation

__all__ = [
    "Client",
    "Faults",
    "Played",
    "SeedError",
    "SimulatedBroker",
    "SimulatedStream",
    "Simulation",
    "Subscription",
    "run",
    "run_seeds",
]

_HOMES = {
    "Client": "sluiceway.simulation.client",
    "Faults": "sluiceway.simulation.faults",
    "Played": "sluiceway.simulation.seeds",
    "SeedError": "sluiceway.simulation.seeds",
    "SimulatedBroker": "sluiceway.simulation.machine",
    "SimulatedStream": "sluiceway.simulation.network",
    "Simulation": "sluiceway.simulation.world",
    "Subscription": "sluiceway.simulation.client",
    "run": "sluiceway.simulation.running",
    "run_seeds": "sluiceway.simulation.seeds",
}

__getattr__, __dir__ = _lazy_names(__name__, globals(), _HOMES)
