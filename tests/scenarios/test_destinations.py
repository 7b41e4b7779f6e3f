"""Which names lead where: temporary destinations, wildcards, composites, opaque names. DESIGN section 9."""

from __future__ import annotations

import json

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.names import parse
from tests.log_lines import LogLines
from tests.scenarios.stage import Stage

# ---------------------------------------------------------------------- request and reply


@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_request_and_reply(stage: Stage, version: Version, kind: str) -> None:
    """The replier sends to whatever `reply-to` says; both sides may speak any version."""
    asker, replier = await stage.connect(version), await stage.connect("1.1")
    await asker.subscribe(f"/temp-{kind}/answers", id="mine")
    await replier.subscribe("/queue/questions")
    await asker.send("/queue/questions", "why?", **{"reply-to": f"/temp-{kind}/answers", "correlation-id": "7"})
    question = await replier.next_message()
    reply_to = question.headers["reply-to"]
    assert reply_to.startswith(f"/remote-temp-{kind}/")
    await replier.send(reply_to, "because", **{"correlation-id": question.headers["correlation-id"]})
    answer = await asker.next_message()
    assert (answer.text, answer.headers["correlation-id"]) == ("because", "7")
    assert answer.headers["subscription"] == "mine"


async def test_messages_with_reply_to_are_charged_what_they_take(stage: Stage) -> None:
    """The header that the broker writes is longer than the one it got; the books must still balance."""
    asker = await stage.connect()
    for n in range(5):
        await asker.sent("/queue/questions", str(n), **{"reply-to": "/temp-queue/a"})
    reported = stage.reported("/queue/questions")
    (queue,) = stage.partitions("/queue/questions")
    sizes = [message.size_bytes for s in range(5) if (message := queue.elements.get(s)) is not None]
    assert len(sizes) == 5
    assert reported["depth_bytes"] == sum(sizes)


async def test_ordinary_reply_to_stays_as_it_is(stage: Stage) -> None:
    client = await stage.connect()
    await client.subscribe("/queue/questions")
    await client.send("/queue/questions", "x", **{"reply-to": "/queue/answers"})
    assert (await client.next_message()).headers["reply-to"] == "/queue/answers"


async def test_temporary_names_of_two_connections_are_apart(stage: Stage) -> None:
    one, two = await stage.connect(), await stage.connect()
    await one.subscribe("/temp-queue/same")
    await two.subscribe("/temp-queue/same")
    await one.send("/temp-queue/same", "to one")
    await two.send("/temp-queue/same", "to two")
    assert (await one.next_message()).text == "to one"
    assert (await two.next_message()).text == "to two"
    await one.silence()


async def test_only_its_owner_may_subscribe_to_a_temporary_destination(stage: Stage) -> None:
    owner, replier, spy = await stage.connect(), await stage.connect(), await stage.connect()
    await owner.subscribe("/temp-queue/t")
    await replier.subscribe("/queue/q")
    await owner.send("/queue/q", "x", **{"reply-to": "/temp-queue/t"})
    name = (await replier.next_message()).headers["reply-to"]
    await spy.frame("SUBSCRIBE", {"destination": name, "id": "s"})
    await spy.expect_error("only its owner")
    await owner.unsubscribe()
    await owner.subscribe(name, id="by its full name")
    await replier.send(name, "y")
    assert (await owner.next_message()).text == "y"


@pytest.mark.parametrize("pattern", ["/remote-temp-queue/>", "/remote-temp-queue/*.t", "/>"])
async def test_wildcards_do_not_reach_temporary_destinations_of_others(stage: Stage, pattern: str) -> None:
    owner, spy = await stage.connect(), await stage.connect()
    await spy.frame("SUBSCRIBE", {"destination": pattern, "id": "s"})
    await owner.subscribe("/temp-queue/t")
    await owner.sent("/temp-queue/t", "secret")
    assert (await owner.next_message()).text == "secret"
    assert not [d for d in await spy.drain() if d.text == "secret"]


