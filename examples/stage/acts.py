"""The first acts: the purpose of a broker, and the effect of a slow client. Each plays a situation with real clients,
shows it, and returns the deliveries owed and their outcomes.

An act checks twice: the messages that the clients saw (by the ids in the bodies), and the counts of the broker. Waits
have deadlines: an act in which something never comes ends with a failed check, not with a hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from examples.stage.account import Account, Check
from examples.stage.clients import Player, Received, wait_until
from examples.stage.flow_map import edges_of
from examples.stage.play import WAIT_SECONDS, Act, Stage
from sluiceway.flow.words import size_in_words

PRICE_BYTES: Final = 8192
PRICES_AHEAD_MAX: Final = 32
"""Messages that the ticker runs ahead of its readers: 256 KiB, a quarter of the topic's limit, so neither ever lags."""
PRICES_MAX: Final = 20_000
"""Enough to fill any kernel's buffers for the sleeper; the ticker normally stops long before."""
PARCEL_BYTES: Final = 1024
PREFETCH: Final = 10


# -- 1 -----------------------------------------------------------------------------------------------------------------


def fast_pair(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """One producer, one queue, one consumer, as fast as stomp.py goes."""
    destination = "/queue/orders"
    shop, packer = stage.player("the shop"), stage.player("the packer")
    packer.subscribe(destination)
    total_count = stage.count(12_000, 1_000)
    stage.screen.say(f"The shop sends {total_count:,} orders to {destination}; the packer takes them as they come.")
    began_seconds = time.monotonic()
    for number in range(total_count):
        shop.send(destination, f"order {number}")
        if number % 100 == 0:
            stage.screen.progress("orders packed", len(packer.messages), total_count)
    stage.wait("orders packed", lambda: len(packer.messages), total_count)
    seconds = time.monotonic() - began_seconds
    got = packer.bodies
    counted = stage.flow_map.destination(destination)
    in_order = got == [f"order {number}" for number in range(total_count)]
    return Account(owed_count=total_count, delivered_count=len(set(got))), [
        Check(
            "every order once, in order",
            f"{total_count:,} sent, {len(got):,} received, {len(got) / seconds:,.0f}/s (stomp.py at both ends)",
            in_order,
        ),
        Check(
            "the broker counts the same",
            f"{counted.get('added_count', 0):,} in, {counted.get('settled_count', 0):,} settled",
            counted.get("added_count") == counted.get("settled_count") == total_count,
        ),
    ]


BATCH_BYTES: Final = 64 * 1024
"""Approximate size of one read of a connection: the broker takes it as a whole, and keeps the limit behind it."""


# -- 2 -----------------------------------------------------------------------------------------------------------------


def sleeping_subscriber(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """A topic with three subscribers, one of which does not read its socket."""
    destination = "/topic/prices"
    ticker, anna, ben = stage.player("the ticker"), stage.player("Anna"), stage.player("Ben")
    sleeper = stage.sleeper("the sleeper", destination)
    anna.subscribe(destination)
    ben.subscribe(destination)
    stage.screen.say("Anna and Ben read; the sleeper subscribed, and does not read its socket any more.")

    def slower_count() -> int:
        return min(len(anna.messages), len(ben.messages))

    def caught_up(sent_count: int) -> Callable[[], bool]:
        return lambda: sent_count - slower_count() < PRICES_AHEAD_MAX

    enough_dropped_count = stage.count(1_500, 100)
    sent_count = dropped_count = 0
    began_seconds = time.monotonic()
    while dropped_count < enough_dropped_count and sent_count < PRICES_MAX:
        for _ in range(100):
            ticker.send(destination, f"{sent_count} ".ljust(PRICE_BYTES, "."))
            sent_count += 1
            if not wait_until(caught_up(sent_count), WAIT_SECONDS):
                break
        dropped_count = stage.flow_map.destination(destination).get("dropped_count", 0)
        stage.screen.progress(f"gone for the sleeper, after {sent_count:,} prices", dropped_count, enough_dropped_count)
    stage.wait("prices read by Anna and Ben", slower_count, sent_count)
    seconds = time.monotonic() - began_seconds
    stage.hold_the_picture()
    memory_bytes = stage.flow_map.destination(destination).get("depth_bytes", 0)

    stage.screen.say("The sleeper wakes up, reads what is left, and is told how much it missed (dropped-count).")
    sleeper.read_up_to(
        sent_count,
        WAIT_SECONDS,
        news=lambda count: stage.screen.progress("prices that the sleeper knows of", count, sent_count),
    )
    counted_count = stage.flow_map.destination(destination).get("dropped_count", 0)
    expected = [str(number) for number in range(sent_count)]
    both_got_all = all([body.split(" ", 1)[0] for body in reader.bodies] == expected for reader in (anna, ben))
    delivered_count = len(set(anna.bodies)) + len(set(ben.bodies)) + sleeper.received_count
    return Account(3 * sent_count, delivered_count, sleeper.told_dropped_count), [
        Check(
            "Anna and Ben got every price, undisturbed",
            f"{sent_count:,} each, {2 * sent_count * PRICE_BYTES / seconds / 1e6:,.0f} MB/s together",
            both_got_all,
        ),
        Check(
            "the sleeper was told exactly what it missed",
            f"{sleeper.received_count:,} received + {sleeper.told_dropped_count:,} told = {sleeper.accounted_count:,}"
            f" of {sent_count:,}",
            sleeper.accounted_count == sent_count
            and sleeper.told_dropped_count == counted_count
            and sleeper.told_dropped_count > 0,
        ),
        Check(
            "what it left unread stayed within the topic's limit",
            f"{size_in_words(memory_bytes)} of 1.0 MiB and one batch",
            memory_bytes <= 1024 * 1024 + BATCH_BYTES,
        ),
    ]


# -- 3 -----------------------------------------------------------------------------------------------------------------


def full_queue(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """A queue of paging `throttle` runs full; one connection both fills it and must empty it."""
    destination = "/queue/parcels"
    shop, courier = stage.player("the shop"), stage.player("the courier")
    courier.subscribe(destination, id="parcels", ack="client-individual", prefetch_count="50")
    each_count = 1_000
    total_count = 2 * each_count

    def fill(player: Player) -> None:
        for number in range(each_count):
            player.send(destination, f"{player.name} {number} ".ljust(PARCEL_BYTES, "."))

    stage.screen.say("The courier holds 50 parcels and rests. The shop sends on, and so does the courier itself.")
    senders = [threading.Thread(target=fill, args=(player,), daemon=True) for player in (shop, courier)]
    for sender in senders:
        sender.start()
    wanted = {f"connection {player.address}" for player in (shop, courier)}

    def both_wait() -> bool:
        queue = f"queue {destination}"
        return {source for source, sink in edges_of(stage.flow_map.ask()) if sink == queue} >= wanted

    both_waited = wait_until(both_wait, WAIT_SECONDS)
    stage.screen.say("The queue is full: 256 KiB. Both wait, and the flow map says for whom, and since when.")
    stage.hold_the_picture()
    stage.hold_the_picture()
    report = stage.flow_map.ask()
    chains = [chain["edges"] for chain in report["chains"] if chain["source"] == f"connection {shop.address}"]
    named = [edge["sink"].replace(courier.address, courier.name) for edge in chains[0]] if chains else []
    held = stage.flow_map.destination(destination)
    held_count, held_bytes = held.get("depth_count", 0), held.get("depth_bytes", 0)

    stage.screen.say("The courier goes on. Its ACKs pass its own SENDs, which still wait on the same connection.")
    courier.inbox.react_to_all(courier.acknowledge)
    stage.wait("parcels delivered", lambda: len(courier.messages), total_count)
    for sender in senders:
        sender.join(WAIT_SECONDS)
    emptied = stage.wait_empty(destination)
    ids = [" ".join(body.split(" ")[:3]) for body in courier.bodies]
    expected = {f"{player.name} {number}" for player in (shop, courier) for number in range(each_count)}
    return Account(owed_count=total_count, delivered_count=len(set(ids))), [
        Check(
            "the flow map named whom the shop waits for, down to the end of the chain",
            ", then ".join(named) or "nobody",
            both_waited and named == [f"queue {destination}", "subscription parcels of the courier"],
        ),
        Check(
            "the queue kept to its limit",
            f"{held_count} parcels, {size_in_words(held_bytes)} of 256.0 KiB and one batch",
            0 < held_bytes < 2 * 256 * 1024,
        ),
        Check(
            "every parcel came, in spite of the courier's own traffic jam",
            f"{total_count:,} sent, {len(ids):,} delivered",
            sorted(ids) == sorted(expected) and emptied,
        ),
    ]


# -- 4 -----------------------------------------------------------------------------------------------------------------


def transaction(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """Twice the same sends in a transaction: aborted, then committed."""
    destination = "/queue/bookings"
    clerk, ledger = stage.player("the clerk"), stage.player("the ledger")
    ledger.subscribe(destination)
    each_count = 100

    stage.screen.say(f"The clerk sends {each_count} bookings in a transaction, and thinks better of it: ABORT.")
    first = clerk.stomp.begin("first")
    for number in range(each_count):
        clerk.send(destination, f"aborted {number}", transaction=first)
    clerk.abort(first)
    stage.hold_the_picture()
    seen_after_abort_count = stage.flow_map.destination(destination).get("added_count", 0)

    stage.screen.say(f"{each_count} more; before COMMIT nobody sees one, then all of them are there.")
    second = clerk.stomp.begin("second")
    for number in range(each_count):
        clerk.send(destination, f"booking {number}", transaction=second)
    clerk.send_and_wait("/queue/bookings.other", "the broker has read all that went before this")
    seen_before_commit_count = stage.flow_map.destination(destination).get("added_count", 0)
    stage.hold_the_picture()
    clerk.commit(second)
    stage.wait("bookings made", lambda: len(ledger.messages), each_count)
    got = ledger.bodies
    other = stage.player("the auditor")
    other.subscribe("/queue/bookings.other")
    stage.wait("message outside the transaction", lambda: len(other.messages), 1)
    return Account(2 * each_count + 1, len(set(got)) + len(other.messages), withdrawn_count=each_count), [
        Check(
            "ABORT left nothing behind",
            f"{seen_after_abort_count} in the queue, {sum(body.startswith('aborted') for body in got)} delivered",
            seen_after_abort_count == 0 and not any(body.startswith("aborted") for body in got),
        ),
        Check(
            "COMMIT made all visible at once",
            f"{seen_before_commit_count} before it, {len(got)} of {each_count} after it, in order",
            seen_before_commit_count == 0 and got == [f"booking {number}" for number in range(each_count)],
        ),
    ]


# -- 5 -----------------------------------------------------------------------------------------------------------------


def refusal(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """A worker that rejects each job once, and one that dies with unacknowledged jobs."""
    destination = "/queue/jobs"
    boss, moody = stage.player("the boss"), stage.player("the moody worker")
    total_count = 20
    tried: set[str] = set()

    def refuse_once(message: Received) -> None:
        if message.body in tried:
            moody.acknowledge(message)
        else:
            tried.add(message.body)
            moody.refuse(message)

    stage.screen.say(f"{total_count} jobs for a worker who refuses each of them once (NACK).")
    moody.inbox.react_to_all(refuse_once)
    moody.subscribe(destination, ack="client-individual")
    for number in range(total_count):
        boss.send(destination, f"job {number}")
    stage.wait("jobs handed out", lambda: len(moody.messages), 2 * total_count)
    settled = stage.wait_empty(destination)
    again = [message for message in moody.messages if message.headers.get("redelivered") == "true"]
    marked = {message.body for message in again if message.headers.get("delivery-count") == "2"}
    handed_count = len(moody.messages)
    moody.vanish()
    stage.hold_the_picture()

    stage.screen.say(f"{PREFETCH} more: their worker takes them all and crashes; a colleague takes over.")
    unlucky, colleague = stage.player("the unlucky worker"), stage.player("the colleague")
    unlucky.subscribe(destination, ack="client-individual")
    for number in range(PREFETCH):
        boss.send(destination, f"late job {number}")
    stage.wait("jobs in the hands of the unlucky worker", lambda: len(unlucky.messages), PREFETCH)
    colleague.inbox.react_to_all(colleague.acknowledge)
    colleague.subscribe(destination, ack="client-individual")
    stage.hold_the_picture()
    unlucky.vanish()
    stage.wait("jobs with the colleague", lambda: len(colleague.messages), PREFETCH)
    rescued = [m.body for m in colleague.messages if m.headers.get("redelivered") == "true"]
    settled = stage.wait_empty(destination) and settled
    delivered_count = len({message.body for message in again}) + len(set(colleague.bodies))
    return Account(owed_count=total_count + PREFETCH, delivered_count=delivered_count), [
        Check(
            "every refused job came again, and says so",
            f"{len(marked)} of {total_count} with redelivered:true, delivery-count:2; {handed_count} hand-overs",
            len(marked) == total_count and handed_count == 2 * total_count and settled,
        ),
        Check(
            "what the crashed worker held went to its colleague, in order",
            f"{len(rescued)} of {PREFETCH}",
            rescued == [f"late job {number}" for number in range(PREFETCH)],
        ),
    ]


# -- 6 -----------------------------------------------------------------------------------------------------------------


def priority(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """An urgent message overtakes a backlog."""
    destination = "/queue/calls"
    desk, agent = stage.player("the desk"), stage.player("the agent")
    backlog_count = stage.count(3_000, 300)
    stage.screen.say(f"{backlog_count:,} calls wait in line, then comes an emergency (priority:9).")
    for number in range(backlog_count - 1):
        desk.send(destination, f"call {number}")
    desk.send_and_wait(destination, f"call {backlog_count - 1}")
    agent.subscribe(destination, ack="client-individual", prefetch_count=str(PREFETCH))
    stage.wait("calls with the agent", lambda: len(agent.messages), PREFETCH)
    stage.hold_the_picture()
    desk.send_and_wait(destination, "emergency", priority="9")
    agent.inbox.react_to_all(agent.acknowledge)
    stage.wait("calls answered", lambda: len(agent.messages), backlog_count + 1)
    emptied = stage.wait_empty(destination)
    got = agent.bodies
    place = got.index("emergency") + 1 if "emergency" in got else len(got)
    calm = [body for body in got if body != "emergency"]
    return Account(owed_count=backlog_count + 1, delivered_count=len(set(got))), [
        Check(
            "the emergency overtook everybody who was not on the phone",
            f"number {place:,} of {backlog_count + 1:,}, with {PREFETCH} calls under way",
            place <= PREFETCH + 2 and emptied,
        ),
        Check(
            "all others kept their order",
            f"{len(calm):,} of {backlog_count:,}",
            calm == [f"call {number}" for number in range(backlog_count)],
        ),
    ]


DAILY_ACTS: Final[Sequence[Act]] = (
    Act("A fast pair", "A producer and a consumer: each message once, in order.", fast_pair),
    Act(
        "A subscriber falls asleep", "A slow reader hurts only itself, and learns what it missed.", sleeping_subscriber
    ),
    Act("A queue is full", "Senders wait, nothing is lost, and everybody can see for whom they wait.", full_queue),
    Act("A transaction", "All or nothing.", transaction),
    Act("Refused, and crashed", "What was not acknowledged comes again.", refusal),
    Act("An emergency", "Priority counts, past any backlog.", priority),
)
