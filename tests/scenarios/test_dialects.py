"""Clients that write as for RabbitMQ, ActiveMQ or Artemis: their names and headers do here what they do there."""

from __future__ import annotations

import attrs
import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.guarded import GuardedStage, allow
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage, wall_clock_ms

# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("/amq/queue/a.b/c", "/queue/a.b/c"),
        ("/exchange/amq.topic/a.b", "/topic/a.b"),
        ("/exchange/amq.fanout", "/topic/amq.fanout"),
        ("/exchange/amq.fanout/any", "/topic/amq.fanout"),
    ],
)
async def test_a_form_of_rabbitmq_is_the_name_that_it_means(
    stage: Stage, version: Version, written: str, name: str
) -> None:
    """The same for SEND, SUBSCRIBE and UNSUBSCRIBE; a MESSAGE says the name, as RabbitMQ's do."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    for of_consumer, of_producer in ((written, name), (name, written), (written, written)):
        await consumer.subscribe(of_consumer)
        await producer.sent(of_producer, "x", custom="a b")
        delivery = await consumer.next_message()
        assert (delivery.text, delivery.headers["destination"]) == ("x", name)
        assert delivery.headers["custom"] == "a b"
        await consumer.unsubscribe()
    assert not {each for each in stage.broker.registry.destinations if each.startswith(("/amq", "/exchange"))}


async def test_a_form_of_rabbitmq_may_be_part_of_a_composite_and_of_a_transaction(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/amq/queue/a,/exchange/amq.topic/b")
    await producer.frame("BEGIN", {"transaction": "t"})
    for name in ("/queue/c,/amq/queue/a", "/exchange/amq.topic/b"):
        await producer.frame("SEND", {"destination": name, "transaction": "t"}, name)
    await producer.request("COMMIT", {"transaction": "t"})
    deliveries = await consumer.next_messages(2)
    assert {each.headers["destination"] for each in deliveries} == {"/queue/a", "/topic/b"}
    assert stage.depth_count("/queue/c") == 1


@pytest.mark.parametrize("written", ["/amq/queue/", "/exchange/amq.topic/"])
async def test_a_form_of_rabbitmq_without_a_name_is_refused(stage: Stage, written: str) -> None:
    for command, headers in (("SEND", {}), ("SUBSCRIBE", {"id": "s"})):
        client = await stage.connect()
        await client.frame(command, {"destination": written, **headers})
        assert (await client.expect_error("has no name")).headers["code"] == "bad-destination"


async def test_names_of_rabbitmq_keep_their_messages_over_a_restart() -> None:
    lives = Lives()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent("/amq/queue/a", "x", persistent="true")
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe("/amq/queue/a")
        assert (await client.next_message()).headers["destination"] == "/queue/a"


async def test_the_words_of_rabbitmq_are_those_of_permissions_limits_and_retained_messages() -> None:
    rules = (allow("ann", "receive", "/topic/#.error"), allow("bob", "send create", "/topic/>"))
    async with GuardedStage(*rules) as stage:
        ann = await stage.connect(login="ann", passcode="ann")
        bob = await stage.connect(login="bob", passcode="bob")
        for name in ("a.error", "a.info"):
            await bob.sent(f"/topic/{name}", name, retain="set")
        await ann.subscribe("/topic/a.#")
        await bob.sent("/topic/a.b.error", "a.b.error")
        await bob.sent("/topic/a.b.info", "a.b.info")
        assert await ann.next_texts(2) == ["a.error", "a.b.error"]
        await ann.silence()
        await ann.frame("SUBSCRIBE", {"destination": "/topic/#.info", "id": "2"})
        await ann.expect_error("no permission")
    async with Stage({"/topic/#.error": {"count_max": 7}}) as stage:
        client = await stage.connect()
        await client.subscribe("/topic/a.b.error,/topic/error,/topic/a")
        found = {name: each.policy.count_max for name, each in stage.broker.registry.destinations.items()}
        assert found == {"/topic/a.b.error": 7, "/topic/error": 7, "/topic/a": None}


@pytest.mark.parametrize("version", ["1.0", "1.2"])
async def test_names_of_rabbitmq_find_their_hub(version: Version) -> None:
    async with TwoHubs() as hubs:
        client, other = await hubs.connect(version=version), await hubs.connect(version=version)
        await client.subscribe("/amq/queue/b.x", id="1")
        await client.subscribe("/topic/#.b.#", id="2")
        for written in ("/amq/queue/b.x", "/exchange/amq.topic/b", "/topic/b.c.d"):
            await other.sent(written, written)
        found = {each.headers["destination"] for each in await client.next_messages(3)}
        assert found == {"/queue/b.x", "/topic/b", "/topic/b.c.d"}


# -- replies ----------------------------------------------------------------------------------------------------------


async def test_a_reply_to_subscribes_to_its_queue_if_the_client_does_not(stage: Stage, version: Version) -> None:
    """RabbitMQ's way: the name of the queue is the id of the subscription."""
    asker, replier = await stage.connect(version), await stage.connect(version)
    await replier.subscribe("/queue/q")
    for number in range(2):
        await asker.send("/queue/q", "x", **{"reply-to": "/temp-queue/t", "correlation-id": str(number)})
        await replier.sent((await replier.next_message()).headers["reply-to"], f"answer {number}")
        reply = await asker.next_message()
        assert (reply.text, reply.headers["subscription"]) == (f"answer {number}", "/temp-queue/t")
    await asker.request("UNSUBSCRIBE", {"id": "/temp-queue/t"})


