"""What consumers of a log refused or left behind, where there is the most of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.redelivery import Redelivery
from tests.limits.counting import STEP_UNITS_MAX, Counting
from tests.limits.law import LawStage, frame
from tests.limits.test_logs import LogLawStage, batches
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG

COUNT = 100_000
REFUSED = 4_000
"""Nearly as many as may wait: then nothing new is handed out."""
SENT = 12_000


@pytest.mark.parametrize(
    "bite",
    [range(2 * COUNT, 2 * COUNT + 1024, 2), range(COUNT + 1, COUNT + 1025, 2), range(1, 2 * COUNT, 400)],
    ids=["behind all", "in between", "all over"],
)
async def test_a_bite_beside_many_that_lie_apart_is_no_long_step(bite: range) -> None:
    """Every other record of a million may have been settled before the rest came back."""
    again = Redelivery((2 * index, 2 * index + 1, index % 2) for index in range(COUNT))
    with Counting() as counting, counting.called("a bite"):
        again.add([(index, index + 1, 3) for index in bite])
    assert counting.largest[0].units <= STEP_UNITS_MAX, counting.largest[0]
    with Counting() as counting, counting.called("what retention takes"):
        again.drop_below(COUNT)
    assert counting.largest[0].units <= STEP_UNITS_MAX / 10, counting.largest[0]


POLICIES: dict[str, dict[str, object]] = {
    "later": {"redelivery_delay_ms": 60_000},
    "given up without dead letters": {"redeliveries_max": 0, "dead_letter": None},
    "given up": {"redeliveries_max": 0, "dead_letter": "/queue/dead"},
}


async def refuse_every_other_one(stage: LawStage, client: Client, noun: str, kind: str) -> None:
    """Of what the client holds, up to REFUSED and then the rest; what follows from it, and the client's sudden end."""
    held_count = len(client.messages)
    nacks = [frame("NACK", id=each.headers["ack"]) for each in list(client.messages)[::2]]
    with stage.law(f"NACKs of {noun}, {kind}", limit="REFUSED_MAX of them wait"):
        await client.send_raw(b"".join(nacks[:REFUSED]))
        await client.sync()
        await trio.sleep(3)
    with stage.law(f"NACKs of {noun} beside those refused, {kind}", limit=f"{len(nacks) - REFUSED:,} more"):
        await client.send_raw(b"".join(nacks[REFUSED:]))
        await client.sync()
        await trio.sleep(3)
    with stage.law(f"{noun} that come again, {kind}", limit="those that were refused"):
        await trio.sleep(90)
    with stage.law(f"abrupt with refused {noun}, {kind}", limit=f"every other one of {held_count:,}"):
        client.vanish()
        await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", POLICIES)
async def test_records_refused_beside_thousands_that_wait(tmp_path: Path, kind: str) -> None:
    """Every other one, so that none of them can be taken together; then their time comes."""
    async with LogLawStage({"/log/>": POLICIES[kind]}, folder=tmp_path) as stage:
        assert isinstance(stage, LawStage)
        sender, client = await stage.client(), await stage.client()
        for _ in range(SENT // 500):
            await sender.send_raw(frame("SEND", b"x", destination=LOG) * 500)
            await sender.sync()
        headers = {"ack": "client-individual", "group": "g", "from": "earliest", "credit": f"{SENT},67108864"}
        await client.subscribe(LOG, **headers)
        await client._until(lambda: len(client.messages) == SENT, "all records")
        await refuse_every_other_one(stage, client, "records", kind)


BATCHES = 9_000


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", POLICIES)
async def test_batches_refused_beside_thousands_that_wait(tmp_path: Path, kind: str) -> None:
    """Each of three records, and a delivery by itself."""
    async with LogLawStage({"/log/>": POLICIES[kind]}, folder=tmp_path) as stage:
        sender, client = await stage.client(), await stage.client()
        batch = batches(encode([b"x" * 400] * 3))
        for _ in range(BATCHES // 500):
            await sender.send_raw(batch * 500)
            await sender.sync()
        headers = {"ack": "client-individual", "group": "g", "from": "earliest", "credit": f"{BATCHES},67108864"}
        await client.subscribe(LOG, batch="1024", **headers)
        await client._until(lambda: len(client.messages) == BATCHES, "all batches")
        await refuse_every_other_one(stage, client, "batches", kind)
