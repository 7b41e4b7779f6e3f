"""An application that is tested in a simulation: connections break, a broker crashes, and every order is billed once.

    python -m examples.simulated_shop
    python -m sluiceway.simulation examples.simulated_shop:orders_are_billed_once --seeds 1000

The second function is wrong on purpose, and shows what the smallest history of a failure looks like.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from sluiceway.client.errors import ClientError
from sluiceway.simulation import Client, Faults, SeedError, Simulation, run_seeds

LOST = (ClientError, OSError, TimeoutError)
"""Errors that a program meets when a connection or a broker goes."""
ORDERS_COUNT = 20


class Billing:
    """The application: writes an invoice for each order. The list stands for its database."""

    def __init__(self) -> None:
        self.invoices: list[str] = []

    async def run(self, connect: Callable[[], Awaitable[Client]]) -> None:
        """Bill what comes, over one connection after the other."""
        while True:
            try:
                client = await connect()
                orders = await client.subscribe("/queue/orders")
                async for order in orders:
                    self.bill(order.text)
                    await orders.acknowledge(order)
            except LOST:
                await trio.sleep(1)

    def bill(self, order: str) -> None:
        """Write the invoice, unless it is there: an order may come again after its ACK was lost."""
        if order not in self.invoices:
            self.invoices.append(order)


class CarelessBilling(Billing):
    """The same with a mistake."""

    def bill(self, order: str) -> None:
        self.invoices.append(order)


async def sell(world: Simulation) -> None:
    """Send orders until the broker has confirmed each."""
    client: Client | None = None
    for number in range(ORDERS_COUNT):
        while True:
            try:
                if client is None or not client.is_connected:
                    client = await world.client(name="shop")
                await client.publish("/queue/orders", f"order {number}", {"persistent": "true"})
                break
            except LOST:
                await trio.sleep(1)


async def play(seed: int, billing: Billing) -> None:
    """One history: what was confirmed is billed, and once."""
    faults = Faults(cut=0.02, half_cut=0.005, delay_seconds=(0.0, 0.2), split=0.1, crash_seconds=(5.0, 30.0))
    async with Simulation(seed=seed, faults=faults) as world, trio.open_nursery() as nursery:
        await world.broker()
        nursery.start_soon(billing.run, lambda: world.client(name="billing"))
        await sell(world)
        await world.calm()
        await trio.sleep(60)  # virtual: time for all that is still under way
        for number in range(ORDERS_COUNT):
            count = billing.invoices.count(f"order {number}")
            assert count == 1, f"order {number} was billed {count} times"
        nursery.cancel_scope.cancel()


async def orders_are_billed_once(seed: int) -> None:
    """Play the application, which keeps its promise."""
    await play(seed, Billing())


async def careless_orders_are_billed_once(seed: int) -> None:
    """Play the careless one, which breaks it."""
    await play(seed, CarelessBilling())


def main() -> None:
    """Play both."""
    print(run_seeds(orders_are_billed_once, seeds=20))
    try:
        run_seeds(careless_orders_are_billed_once, seeds=20)
    except SeedError as error:
        print(error)


if __name__ == "__main__":
    main()
