"""The act of the cluster: three hubs are one broker, and the one that has most of the queues is killed under load.

Shops and packers are plain stomp.py clients, some at each hub, which connect again when their hub is gone. A ledger
holds what was sent, confirmed, delivered, and packed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

import attrs
from stomp.exception import StompException

from examples.stage.account import Account, Check
from examples.stage.clients import Player, Received, wait_until
from examples.stage.play import Act, Stage
from examples.stage.server import ServerError

HUBS_COUNT: Final = 3
QUEUES: Final = tuple(f"/queue/orders-{number}" for number in range(1, 10))
AHEAD: Final = 50
"""Orders that a shop may have sent without their receipts."""
PAUSE_SECONDS: Final = 0.005
"""Time between two orders of a shop."""
HELD: Final = "20"
"""Orders of each queue that a packer may hold unacknowledged."""
CONNECTIONS_MAX: Final = 100
"""Attempts to get a connection at a certain hub: the kernel spreads them."""
WAIT_SECONDS: Final = 60.0
TAKEOVER_SECONDS_MAX: Final = 15.0
"""Longest pause of a queue. A second or so is usual; a machine that is busy with something else gets its time."""


class Ledger:
    """Orders of the show. Threads of many clients write to it."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self.sent_count = 0
        self.receipted: set[str] = set()
        self.came: Counter[str] = Counter()
        self.unmarked: Counter[str] = Counter()
        """Deliveries that did not say that they may be a second one."""
        self.packed: set[str] = set()
        """Message-ids whose ACK was receipted."""
        self.came_after_packed: list[str] = []
        self.heard_seconds: dict[str, float] = {}
        """Time of the last delivery of each queue."""
        self.longest_seconds: dict[str, float] = {}
        """Longest time between two deliveries of each queue."""

    def take(self, message: Received) -> None:
        """Note a delivery."""
        now_seconds = time.monotonic()
        headers, queue = message.headers, message.headers["destination"]
        is_marked = "true" in (headers.get("redelivered"), headers.get("possible-duplicate"))
        with self._writing:
            self.came[message.body] += 1
            self.unmarked[message.body] += not is_marked
            if headers["message-id"] in self.packed:
                self.came_after_packed.append(message.body)
            pause_seconds = now_seconds - self.heard_seconds.get(queue, now_seconds)
            self.longest_seconds[queue] = max(self.longest_seconds.get(queue, 0.0), pause_seconds)
            self.heard_seconds[queue] = now_seconds

    def forget_pauses(self) -> None:
        """Measure pauses anew."""
        with self._writing:
            self.longest_seconds.clear()

    @property
    def lost(self) -> set[str]:
        """Orders that were receipted and never came."""
        return self.receipted - self.came.keys()


@attrs.define(eq=False)
class Client:
    """A client that connects again when its connection is lost, in a thread of its own."""

    stage: Stage
    ledger: Ledger
    name: str
    hub: str
    """Hub of its first connection."""
    player: Player = attrs.field(init=False)
    lost_count: int = 0
    """Connections that it lost."""
    doubts_count: int = 0
    """Connections that ended because nobody can say whether an ACK was carried out."""
    _over: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Connect to that hub. Raises ServerError if no connection gets there."""
        for _ in range(CONNECTIONS_MAX):
            self.player = self._new_player()
            if self.player.hub == self.hub:
                break
            self.player.vanish()
        else:
            raise ServerError(f"none of {CONNECTIONS_MAX} connections came to {self.hub}")
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def _new_player(self) -> Player:
        return self.stage.player(self.name)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.work()
            except (StompException, OSError):
                if not self._over.is_set():
                    if self.player.inbox.error_code == "in-doubt":
                        self.doubts_count += 1
                    else:
                        self.lost_count += 1
                    self._connect_again()

    def _connect_again(self) -> None:
        while not self._over.is_set():
            try:
                self.player = self._new_player()
            except (StompException, OSError):
                self._over.wait(0.05)
            else:
                return

    def work(self) -> None:
        """Work over one connection, until it is lost or the show ends. Raises StompException, OSError."""
        raise NotImplementedError

    def stop(self) -> None:
        """Work no more."""
        self._over.set()
        self._thread.join(WAIT_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether the client is to stop."""
        return self._over.is_set()