async def test_a_client_that_subscribes_to_its_reply_queue_gets_all_replies_there(stage: Stage) -> None:
    """Before its SEND, or soon behind it; a late SUBSCRIBE takes over, even under the same id."""
    replier = await stage.connect()
    await replier.subscribe("/queue/q")
    for before, behind in ((["own"], []), ([], ["own"]), ([], ["/temp-queue/t"])):
        asker = await stage.connect()
        for each in before:
            await asker.subscribe("/temp-queue/t", id=each)
        await asker.send("/queue/q", "x", **{"reply-to": "/temp-queue/t"})
        name = (await replier.next_message()).headers["reply-to"]
        if behind == ["/temp-queue/t"]:
            await trio.sleep(1)
        for each in behind:
            await asker.subscribe("/temp-queue/t", id=each, ack="client")
        await trio.sleep(1)
        await replier.sent(name, "y")
        reply = await asker.next_message()
        assert [reply.headers["subscription"]] == before + behind
        await asker.silence()
        await asker.disconnect()


async def test_a_reply_to_subscribes_over_a_link_too() -> None:
    async with TwoHubs() as hubs:
        asker, replier = await hubs.connect(), await hubs.connect()
        await replier.subscribe("/queue/b.q")
        await asker.send("/queue/b.q", "x", **{"reply-to": "/temp-queue/t"})
        await replier.sent((await replier.next_message()).headers["reply-to"], "y")
        assert (await asker.next_message()).headers["subscription"] == "/temp-queue/t"


# -- headers that the broker adds --------------------------------------------------------------------------------------


async def test_messages_have_the_headers_of_jms_by_configuration(version: Version) -> None:
    """Each says when it came; what its sender says stays."""
    async with Stage(
        {"/queue/jms.>": {"jms_headers": True, "expires_max_ms": 60_000}, "/topic/jms": {"jms_headers": True}}
    ) as stage:
        client, producer = await stage.connect(version), await stage.connect(version)
        await client.subscribe("/queue/jms.a,/topic/jms,/queue/plain")

        async def got(destination: str, **headers: str) -> list[str | None]:
            await producer.sent(destination, "x", **headers)
            message = await client.next_message()
            assert message.text == "x"
            return [message.headers.get(name) for name in ("timestamp", "priority", "expires")]

        began_ms = wall_clock_ms()
        assert await got("/topic/jms") == [str(began_ms), "4", "0"]
        await trio.sleep(2)
        assert await got("/topic/jms") == [str(began_ms + 2000), "4", "0"]
        assert await got("/topic/jms", timestamp="7", priority="12", expires="-1") == ["7", "12", "-1"]
        assert await got("/queue/jms.a", expiration="5000", priority="9") == [
            str(began_ms + 2000), "9", str(began_ms + 7000)
        ]  # fmt: skip
        assert (await got("/queue/jms.a"))[2] == str(began_ms + 62_000)
        furthest = str(2**63 - 1)  # what is stored with a later date could not be read again
        assert (await got("/topic/jms", expiration=furthest))[2] == furthest
        assert await got("/queue/plain") == [None, None, None]
        await producer.frame("BEGIN", {"transaction": "t"})
        await producer.frame("SEND", {"destination": "/queue/jms.a,/queue/plain", "transaction": "t"}, "y")
        await trio.sleep(1)
        await producer.request("COMMIT", {"transaction": "t"})
        dates = {each.headers["destination"]: each.headers.get("timestamp") for each in await client.next_messages(2)}
        assert dates == {"/queue/jms.a": str(began_ms + 3000), "/queue/plain": None}