async def test_temporary_destination_goes_with_its_connection(stage: Stage, version: Version) -> None:
    """What was in it goes too, and late repliers are not hurt: they did nothing wrong."""
    owner, replier = await stage.connect(version), await stage.connect(version)
    await replier.subscribe("/queue/q")
    await owner.send("/queue/q", "x", **{"reply-to": "/temp-queue/t"})
    name = (await replier.next_message()).headers["reply-to"]
    await replier.sent(name, "in time")
    assert stage.depth_count(name) == 1
    await owner.disconnect()
    assert name not in stage.broker.registry.destinations
    await replier.sent(name, "too late")
    await replier.sent(name, "still too late")
    assert name not in stage.broker.registry.destinations
    assert stage.broker.report()["broker"]["unheard_count"] == 2


@pytest.mark.parametrize("end", ["disconnect", "break", "unread after the first"])
async def test_replies_that_nobody_could_receive_are_told_of_in_the_log(log_lines: LogLines, end: str) -> None:
    """A client that goes before it subscribes, or is subscribed, to the queue of its reply-to."""
    async with Stage() as stage:
        asker, replier = await stage.connect(), await stage.connect()
        await replier.subscribe("/queue/q")
        await asker.send("/queue/q", "x", **{"reply-to": "/temp-queue/t"})
        name = (await replier.next_message()).headers["reply-to"]
        await replier.sent(name, "one")
        if end == "unread after the first":
            await asker.subscribe("/temp-queue/t", ack="client", prefetch_count="1")
            await asker.next_message()
        await replier.sent(name, "two")
        if end == "break":
            asker.stream.close()
        else:
            await asker.disconnect()
        await trio.sleep(1)
    lines = [line for line in log_lines.of("connection ended") if "replies_unread" in line]
    if end == "unread after the first":
        assert lines == []
        return
    (line,) = lines
    assert (line["replies_unread"], line["level"]) == (2, "warning")
    assert "SUBSCRIBE to the temporary queue" in line["remedy"]


async def test_replier_that_waits_for_a_full_temporary_queue_is_freed_when_it_goes() -> None:
    async with Stage({"/remote-temp-queue/>": {"full": "block", "count_max": 2}}) as stage:
        owner, replier = await stage.connect(), await stage.connect()
        await replier.subscribe("/queue/q")
        await owner.subscribe("/temp-queue/t", ack="client", **{"prefetch-count": "1"})
        await owner.send("/queue/q", "x", **{"reply-to": "/temp-queue/t"})
        name = (await replier.next_message()).headers["reply-to"]
        await replier.send_all(name, range(10))
        await replier.frame("SEND", {"destination": name, "receipt": "r"}, "x")
        await replier.silence()
        await owner.disconnect()
        await replier.expect_receipt("r")
        await replier.sent("/queue/q", "goes on")
        assert (await replier.next_message()).text == "goes on"


async def test_temporary_destination_lives_as_long_as_its_connection(stage: Stage) -> None:
    """Idle and empty for a long time, without a subscription: a reply still arrives."""
    owner, replier = await stage.connect(), await stage.connect()
    await replier.subscribe("/queue/q")
    await owner.send("/queue/q", "x", **{"reply-to": "/temp-queue/t"})
    name = (await replier.next_message()).headers["reply-to"]
    await trio.sleep(1_000)
    await replier.sent(name, "late")
    await owner.subscribe("/temp-queue/t")
    assert (await owner.next_message()).text == "late"


# ---------------------------------------------------------------------- wildcards


