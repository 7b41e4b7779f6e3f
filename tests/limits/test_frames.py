"""Every frame at the limits of the default configuration, with ten thousand others there, on a counted clock."""

from __future__ import annotations

import pytest
import trio

from tests.limits.law import CROWD_COUNT, LawStage, frame
from tests.scenarios.stage import wall_clock_ms

Q = "/queue/q"
MOST = 100_000
"""Deliveries that one subscription can ask to hold by `credit`, where its bytes allow it; `transaction_acks_max`, too.
"""

MANY = 10_000
"""Frames whose count nothing bounds but the bytes of one read, several times over."""


# ---------------------------------------------------------------------- CONNECT, heart-beats, ERROR


async def test_connect_beside_many_connections(stage: LawStage) -> None:
    for number in range(CROWD_COUNT // 10):
        await stage.client(client_id=f"c{number}")
    with stage.law("CONNECT", limit="connect_frame_bytes_max", crowd="1,000 connections"):
        await stage.client(**{f"h{number}": "x" * 40 for number in range(250)})


async def test_a_read_of_heart_beats(stage: LawStage) -> None:
    client = await stage.client(heart_beat=(1000, 1000))
    with stage.law("heart-beats", limit="bytes of one read"):
        await client.send_raw(b"\n" * 500_000)
        await client.sync()


async def test_an_error_ends_a_connection_with_the_most_subscriptions(stage: LawStage) -> None:
    client = await stage.client()
    await client.send_raw(b"".join(frame("SUBSCRIBE", id=n, destination=f"/queue/q{n}") for n in range(1000)))
    await client.sync()
    with stage.law("ERROR", limit="subscriptions_max"):
        await client.send_raw(frame("NONSENSE"))
        await client.expect_error()
        await trio.sleep(3)


# ---------------------------------------------------------------------- SEND


SENDS = {
    "SEND plain": lambda n: {},
    "SEND with headers of its own": lambda n: {"k": n},
    "SEND with priorities": lambda n: {"priority": n % 10},
    "SEND delayed": lambda n: {"delay": 60_000 + n % 100},
    "SEND grouped": lambda n: {"group": n},
    "SEND with expiry": lambda n: {"expires": wall_clock_ms() + 60_000 + n},
    "SEND persistent": lambda n: {"persistent": "true", "k": n},
    "SEND with receipts": lambda n: {"receipt": n} if n % 50 == 0 else {},
    "SEND in a transaction": lambda n: {"transaction": "t", "k": n},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SENDS)
async def test_a_read_of_sends(stage: LawStage, kind: str) -> None:
    sender = await stage.client()
    data = b"".join(frame("SEND", b"x", destination=Q, **SENDS[kind](n)) for n in range(MANY))
    await sender.frame("BEGIN", {"transaction": "t"})
    with stage.law(kind, limit="bytes of one read"):
        await sender.send_raw(data)
        await sender.sync()


@pytest.mark.slow
async def test_a_read_of_the_shortest_sends(stage: LawStage) -> None:
    sender = await stage.client()
    data = b"SEND\ndestination:/queue/q\n\n\0" * 100_000
    with stage.law("SEND shortest", limit="bytes of one read"):
        await sender.send_raw(data)
        await sender.sync()


@pytest.mark.slow
async def test_a_read_of_sends_to_ten_thousand_new_queues(stage: LawStage) -> None:
    sender = await stage.client()
    data = b"".join(frame("SEND", b"x", destination=f"/queue/q{n}") for n in range(2_000))
    with stage.law("SEND to new queues", limit="bytes of one read"):
        await sender.send_raw(data)
        await sender.sync()


async def test_a_composite_send(stage: LawStage) -> None:
    sender = await stage.client()
    names = ",".join(f"/queue/{n:x}" for n in range(100))
    with stage.law("SEND composite", limit="100 destinations"):
        await sender.sent(names, b"x")
    with stage.law("SEND composite, again", limit="100 destinations"):
        await sender.sent(names, b"x")


@pytest.mark.slow
async def test_a_flood_of_composites() -> None:
    """Their queues are full soon: what is parked, and goes on when there is room."""
    async with LawStage({"/queue/full.*": {"memory_bytes": 20_000, "paging": "throttle"}}) as stage:
        reader = await stage.client()
        sender = await stage.client()
        data = frame("SEND", b"x" * 100, destination=",".join(f"/queue/full.{n}" for n in range(100))) * 400
        with stage.law("SEND composite, flooded", limit="400 of one read, 100 destinations each"):
            await sender.send_raw(data)
            await trio.sleep(1)
        with stage.law("SEND composite, on from the stash", limit="40,000 messages"):
            await reader.subscribe("/queue/>")
            await reader.next_messages(40_000)


async def test_a_large_body(stage: LawStage) -> None:
    sender = await stage.client()
    reader = await stage.client()
    await reader.subscribe(Q)
    with stage.law("SEND large body", limit="body_bytes_max, here 32 MiB"):
        await sender.sent(Q, b"x" * (32 << 20))
        await reader.next_message()


@pytest.mark.slow
async def test_replies_to_temporary_queues(stage: LawStage) -> None:
    sender = await stage.client()
    data = b"".join(frame("SEND", b"x", destination=Q, reply_to=f"/temp-queue/r{n % 1000}", k=n) for n in range(5_000))
    with stage.law("SEND with reply-to", limit="subscriptions_max temporary names"):
        await sender.send_raw(data)
        await sender.sync()


@pytest.mark.slow
async def test_one_message_for_ten_thousand_subscriptions(stage: LawStage) -> None:
    for _ in range(CROWD_COUNT // 1000):
        reader = await stage.client()
        await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, destination="/topic/t") for n in range(1000)))
        await reader.sync()
    sender = await stage.client()
    with stage.law("SEND to a topic", limit="one message", crowd="10,000 subscriptions of the topic"):
        await sender.sent("/topic/t", b"x")
        await trio.sleep(1)