# -- repeated delivery -------------------------------------------------------------------------------------------------

REPEATED = {"AMQ_SCHEDULED_REPEAT": "2", "AMQ_SCHEDULED_PERIOD": "10000"}


@pytest.mark.parametrize("delay_ms", [0, 5000])
async def test_a_message_is_delivered_as_often_as_its_sender_says(
    stage: Stage, version: Version, delay_ms: int
) -> None:
    """By queues and topics, in transactions, each time at its time."""
    client, producer = await stage.connect(version), await stage.connect(version)
    await client.subscribe("/queue/a,/topic/b")
    delay = {"delay": str(delay_ms)} if delay_ms else {}
    began_ms = wall_clock_ms()
    await producer.request("SEND", {"destination": "/queue/a", **REPEATED, **delay}, "q")
    await producer.frame("BEGIN", {"transaction": "t"})
    await producer.frame("SEND", {"destination": "/topic/b", "transaction": "t", **REPEATED, **delay}, "t")
    await producer.request("COMMIT", {"transaction": "t"})
    for number in range(3):
        for _ in range(2):
            message = await client.next_message()
            assert 0 <= wall_clock_ms() - began_ms - delay_ms - number * 10_000 < 1000
            assert message.text == message.headers["destination"][1]
            assert not set(REPEATED) & set(message.headers)
    await trio.sleep(60)
    await client.silence()


async def test_repeated_delivery_continues_after_a_restart() -> None:
    """With one RECEIPT for all; a dead letter or an ACK of one leaves the others."""
    lives = Lives()
    async with lives.life(end="power cut") as stage:
        client, producer = await stage.connect(), await stage.connect()
        await client.subscribe("/queue/a", ack="client-individual")
        await producer.request("SEND", {"destination": "/queue/a", "persistent": "true", **REPEATED}, "x")
        await client.ack(await client.next_message())
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe("/queue/a")
        assert await client.next_texts(2) == ["x", "x"]
        await trio.sleep(60)
        await client.silence()


@pytest.mark.parametrize(
    ("destination", "headers", "code"),
    [
        ("/queue/a", {"AMQ_SCHEDULED_REPEAT": "100", "AMQ_SCHEDULED_PERIOD": "1"}, "bad-AMQ_SCHEDULED_REPEAT"),
        ("/queue/a", {"AMQ_SCHEDULED_REPEAT": "-1", "AMQ_SCHEDULED_PERIOD": "1"}, "bad-AMQ_SCHEDULED_REPEAT"),
        ("/queue/a,/queue/b", {"AMQ_SCHEDULED_REPEAT": "60", "AMQ_SCHEDULED_PERIOD": "1"}, "bad-destination"),
        ("/queue/a", {"AMQ_SCHEDULED_REPEAT": "1"}, "bad-AMQ_SCHEDULED_PERIOD"),
        ("/queue/a", {"AMQ_SCHEDULED_CRON": "0 * * * *"}, "not-supported"),
        ("/topic/a", {"retain": "set", **REPEATED}, "not-supported"),
        ("/queue/a", {"_AMQ_DUPL_ID": "1", **REPEATED}, "not-supported"),
    ],
)
async def test_repetitions_that_are_none_are_refused(
    stage: Stage, destination: str, headers: dict[str, str], code: str
) -> None:
    client = await stage.connect()
    await client.frame("SEND", {"destination": destination, **headers}, "x")
    assert (await client.expect_error("")).headers["code"] == code
    assert stage.depth_count("/queue/a") == 0


