"""Many histories: the same seed is the same one, and of a failure the smallest is shown."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import uuid

import pytest
import trio

from examples.simulated_shop import careless_orders_are_billed_once, orders_are_billed_once, sell
from sluiceway.simulation import Faults, SeedError, Simulation, run, run_seeds
from sluiceway.simulation.__main__ import main
from tests.architecture.sources import ROOT

FAULTS = Faults(
    cut=0.02, half_cut=0.005, delay_seconds=(0.0, 0.2), split=0.2, stall=0.05, crash_seconds=(2.0, 10.0), disk=0.02
)
ME = "tests.simulation.test_seeds"


async def fingerprint_of(seed: int) -> tuple[str, list[str]]:
    async with Simulation(seed=seed, faults=FAULTS) as world:
        await world.broker()
        await sell(world)
        await world.calm()
        orders = await (await world.client()).subscribe("/queue/orders", {"selector": "x is null"})
        await trio.sleep(1)
        world.note(f"{len(orders.arrived)} of {uuid.uuid4()}, {secrets.token_hex(8)}, {random.random()}")
    return world.fingerprint, world.history


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_is_the_same_history_to_the_last_byte(seed: int) -> None:
    first, again = (run(fingerprint_of, seed, seed=seed) for _ in range(2))
    assert first == again
    assert first != run(fingerprint_of, seed + 1, seed=seed + 1)


@pytest.mark.timeout(60)
def test_the_same_seed_is_the_same_history_in_another_process() -> None:
    code = f"from {ME} import *; print(run(fingerprint_of, 3, seed=3)[0])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "4711"}
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert told.stdout.decode().strip() == run(fingerprint_of, 3, seed=3)[0]


def test_chance_of_the_process_is_its_own_again_afterwards() -> None:
    async def nothing() -> None:
        pass

    random.seed(7)
    expected = random.random()
    random.seed(7)
    before = os.urandom
    run(nothing, seed=1)
    assert random.random() == expected
    assert os.urandom is before
    assert secrets.token_bytes(16) != secrets.token_bytes(16)


def test_histories_that_do_not_fail_are_counted() -> None:
    played = run_seeds(orders_are_billed_once, seeds=5)
    assert played.seeds_count == 5
    assert played.injected["cut"]
    assert "5 seeds" in str(played)


def test_a_failing_history_becomes_small_and_can_be_played_again() -> None:
    with pytest.raises(SeedError) as caught:
        run_seeds(careless_orders_are_billed_once, seeds=20)
    error = caught.value
    text = str(error)
    assert f"seed {error.seed} fails: AssertionError: order" in text
    assert error.faults_count <= 3
    assert "cut after" in text
    assert isinstance(error.__cause__, AssertionError)
    assert (
        f"python -m sluiceway.simulation examples.simulated_shop:careless_orders_are_billed_once --first {error.seed}"
        in text
    )
    with pytest.raises(SeedError) as again:
        run_seeds(careless_orders_are_billed_once, first=error.seed, seeds=1)
    assert str(again.value) == text


async def stuck(seed: int) -> None:
    async with Simulation(seed=seed) as world:
        await world.broker()
        await (await (await world.client()).subscribe("/queue/a")).receive(float("inf"))


def test_a_history_that_gets_stuck_fails() -> None:
    with pytest.raises(SeedError, match="TimeoutError: not at its end after 600 s of virtual time"):
        run_seeds(stuck, seeds=1, seconds_max=600)


async def fine(seed: int) -> None:
    await trio.sleep(seed)


def no_coroutine(seed: int) -> None:
    """Stand for a function that is not async."""


def test_the_command_plays_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{ME}:fine", "--seeds", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 seeds in ")
    assert main([f"{ME}:stuck", "--seeds", "1", "--seconds-max", "60"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("seed 0 fails: TimeoutError")
    assert out.endswith(f"again: python -m sluiceway.simulation {ME}:stuck --first 0 --seeds 1\n")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("orders", "MODULE:FUNCTION"),
        ("no_such_module:orders", "there is no module 'no_such_module'"),
        (f"{ME}:orders", "has no orders"),
        (f"{ME}:no_coroutine", "async def"),
    ],
)
def test_a_function_that_is_not_there_is_told(name: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    assert told in capsys.readouterr().err
