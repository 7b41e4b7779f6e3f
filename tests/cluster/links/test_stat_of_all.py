"""The state of all hubs, asked of one: over the link, with deadlines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio

from sluiceway.cluster.calls import CALLS_MAX, Calls
from sluiceway.cluster.placement import TablePlacement
from sluiceway.cluster.questions import ANSWER_SECONDS, SIGN_SECONDS, Answer, NoAnswerError, Questions
from sluiceway.flow import FlowManager
from sluiceway.protocols.link.flow import Flow, FlowUser
from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.client import Client


async def stat(client: Client, **request: Any) -> dict[str, Any]:
    await client.send("/sluiceway/stat", json.dumps(request), reply_to="/temp-queue/stat")
    report: dict[str, Any] = json.loads((await client.next_message()).body)
    return report


async def asking(hubs: TwoHubs, hub: str = "a") -> Client:
    client = await hubs.connect(hub)
    await client.subscribe("/temp-queue/stat", id="stat")
    return client


async def test_either_hub_tells_the_state_of_both_and_who_waits_for_whom() -> None:
    async with TwoHubs(stash_bytes_max=4096) as hubs:
        consumer = await hubs.connect("a", **{"client-id": "billing-2"})
        await consumer.subscribe("/queue/b.orders", ack="client", prefetch_count="3")
        producer = await hubs.connect("a", **{"client-id": "web-3"})
        with trio.move_on_after(5):
            while True:
                await producer.send("/queue/b.orders", b"x" * 100_000)
        for hub in ("a", "b"):
            report = await stat(await asking(hubs, hub))
            chain = next(each for each in report["chains"] if each["source"].startswith("connection web-3"))
            assert chain["words"].startswith(
                "connection web-3 (client 2) on a waits on queue /queue/b.orders on b (memory full,"
            )
            assert "waits on subscription s of billing-2 (client 1) on a (window full," in chain["words"]
            orders = next(row for row in report["destinations"] if row["name"] == "/queue/b.orders")
            assert orders["hub"] == "b"
            client = next(row for row in report["connections"] if row["client_id"] == "billing-2")
            assert (client["hub"], client["unsettled_count"], client["subscriptions_count"]) == ("a", 3, 1)
            assert [each["missing"] for each in report["hubs"]] == [None, None]
            causes = [each["words"] for each in report["bottlenecks"] if not each["waits_itself"]]
            assert causes[0].startswith("subscription s of billing-2 (client 1) on a blocks")


async def test_a_page_of_a_list_goes_through_the_hubs() -> None:
    async with TwoHubs() as hubs:
        client = await asking(hubs)
        for number in range(3):
            await client.sent(f"/queue/a{number}", "x")
            await client.sent(f"/queue/b{number}", "x")
        names: list[str] = []
        for offset in range(0, 10, 2):
            page = await stat(client, list="destinations", offset=offset, limit=2)
            names += [row["name"] for row in page["destinations"] if row["name"].startswith("/queue/")]
        assert names == [f"/queue/{hub}{number}" for hub in "ab" for number in range(3)]


async def test_a_hub_that_cannot_be_reached_is_missing_in_words() -> None:
    async with TwoHubs() as hubs:
        client = await asking(hubs)
        hubs.network.is_down = True
        hubs.network.cut()
        await trio.sleep(0.1)
        report = await stat(client)
        assert [(each["name"], each["missing"]) for each in report["hubs"]] == [
            ("a", None),
            ("b", "there is no link to it, for 100 ms"),
        ]
        assert report["hubs"][1]["missing_seconds"] == pytest.approx(0.1, abs=0.01)
        assert report["hubs"][0]["unlinked"] == [{"hub": "b", "seconds": pytest.approx(0.1, abs=0.01)}]
        await trio.sleep(60)
        report = await stat(client)
        assert report["hubs"][1]["missing"] == "there is no link to it, for 60 s"
        hubs.network.is_down = False


async def test_the_asked_hub_alone_can_be_asked_for() -> None:
    async with TwoHubs() as hubs:
        report = await stat(await asking(hubs), hub="own")
        assert report["hub"]["name"] == "a" and "hubs" not in report


async def answering(hubs: TwoHubs, handler: Any) -> None:
    assert hubs.b.questions is not None
    hubs.b.questions.takes("test", handler)


class Void:
    """A link whose other end is stopped: it takes everything, and nothing comes back."""

    placement = TablePlacement("hub-1", lambda _name: "hub-2", ["hub-1", "hub-2"])

    def open(self, hub: str, opening: Mapping[str, object], user: FlowUser) -> Flow | None:
        return Flow(1, self)

    def ready(self, flow: Flow) -> None:
        return

    def closed(self, flow: Flow) -> None:
        return

    def may_deliver(self) -> bool:
        return True

    def watch(self, callback: object) -> None:
        return

    def unwatch(self, callback: object) -> None:
        return


async def test_who_shows_no_sign_of_life_within_a_second_is_missing() -> None:
    def fail(error: Exception) -> None:
        raise error

    clock = trio.current_time
    calls = Calls(Void(), manager=FlowManager(clock), clock=clock, call_later=lambda *_: None, contain=fail)
    questions = Questions(calls, lambda: ["hub-2"], spawn=lambda _: None, contain=fail)
    began = trio.current_time()
    with pytest.raises(NoAnswerError, match="it has not answered within 1 s"):
        await questions.ask("hub-2", "stat", {})
    assert trio.current_time() - began == pytest.approx(SIGN_SECONDS)


async def test_who_is_busy_has_longer_and_is_told_from_one_that_is_gone() -> None:
    async with TwoHubs() as hubs:

        async def never(facts: Mapping[str, Any], body: bytes) -> Answer:
            await trio.sleep_forever()
            raise AssertionError

        await answering(hubs, never)
        assert hubs.a.questions is not None
        began = trio.current_time()
        with pytest.raises(NoAnswerError, match="it is there, but has not answered within 10 s"):
            await hubs.a.questions.ask("b", "test", {})
        assert trio.current_time() - began == pytest.approx(ANSWER_SECONDS, abs=0.1)


async def test_large_questions_and_answers_come_whole() -> None:
    async with TwoHubs() as hubs:

        async def echo(facts: Mapping[str, Any], body: bytes) -> Answer:
            return Answer({"said": facts["say"]}, body * 2)

        await answering(hubs, echo)
        assert hubs.a.questions is not None
        body = bytes(range(256)) * 20_000
        assert await hubs.a.questions.ask("b", "test", {"say": "é"}, body) == Answer({"said": "é"}, body * 2)


async def test_a_flood_and_an_unknown_question_are_said() -> None:
    async with TwoHubs() as hubs:
        questions = hubs.a.questions
        assert questions is not None
        with pytest.raises(NoAnswerError, match="does not answer calls of the kind 'nonsense'"):
            await questions.ask("b", "nonsense", {})
        with pytest.raises(NoAnswerError, match="there is no link to it"):
            await questions.ask("c", "test", {})

        async def never(facts: Mapping[str, Any], body: bytes) -> Answer:
            await trio.sleep_forever()
            raise AssertionError

        await answering(hubs, never)
        async with trio.open_nursery() as nursery:
            for _ in range(CALLS_MAX):
                nursery.start_soon(questions.ask, "b", "test", {})
            await trio.sleep(0.5)
            with pytest.raises(NoAnswerError, match="wait for their answers: ask again later"):
                await questions.ask("b", "test", {})
            nursery.cancel_scope.cancel()