# -- subscriptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connect", "subscribe"),
    [
        ({"client-id": "shop"}, {"activemq.subcriptionName": "audit"}),
        ({"client-id": "shop"}, {"durable-subscription-name": "audit"}),
        ({"client-id": "shop"}, {"durable-subscriber-name": "audit", "subscription-type": "MULTICAST"}),
        ({}, {"x-queue-name": "audit", "durable": "true", "auto-delete": "false"}),
    ],
)
async def test_a_durable_subscription_has_its_name_in_any_dialect(
    connect: dict[str, str], subscribe: dict[str, str]
) -> None:
    """It stays over a restart, and goes with an UNSUBSCRIBE in the same words."""
    lives = Lives()
    async with lives.life() as stage:
        client = await stage.connect(**connect)
        await client.subscribe("/topic/a", id="first", **subscribe)
        await client.disconnect()
        producer = await stage.connect()
        await producer.sent("/topic/a", "x", persistent="true")
    async with lives.life() as stage:
        client = await stage.connect(**connect)
        await client.subscribe("/topic/a", id="second", **subscribe)
        assert (await client.next_message()).text == "x"
        (durable,) = stage.broker.registry.durables
        assert durable.name == "audit"
        await client.request("UNSUBSCRIBE", {"id": "second", **subscribe})
        assert not list(stage.broker.registry.durables)


async def test_a_header_of_artemis_tells_the_kind_of_a_bare_name(stage: Stage) -> None:
    client, producer = await stage.connect(), await stage.connect()
    await client.subscribe("a", id="1", **{"subscription-type": "MULTICAST"})
    await client.subscribe("a", id="2", **{"destination-type": "anycast"})
    for kind, name in (("MULTICAST", "/topic/a"), ("ANYCAST", "/queue/a")):
        await producer.sent("a", "x", **{"destination-type": kind})
        assert (await client.next_message()).headers["destination"] == name


@pytest.mark.parametrize(
    ("destination", "said", "code"),
    [
        ("/topic/a", "ANYCAST", "bad-destination"),
        ("/queue/b,/queue/a", "MULTICAST", "bad-destination"),
        ("a", "unicast", "bad-destination-type"),
    ],
)
async def test_a_kind_that_is_none_or_another_one_is_refused(
    stage: Stage, destination: str, said: str, code: str
) -> None:
    for command, headers in (("SEND", {}), ("SUBSCRIBE", {"id": "s"})):
        client = await stage.connect()
        await client.frame(command, {"destination": destination, "destination-type": said, **headers})
        assert (await client.expect_error(said)).headers["code"] == code


@pytest.mark.parametrize(("window", "count"), [("10", 1), ("0", 1), ("100000", 5), ("-1", 5)])
async def test_a_window_of_artemis_bounds_what_is_unacknowledged(stage: Stage, window: str, count: int) -> None:
    client, producer = await stage.connect(), await stage.connect()
    await producer.send_all("/queue/a", range(5))
    await client.subscribe("/queue/a", ack="client", **{"consumer-window-size": window})
    await client.next_messages(count)
    await client.silence()


@pytest.mark.parametrize("header", ["no-local", "noLocal", "activemq.noLocal"])
async def test_no_local_leaves_out_what_the_connection_sends(stage: Stage, version: Version, header: str) -> None:
    """From the SUBSCRIBE on, also in the same read; by wildcards, beside a selector, and for this connection alone."""
    client, other = await stage.connect(version), await stage.connect(version)
    await other.subscribe("/topic/a.b")
    await client.sent("/topic/a.b", "0", kind="good")
    wish = {"destination": "/topic/a.*", "id": "s", header: "true", "selector": "kind = 'good'"}
    send = client.encode("SEND", {"destination": "/topic/a.b", "kind": "good"}, b"1")
    await client.send_raw(client.encode("SUBSCRIBE", wish) + send + send)
    await client.sync()
    await client.send("/topic/a.b", "2", kind="good")
    await client.sync()
    await other.sent("/topic/a.b", "3", kind="good")
    await other.sent("/topic/a.b", "4", kind="bad")
    assert await client.next_texts(1) == ["3"]
    await client.silence()
    assert await other.next_texts(6) == ["0", "1", "1", "2", "3", "4"]


