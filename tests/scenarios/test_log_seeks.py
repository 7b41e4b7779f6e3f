"""What is delivered again after a group of a log was moved back, while its consumer holds it: an ACK names one of the
two deliveries, in every version, and the credit of both comes back.
"""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import Client, Delivery
from tests.scenarios.log_stage import LOG, Asker, LogStage, fill, indexes, numbered, records_of, send_batch

VERSIONS: tuple[Version, ...] = ("1.0", "1.1", "1.2")
COUNT = 5
"""Records that are out when the group is moved."""


async def handed_again(client: Client, asker: Asker, *, seeks_count: int = 1, ack: str = "client") -> list[Delivery]:
    """All that has been delivered: the same records before each move to the beginning, and behind the last."""
    credit = str(COUNT * (seeks_count + 1))
    await fill(asker.client, COUNT)
    await client.subscribe(LOG, ack=ack, group="g", prefetch_count=credit, **{"from": "earliest"})
    seen = await client.next_messages(COUNT)
    for _ in range(seeks_count):
        await asker.asked("seek", log=LOG, group="g", to=0)
        seen += await client.next_messages(COUNT)
    assert indexes(seen) == list(range(COUNT)) * (seeks_count + 1)
    return seen


@pytest.mark.parametrize("seeks_count", [1, 2])
@pytest.mark.parametrize("end", [None, "COMMIT", "ABORT"])
@pytest.mark.parametrize("command", ["ACK", "NACK"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_last_of_them_gives_all_credit_back(
    version: Version, command: str, end: str | None, seeks_count: int
) -> None:
    """A client that waits for its whole credit, and then names the last delivery, gets its whole credit again."""
    if version == "1.0" and command == "NACK":
        return
    async with LogStage() as stage:
        asker, client = await stage.connect_asking(), await stage.connect(version)
        seen = await handed_again(client, asker, seeks_count=seeks_count)
        credit = len(seen)
        await client.silence()
        again = list(range(COUNT)) if command == "NACK" and end != "ABORT" else []
        if end is None:
            await client.request(command, client.naming(seen[-1]))
        else:
            await client.frame("BEGIN", {"transaction": "t"})
            await client.request(command, {**client.naming(seen[-1]), "transaction": "t"})
            await client.request(end, {"transaction": "t"})
        if end == "ABORT":
            await fill(asker.client, 1, first=COUNT)
            await client.silence()  # it holds all of them again
            assert stage.group().front == 0
            await client.ack(seen[-1])
            await fill(asker.client, credit - 1, first=COUNT + 1)
        else:
            assert stage.group().front == (0 if command == "NACK" else COUNT)
            await fill(asker.client, credit, first=COUNT)
        wanted = [*again, *range(COUNT, COUNT + credit)][:credit]
        more = await client.next_messages(credit)
        assert indexes(more) == wanted
        assert [delivery.redelivered for delivery in more] == [index in again for index in wanted]
        await client.ack(more[-1])
        assert stage.group().front == wanted[-1] + 1


@pytest.mark.parametrize("acked_at_once", [1, 5, 10])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_that_acks_its_credit_in_any_portions_goes_on_after_a_seek(
    version: Version, acked_at_once: int
) -> None:
    for seek_after in (1, 4, 9, 10):
        async with LogStage() as stage:
            asker, producer = await stage.connect_asking(), await stage.connect()
            client = await stage.connect(version=version)
            await fill(producer, seek_after)
            await client.subscribe(LOG, ack="client", group="g", prefetch_count="10", **{"from": "earliest"})
            seen = await client.next_messages(seek_after)
            await asker.asked("seek", log="orders", group="g", to=0)
            await fill(producer, 40, first=seek_after)
            acked_count = 0
            while acked_count < 40 + 2 * seek_after - 10:
                while len(seen) < acked_count + acked_at_once:
                    seen.append(await client.next_message())
                acked_count += acked_at_once
                await client.ack(seen[acked_count - 1])
            assert stage.group().front == acked_count - seek_after


@pytest.mark.parametrize("ack", ["client", "client-individual"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_an_ack_that_was_under_way_when_the_group_was_moved_settles_nothing_of_after_it(
    version: Version, ack: str
) -> None:
    """It gives the credit of before back. A second one of the same delivery finds nothing."""
    if version == "1.0" and ack != "client":
        return
    async with LogStage() as stage:
        asker, client, other = await stage.connect_asking(), await stage.connect(version), await stage.connect()
        seen = await handed_again(client, asker, ack=ack)
        for _ in range(2):
            for delivery in seen[:COUNT]:
                await client.ack(delivery)
            assert (stage.group().front, stage.group().unsettled_count) == (0, COUNT)
        await fill(asker.client, 2 * COUNT, first=COUNT)
        assert indexes(await client.next_messages(COUNT)) == list(range(COUNT, 2 * COUNT))
        await client.silence()
        client.vanish()
        await other.subscribe(LOG, group="g", ack="client")
        assert sorted(indexes(await other.next_messages(3 * COUNT))) == list(range(3 * COUNT))


async def test_deliveries_are_named_one_by_one_in_any_order() -> None:
    async with LogStage() as stage:
        asker, client = await stage.connect_asking(), await stage.connect("1.1")
        seen = await handed_again(client, asker, seeks_count=2, ack="client-individual")
        for place, front, out_count in [
            (12, 0, 4),
            (2, 0, 4),
            (7, 0, 4),
            (10, 1, 3),
            (11, 3, 2),
            (0, 3, 2),
            (13, 4, 1),
        ]:
            await client.ack(seen[place])
            assert (stage.group().front, stage.group().unsettled_count) == (front, out_count)
        await client.nack(seen[14])
        (again,) = await client.next_messages(1)
        assert (indexes([again]), again.redelivered) == ([4], True)
        await client.ack(seen[14])
        assert stage.group().unsettled_count == 1
        await client.ack(again)
        assert (stage.group().front, stage.group().unsettled_count) == (COUNT, 0)
        for delivery in seen:
            await client.ack(delivery)
        assert [each.session.unsettled_count for each in stage.broker.connections] == [0, 0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_only_what_is_out_twice_has_a_message_id_of_its_own(version: Version) -> None:
    """Behind that of the record, so the log's id and the index are where they were."""
    async with LogStage() as stage:
        asker, client = await stage.connect_asking(), await stage.connect(version)
        await fill(asker.client, COUNT)
        await client.subscribe(LOG, ack="client", group="g", prefetch_count="20", **{"from": "earliest"})
        seen = await client.next_messages(COUNT)
        await client.ack(seen[2])
        await asker.asked("seek", log=LOG, group="g", to=0)
        again = await client.next_messages(COUNT)
        plain = [f"log.{stage.log().log_id}-{index}" for index in range(COUNT)]
        assert [delivery.headers["message-id"] for delivery in seen] == plain
        ids = [delivery.headers["message-id"] for delivery in again]
        assert ids[:3] == plain[:3]
        if version == "1.2":
            assert ids == plain
            return
        assert [id.partition(".")[0] for id in ids] == ["log"] * COUNT
        assert [id[: len(own) + 1] for id, own in zip(ids[3:], plain[3:], strict=True)] == [
            own + "." for own in plain[3:]
        ]
        assert len({*plain, *ids}) == COUNT + 2
        await client.ack(again[-1])
        assert stage.group().front == COUNT


@pytest.mark.parametrize("version", VERSIONS)
async def test_batches_are_told_apart_too(version: Version) -> None:
    async with LogStage() as stage:
        asker, client = await stage.connect_asking(), await stage.connect(version)
        for _ in range(3):
            await send_batch(asker.client, numbered(range(100)))
        credit = {"prefetch-count": "6", "batch": "1024"}
        await client.subscribe(LOG, ack="client", group="g", **credit, **{"from": "earliest"})
        first = await client.next_messages(3)
        await asker.asked("seek", log=LOG, group="g", to=0)
        again = await client.next_messages(3)
        assert records_of(again) == records_of(first)
        await client.ack(first[-1])
        assert stage.group().front == 0
        await client.ack(again[-1])
        assert stage.group().front == 300
        for _ in range(6):
            await send_batch(asker.client, numbered(range(100)))
        assert len(records_of(await client.next_messages(6))) == 600


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_reader_with_a_place_of_its_own_beside_another_one(version: Version) -> None:
    """Nobody moves it. Two of one connection have the same records, and their credit is apart."""
    async with LogStage() as stage:
        producer, client = await stage.connect(), await stage.connect(version)
        await fill(producer, 30)
        for id in ("a", "b"):
            await client.subscribe(LOG, id=id, ack="client", prefetch_count="10", **{"from": "earliest"})
        seen = await client.next_messages(20)
        last = {delivery.headers["subscription"]: delivery for delivery in seen}
        for id in ("a", "b"):
            await client.ack(last[id])
            more = await client.next_messages(10)
            assert indexes(more) == list(range(10, 20))
            assert {delivery.headers["subscription"] for delivery in more} == {id}
        await client.silence()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_what_went_back_with_its_subscription_gets_no_receipt(version: Version) -> None:
    """Also if a later subscription of the same id has the records."""
    async with LogStage() as stage:
        asker, client = await stage.connect_asking(), await stage.connect(version)
        seen = await handed_again(client, asker)
        await client.unsubscribe()
        await client.subscribe(LOG, ack="client", group="g")
        assert indexes(await client.next_messages(COUNT)) == list(range(COUNT))
        await client.frame("ACK", {**client.naming(seen[-1]), "receipt": "r"})
        assert (await client.expect_error()).headers["code"] == "unknown-delivery"
        assert stage.group().front == 0


@pytest.mark.parametrize(
    "suffix", [".", ".1", ".1.", ".1.x", ".-1.2", ".1.2.3", ".1." + "9" * 30, "." + "9" * 30 + ".1"]
)
async def test_a_name_that_can_not_have_been_given_is_an_error(suffix: str) -> None:
    async with LogStage() as stage:
        asker, client = await stage.connect_asking(), await stage.connect("1.1")
        seen = await handed_again(client, asker)
        await client.frame("ACK", {"subscription": "s", "message-id": seen[0].headers["message-id"] + suffix})
        assert (await client.expect_error()).headers["code"] == "unknown-delivery"
        assert stage.group().front == 0


@pytest.mark.parametrize("suffix", [".999.1", ".1.999", ".1.0", ".1.6"])
async def test_a_name_that_leads_to_another_delivery_settles_nothing(suffix: str) -> None:
    async with LogStage() as stage:
        asker, client = await stage.connect_asking(), await stage.connect("1.1")
        seen = await handed_again(client, asker)
        await client.ack(seen[0], **{"message-id": seen[0].headers["message-id"] + suffix})
        await client.ack(seen[-1], subscription="another")
        assert (stage.group().front, stage.group().unsettled_count) == (0, COUNT)
        await client.silence()
