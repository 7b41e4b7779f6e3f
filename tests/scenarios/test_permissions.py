"""What users may do, over STOMP: each refusal is an ERROR `forbidden`, and has no effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.security.secrets import hashed
from tests.scenarios.client import UnexpectedError
from tests.scenarios.guarded import GuardedStage, allow, deny, refused, replaced

Q = "/queue/orders"
SECRET = "/queue/secret"


async def test_without_users_everybody_may_everything(stage: object) -> None:
    from tests.scenarios.stage import Stage

    assert isinstance(stage, Stage)
    client = await stage.connect(login="whoever", passcode="whatever")
    await client.subscribe("/temp-queue/r", id="r")
    await client.send("/sluiceway/stat", reply_to="/temp-queue/r")
    assert (await client.next_message()).body.startswith(b"{")
    await client.sent(Q, "x")


async def test_with_users_and_no_entry_nobody_gets_in() -> None:
    async with GuardedStage(settings={"permissions": ()}) as stage:
        with pytest.raises(UnexpectedError, match="authentication failed"):
            await stage.as_user("ann")


async def test_send_needs_its_permission(version: Version) -> None:
    async with GuardedStage(allow("ann", "send create", Q)) as stage:
        ann = await stage.as_user("ann", version)
        await ann.sent(Q, "mine")
        bob = await stage.as_user("bob", version)
        await bob.send(Q, "not mine", receipt="r")
        headers = await refused(bob, f"send on {Q}")
        assert headers["destination"] == Q
        assert headers["receipt-id"] == "r"
        assert stage.depth_count(Q) == 1


async def test_refusals_do_not_tell_what_exists() -> None:
    async with GuardedStage() as stage:
        root = await stage.connect()
        await root.sent(SECRET, "x")
        said = []
        for name in (SECRET, "/queue/absent"):
            for command in ("SEND", "SUBSCRIBE"):
                eve = await stage.as_user("eve")
                await eve.frame(command, {"destination": name, **({"id": "s"} if command == "SUBSCRIBE" else {})})
                error = await eve.expect_error()
                said.append(str((error.headers, error.body)).replace(name, "NAME"))
        assert said[0] == said[2]
        assert said[1] == said[3]
        assert "/queue/absent" not in stage.broker.registry.destinations


async def test_making_a_destination_needs_create() -> None:
    async with GuardedStage(allow("ann", "send receive", "/queue/>")) as stage:
        for command in ("SEND", "SUBSCRIBE"):
            ann = await stage.as_user("ann")
            await ann.frame(command, {"destination": Q, **({"id": "s"} if command == "SUBSCRIBE" else {})})
            await refused(ann, f"create on {Q}")
        root = await stage.connect()
        await root.sent(Q, "x")
        ann = await stage.as_user("ann")
        await ann.sent(Q, "y")
        await ann.subscribe(Q)
        assert await ann.next_texts(2) == ["x", "y"]


async def test_receive_and_browse_are_two_permissions(version: Version) -> None:
    async with GuardedStage(allow("ann", "receive", Q), allow("bob", "browse", Q)) as stage:
        root = await stage.connect()
        await root.sent(Q, "x")
        bob = await stage.as_user("bob", version)
        await bob.frame("SUBSCRIBE", {"destination": Q, "id": "s", "browser": "true"})
        assert (await bob.next_message()).body == b"x"
        await bob.next_message()  # the end
        await bob.frame("SUBSCRIBE", {"destination": Q, "id": "t"})
        await refused(bob, f"receive on {Q}")
        ann = await stage.as_user("ann", version)
        await ann.frame("SUBSCRIBE", {"destination": Q, "id": "s", "browser": "true"})
        await refused(ann, f"browse on {Q}")


async def test_a_composite_with_one_forbidden_part_goes_nowhere() -> None:
    async with GuardedStage(allow("ann", "send create", "/queue/>"), settings={}) as stage:
        replaced(stage, [deny("ann", "send", SECRET), allow("ann", "send create", "/queue/>")])
        for order in (f"{Q},{SECRET}", f"{SECRET},{Q}", f"{Q}, {SECRET}"):
            ann = await stage.as_user("ann")
            await ann.send(order, "x")
            await refused(ann, f"send on {SECRET}")
        assert not set(stage.broker.registry.destinations) & {Q, SECRET}, "nothing was made"


async def test_subscribing_to_a_composite_needs_all_of_it() -> None:
    async with GuardedStage(allow("ann", "receive create", Q)) as stage:
        ann = await stage.as_user("ann")
        await ann.frame("SUBSCRIBE", {"destination": f"{Q},{SECRET}", "id": "s"})
        await refused(ann, f"receive on {SECRET}")
        assert not stage.broker.registry.destinations


async def test_a_forbidden_send_in_a_transaction_undoes_it(version: Version) -> None:
    async with GuardedStage(allow("ann", "send create", Q)) as stage:
        ann = await stage.as_user("ann", version)
        await ann.frame("BEGIN", {"transaction": "t"})
        await ann.send(Q, "x", transaction="t")
        await ann.send(SECRET, "x", transaction="t")
        await refused(ann, f"send on {SECRET}")
        assert stage.depth_count(Q) == 0


async def test_permission_that_is_gone_by_the_time_of_commit_undoes_it() -> None:
    async with GuardedStage(allow("ann", "send create", Q)) as stage:
        ann = await stage.as_user("ann")
        await ann.frame("BEGIN", {"transaction": "t"})
        await ann.send(Q, "x", transaction="t")
        await ann.sync()
        replaced(stage, [])
        await ann.frame("COMMIT", {"transaction": "t"})
        headers = await refused(ann, f"send on {Q}")
        assert headers["command"] == "COMMIT"
        assert stage.depth_count(Q) == 0


async def test_large_bodies_are_no_way_around(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("large")
    async with GuardedStage(allow("ann", "send create", Q), large_folder=folder, large_body_bytes=1000) as stage:
        ann = await stage.as_user("ann")
        await ann.send(SECRET, "x" * 5000)
        await refused(ann, f"send on {SECRET}")
        ann = await stage.as_user("ann")
        await ann.sent(Q, "x" * 5000)
        assert stage.depth_count(Q) == 1


async def test_the_second_send_is_judged_like_the_first() -> None:
    """Routes are kept for a connection: another head, another priority, the same head after a refusal elsewhere."""
    async with GuardedStage(allow("ann", "send create", Q)) as stage:
        ann = await stage.as_user("ann")
        await ann.sent(Q, "1")
        await ann.sent(Q, "2", priority="7")
        await ann.sent(f"{Q},{Q}", "3")
        await ann.send_raw(
            ann.encode("SEND", {"destination": Q}, "4")
            + ann.encode("SEND", {"destination": SECRET}, "5")
            + ann.encode("SEND", {"destination": Q}, "6")
        )
        await refused(ann, f"send on {SECRET}")
        assert stage.depth_count(Q) == 4


# ---------------------------------------------------------------------- wildcards


async def test_a_wildcard_brings_only_what_may_be_received(version: Version) -> None:
    """What is there, and what is made later."""
    permissions = (
        deny("ann", "receive", "/queue/a.secret.>", "/queue/a.hidden"),
        allow("ann", "receive", "/queue/a.>"),
    )
    async with GuardedStage(*permissions) as stage:
        root = await stage.connect()
        await root.sent("/queue/a.open", "1")
        await root.sent("/queue/a.secret.x", "no")
        ann = await stage.as_user("ann", version)
        await ann.subscribe("/queue/a.>")
        await root.sent("/queue/a.hidden", "no")
        await root.sent("/queue/a.later", "2")
        assert sorted(await ann.next_texts(2)) == ["1", "2"]
        await ann.silence()
        assert stage.depth_count("/queue/a.secret.x") == stage.depth_count("/queue/a.hidden") == 1


async def test_a_topic_wildcard_hears_nothing_forbidden() -> None:
    async with GuardedStage(deny("ann", "receive", "/topic/pay.>"), allow("ann", "receive", "/topic/>")) as stage:
        ann = await stage.as_user("ann")
        await ann.subscribe("/topic/>")
        root = await stage.connect()
        for name in ("/topic/pay.slips", "/topic/news", "/topic/pay.x.y"):
            await root.sent(name, name)
        assert await ann.next_texts(1) == ["/topic/news"]
        await ann.silence()


async def test_a_wildcard_of_which_nothing_is_allowed_is_refused() -> None:
    async with GuardedStage(allow("ann", "receive", "/topic/>")) as stage:
        ann = await stage.as_user("ann")
        await ann.frame("SUBSCRIBE", {"destination": "/queue/>", "id": "s"})
        await refused(ann, "receive on /queue/>")


# ---------------------------------------------------------------------- what belongs to whom


async def test_replies_work_for_those_who_may_only_send_requests() -> None:
    async with GuardedStage(allow("ann", "send create", Q), allow("bob", "receive", Q)) as stage:
        ann = await stage.as_user("ann")
        await ann.subscribe("/temp-queue/answers", id="a")
        await ann.sent(Q, "question", reply_to="/temp-queue/answers")
        bob = await stage.as_user("bob")
        await bob.subscribe(Q)
        question = await bob.next_message()
        reply_to = question.headers["reply-to"]
        await bob.sent(reply_to, "answer")
        assert await ann.next_texts(1) == ["answer"]
        eve = await stage.as_user("eve")
        await eve.frame("SUBSCRIBE", {"destination": reply_to, "id": "s"})
        await eve.expect_error("temporary destination of another connection")
        eve = await stage.as_user("eve")
        await eve.frame("SUBSCRIBE", {"destination": reply_to, "id": "s", "browser": "true"})
        await eve.expect_error("temporary destination of another connection")


async def test_durable_subscriptions_belong_to_their_user(version: Version) -> None:
    """The same client id and name is another one for another user; nobody can read, hold up or remove hers."""
    async with GuardedStage(allow("ann eve", "receive", "/topic/news")) as stage:
        root = await stage.connect()
        await root.sent("/topic/news", "nobody hears this")
        durable = {"destination": "/topic/news", "id": "d", "durable": "true", "activemq.subscriptionName": "d"}
        ann = await stage.as_user("ann", version, **{"client-id": "laptop"})
        await ann.request("SUBSCRIBE", durable)
        await ann.disconnect()
        await root.sent("/topic/news", "for ann")
        eve = await stage.as_user("eve", version, **{"client-id": "laptop"})
        await eve.request("SUBSCRIBE", durable)
        await eve.silence()
        await eve.request("UNSUBSCRIBE", durable)
        for client_id in ("ann/laptop", "laptop"):
            eve = await stage.as_user("eve", version, **{"client-id": client_id})
            await eve.frame("UNSUBSCRIBE", durable)
            await eve.expect_error("no durable subscription")
        ann = await stage.as_user("ann", version, **{"client-id": "laptop"})
        await ann.request("SUBSCRIBE", durable)
        assert await ann.next_texts(1) == ["for ann"]
        await ann.request("UNSUBSCRIBE", durable)


async def test_a_users_name_in_a_pattern_is_her_own_corner() -> None:
    async with GuardedStage(allow("*", "send receive create", "/queue/of.{user}.>")) as stage:
        ann = await stage.as_user("ann")
        await ann.sent("/queue/of.ann.x", "mine")
        await ann.subscribe("/queue/of.*.x")
        assert await ann.next_texts(1) == ["mine"]
        root = await stage.connect()
        await root.sent("/queue/of.bob.x", "not hers")
        await ann.silence()


# ---------------------------------------------------------------------- requests to the broker


async def test_the_state_of_the_broker_is_for_administrators() -> None:
    async with GuardedStage(allow("ann", "send receive create browse"), allow("bob", "admin")) as stage:
        ann = await stage.as_user("ann")
        await ann.subscribe("/temp-queue/r", id="r")
        await ann.send("/sluiceway/stat", reply_to="/temp-queue/r")
        await refused(ann, "admin")
        bob = await stage.as_user("bob")
        await bob.subscribe("/temp-queue/r", id="r")
        await bob.send("/sluiceway/stat", reply_to="/temp-queue/r")
        assert json.loads((await bob.next_message()).body)["broker"]


async def test_the_broker_does_not_answer_where_the_asker_may_not_send() -> None:
    async with GuardedStage(allow("ann", "admin")) as stage:
        root = await stage.connect()
        await root.sent(Q, "x")
        ann = await stage.as_user("ann")
        await ann.send("/sluiceway/stat", reply_to=Q)
        await refused(ann, f"send on {Q}")
        assert stage.depth_count(Q) == 1


@pytest.mark.parametrize(
    "name",
    ["/sluiceway/stat,/queue/orders", "/queue/orders,/sluiceway/stat", "//sluiceway/stat", "/sluiceway//stat",
     "/sluiceway/../sluiceway/stat", "/SLUICEWAY/stat", " /sluiceway/stat"],
)  # fmt: skip
async def test_no_spelling_of_a_request_gets_around_it(name: str) -> None:
    async with GuardedStage(allow("ann", "send create", Q)) as stage:
        ann = await stage.as_user("ann")
        await ann.subscribe("/temp-queue/r", id="r")
        await ann.send(name, reply_to="/temp-queue/r")
        await ann.expect_error()
        assert not ann.messages
        assert stage.depth_count(Q) == 0


@pytest.mark.parametrize(
    "name",
    ["/queue/open/../secret", "/queue/open.", "/queue/open..x", "/queue//open", "/queue/open\\c",
     "/queue/opén", "/Queue/open", "/queue/open\u200b"],
)  # fmt: skip
async def test_names_with_tricks_are_other_names(name: str) -> None:
    async with GuardedStage(allow("ann", "send create", "/queue/open")) as stage:
        ann = await stage.as_user("ann")
        await ann.send(name, "x")
        await ann.expect_error("no permission to send")
        assert not [each for each in stage.broker.registry.destinations if not each.startswith("/remote-temp")]


# ---------------------------------------------------------------------- while connections are there


async def test_other_permissions_hold_at_once_for_those_who_are_connected() -> None:
    async with GuardedStage(allow("ann", "send create", Q)) as stage:
        ann = await stage.as_user("ann")
        await ann.sent(Q, "x")
        replaced(stage, [allow("ann", "send create", SECRET)])
        await ann.sent(SECRET, "y")
        await ann.send(Q, "z")
        await refused(ann, f"send on {Q}")
        assert stage.depth_count(Q) == 1


async def test_a_subscription_that_is_not_allowed_any_more_ends_its_connection() -> None:
    async with GuardedStage(allow("ann bob", "receive create", Q)) as stage:
        ann = await stage.as_user("ann")
        await ann.subscribe(Q)
        await ann.sync()
        bob = await stage.as_user("bob")
        await bob.subscribe(Q)
        await bob.sync()
        replaced(stage, [allow("bob", "receive", Q)])
        await refused(ann, f"receive on {Q}")
        root = await stage.connect()
        await root.sent(Q, "x")
        assert await bob.next_texts(1) == ["x"]


async def test_wildcards_cover_other_destinations_after_a_change() -> None:
    async with GuardedStage(allow("ann", "receive", "/topic/a", "/topic/b")) as stage:
        root = await stage.connect()
        for name in ("/topic/a", "/topic/b", "/topic/c"):
            await root.sent(name, "early")
        ann = await stage.as_user("ann")
        await ann.subscribe("/topic/*")
        await ann.sync()
        replaced(stage, [allow("ann", "receive", "/topic/b", "/topic/c")])
        for name in ("/topic/a", "/topic/b", "/topic/c"):
            await root.sent(name, name)
        assert sorted(await ann.next_texts(2)) == ["/topic/b", "/topic/c"]
        await ann.silence()


async def test_users_that_are_gone_are_closed_and_others_stay() -> None:
    async with GuardedStage(allow("*", "send create")) as stage:
        ann, bob = await stage.as_user("ann"), await stage.as_user("bob")
        replaced(stage, [allow("*", "send create")], users={"root": "root", "bob": "bob"})
        await ann.expect_error("no permission to connect any more")
        await bob.sent(Q, "x")


async def test_anonymous_connections_end_when_there_are_users() -> None:
    from tests.scenarios.stage import Stage

    async with Stage() as stage:
        somebody = await stage.connect()
        replaced(stage, [])
        await somebody.expect_error("no permission to connect any more")


async def test_a_mistake_in_new_permissions_changes_nothing() -> None:
    from sluiceway.reloading import ReloadError

    async with GuardedStage(allow("ann", "send create", Q)) as stage:
        ann = await stage.as_user("ann")
        with pytest.raises(ReloadError, match="never matters"):
            replaced(stage, [deny("*", "*"), allow("ann", "send", Q)])
        await ann.sent(Q, "x")


async def test_the_file_of_users_is_read_again_though_the_configuration_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "users"
    kept = str(hashed("p", log_n=4, r=1, p=1))
    file.write_text(f"carl:{kept}\ndora:{kept}\n")
    async with GuardedStage(allow("*", "send create"), settings={"users_file": file}) as stage:
        carl = await stage.connect(login="carl", passcode="p")
        dora = await stage.connect(login="dora", passcode="p")
        assert stage.broker.reload(stage.broker.config).changed == ()
        file.write_text(f"dora:{kept}\n")
        assert stage.broker.reload(stage.broker.config).changed == ("security.users_file (read again)",)
        await carl.expect_error("no permission to connect any more")
        await dora.sent(Q, "x")


async def test_refusals_are_counted() -> None:
    async with GuardedStage() as stage:
        ann = await stage.as_user("ann")
        await ann.send(Q, "x")
        await refused(ann, f"send on {Q}")
        assert stage.broker.guard.statistics().forbidden_counts["send"] == 1
