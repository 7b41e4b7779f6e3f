"""What only clients of several hubs can see: destinations here and there on one connection."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from sluiceway.cluster import proxies
from sluiceway.config import DestinationPolicy
from sluiceway.protocols.link.records import LinkFault
from sluiceway.protocols.stomp.escaping import Version
from tests.cluster.links.two_hubs import TwoHubs


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_one_connection_uses_destinations_of_both_hubs(version: Version) -> None:
    """Each ACK finds its hub."""
    async with TwoHubs() as hubs:
        client = await hubs.connect(version=version)
        for hub in "ab":
            await client.subscribe(f"/queue/{hub}.x", id=hub, ack="client")
            await client.sent(f"/queue/{hub}.x", f"for {hub}")
        deliveries = await client.next_messages(2)
        assert {each.text for each in deliveries} == {"for a", "for b"}
        for each in deliveries:
            await client.ack(each)
        assert [hubs.depth_count(hub, f"/queue/{hub}.x") for hub in "ab"] == [0, 0]
        await client.disconnect()


async def test_runs_of_acks_for_both_hubs_are_taken_apart() -> None:
    """However they are mixed in one read."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        for hub in "ab":
            await client.subscribe(f"/queue/{hub}.x", id=hub, ack="client-individual")
            await client.send_all(f"/queue/{hub}.x", range(5))
        deliveries = sorted(await client.next_messages(10), key=lambda each: each.text)
        await client.send_raw(b"".join(client.encode("ACK", client.naming(each)) for each in deliveries))
        await trio.testing.wait_all_tasks_blocked()
        assert [hubs.depth_count(hub, f"/queue/{hub}.x") for hub in "ab"] == [0, 0]


async def test_a_transaction_belongs_to_the_hub_of_its_first_destination() -> None:
    """A second hub is refused, with the remedy."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.frame("SEND", {"destination": "/queue/b.x", "transaction": "t"}, "x")
        await client.frame("SEND", {"destination": "/queue/a.x", "transaction": "t"}, "x")
        error = await client.expect_error("would span several hubs")
        assert error.headers["code"] == "transaction-spans-shards"
        assert b"braces" in error.body
        await trio.testing.wait_all_tasks_blocked()
        assert hubs.depth_count("b", "/queue/b.x") == 0


@pytest.mark.parametrize("hub", ["a", "b"])
async def test_a_transaction_commits_at_its_hub(hub: str) -> None:
    """SENDs and ACKs, with receipts."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        queue = f"/queue/{hub}.x"
        await client.sent(queue, "old")
        await client.subscribe(queue, ack="client-individual")
        delivery = await client.next_message()
        await client.request("BEGIN", {"transaction": "t"})
        await client.request("ACK", {**client.naming(delivery), "transaction": "t"})
        await client.frame("SEND", {"destination": queue, "transaction": "t"}, "new")
        await client.silence()
        await client.request("COMMIT", {"transaction": "t"})
        assert (await client.next_message()).text == "new"
        await client.request("BEGIN", {"transaction": "empty"})
        await client.request("COMMIT", {"transaction": "empty"})


async def test_a_wildcard_covers_both_hubs() -> None:
    """One SUBSCRIBE, one RECEIPT, messages of both; UNSUBSCRIBE ends both."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.subscribe("/queue/>", ack="client")
        for hub in "ab":
            await client.sent(f"/queue/{hub}.x", hub)
        deliveries = await client.next_messages(2)
        assert {each.text for each in deliveries} == {"a", "b"}
        for each in deliveries:
            await client.ack(each)
        await client.unsubscribe()
        for hub in "ab":
            await client.sent(f"/queue/{hub}.x", hub)
        await client.silence()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_a_composite_goes_to_both_hubs(version: Version) -> None:
    """With and without receipts: one RECEIPT for each SEND, when both hubs have it."""
    async with TwoHubs() as hubs:
        client = await hubs.connect(version=version)
        await client.send("/queue/a.x,/queue/b.x", "both")
        await client.sent("/queue/a.x,/queue/b.x,/queue/b.y", "all")
        assert [hubs.depth_count(hub, f"/queue/{hub}.x") for hub in "ab"] == [2, 2]
        assert hubs.depth_count("b", "/queue/b.y") == 1
        for number in range(20):
            receipt = f"r:{number}" if version != "1.0" else f"r{number}"
            await client.frame("SEND", {"destination": "/queue/a.x,/queue/b.x", "receipt": receipt}, "both")
        await client.sync()
        await client.disconnect()
        assert [hubs.depth_count(hub, f"/queue/{hub}.x") for hub in "ab"] == [22, 22]


async def test_the_receipt_of_a_composite_waits_for_all_hubs() -> None:
    """Those that have it already do not make the RECEIPT; it says the least of what they promise."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        hubs.network.is_down = True
        hubs.network.cut()
        await client.frame("SEND", {"destination": "/queue/a.x,/queue/b.x", "receipt": "r"}, "both")
        await client.silence()
        hubs.network.is_down = False
        await client.expect_receipt("r")
        assert client.received[-1].headers == {"receipt-id": "r", "durability": "memory"}
        assert [hubs.depth_count(hub, f"/queue/{hub}.x") for hub in "ab"] == [1, 1]