class Shop(Client):
    """Sends orders to all queues in turn. An order whose receipt has not come when the connection is lost is in doubt:
    it is not sent again, so that each one that comes twice is the cluster's doing.
    """

    def work(self) -> None:
        """Do `Client.work`."""
        receipts, waiting = self.player.inbox.receipts, set[str]()
        try:
            for number in count():
                if self.is_over:
                    break
                body = f"{self.player.address} {number}"
                wait_until(lambda: self._may_go_on(waiting), WAIT_SECONDS)
                waiting.add(body)
                self.ledger.sent_count += 1
                self.player.send(QUEUES[number % len(QUEUES)], body, persistent="true", receipt=body)
                time.sleep(PAUSE_SECONDS)
            wait_until(lambda: waiting <= receipts or not self.player.stomp.is_connected(), WAIT_SECONDS)
        finally:
            self.ledger.receipted |= receipts

    def _may_go_on(self, waiting: set[str]) -> bool:
        if not self.player.stomp.is_connected():
            raise ConnectionError("the hub is gone")
        waiting -= self.player.inbox.receipts
        return len(waiting) < AHEAD or self.is_over


class Packer(Client):
    """Receives orders of all queues, and acknowledges each with a receipt."""

    def work(self) -> None:
        """Do `Client.work`."""
        player = self.player
        player.inbox.react_to_all(self._pack)
        player.inbox.on_receipted = self._packed
        for number, queue in enumerate(QUEUES):
            player.subscribe(queue, id=str(number), ack="client-individual", prefetch_count=HELD)
        wait_until(lambda: self.is_over or not player.stomp.is_connected(), float("inf"))
        if not self.is_over:
            raise ConnectionError("the hub is gone")

    def _pack(self, message: Received) -> None:
        self.ledger.take(message)
        try:
            self.player.acknowledge(message, receipt=f"packed {message.headers['message-id']}")
        except (StompException, OSError):
            return  # its hub is gone; the order comes again

    def _packed(self, receipt: str) -> None:
        what, _space, message_id = receipt.partition(" ")
        if what == "packed":
            self.ledger.packed.add(message_id)