async def test_no_local_of_a_durable_subscription_holds_over_a_restart() -> None:
    """What the client sent before it left is not for it when it is back: the client-id tells."""
    lives = Lives()
    headers = {"activemq.subscriptionName": "audit", "no-local": "true"}
    async with lives.life() as stage:
        client, other = await stage.connect(**{"client-id": "shop"}), await stage.connect()
        await client.subscribe("/topic/a", **headers)
        await client.unsubscribe()
        await client.sent("/topic/a", "mine", persistent="true")
        await other.sent("/topic/a", "yours", persistent="true")
    async with lives.life() as stage:
        client = await stage.connect(**{"client-id": "shop"})
        await client.subscribe("/topic/a", **headers)
        assert await client.next_texts(1) == ["yours"]
        await client.silence()


async def test_no_local_of_a_durable_subscription_needs_a_client_id(stage: Stage) -> None:
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": "/topic/a", "id": "s", "durable": "true", "no-local": "true"})
    error = await client.expect_error("without a client-id")
    assert (error.headers["code"], error.headers["id"]) == ("durable-without-name", "s")


async def test_no_local_holds_over_a_link() -> None:
    async with TwoHubs() as hubs:
        client, other = await hubs.connect(), await hubs.connect()
        await client.subscribe("/topic/b.x", **{"no-local": "true"})
        await client.sent("/topic/b.x", "mine")
        await other.sent("/topic/b.x", "yours")
        assert await client.next_texts(1) == ["yours"]
        await client.silence()


# -- queues as RabbitMQ declares them ----------------------------------------------------------------------------------


async def test_a_subscribe_declares_limits_of_its_queue(stage: Stage) -> None:
    """At most those of the configuration; those of the next SUBSCRIBE follow."""
    client, producer = await stage.connect(), await stage.connect()
    arguments = {"x-max-length": "2", "x-message-ttl": "5000"}
    await client.subscribe("/queue/a", ack="client", **{"prefetch-count": "1", **arguments})
    await producer.send_all("/queue/a", range(3))
    await producer.frame("SEND", {"destination": "/queue/a", "receipt": "r"}, "waits")
    await producer.silence()
    await trio.sleep(6)
    await producer.expect_receipt("r")
    other = await stage.connect()
    await other.subscribe("/queue/a", id="o", ack="client", **{"x-max-length": "100", "prefetch-count": "1"})
    await producer.sent("/queue/a", "more")
    policy = stage.broker.registry.destinations["/queue/a"].policy
    assert (policy.count_max, policy.expires_max_ms) == (100, 5000)


async def test_a_consumer_cannot_raise_what_is_configured() -> None:
    async with Stage({"/queue/a": {"count_max": 10}}) as stage:
        client = await stage.connect()
        await client.subscribe("/amq/queue/a", **{"x-max-length": "1000", "x-max-length-bytes": "1000"})
        policy = stage.broker.registry.destinations["/queue/a"].policy
        assert (policy.count_max, policy.bytes_max) == (10, 1000)


@pytest.mark.parametrize(("name", "value"), [("x-max-length", "0"), ("x-message-ttl", "soon")])
async def test_a_wrong_limit_is_refused(stage: Stage, name: str, value: str) -> None:
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": "/queue/a", "id": "s", name: value})
    assert (await client.expect_error(name)).headers["code"] == f"bad-{name}"


@pytest.mark.parametrize("header", ["x-max-length", "auto-delete"])
async def test_declaring_a_queue_takes_the_permission_to_create(header: str) -> None:
    async with GuardedStage(allow("ann", "receive", "/>")) as stage:
        client = await stage.connect(login="ann", passcode="ann")
        value = "true" if header == "auto-delete" else "1"
        await client.frame("SUBSCRIBE", {"destination": "/queue/a", "id": "s", header: value})
        assert (await client.expect_error("create")).headers["code"] == "forbidden"


async def test_an_auto_delete_queue_goes_with_its_last_consumer(stage: Stage) -> None:
    """With its messages, however the consumer goes; not while another one is there."""
    first, second, producer = await stage.connect(), await stage.connect(), await stage.connect()
    await first.subscribe("/queue/a", ack="client", **{"auto-delete": "true", "prefetch-count": "1"})
    await second.subscribe("/queue/a", ack="client", **{"prefetch-count": "1"})
    await producer.send_all("/queue/a", range(5))
    await first.disconnect()
    await trio.sleep(60)
    assert "/queue/a" in stage.broker.registry.destinations
    second.vanish()
    await trio.sleep(60)
    assert "/queue/a" not in stage.broker.registry.destinations
    await producer.sent("/queue/a", "anew")
    await trio.sleep(60)
    assert stage.depth_count("/queue/a") == 1