@pytest.mark.parametrize(
    ("destination", "headers"), [("/log/b.x", {"from": "earliest"}), ("/queue/b.x", {"browser": "true"})]
)
async def test_what_has_a_place_is_not_begun_again_when_its_link_is_lost(
    destination: str, headers: dict[str, str]
) -> None:
    """All that was read would come once more, unmarked: the client is told, and knows where it was."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.sent(destination, "first")
        await client.subscribe(destination, **headers)
        assert (await client.next_message()).text == "first"
        hubs.network.cut()
        error = await client.expect_error("has lost its place")
        assert error.headers["code"] == "shard-away"


async def test_a_group_of_a_log_continues_when_its_link_is_lost() -> None:
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.sent("/log/b.x", "first")
        await client.subscribe("/log/b.x", ack="client", group="all", **{"from": "earliest"})
        assert (await client.next_message()).text == "first"
        hubs.network.cut()
        again = await client.next_message()
        assert (again.text, again.redelivered) == ("first", True)


async def test_a_lost_link_costs_no_part_of_a_composite() -> None:
    """The part that was on its way is sent again, and the RECEIPT comes."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.sent("/queue/b.x", "first")
        hubs.network.left_bytes = 10
        await client.sent("/queue/a.x,/queue/b.x,/queue/b.y", "all")
        assert hubs.network.cuts_count == 1
        assert hubs.depth_count("a", "/queue/a.x") == 1
        assert hubs.depth_count("b", "/queue/b.y") >= 1


async def test_the_receipt_of_a_composite_tells_the_indexes_of_logs() -> None:
    """Of all hubs, each by its name."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.sent("/log/b.x", "before")
        await client.frame("SEND", {"destination": "/log/b.x,/log/a.x,/queue/a.x", "receipt": "r"}, "all")
        await client.expect_receipt("r")
        receipt = client.received[-1]
        assert (receipt.headers["indexes"], receipt.headers["count"]) == ("/log/a.x=0,/log/b.x=1", "1")


@pytest.mark.parametrize("refusing", ["a", "b"])
async def test_the_error_of_a_composite_names_the_receipt_of_the_client(refusing: str) -> None:
    """Whichever hub refuses its part; what the hub of the client refuses goes nowhere."""
    policies = [DestinationPolicy(f"/queue/{refusing}.x", {"count_max": 1, "full": "reject"})]
    async with TwoHubs(destinations=policies) as hubs:
        client = await hubs.connect()
        await client.sent("/queue/a.x,/queue/b.x", "fits")
        await client.frame("SEND", {"destination": "/queue/a.x,/queue/b.x", "receipt": "r"}, "does not")
        error = await client.expect_error("")
        assert error.headers["receipt-id"] == "r"
        assert hubs.depth_count("b", "/queue/b.x") == 1


async def test_a_reply_finds_the_temporary_queue_of_a_client_of_another_hub() -> None:
    """Request at one hub, served at the other."""
    async with TwoHubs() as hubs:
        asker, server = await hubs.connect("a"), await hubs.connect("b")
        await asker.subscribe("/temp-queue/answers", id="answers")
        await server.subscribe("/queue/b.requests", ack="client")
        await asker.send("/queue/b.requests", "what?", **{"reply-to": "/temp-queue/answers"})
        request = await server.next_message()
        await server.send(request.headers["reply-to"], "that!")
        assert (await asker.next_message()).text == "that!"


@pytest.mark.parametrize("asker_at", ["a", "b"])
@pytest.mark.parametrize("answers_first", [False, True])
async def test_a_transaction_acknowledges_a_request_and_answers_it(asker_at: str, answers_first: bool) -> None:
    """Wherever the request is, and the temporary queue for the answer; nothing is answered before the COMMIT."""
    async with TwoHubs() as hubs:
        server, asker = await hubs.connect(), await hubs.connect(asker_at)
        await asker.subscribe("/temp-queue/answers", id="answers")
        await server.subscribe("/queue/b.requests", ack="client-individual")
        await server.subscribe("/temp-queue/own", id="own")
        for name in ("aborted", "carried out"):
            await asker.send("/queue/b.requests", name, reply_to="/temp-queue/answers")
            request = await server.next_message()
            await server.frame("BEGIN", {"transaction": name})
            for is_answer in (answers_first, not answers_first):
                if is_answer:
                    await server.send(request.headers["reply-to"], f"{name} 1", transaction=name)
                    await server.send("/sluiceway/stat", '{"hub": "own"}', transaction=name, reply_to="/temp-queue/own")
                else:
                    await server.ack(request, transaction=name)
            await server.sync()
            await asker.silence()
            await server.request("ABORT" if name == "aborted" else "COMMIT", {"transaction": name})
        assert await asker.next_texts(1) == ["carried out 1"]
        assert (await server.next_message()).headers["subscription"] == "own"
        await server.silence()


async def test_an_error_of_the_other_hub_ends_the_connection() -> None:
    """As it was written there."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.frame("SUBSCRIBE", {"destination": "/queue/b.x", "id": "s", "selector": "a =", "receipt": "r"})
        error = await client.expect_error()
        assert error.headers["receipt-id"] == "r"