def _hubs(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {row["name"]: row for row in report["hubs"] if not row.get("missing")}


def _shards_in_words(hubs: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{name} (process {row['pid']}) {len(row['shards'])}" for name, row in sorted(hubs.items()))


def failover(stage: Stage) -> tuple[Account, Sequence[Check]]:
    """Kill the hub that has most of the queues, under load, and count."""
    say, ask = stage.screen.say, stage.flow_map.ask

    def all_shards_are_open() -> bool:
        stage.screen.progress("shards open", opened := sum(len(row["shards"]) for row in _hubs(ask()).values()), 32)
        return opened == 32 and len(_hubs(ask())) == HUBS_COUNT

    if not wait_until(all_shards_are_open, WAIT_SECONDS):
        raise ServerError("the hubs did not open their shards")
    before = _hubs(ask())
    say(f"One address, {HUBS_COUNT} processes, which share the 32 shards of all names: {_shards_in_words(before)}.")

    ledger = Ledger()
    packers = [Packer(stage, ledger, f"packer at {hub}", hub) for hub in before]
    shops = [Shop(stage, ledger, f"shop at {hub}", hub) for hub in before]
    clients: list[Client] = [*packers, *shops]
    try:
        return _under_load(stage, ledger, shops, clients, before)
    finally:
        for client in clients:
            client.stop()


def _under_load(
    stage: Stage,
    ledger: Ledger,
    shops: Sequence[Client],
    clients: Sequence[Client],
    before: Mapping[str, Mapping[str, Any]],
) -> tuple[Account, Sequence[Check]]:
    say, ask = stage.screen.say, stage.flow_map.ask
    load_seconds = 1.0 if stage.quick else 3.0
    wait_until(lambda: ledger.heard_seconds.keys() == set(QUEUES), WAIT_SECONDS)
    owners = {row["name"]: row["hub"] for row in ask()["destinations"] if row["name"] in QUEUES}
    # Not the one that answers the observer: its picture would stand still.
    owned = Counter(hub for hub in owners.values() if hub != stage.flow_map.hub)
    victim = max(owned, key=lambda hub: (owned[hub], hub), default="")
    if not victim:
        raise ServerError(f"all queues are at {stage.flow_map.hub}")
    moved = [queue for queue in QUEUES if owners.get(queue) == victim]
    say(
        f"At each hub a shop and a packer use all {len(QUEUES)} queues: "
        + ", ".join(f"{hub} has {amount}" for hub, amount in sorted(Counter(owners.values()).items()))
        + ". What is elsewhere goes over links."
    )
    time.sleep(load_seconds)

    ledger.forget_pauses()
    pid = int(before[victim]["pid"])
    stage.server.expects_end_of(victim)
    os.kill(pid, signal.SIGKILL)
    killed_seconds = time.monotonic()
    say(
        f"kill -9 {pid}: {victim} is gone, with {len(before[victim]['shards'])} shards, {len(moved)} of the queues, "
        f"and the connections of a shop and a packer. {len(ledger.came):,} orders have come so far."
    )
    is_served = wait_until(
        lambda: all(ledger.heard_seconds[queue] > killed_seconds + 0.05 for queue in moved), WAIT_SECONDS
    )
    new_owners = Counter(row["hub"] for row in ask()["destinations"] if row["name"] in moved)
    now_at = " and ".join(sorted(hub for hub in new_owners if hub != victim)) or victim
    pause_seconds = max((ledger.longest_seconds.get(queue, 0.0) for queue in moved), default=0.0)
    others_seconds = max(
        (ledger.longest_seconds.get(queue, 0.0) for queue in QUEUES if queue not in moved), default=0.0
    )
    say(
        f"Its queues go on at {now_at}: they paused for {pause_seconds:.1f} s at most, those of the other hubs for "
        f"{others_seconds:.1f} s. Both clients of {victim} have come back to any hub."
    )
    bystanders = [client for client in clients if client.hub != victim]
    lost_count = sum(bool(client.lost_count) for client in bystanders)
    doubts_count = sum(client.doubts_count for client in bystanders)

    def is_back() -> bool:
        row = _hubs(ask()).get(victim)
        return row is not None and row["pid"] != pid and len(row["shards"]) >= len(before[victim]["shards"]) // 2

    is_back_again = wait_until(is_back, WAIT_SECONDS)
    back_seconds = time.monotonic() - killed_seconds
    after = _hubs(ask())
    say(f"The supervisor has started {victim} again, and it takes its share back: {_shards_in_words(after)}.")
    time.sleep(load_seconds)

    say("The shops close. The packers take what is left.")
    for shop in shops:
        shop.stop()
    stage.wait(
        "orders with a receipt have come", lambda: len(ledger.receipted & ledger.came.keys()), len(ledger.receipted)
    )
    wait_until(lambda: time.monotonic() - max(ledger.heard_seconds.values()) > 1.0, WAIT_SECONDS)
    return Account(len(ledger.receipted), len(ledger.receipted) - len(ledger.lost)), [
        Check(
            "every order with a receipt was delivered",
            f"{len(ledger.receipted):,} receipts, {len(ledger.lost)} lost; "
            f"{ledger.sent_count - len(ledger.receipted)} had no receipt when their hub died",
            not ledger.lost and bool(ledger.receipted),
        ),
        _check_of_repeats(ledger),
        Check(
            "what was packed, and confirmed by a receipt, did not come again",
            f"{len(ledger.packed):,} confirmed, {len(ledger.came_after_packed)} came again",
            bool(ledger.packed) and not ledger.came_after_packed,
        ),
        Check(
            f"the queues of {victim} went on at another hub",
            f"{len(moved)} queues, after {pause_seconds:.1f} s at most",
            is_served and pause_seconds <= TAKEOVER_SECONDS_MAX and bool(moved),
        ),
        Check(
            "no client of another hub lost its connection",
            f"{lost_count} of {len(bystanders)}; {doubts_count} were told by an ERROR that an ACK is in doubt",
            not lost_count,
        ),
        Check(
            f"{victim} is back, and has shards again",
            f"{len(after[victim]['shards']) if victim in after else 0} of 32, {back_seconds:.1f} s after the kill",
            is_back_again,
        ),
    ]


def _check_of_repeats(ledger: Ledger) -> Check:
    again = [order for order, times in ledger.came.items() if times > 1]
    unmarked = [order for order in again if ledger.unmarked[order] > 1]
    return Check(
        "what came a second time says so",
        f"{len(again):,} with redelivered or possible-duplicate, {len(unmarked)} without",
        not unmarked,
    )


CLUSTER_ACT: Final = Act(
    "A hub is killed", "Three hubs are one broker. One dies under load, and the others go on with its queues.", failover
)