@pytest.mark.slow
async def test_one_message_for_a_thousand_connections(stage: LawStage) -> None:
    for _ in range(CROWD_COUNT // 10):
        reader = await stage.client()
        await reader.subscribe("/topic/t")
    sender = await stage.client()
    with stage.law("SEND to a topic of connections", limit="one message", crowd="1,000 connections that subscribe"):
        await sender.sent("/topic/t", b"x")
        await trio.sleep(1)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["k = 1", "k = 2"])
async def test_one_message_for_ten_thousand_selectors(stage: LawStage, wanted: str) -> None:
    for _ in range(CROWD_COUNT // 1000):
        reader = await stage.client()
        await reader.send_raw(
            b"".join(frame("SUBSCRIBE", id=n, destination="/topic/t", selector=wanted) for n in range(1000))
        )
        await reader.sync()
    sender = await stage.client()
    with stage.law("SEND to selectors", limit="one message", crowd="10,000 subscriptions of the topic"):
        await sender.sent("/topic/t", b"x", k="1")
        await trio.sleep(1)


@pytest.mark.slow
async def test_messages_for_ten_thousand_durable_selectors_that_are_away(stage: LawStage) -> None:
    for part in range(CROWD_COUNT // 1000):
        reader = await stage.client(client_id=f"c{part}")
        headers = {"destination": "/topic/t", "durable": "true", "selector": "k = 1"}
        await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, **headers) for n in range(1000)))
        await reader.sync()
        reader.vanish()
    await trio.sleep(1)
    sender = await stage.client()
    with stage.law("SEND to durable selectors", limit="one message", crowd="10,000 durable subscriptions, all away"):
        await sender.sent("/topic/t", b"x")
        await trio.sleep(1)


# ---------------------------------------------------------------------- SUBSCRIBE


SUBSCRIPTIONS = {
    "SUBSCRIBE plain": {"destination": "/queue/q{}"},
    "SUBSCRIBE to one queue": {"destination": "/queue/q"},
    "SUBSCRIBE to one topic": {"destination": "/topic/t"},
    "SUBSCRIBE durable": {"destination": "/topic/t{}", "durable": "true"},
    "SUBSCRIBE exclusive": {"destination": "/queue/q", "exclusive": "true"},
    "SUBSCRIBE with a selector": {"destination": "/queue/q{}", "selector": "a = 1 AND b > {} OR c LIKE 'x%'"},
    "SUBSCRIBE to a temporary queue": {"destination": "/temp-queue/t{}"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SUBSCRIPTIONS)
async def test_the_most_subscriptions_and_their_end(stage: LawStage, kind: str) -> None:
    client = await stage.client(client_id="me")

    def frames(command: str, headers: dict[str, str]) -> bytes:
        return b"".join(
            frame(command, id=n, **{name: value.replace("{}", str(n)) for name, value in headers.items()})
            for n in range(1000)
        )

    with stage.law(kind, limit="subscriptions_max"):
        await client.send_raw(frames("SUBSCRIBE", SUBSCRIPTIONS[kind]))
        await client.sync()
    with stage.law(f"UN{kind}", limit="subscriptions_max"):
        await client.send_raw(frames("UNSUBSCRIBE", {"durable": "true"} if "durable" in kind else {}))
        await client.sync()


async def test_a_wildcard_over_ten_thousand_queues(stage: LawStage) -> None:
    sender = await stage.client()
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=f"/queue/q{n}") for n in range(CROWD_COUNT // 5)))
    await sender.sync()
    reader = await stage.client()
    with stage.law("SUBSCRIBE wildcard", limit="one frame", crowd="2,000 queues"):
        await reader.subscribe("/queue/>")
        await trio.sleep(1)
    with stage.law("UNSUBSCRIBE wildcard", limit="one frame", crowd="2,000 queues"):
        await reader.unsubscribe()
        await trio.sleep(1)


async def test_a_browser_of_a_long_queue(stage: LawStage) -> None:
    await stage.filled(Q, MANY)
    client = await stage.client()
    with stage.law("SUBSCRIBE browser", limit="10,000 messages"):
        await client.subscribe(Q, browser="true")
        await client.next_messages(MANY)


async def test_a_selector_that_takes_the_last_message(stage: LawStage) -> None:
    sender = await stage.client()
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=Q, k=n) for n in range(MANY)))
    await sender.sync()
    client = await stage.client()
    with stage.law("SUBSCRIBE with a selector over a backlog", limit="10,000 messages of different headers"):
        await client.subscribe(Q, selector=f"k = {MANY - 1}")
        await client.next_message()