@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_wildcard_covers_present_and_future_destinations(stage: Stage, version: Version, kind: str) -> None:
    client, producer = await stage.connect(version), await stage.connect(version)
    await producer.sent(f"/{kind}/a.present", "unheard" if kind == "topic" else "early")
    await client.subscribe(f"/{kind}/a.*")
    await producer.sent(f"/{kind}/a.present", "present")
    await producer.sent(f"/{kind}/a.future", "future")
    await producer.sent(f"/{kind}/b.other", "other")
    await producer.sent(f"/{kind}/a.too.deep", "deep")
    expected = ["present", "future"] if kind == "topic" else ["early", "present", "future"]
    assert await client.next_texts(len(expected)) == expected
    await client.silence()


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("/topic/*", ["/topic/a"], ["/topic/a.b", "/queue/a"]),
        ("/topic/a.*.c", ["/topic/a.b.c"], ["/topic/a.c", "/topic/a.b.b.c", "/topic/a.b"]),
        ("/topic/a.>", ["/topic/a.b", "/topic/a.b.c"], ["/topic/a", "/topic/ab.c"]),
        ("/topic/>", ["/topic/a", "/topic/a.b.c", "/topic/a/b"], ["/queue/a"]),
        ("/topic/a/*", ["/topic/a/b"], ["/topic/a.b", "/topic/a"]),
        ("/topic/a.#", ["/topic/a", "/topic/a.b", "/topic/a.b.c"], ["/topic/ab", "/queue/a"]),
        ("/topic/#", ["/topic/a", "/topic/a.b.c"], ["/queue/a"]),
        ("/topic/*.#", ["/topic/a", "/topic/b.c"], ["/queue/a"]),
        ("/topic/a.#.z", ["/topic/a.z", "/topic/a.b.c.z"], ["/topic/a", "/topic/z", "/queue/a.z"]),
        ("/exchange/amq.topic/#.error", ["/topic/error", "/topic/a.error"], ["/topic/error.a"]),
        ("/exchange/amq.topic/a.*.#", ["/topic/a.b", "/topic/a.b.c"], ["/topic/a"]),
    ],
)
async def test_wildcard_levels(stage: Stage, pattern: str, matching: list[str], others: list[str]) -> None:
    client, producer = await stage.connect(), await stage.connect()
    await client.subscribe(pattern)
    for destination in (*others, *matching):
        await producer.sent(destination, destination)
    assert await client.next_texts(len(matching)) == matching
    await client.silence()


@pytest.mark.parametrize("name", ["/topic/c#", "/topic/a.#b", "/queue/a.#"])
async def test_names_with_a_hash_stay_names(stage: Stage, name: str) -> None:
    client, producer = await stage.connect(), await stage.connect()
    await client.subscribe(name)
    await producer.sent(name, "x")
    assert await client.next_texts(1) == ["x"]


async def test_wildcard_consumers_share_queues_with_others(stage: Stage) -> None:
    """Each message of a queue goes to one of them."""
    wild, plain, producer = await stage.connect(), await stage.connect(), await stage.connect()
    await wild.subscribe("/queue/>")
    await plain.subscribe("/queue/shared")
    await producer.send_all("/queue/shared", range(100))
    got = [d.text for client in (wild, plain) for d in await client.drain()]
    assert sorted(got, key=int) == [str(n) for n in range(100)]


async def test_ended_wildcard_covers_nothing_any_more(stage: Stage) -> None:
    client, producer = await stage.connect(), await stage.connect()
    await client.subscribe("/topic/>")
    await client.unsubscribe()
    await producer.sent("/topic/new", "x")
    await client.silence()


# ---------------------------------------------------------------------- composites and other names


async def test_send_to_a_composite_reaches_each_of_its_destinations(stage: Stage, version: Version) -> None:
    """Once each, with the destination it came through."""
    client = await stage.connect(version)
    for name in ("/queue/a", "/queue/b", "/topic/c"):
        await client.subscribe(name, id=name)
    await client.sent("/queue/a,b,/topic/c,/queue/a", "x")
    deliveries = await client.next_messages(3)
    assert {d.headers["destination"] for d in deliveries} == {"/queue/a", "/queue/b", "/topic/c"}
    assert all(d.text == "x" for d in deliveries)
    await client.silence()