async def test_disconnect_waits_for_the_other_hub() -> None:
    """Its RECEIPT says that everything before it was done, wherever."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.send_all("/queue/b.x", range(50))
        await client.disconnect()
        assert hubs.depth_count("b", "/queue/b.x") == 50
        await trio.sleep(2)
        assert not hubs.b.connections


async def test_a_full_queue_holds_up_its_senders_and_nobody_else_on_the_link() -> None:
    """Another client, and another queue of the same client, go on."""
    async with TwoHubs() as hubs:
        hubs.b.registry  # noqa: B018 - the queue has the limit of the broker
        sender, other = await hubs.connect(), await hubs.connect()
        reader = await hubs.connect()
        await reader.subscribe("/queue/b.other")
        filling = 0
        with trio.move_on_after(10):
            while filling < 5000:
                await sender.stream.send_all(sender.encode("SEND", {"destination": "/queue/b.full"}, bytes(20_000)))
                filling += 1
        await other.sent("/queue/b.other", "goes on")
        assert (await reader.next_message()).text == "goes on"


async def test_large_bodies_come_through_without_being_held() -> None:
    """A body of several megabytes, among small ones, in order."""
    async with TwoHubs() as hubs:
        client, consumer = await hubs.connect(), await hubs.connect()
        await consumer.subscribe("/queue/b.x")
        bodies = [b"small", bytes(3_000_000), b"small too"]
        for body in bodies:
            await client.frame("SEND", {"destination": "/queue/b.x"}, body)
        assert [each.body for each in await consumer.next_messages(3)] == bodies


async def test_a_client_that_leaves_during_a_large_message_leaves_the_link_alone(tmp_path: Path) -> None:
    """Its flow has ended when it takes the last bytes: nothing is said about them to the other hub."""
    async with TwoHubs(tmp_path, large_body_bytes=100_000) as hubs:
        assert hubs.a.links is not None
        link = hubs.a.links.facts
        first = hubs.a.links._open["b"]
        leaving, staying = await hubs.connect(), await hubs.connect()
        await staying.subscribe("/queue/b.other")
        await leaving.sent("/queue/b.x", bytes(700_000))
        await leaving.send_raw(leaving.encode("SUBSCRIBE", {"destination": "/queue/b.x", "id": "s", "ack": "client"}))
        await trio.testing.wait_all_tasks_blocked()
        assert link()[0]["flows_count"] == 2
        await leaving.send_raw(leaving.encode("DISCONNECT", {}))
        await trio.sleep(1.5)  # the other hub has given the session up, this one has not
        for _ in range(50):
            leaving.receive_now()
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
        assert [each["flows_count"] for each in link()] == [1]
        assert hubs.a.links._open["b"] is first
        await staying.sent("/queue/b.other", "goes on")
        assert (await staying.next_message()).text == "goes on"


async def test_a_client_with_too_large_an_identity_fails_alone() -> None:
    """Each character of its client-id is six on the link: it gets an ERROR, and the link of the others stays."""
    async with TwoHubs() as hubs:
        other = await hubs.connect()
        await other.subscribe("/queue/b.other")
        client = await hubs.connect("a", "1.2", **{"client-id": 15_000 * "\x01"})
        await client.sent("/queue/a.x", "needs no other hub")
        await client.send("/queue/b.x", "x")
        error = await client.expect_error("bytes on the way to hub 'b'")
        assert error.headers["code"] == "identity-too-large"
        assert b"shorter client-id" in error.body
        await other.sent("/queue/b.other", "goes on")
        assert (await other.next_message()).text == "goes on"
        assert hubs.a.links is not None
        assert [each["flows_count"] for each in hubs.a.links.facts()] == [1]


async def test_a_refused_opening_fails_its_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No flow is opened for it again and again."""
    async with TwoHubs() as hubs:
        other = await hubs.connect()
        await other.subscribe("/queue/b.other")
        openings: list[bytes] = []

        def refuse(payload: bytes) -> dict[str, object]:
            openings.append(payload)
            raise LinkFault("the peer opened a flow with an invalid record")

        monkeypatch.setattr(proxies, "_opening_of", refuse)
        client = await hubs.connect()
        await client.send("/queue/b.x", "x")
        error = await client.expect_error("invalid record")
        assert error.headers["code"] == "refused-by-hub"
        await trio.sleep(5)
        assert len(openings) == 1
        await other.sent("/queue/b.other", "goes on")
        assert (await other.next_message()).text == "goes on"
        assert hubs.a.links is not None
        assert [each["flows_count"] for each in hubs.a.links.facts()] == [1]


