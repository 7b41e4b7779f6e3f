"""The acts that need a store: a broker that is killed, a backlog larger than memory, a subscriber who was away, a
message that kills every client that takes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from stomp.exception import StompException

from examples.stage.account import Account, Check
from examples.stage.clients import Player, Received, wait_until
from examples.stage.flow_map import FlowMap
from examples.stage.play import WAIT_SECONDS, Act, Stage
from examples.stage.server import Server
from sluiceway.flow.words import size_in_words

MIB: Final = 1024 * 1024
ORDERS_AHEAD: Final = 500
"""Orders that the shop may have sent without their receipts."""
ORDERS_HELD: Final = 100
"""Orders that the packer may hold unacknowledged."""
BACKLOG_BODY_BYTES: Final = 100
GROWTH_BYTES_MAX: Final = 48 * MIB
"""Bytes by which the broker's memory may grow under the backlog: the queue's 4 MiB, buffers and caches of LevelDB, and
batches under way. In memory the backlog would take more than that."""
DESK_COUNT: Final = 10
FAILURES: Final = 3
"""`redeliveries_max` of /queue/tasks is 2: two more attempts after the first one."""


# -- 7 -----------------------------------------------------------------------------------------------------------------


def killed(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """A broker of its own is killed with SIGKILL under load, and started again on its data."""
    destination = "/queue/orders"
    folder = stage.folder / "killed"
    receipts_count = stage.count(3_000, 300)
    packed_count = receipts_count // 4
    sent_count = 0
    with Server(folder) as server:
        shop, packer = stage.player("the shop", server=server), stage.player("the packer", server=server)
        receipts = shop.inbox.receipts
        packer.inbox.react_to_all(lambda message: _acknowledge_some(packer, message, packed_count))
        packer.subscribe(destination, ack="client-individual", prefetch_count=str(ORDERS_HELD))

        def in_the_middle() -> bool:
            is_packing = len(packer.messages) > packed_count and len(packer.inbox.receipts) > packed_count // 2
            return is_packing and len(receipts) >= receipts_count

        def may_send() -> bool:
            return sent_count - len(receipts) < ORDERS_AHEAD or in_the_middle()

        stage.screen.say("Persistent orders, each with a receipt. Then, in the middle of it: kill -9.")
        while not in_the_middle() and wait_until(may_send, WAIT_SECONDS):
            shop.send(destination, f"order {sent_count}", persistent="true", receipt=f"order {sent_count}")
            sent_count += 1
            stage.screen.progress("receipts for the shop", len(receipts), receipts_count)
        server.kill()
    # The bytes that the broker had written to their sockets still come in.
    wait_until(lambda: not (shop.stomp.is_connected() or packer.stomp.is_connected()), WAIT_SECONDS)
    receipted = {receipt for receipt in shop.inbox.receipts if receipt.startswith("order ")}
    confirmed = {receipt.removeprefix("packed ") for receipt in packer.inbox.receipts if receipt.startswith("packed ")}
    seen = set(packer.bodies)
    stage.hold_the_picture()

    stage.screen.say(f"{sent_count:,} were sent, {len(receipted):,} receipted. The broker starts again.")
    began_seconds = time.monotonic()
    with Server(folder, fresh=False) as server:
        ready_seconds = time.monotonic() - began_seconds
        flow_map = FlowMap(server.host, server.port)
        after = stage.player("the packer's relief", server=server)
        after.subscribe(destination)

        def all_came() -> bool:
            report = flow_map.destination(destination)
            stage.screen.progress("orders found", len(after.messages), len(receipted - confirmed))
            return report.get("depth_count") == 0 and report.get("settled_count") == len(after.messages)

        wait_until(all_came, WAIT_SECONDS)
        came = {message.body: message.headers for message in after.messages}
        in_order = after.bodies == sorted(after.bodies, key=lambda body: int(body.split(" ")[1]))
        flow_map.close()
        after.leave()
    lost = receipted - seen - set(came)
    twice = seen & set(came)
    unmarked = [body for body in twice if came[body].get("redelivered") != "true"]
    return Account(len(receipted), len(receipted) - len(lost)), [
        Check(
            "every order with a receipt outlived kill -9, in order",
            f"{len(receipted):,} receipts, {len(lost)} lost; ready again in {ready_seconds:.1f} s",
            not lost and bool(receipted) and in_order and len(came) == len(after.messages),
        ),
        Check(
            "what was packed, and confirmed by a receipt, did not come again",
            f"{len(confirmed):,} confirmed, {len(confirmed & set(came))} came again",
            bool(confirmed) and not confirmed & set(came),
        ),
        Check(
            "what came a second time says so",
            f"{len(twice):,} with redelivered:true, {len(unmarked)} without",
            bool(twice) and not unmarked,
        ),
    ]


def _acknowledge_some(packer: Player, message: Received, most_count: int) -> None:
    """Send the first orders with receipts; the others stay unacknowledged at the packer."""
    if len(packer.messages) <= most_count:
        try:
            packer.acknowledge(message, receipt=f"packed {message.body}")
        except (StompException, OSError):
            return  # the broker is gone


# -- 8 -----------------------------------------------------------------------------------------------------------------


def backlog(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """Play a backlog: more messages than a queue may keep in memory, and no consumer."""
    destination = "/queue/backlog"
    total_count = stage.count(200_000, 30_000)
    portion_count = 10_000
    farmer, miller = stage.porter("the farmer"), stage.porter("the miller")
    before_bytes = stage.flow_map.ask()["broker"]["rss_bytes"]
    stage.flow_map.most_memory_since()
    stage.screen.say(f"{total_count:,} persistent messages come in, and nobody takes them. Memory for them: 4 MiB.")
    expected = [f"sack {number} ".ljust(BACKLOG_BODY_BYTES, ".") for number in range(total_count)]
    began_seconds = time.monotonic()
    for start in range(0, total_count, portion_count):
        farmer.bring(destination, expected[start : start + portion_count], persistent="true")
        stage.screen.progress("messages stored", start + portion_count, total_count)
    fill_seconds = time.monotonic() - began_seconds
    held = stage.flow_map.destination(destination)
    held_bytes, memory_bytes = held.get("depth_bytes", 0), held.get("memory_bytes", 0)
    stage.hold_the_picture()

    stage.screen.say("Now somebody comes for them.")
    began_seconds = time.monotonic()
    got = miller.fetch(
        destination,
        total_count,
        4 * WAIT_SECONDS,
        news=lambda count: stage.screen.progress("messages fetched", count, total_count),
    )
    drain_seconds = time.monotonic() - began_seconds
    emptied = stage.wait_empty(destination)
    grown_bytes = max(0, stage.flow_map.most_memory_since() - before_bytes)
    return Account(total_count, len(set(got))), [
        Check(
            "all of them came, in order",
            f"{total_count:,} in at {total_count / fill_seconds:,.0f}/s, "
            f"{len(got):,} out at {len(got) / drain_seconds:,.0f}/s",
            got == expected and emptied,
        ),
        Check(
            "the queue kept to its 4 MiB of memory and one batch",
            f"{size_in_words(memory_bytes)} of {size_in_words(held_bytes)} in memory, the rest on disk",
            0 < memory_bytes < 6 * MIB < held_bytes,
        ),
        Check(
            "and the broker as well",
            f"it grew by {size_in_words(grown_bytes)} at most",
            grown_bytes < GROWTH_BYTES_MAX,
        ),
    ]


# -- 9 -----------------------------------------------------------------------------------------------------------------


def away(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """A durable subscriber leaves, misses nothing, and resumes."""
    destination = "/topic/news"
    each_count = stage.count(500, 50)
    paper, listener = stage.player("the paper"), stage.player("the listener")
    archive = stage.player("the archive", client_id="archive")
    listener.subscribe(destination)
    archive.inbox.react_to_all(archive.acknowledge)
    archive.subscribe(destination, ack="client-individual", **{"activemq.subscriptionName": "all"})
    stage.screen.say(f"The archive has a durable subscription. It reads {each_count} news, and goes home.")
    for number in range(each_count):
        paper.send(destination, f"news {number}", persistent="true")
    stage.wait("news with the archive", lambda: len(archive.messages), each_count)
    archive.leave()
    first = archive.bodies

    stage.screen.say(f"{each_count} more while it is away. Those who are there get them at once.")
    for number in range(each_count, 2 * each_count):
        paper.send(destination, f"news {number}", persistent="true")
    stage.wait("news with the listener", lambda: len(listener.messages), 2 * each_count)
    wait_until(lambda: _backlogs(stage) == [each_count], WAIT_SECONDS)
    [waiting_count] = _backlogs(stage) or [0]
    stage.hold_the_picture()

    stage.screen.say("It comes back under its name, and gets what it missed.")
    back = stage.player("the archive, back", client_id="archive")
    back.inbox.react_to_all(back.acknowledge)
    back.subscribe(destination, ack="client-individual", **{"activemq.subscriptionName": "all"})
    stage.wait("news with the archive", lambda: len(back.messages), each_count)
    back.unsubscribe(**{"activemq.subscriptionName": "all"})
    wait_until(lambda: not _backlogs(stage), WAIT_SECONDS)
    left = _backlogs(stage)
    expected = [f"news {number}" for number in range(2 * each_count)]
    delivered_count = len(set(listener.bodies)) + len(set(first)) + len(set(back.bodies))
    return Account(4 * each_count, delivered_count), [
        Check(
            "the archive got every piece of news once, in order, in two sittings",
            f"{len(first):,} + {len(back.messages):,} of {2 * each_count:,}; {waiting_count:,} had waited for it",
            first + back.bodies == expected and waiting_count == each_count,
        ),
        Check(
            "the listener got them as they came",
            f"{len(listener.messages):,} of {2 * each_count:,}",
            listener.bodies == expected,
        ),
        Check("a subscription that was given up is gone", f"{len(left)} left", not left),
    ]


def _backlogs(stage: Stage) -> list[int]:
    """Return the backlogs of all durable subscriptions. The broker may answer with figures that are some moments
    old.
    """
    return [durable["backlog_count"] for durable in stage.flow_map.ask()["durables"]]


# -- 10 ----------------------------------------------------------------------------------------------------------------


def poison(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """One task kills every worker that takes it, until it is dead-lettered."""
    destination, aside = "/queue/tasks", "/queue/tasks-put-aside"
    deadly = "task 3"
    boss = stage.player("the boss")
    for number in range(DESK_COUNT - 1):
        boss.send(destination, f"task {number}", persistent="true")
    boss.send_and_wait(destination, f"task {DESK_COUNT - 1}", persistent="true")
    done: list[Received] = []
    deaths_count = 0

    def work(worker: Player, message: Received) -> None:
        nonlocal deaths_count
        if worker.name in dead:
            return
        if message.body == deadly:
            dead.add(worker.name)
            deaths_count += 1
            worker.vanish()
        else:
            worker.acknowledge(message)
            done.append(message)

    dead: set[str] = set()
    stage.screen.say(f"{DESK_COUNT} tasks; {deadly!r} kills whoever takes it, with the others in his hands.")
    for number in range(1, FAILURES + 2):
        worker = stage.player(f"worker {number}")
        worker.inbox.react_to_all(lambda message, worker=worker: work(worker, message))  # type: ignore[misc]
        worker.subscribe(destination, ack="client-individual", prefetch_count=str(DESK_COUNT))
        if number <= FAILURES:
            stage.wait("workers lost", lambda: deaths_count, number)
    stage.wait("tasks done", lambda: len(done), DESK_COUNT - 1)
    emptied = stage.wait_empty(destination)
    stage.hold_the_picture()
    coroner = stage.player("the coroner")
    coroner.subscribe(aside)
    stage.wait("tasks put aside", lambda: len(coroner.messages), 1)
    names = ("dead-letter-reason", "dead-letter-destination", "dead-letter-count")
    told = [tuple(message.headers.get(name) for name in names) for message in coroner.messages]
    charged = [message for message in done if int(message.headers.get("delivery-count", "1")) > 1]
    return Account(DESK_COUNT, len({m.body for m in done}) + len(coroner.messages)), [
        Check(
            f"after {FAILURES} attempts it was put aside, with the reason",
            f"{deaths_count} workers lost; {', '.join(map(str, told[0])) if told else 'nothing came'}",
            deaths_count == FAILURES
            and coroner.bodies == [deadly]
            and told == [("redeliveries", destination, str(FAILURES))],
        ),
        Check(
            "the tasks beside it were done, and not held guilty",
            f"{len(done)} of {DESK_COUNT - 1} done, {len(charged)} charged with an attempt",
            len(done) == len({message.body for message in done}) == DESK_COUNT - 1 and emptied and not charged,
        ),
    ]


LASTING_ACTS: Final[Sequence[Act]] = (
    Act("The broker is killed", "What was receipted is there again.", killed),
    Act("A backlog larger than memory", "Queues are as long as the disk.", backlog),
    Act("The subscriber who was away", "A durable subscription misses nothing.", away),
    Act("A poisonous message", "What fails every time gets out of the way, and keeps its story.", poison),
)