async def test_composite_copies_are_settled_apart(stage: Stage, later_version: Version) -> None:
    client = await stage.connect(later_version)
    await client.subscribe("/queue/a", id="a", ack="client-individual")
    await client.subscribe("/queue/b", id="b", ack="client-individual")
    await client.send("/queue/a,/queue/b", "x")
    first, second = await client.next_messages(2)
    await client.nack(first)
    await client.ack(second)
    again = await client.next_message()
    assert again.headers["destination"] == first.headers["destination"]
    assert sum(stage.depth_count(name) for name in ("/queue/a", "/queue/b")) == 1


async def test_composite_subscription(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe("/queue/a, /topic/b")
    await client.send("/queue/a", "1")
    await client.send("/topic/b", "2")
    assert sorted(await client.next_texts(2)) == ["1", "2"]
    await client.unsubscribe()
    await client.send("/topic/b", "3")
    await client.silence()


async def test_bare_name_is_a_queue(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe("/queue/orders")
    await client.send("orders", "x")
    assert (await client.next_message()).text == "x"


@pytest.mark.parametrize(
    "name",
    [
        "/exchange/logs/x",
        "/reply-queue/x",
        "/dsub/x",
        "jms.queue.x",
        "ünï",
        "/a b",
        "/blog/x",
        "/queu",
        "/orders",
        "/shop/queue/x",
    ],
)
async def test_any_other_name_is_a_queue_of_that_name(stage: Stage, version: Version, name: str) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(name)
    await producer.send(name, "x")
    delivery = await consumer.next_message()
    assert (delivery.text, delivery.headers["destination"]) == ("x", name)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/queu/a", "/queue/a"),
        ("/Queue/a", "/queue/a"),
        ("/queues/a.b/c", "/queue/a.b/c"),
        ("/tpoic/a", "/topic/a"),
        ("/topcs/a", "/topic/a"),
        ("/qeues/a", "/queue/a"),
        ("/temp_queue/a", "/temp-queue/a"),
        ("/logs/a", "/log/a"),
        ("//queue/a", "/queue/a"),
        ("/topics/>", "/topic/>"),
    ],
)
async def test_a_prefix_that_is_a_slip_is_answered_with_the_one_that_is_meant(
    version: Version, written: str, meant: str
) -> None:
    async with Stage() as stage:
        for command, headers in (("SEND", {}), ("SUBSCRIBE", {"id": "s"})):
            client = await stage.connect(version)
            await client.frame(command, {"destination": f"/queue/fine,{written}", **headers})
            error = await client.expect_error(f"did you mean {meant}?")
            assert error.headers["code"] == "bad-destination"
        assert written not in stage.broker.registry.destinations


async def test_a_form_of_another_broker_is_logged_once_with_the_one_to_use(log_lines: LogLines) -> None:
    names = ("/exchange/logs/info", "/exchange/logs/warn", "/reply-queue/a", "/dsub/b", "/shop/a")
    async with Stage({"/dsub/a": {}}) as stage:
        client = await stage.connect()
        for number, name in enumerate(names):
            await client.subscribe(name, id=str(number))
    lines = log_lines.of("a name of another broker is a plain one here")
    assert [line["destination"] for line in lines] == ["/exchange/logs/info", "/reply-queue/a"]
    assert "/topic/NAME.KEY" in lines[0]["remedy"]


async def test_a_header_of_another_broker_is_logged_once_with_what_to_do(log_lines: LogLines) -> None:
    async with Stage() as stage:
        client = await stage.connect()
        for number in range(2):
            await client.subscribe("/topic/a", id=str(number), **{"x-queue-name": "shared"})
        await client.subscribe("/queue/a", id="q", **{"x-expires": "1000", "x-queue-type": "quorum"})
    lines = log_lines.of("a header of another broker has no effect")
    assert [(line["header"], line["destination"]) for line in lines] == [
        ("x-queue-name", "/topic/a"),
        ("x-expires", "/queue/a"),
    ]
    assert "durable:true" in lines[0]["remedy"] and "auto_delete_seconds" in lines[1]["remedy"]