# -- client-ids --------------------------------------------------------------------------------------------------------


def _broker_says(stage: Stage, policy: str) -> None:
    config = stage.broker.config
    stage.broker.config = attrs.evolve(config, broker=attrs.evolve(config.broker, client_id_in_use=policy))


async def test_a_client_id_in_use_is_refused_by_configuration(stage: Stage, version: Version) -> None:
    """Until its connection has ended, in order or not."""
    _broker_says(stage, "refuse")
    words = {"client-id": "shop"}
    holder, other = await stage.connect(version, **words), stage.stranger()
    await other.send_raw(other.encode("CONNECT", {"accept-version": version, "host": "h", **words}))
    assert (await other.expect_error("has this client-id")).headers["code"] == "client-id-in-use"
    await holder.disconnect()
    holder = await stage.connect(version, **words)
    holder.vanish()
    await trio.sleep(1)
    await stage.connect(version, **words)


async def test_a_client_id_in_use_is_taken_over_by_configuration(stage: Stage) -> None:
    """The new connection has the durable subscription of the old one at once."""
    _broker_says(stage, "take_over")
    subscription = {"activemq.subscriptionName": "audit"}
    old = await stage.connect(**{"client-id": "shop"})
    await old.subscribe("/topic/a", **subscription)
    new, producer = await stage.connect(**{"client-id": "shop"}), await stage.connect()
    assert (await old.expect_error("same client-id")).headers["code"] == "client-id-taken"
    await new.subscribe("/topic/a", **subscription)
    await producer.sent("/topic/a", "x")
    assert (await new.next_message()).text == "x"


async def test_a_client_id_may_be_shared_and_connections_over_links_do_not_count() -> None:
    async with TwoHubs() as hubs:
        for _ in range(2):
            client = await hubs.connect(**{"client-id": "shop"})
            await client.sent("/queue/b.x", "x")


# -- consumers of higher priority --------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["x-priority", "activemq.priority"])
async def test_a_consumer_of_higher_priority_comes_first(stage: Stage, header: str) -> None:
    """Others get what it has no credit for, and all when it has gone. Equal ones share."""
    ranks = {"low": "-1", "plain": None, "high": "9", "as high": "9"}
    producer, clients = await stage.connect(), {}
    for name, rank in ranks.items():
        clients[name] = client = await stage.connect()
        wish = {} if rank is None else {header: rank}
        await client.subscribe("/queue/a", ack="client-individual", **{"prefetch-count": "2", **wish})
    await producer.send_all("/queue/a", range(5))
    held = {name: await client.drain() for name, client in clients.items()}
    assert {name: len(deliveries) for name, deliveries in held.items()} == {
        "low": 0, "plain": 1, "high": 2, "as high": 2
    }  # fmt: skip
    await clients["high"].ack(held["high"][0])
    await producer.send_all("/queue/a", ["next", "spare"])
    assert [each.text for each in await clients["high"].drain()] == ["next"]
    assert [each.text for each in await clients["plain"].drain()] == ["spare"]
    for name in ("high", "as high", "plain"):
        clients[name].vanish()
    assert len(await clients["low"].drain()) == 2


async def test_a_consumer_priority_holds_over_a_link_and_for_a_backlog() -> None:
    async with TwoHubs() as hubs:
        low, high, producer = await hubs.connect(), await hubs.connect(), await hubs.connect()
        await high.subscribe("/queue/b.x", ack="client-individual", **{"prefetch-count": "1", "x-priority": "1"})
        await low.subscribe("/queue/b.x", ack="client-individual", **{"prefetch-count": "1"})
        await producer.send_all("/queue/b.x", range(20))
        first = await low.next_message()
        for _ in range(10):
            await high.ack(await high.next_message())
        await low.silence()
        await low.ack(first)


async def test_a_priority_that_is_no_number_is_refused(stage: Stage) -> None:
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": "/queue/a", "id": "s", "x-priority": "high"})
    assert (await client.expect_error("x-priority")).headers["code"] == "bad-x-priority"