async def test_ten_thousand_groups(stage: LawStage) -> None:
    sender = await stage.client()
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=Q, group=n) for n in range(CROWD_COUNT)))
    await sender.sync()
    client = await stage.client()
    with stage.law("SUBSCRIBE to groups", limit="10,000 groups"):
        await client.subscribe(Q, ack="client-individual", credit="100000,67108864")
        await client.next_messages(CROWD_COUNT)
    with stage.law("the end of a consumer of groups", limit="10,000 groups"):
        client.vanish()
        await trio.sleep(3)


# ---------------------------------------------------------------------- ACK and NACK


async def test_one_ack_for_the_most(stage: LawStage) -> None:
    client = await stage.holding(MOST, ack="client")
    last = client.messages[-1]
    with stage.law("ACK cumulative", limit="100,000 deliveries"):
        await client.ack(last)


@pytest.mark.slow
async def test_one_nack_for_the_most(stage: LawStage) -> None:
    client = await stage.holding(MOST, ack="client")
    last = client.messages[-1]
    with stage.law("NACK cumulative", limit="100,000 deliveries"):
        await client.nack(last)
        await trio.sleep(3)


@pytest.mark.parametrize("command", ["ACK", "NACK"])
async def test_a_run_for_every_other_one_backwards(stage: LawStage, command: str) -> None:
    client = await stage.holding(MANY)
    data = b"".join(frame(command, id=each.headers["ack"]) for each in list(client.messages)[::-2])
    with stage.law(f"{command} individual", limit="bytes of one read"):
        await client.send_raw(data)
        await client.sync()
        await trio.sleep(3)


# ---------------------------------------------------------------------- transactions


@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
async def test_a_transaction_of_many_sends(stage: LawStage, end: str) -> None:
    client = await stage.client()
    await client.frame("BEGIN", {"transaction": "t"})
    await client.send_raw(frame("SEND", b"x", destination=Q, transaction="t") * 20_000)
    await client.sync()
    with stage.law(f"{end} of SENDs", limit="20,000 SENDs, transaction_bytes_max"):
        await client.request(end, {"transaction": "t"})


@pytest.mark.slow
@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
async def test_a_transaction_for_many_queues(stage: LawStage, end: str) -> None:
    client = await stage.client()
    await client.frame("BEGIN", {"transaction": "t"})
    await client.send_raw(
        b"".join(frame("SEND", b"x", destination=f"/queue/q{n}", transaction="t") for n in range(2000))
    )
    await client.sync()
    with stage.law(f"{end} for many queues", limit="2,000 queues, transaction_bytes_max"):
        await client.request(end, {"transaction": "t"})


@pytest.mark.slow
@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
async def test_a_transaction_of_many_acks(stage: LawStage, end: str) -> None:
    client = await stage.holding(MANY)
    await client.frame("BEGIN", {"transaction": "t"})
    data = b"".join(frame("ACK", id=each.headers["ack"], transaction="t") for each in list(client.messages)[::2])
    with stage.law(f"ACK before {end}", limit="bytes of one read"):
        await client.send_raw(data)
        await client.sync()
    with stage.law(f"{end} of ACKs", limit="5,000 ACKs that lie apart, transaction_acks_max"):
        await client.request(end, {"transaction": "t"})


@pytest.mark.slow
async def test_transactions_begun_and_aborted(stage: LawStage) -> None:
    client = await stage.client()
    data = b"".join(frame("BEGIN", transaction=n) + frame("ABORT", transaction=n) for n in range(8_000))
    with stage.law("BEGIN and ABORT", limit="bytes of one read"):
        await client.send_raw(data)
        await client.sync()


# ---------------------------------------------------------------------- what comes by itself


@pytest.mark.parametrize("headers", [{"delay": "60000"}, {"expires": "60000"}], ids=["delays", "expiry"])
async def test_what_is_due_at_one_moment(stage: LawStage, headers: dict[str, str]) -> None:
    if "expires" in headers:
        headers = {"expires": str(wall_clock_ms() + 60_000)}
    await stage.filled(Q, 50_000, **headers)
    with stage.law(f"due at once: {next(iter(headers))}", limit="50,000 messages"):
        await trio.sleep(120)


@pytest.mark.slow
async def test_auto_deletion_of_many_at_once(stage: LawStage) -> None:
    client = await stage.client()
    await client.send_raw(
        b"".join(
            frame("SUBSCRIBE", id=n, destination=f"/queue/q{n}") + frame("UNSUBSCRIBE", id=n) for n in range(3_000)
        )
    )
    await client.sync()
    with stage.law("auto-deletion", limit="3,000 queues at once"):
        await trio.sleep(200)