@pytest.mark.parametrize("written", ["/", "//"])
async def test_a_slash_is_no_name(written: str) -> None:
    async with Stage({"/>": {}}) as stage:
        for command, headers in (("SEND", {}), ("SUBSCRIBE", {"id": "s"})):
            client = await stage.connect()
            await client.frame(command, {"destination": written, **headers})
            error = await client.expect_error(f"the destination '{written}' has no name: write /queue/NAME")
            assert error.headers["code"] == "bad-destination"


async def test_a_name_that_looks_like_a_slip_can_be_configured(version: Version) -> None:
    """The general entries of a configuration do not count as names."""
    async with Stage({"/>": {}, "/queues/>": {}, "/queue/a": {"dead_letter": "/logs/dead"}}) as stage:
        client = await stage.connect(version)
        for name in ("/queues/a", "/logs/x"):
            await client.subscribe(name, id=name)
            await client.send(name, "x")
            assert (await client.next_message()).headers["destination"] == name
        await client.frame("SEND", {"destination": "/topics/a"})
        await client.expect_error("did you mean /topic/a?")


async def test_what_an_earlier_version_left_under_such_a_name_can_be_received(stage: Stage) -> None:
    client = await stage.connect()
    stage.broker.registry.get(parse("/queu/a"))
    await client.subscribe("/queu/a", id="old")
    await client.frame("SEND", {"destination": "/queu/a"})
    await client.expect_error("did you mean /queue/a?")


async def test_destinations_are_limited_in_length(stage: Stage) -> None:
    client = await stage.connect()
    await client.frame("SEND", {"destination": "/queue/" + "x" * 2_000, "receipt": "r"})
    error = await client.expect_error("at most 1024")
    assert error.headers["receipt-id"] == "r"


async def test_subscriptions_are_limited() -> None:
    async with Stage(subscriptions_max=3) as stage:
        client = await stage.connect()
        for n in range(3):
            await client.subscribe("/topic/t", id=str(n))
        await client.frame("SUBSCRIBE", {"destination": "/topic/t", "id": "3"})
        await client.expect_error("more than 3 subscriptions")


async def test_statistics_can_be_asked_for(stage: Stage, version: Version) -> None:
    """A request to the broker itself, answered like any other."""
    client = await stage.connect(version)
    await client.subscribe("/temp-queue/replies")
    await client.sent("/queue/work", "x")
    await client.send("/sluiceway/stat", **{"reply-to": "/temp-queue/replies", "correlation-id": "1"})
    reply = await client.next_message()
    report = json.loads(reply.body)
    assert reply.headers["correlation-id"] == "1"
    assert [d["depth_count"] for d in report["destinations"] if d["name"] == "/queue/work"] == [1]


@pytest.mark.parametrize(
    ("destination", "headers", "about"),
    [
        ("/sluiceway/stat", {}, "reply-to"),
        ("/sluiceway/nothing", {"reply-to": "/temp-queue/r"}, "/sluiceway/stat"),
        ("/sluiceway/stat", {"reply-to": "/queue/"}, "no name"),
        ("/sluiceway/stat", {"reply-to": "/queue/*"}, "wildcard"),
        ("/queue/x", {"reply-to": "/temp-queue/"}, "no name"),
    ],
)
async def test_wrong_requests_are_refused(stage: Stage, destination: str, headers: dict[str, str], about: str) -> None:
    client = await stage.connect()
    await client.frame("SEND", {"destination": destination, "receipt": "r", **headers})
    error = await client.expect_error(about)
    assert (error.headers["receipt-id"], error.headers["command"]) == ("r", "SEND")


async def test_nobody_can_subscribe_to_the_brokers_own_requests(stage: Stage) -> None:
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": "/sluiceway/stat", "id": "s"})
    await client.expect_error("requests only")