@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_a_temporary_destination_of_a_hub_that_nobody_knows_is_gone(kind: str) -> None:
    """A SEND to it is receipted at once, and its sender goes on."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        for hub in ("nowhere", "a", ""):
            await client.sent(f"/remote-temp-{kind}/{hub}~0123.answers", "nobody reads it")
        await client.sent("/queue/b.x", "goes on")
        assert hubs.depth_count("b", "/queue/b.x") == 1


async def test_what_waits_for_a_hub_that_leaves_is_let_go() -> None:
    """Its temporary destinations are gone with it, and known again when it is."""
    async with TwoHubs() as hubs:
        asker, server = await hubs.connect("b"), await hubs.connect("a")
        await asker.subscribe("/temp-queue/answers", id="answers")
        await server.subscribe("/queue/a.requests")
        await asker.send("/queue/a.requests", "what?", **{"reply-to": "/temp-queue/answers"})
        answers = (await server.next_message()).headers["reply-to"]
        hubs.network.is_down = True
        hubs.network.cut()
        await trio.sleep(1)
        await server.frame("SEND", {"destination": answers, "receipt": "r"}, "that!")
        await server.silence()
        assert hubs.a.links is not None
        peers = hubs.a.links.seat.peers()
        assert isinstance(peers, dict)
        address = peers.pop("b")
        hubs.a.links.look()
        await server.expect_receipt("r")
        peers["b"] = address
        hubs.a.links.look()
        hubs.network.is_down = False
        await hubs.linked()
        await server.sent(answers, "that!")
        assert (await asker.next_message()).text == "that!"


async def test_receipts_of_a_client_are_its_own_whatever_they_are_called() -> None:
    """Also those that look like receipts of the broker."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        for number in range(3):
            receipt = {"receipt": f"sluiceway-relay-{number}"}
            await client.frame("SEND", {"destination": "/queue/b.x", **receipt}, "x")
            await client.expect_receipt(receipt["receipt"])
        await client.subscribe("/queue/>")
        await client.disconnect()


@pytest.mark.parametrize("count", [1, 2])
async def test_an_ack_header_is_a_value_whatever_is_in_it(count: int) -> None:
    """A line feed in it adds no header to the frame for the other hub: the delivery is unknown there."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.subscribe("/queue/b.x", ack="client-individual")
        await client.sent("/queue/b.x", "x")
        delivery = await client.next_message()
        forged = {"id": f"{delivery.headers['ack']}\nreceipt:forged"}
        await client.send_raw(client.encode("ACK", forged) * count)
        error = await client.expect_error("nothing was delivered")
        assert "receipt-id" not in error.headers
        assert "forged" not in client.receipts
