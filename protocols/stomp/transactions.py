"""Open transactions of one connection: SENDs that no queue has seen yet, and ACKs and NACKs that are held in their
ledgers.

Nothing takes effect before COMMIT, then everything does, in the order it came (committing.py). ABORT, DISCONNECT and a
lost connection undo all of it (b46): the SENDs are dropped, the deliveries are unsettled again. A message acknowledged
in a transaction opens the window at once, so that a transaction can be larger than the prefetch; an abort takes that
credit back.

Bounds: `transactions_max`; `transaction_bytes_max` of SENDs over all open ones, and what goes beyond is *spooled*
(spooling.py), or refused without a store; `transaction_acks_max` deliveries held of each subscription, COMMITs that
wait included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Final

from ...flow import Account
from ...queues.atomic_offer import PromisedRoom
from ...queues.logs.log_readers import LogReaders
from ...queues.message import MESSAGE_OVERHEAD_BYTES
from ...queues.queue import MessageQueue
from ...queues.spools import Spool
from ...queues.storage import Confirms, Joint
from ...queues.topic import Topic
from .delivery import MESSAGES_PER_STEP, StompSubscription
from .errors import ProtocolError
from .frames import SendRun
from .lanes import PARKED_OVERHEAD_BYTES, Barrier, Lane, Route
from .ledger import Portion
from .limits import StompLimits
from .replies import Owed

RUN_OVERHEAD_BYTES: Final = 256
"""Memory of SENDs that share a head, beside their wires: the run, its lists, the head."""

TRANSACTION_BYTES: Final = 1200
PORTION_BYTES: Final = 300
"""Memory of each stretch of deliveries that a transaction acknowledges."""

AT_ONCE_COUNT: Final = 100
"""Steps of a COMMIT that takes effect in one go: a settlement is one, a SEND is one for each of its destinations."""

PART_COUNT: Final = 128
"""Messages that a queue is given in one go."""

CHEAP_PER_STEP: Final = 32
"""Looks at one thing each, that are one step together."""

LANES_PER_STEP: Final = 8

LOG_COMMITS_MAX: Final = 32
"""Number of COMMITs of a connection on their way from the disk to one log; the next one waits."""


class Transaction:
    """One open transaction."""

    __slots__ = (
        "_bound_by",
        "acks",
        "acks_steps_count",
        "freed_queues",
        "name",
        "requests",
        "sends",
        "shard",
        "size_bytes",
        "spool",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.shard: int | None = None
        """Shard of its destinations. None: not known yet, or there is only one."""
        self._bound_by = ""
        self.sends: deque[SendRun] = deque()
        """SENDs in memory; they follow the SENDs in the spool."""
        self.requests: list[SendRun] = []
        """SENDs to the broker itself, in a spooled transaction."""
        self.spool: Spool | None = None
        """SENDs that have left memory; None: there are none."""
        self.acks: list[tuple[StompSubscription, Portion, bool]] = []
        self.acks_steps_count = 0
        """Approximate number of steps of the settlement."""
        self.freed_queues: dict[object, None] = {}
        """Queues where ACKs make room, or NACKs may: another consumer can take a rejected message."""
        self.size_bytes = 0
        """Bytes in memory."""

    def bind(self, shard: int | None, destination: str) -> None:
        """Bind the transaction to the shard of a destination; None: temporary ones are in any. Raises ProtocolError if
        it is bound to another one: then it could not be written as one batch.
        """
        if shard is None or shard == self.shard:
            return
        if self.shard is not None:
            raise ProtocolError(
                "transaction-spans-shards",
                f"transaction {self.name!r} has {self._bound_by}, and {destination} is in another shard: nothing was "
                "done",
                "A transaction stays within one shard. Names with the same part in braces share one: "
                "/queue/{orders}.new and /queue/{orders}.failed.",
            )
        self.shard = shard
        self._bound_by = destination

    @property
    def kept_bytes(self) -> int:
        """Memory of the transaction beside its SENDs."""
        return TRANSACTION_BYTES + len(self.name) + PORTION_BYTES * len(self.acks)

    def changed(self, queues_of_sends: Iterable[MessageQueue] = ()) -> list[Confirms]:
        """Return the storages of the queues and groups of logs in which the transaction settles, and of the queues that
        it sends to.
        """
        queues = self.freed_queues | dict.fromkeys(queues_of_sends)
        stored = [queue for queue in queues if isinstance(queue, MessageQueue | LogReaders)]
        return [queue.storage for queue in stored if queue.storage is not None and not queue.closed]

    def checking_room(self, wanted: Mapping[MessageQueue, tuple[int, int]], promise: PromisedRoom) -> Iterator[None]:
        """Promise the room of these queues for the SENDs. Raises ProtocolError if a queue of policy reject has too
        little, counting the messages that the ACKs remove there. In steps.
        """
        if not wanted:
            return
        freed: dict[MessageQueue, list[int]] = {}
        for place, (_subscription, portion, nack) in enumerate(self.acks):
            # A topic keeps it for its other readers.
            if not nack and not isinstance(portion.subscription.queue, Topic):
                count_and_bytes = freed.setdefault(portion.subscription.queue, [0, 0])
                count_and_bytes[0] += len(portion.sequences)
                count_and_bytes[1] += portion.wire_bytes + len(portion.sequences) * MESSAGE_OVERHEAD_BYTES
            if place % CHEAP_PER_STEP == CHEAP_PER_STEP - 1:
                yield
        for place, (queue, (count, charge_bytes)) in enumerate(wanted.items(), 1):
            freed_count, freed_bytes = freed.get(queue, (0, 0))
            over_count, over_bytes = queue.intake.overhang(count - freed_count, charge_bytes - freed_bytes)
            if over_count > 0 or over_bytes > 0:
                raise ProtocolError(
                    "queue-full",
                    f"{queue.name} has no room for the SENDs of transaction {self.name!r}: none of it was carried out",
                    "The destination's full policy is reject. Consume from it, or raise its limits.",
                )
            promise.make(queue, count, charge_bytes)
            if place % CHEAP_PER_STEP == 0:
                yield


class CommitShare:
    """Part of a COMMIT that goes to one lane."""

    __slots__ = ("beside_bytes", "charge_bytes", "count", "is_paced", "persistent")

    def __init__(self) -> None:
        self.count = 0
        """Messages."""
        self.charge_bytes = 0
        self.beside_bytes = 0
        """Memory of the parked part beside its wires."""
        self.persistent = False
        self.is_paced = False
        """Whether the queue has counted the part in its input rate."""


class Commit:
    """A COMMIT with all that it needs: it may have to wait for the destinations of its SENDs."""

    __slots__ = (
        "_beside_bytes",
        "barrier",
        "charge_bytes",
        "has_logs",
        "is_kept",
        "lanes",
        "owed",
        "promise",
        "receipt_id",
        "rejecting",
        "requests",
        "routed",
        "steps_count",
        "transaction",
        "vain_count",
    )

    def __init__(self, transaction: Transaction, receipt_id: str | None) -> None:
        self.transaction = transaction
        self.receipt_id = receipt_id
        self.lanes: dict[Lane, CommitShare] = {}
        self.charge_bytes = 0
        """Bytes of all SENDs, as they are sent on."""
        self.rejecting: list[Lane] = []
        """Lanes to queues of policy reject."""
        self.routed: deque[tuple[SendRun, Route]] = deque()
        """Routed SENDs, in order."""
        self.requests: list[SendRun] = []
        """SENDs to the broker itself, made when all else has taken effect."""
        self._beside_bytes = 0
        """Memory of the SENDs beside their wires, each counted once."""
        self.owed = Owed([] if receipt_id is None else [receipt_id], 1, is_commit=True)
        """RECEIPT of the COMMIT, where some of it is parked."""
        self.is_kept = False
        """Whether some SENDs outlive the broker."""
        self.has_logs = False
        """Whether some SENDs go to logs, which is by way of the disk."""
        self.steps_count = transaction.acks_steps_count
        """Approximate number of steps of the COMMIT."""
        self.barrier: Barrier | None = None
        """Place in the lanes while the COMMIT waits."""
        self.promise = PromisedRoom()
        self.vain_count = 0
        """Number of turns in one queue while another one was full."""

    def add(self, run: SendRun, route: Route) -> None:
        """Add SENDs with their route."""
        count = len(run.wires)
        self.routed.append((run, route))
        self.steps_count += len(route.targets) * (1 + count // MESSAGES_PER_STEP)
        beside_bytes = MESSAGE_OVERHEAD_BYTES * count + PARKED_OVERHEAD_BYTES * (1 + count // PART_COUNT)
        self._beside_bytes += beside_bytes
        for forwarded, lane in route.targets:
            share = self.lanes.get(lane)
            if share is None:
                share = self.lanes[lane] = CommitShare()
                self.has_logs = self.has_logs or lane.is_log
                if lane.inlet.rejects:
                    self.rejecting.append(lane)
            share.count += count
            share.beside_bytes += beside_bytes
            grown_bytes = len(forwarded.block) - len(run.head.block) + MESSAGE_OVERHEAD_BYTES
            charge_bytes = run.size_bytes + grown_bytes * count
            share.charge_bytes += charge_bytes
            self.charge_bytes += charge_bytes
            if run.head.persistent:
                share.persistent = True
                self.is_kept = self.is_kept or lane.inlet.keeps

    def must_wait(self, lane: Lane) -> bool:
        """Whether the part for this lane must wait. That for a log has a place behind what is parked there."""
        if lane.is_log and self.barrier is None:
            return lane.source.blocked or len(lane.parked) > LOG_COMMITS_MAX
        return lane.must_wait if self.barrier is None else self.barrier.must_wait(lane)

    def parked_bytes(self) -> Generator[None, None, int]:
        """Return the memory of the COMMIT if every part that must wait is parked: its wires once, and the memory beside
        them for each destination. In steps.
        """
        beside_bytes = -self._beside_bytes
        for place, (lane, share) in enumerate(self.lanes.items(), 1):
            if self.must_wait(lane):
                beside_bytes += share.beside_bytes
            if place % CHEAP_PER_STEP == 0:
                yield
        return self.transaction.size_bytes + max(0, beside_bytes)

    def looking(self) -> Generator[None, None, bool]:
        """Whether the COMMIT has to wait now. In steps, if it has no place in the lanes yet."""
        if self.barrier is not None:
            return bool(self.barrier.waits_for)
        for place, lane in enumerate(self.lanes, 1):
            if self.must_wait(lane):
                return True
            if place % CHEAP_PER_STEP == 0:
                yield
        return False

    def waits_for_one_of(self, queues: Container[object]) -> Generator[None, None, bool]:
        """Whether one of these queues blocks the COMMIT. In steps."""
        for place, lane in enumerate(list(self.lanes if self.barrier is None else self.barrier.waits_for), 1):
            if lane.inlet in queues and self.must_wait(lane):
                return True
            if place % CHEAP_PER_STEP == 0:
                yield
        return False

    def asking_for_room(self, *, in_steps: bool) -> Iterator[None]:
        """Get in line at queues without room: the COMMIT waits as a whole, like any other source. In steps. A COMMIT
        that takes effect `in_steps` keeps the turns of queues with room, until `ending_turns`.
        """
        for place, (lane, share) in enumerate(self.lanes.items(), 1):
            if not lane.is_log and not self.must_wait(lane) and not lane.queue.closed:
                count = 0 if share.is_paced else share.count
                share.is_paced = not lane.queue.intake.must_wait(count, lane.source, persistent=share.persistent)
                if in_steps and share.is_paced:
                    lane.queue.intake.keep_turn(lane.source)
            if place % LANES_PER_STEP == 0:
                yield

    def ending_turns(self) -> Iterator[None]:
        """End the turns of the COMMIT, used or not, so that other sources may send. In steps."""
        for place, lane in enumerate(self.lanes, 1):
            if (lane.parked[0] if lane.parked else None) is self.barrier:
                lane.source.end_turn()
            if place % LANES_PER_STEP == 0:
                yield

    def changed(self) -> list[Confirms]:
        """Return the stored sides of what its persistent SENDs and its settlements change."""
        return self.transaction.changed(lane.queue for lane in (self.lanes if self.is_kept else ()))

    def headers(self) -> dict[str, str]:
        """Return the headers of the COMMIT that an ERROR about it names."""
        receipt = {} if self.receipt_id is None else {"receipt": self.receipt_id}
        return {"transaction": self.transaction.name, **receipt}

    def checking_room(self) -> Iterator[None]:
        """Raises ProtocolError if a queue of policy reject has no room for all its SENDs, counting what its ACKs free
        there. In steps.
        """
        wanted: dict[MessageQueue, tuple[int, int]] = {}
        for place, lane in enumerate(self.rejecting, 1):
            share = self.lanes[lane]
            wanted[lane.queue] = share.count, share.charge_bytes
            if place % CHEAP_PER_STEP == 0:
                yield
        yield from self.transaction.checking_room(wanted, self.promise)


class Transactions:
    """The open transactions of one connection, by name."""

    __slots__ = ("_account", "_limits", "_open")

    def __init__(self, limits: StompLimits, account: Callable[[], Account]) -> None:
        """Make an empty table. `account` is charged with the SENDs; called when there are any."""
        self._limits = limits
        self._account = account
        self._open: dict[str, Transaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._open.values())

    def begin(self, name: str) -> None:
        """Open one. Raises ProtocolError for a name in use (b47) or too many."""
        if name in self._open:
            raise ProtocolError(
                "transaction-exists",
                f"transaction {name!r} is open already",
                "COMMIT or ABORT it first, or choose another name.",
            )
        if len(self._open) >= self._limits.transactions_max:
            raise ProtocolError(
                "too-many-transactions",
                f"more than {self._limits.transactions_max} open transactions",
                "COMMIT or ABORT some; transactions_max of the listener is the limit.",
            )
        transaction = self._open[name] = Transaction(name)
        self._account().resource.keep(transaction.kept_bytes)

    def get(self, name: str) -> Transaction:
        """The open transaction of this name. Raises ProtocolError."""
        transaction = self._open.get(name)
        if transaction is None:
            raise ProtocolError(
                "unknown-transaction",
                f"transaction {name!r} is not open",
                "BEGIN it first; a transaction ends with COMMIT, ABORT or its connection.",
            )
        return transaction

    def add_sends(self, name: str, run: SendRun) -> Transaction:
        """Keep a SEND until COMMIT; look at `is_over` then. Raises ProtocolError if the transaction is not open."""
        transaction = self.get(name)
        size_bytes = charge_of(run)
        transaction.sends.append(run)
        transaction.size_bytes += size_bytes
        self._account().charge(0, size_bytes, None)
        return transaction

    @property
    def is_over(self) -> bool:
        """All together hold too much in memory."""
        return self.used_bytes > self._limits.transaction_bytes_max

    @property
    def used_bytes(self) -> int:
        """Bytes of all transactions in memory."""
        return self._account().limiter.used_bytes

    @property
    def largest(self) -> Transaction:
        """Open transaction that holds most in memory."""
        return max(self._open.values(), key=lambda transaction: transaction.size_bytes)

    def spooled(self) -> list[Transaction]:
        """Open transactions that are not all in memory."""
        return [transaction for transaction in self._open.values() if transaction.spool is not None]

    def add_acks(self, name: str, subscription: StompSubscription, portions: list[Portion], *, nack: bool) -> None:
        """Keep these until COMMIT; their deliveries are held in the ledger already. Raises ProtocolError if the
        transaction is not open, or is in another shard.
        """
        transaction = self.get(name)
        transaction.acks.extend((subscription, portion, nack) for portion in portions)
        self._account().resource.keep(PORTION_BYTES * len(portions))
        for portion in portions:
            count = len(portion.sequences)
            transaction.acks_steps_count += 1 + count // MESSAGES_PER_STEP
            transaction.freed_queues[portion.subscription.queue] = None
            subscription.refill(count, portion.wire_bytes)
        for portion in portions:
            of: object = portion.subscription.queue
            if isinstance(of, MessageQueue):
                transaction.bind(of.environment.shard, of.destination_name)
            elif isinstance(of, LogReaders):
                transaction.bind(of.log.environment.shard, of.log.name)

    def end(self, name: str) -> Transaction:
        """Remove a transaction, to be carried out or undone. Raises ProtocolError if it is not open."""
        transaction = self.get(name)
        del self._open[name]
        return transaction

    def release(self, transaction: Transaction, size_bytes: int) -> None:
        """Release bytes of a transaction that have left memory."""
        transaction.size_bytes -= size_bytes
        self._account().release(0, size_bytes)

    def forget_bytes(self, transaction: Transaction) -> None:
        """Release a transaction whose SENDs are published or dropped. `size_bytes` still says how much that was."""
        if transaction.size_bytes:
            self._account().release(0, transaction.size_bytes)
        self._account().resource.keep(-transaction.kept_bytes)

    def end_all(self) -> list[Transaction]:
        """Take all out (the connection ends)."""
        left = list(self._open.values())
        self._open.clear()
        return left


def charge_of(run: SendRun) -> int:
    """Return the memory of a run while its transaction is open, in bytes."""
    return run.size_bytes + RUN_OVERHEAD_BYTES + MESSAGE_OVERHEAD_BYTES * len(run.wires)


def parts_of(run: SendRun) -> Iterator[SendRun]:
    """A run as runs that a queue takes in one step."""
    wires = run.wires
    if len(wires) <= PART_COUNT:
        yield run
        return
    for start in range(0, len(wires), PART_COUNT):
        part = wires[start : start + PART_COUNT]
        yield SendRun(run.head, part, sum(map(len, part)), None)


def settling(transaction: Transaction, joint: Joint | None) -> Iterator[None]:
    """Settle the deliveries of a COMMIT: acknowledged ones are done, rejected ones are requeued. In steps."""
    for subscription, portion, nack in transaction.acks:
        subscription.settle_held(portion, nack=nack)
        if joint is not None:
            join(joint, portion.subscription.queue)
        yield from steps_for(len(portion.sequences))


def undoing(transaction: Transaction) -> Iterator[None]:
    """ABORT: the deliveries are unsettled again, and count against the window. In steps."""
    for subscription, portion, _nack in transaction.acks:
        subscription.release_held(portion)
        yield from steps_for(len(portion.sequences))
    yield from dropping(transaction.sends)


def dropping(runs: deque[SendRun] | deque[tuple[SendRun, Route]]) -> Iterator[None]:
    """Drop SENDs, in steps: to free thousands of heads takes milliseconds."""
    while runs:
        for _ in range(min(CHEAP_PER_STEP, len(runs))):
            runs.popleft()
        yield


def join(joint: Joint, queue: object) -> None:
    """Add the storage of a queue that was just changed to the joint write."""
    if isinstance(queue, MessageQueue | LogReaders) and queue.storage is not None and not queue.closed:
        joint.add(queue.storage)


def some_of(joint: Joint) -> list[Confirms]:
    """Return a storage to ask when all changes of the joint write are on disk; none, if all of its storages are closed.
    Call before the end of the joint write.
    """
    return [] if joint.some_storage is None else [joint.some_storage]


def steps_for(messages_count: int) -> Iterator[None]:
    """Yield as many steps as the messages cost."""
    return repeat(None, 1 + messages_count // MESSAGES_PER_STEP)
