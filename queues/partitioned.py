"""One destination, several queues inside it: by priority, by a header (parts.py), or by any function. Seed 002
"Partitioning".

Each partition has its own elements, limiter and dispatch context. So a full partition blocks only the senders to it,
and a partition of raised priority is dispatched first, past any backlog in the others. Partitions are made when first
needed; consumers are attached to all of them, but where each part of a queue has one consumer at a time.

Bound: `partitions_max`; the eleventh priority does not exist, and partitioning by a header has a fixed number of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Final, cast

from ..flow import FlowClosedError, SourceController
from .attachments import AttachmentAccount
from .environment import QueueEnvironment
from .message import PRIORITY_DEFAULT, Message, wire_bytes_of
from .parts import PRIORITIES_COUNT, PartShares
from .policy import PARTITIONS_COUNT_MAX
from .queue import MessageQueue
from .selectors.selector import Selection
from .subscription import Consumer, Subscription

ATTACH_AT_ONCE: Final = 32
"""Consumers attached at once to a new partition, or wildcards checked at once for a new destination. More are attached
in steps, and a topic keeps incoming messages for them meanwhile.
"""


class PartitionLimitError(ValueError):
    """A partition function gave more distinct results than were allowed."""


class Attachment:
    """One name under which a consumer takes from all partitions of a queue, present and future.

    A consumer that comes under several names (`/topic/a.*,/topic/a.b`) has an attachment for each, but one subscription
    to each partition, until the last of them is closed.
    """

    __slots__ = ("_queue", "closed", "consumer")

    def __init__(self, queue: PartitionedQueue, consumer: Consumer) -> None:
        self._queue = queue
        self.consumer = consumer
        self.closed = False

    @property
    def awaits_disk(self) -> bool:
        """Whether a partition has more that is being read from the disk."""
        return any(partition.awaits_disk for partition in self._queue.partitions.values())

    @property
    def queues_count(self) -> int:
        """Number of partitions from which it takes now: attaching and detaching take as many steps."""
        return len(self._queue.partitions)

    def close(self) -> None:
        """Close this attachment; with the consumer's last one, detach from every partition. Unsettled elements stay
        with the consumer. A second call does nothing.
        """
        if not self.closed:
            self.closed = True
            self._queue.detach(self)


class _Tap:
    """Subscriptions of a consumer to the partitions, and the attachments that share them."""

    __slots__ = (
        "account",
        "attachments",
        "consumer",
        "durable_id",
        "exclusive",
        "selection",
        "shares",
        "subscriptions",
    )

    def __init__(
        self,
        consumer: Consumer,
        *,
        exclusive: bool,
        durable_id: int | None,
        shares: bool,
        selection: Selection | None,
        account: AttachmentAccount | None,
    ) -> None:
        self.consumer = consumer
        self.selection = selection
        self.exclusive = exclusive
        self.durable_id = durable_id
        self.shares = shares
        self.account = account
        self.attachments: list[Attachment] = []
        self.subscriptions: dict[MessageQueue, Subscription] = {}

    def open_on(self, queue: MessageQueue, *, from_beginning: bool = False) -> None:
        self.subscriptions[queue] = queue.subscribe(
            self.consumer,
            exclusive=self.exclusive,
            durable_id=self.durable_id,
            shares=self.shares,
            selection=self.selection,
            from_beginning=from_beginning,
        )
        if self.account is not None:
            self.account.changed(1)

    def close_on(self, queue: MessageQueue) -> Subscription | None:
        subscription = self.subscriptions.pop(queue, None)
        if subscription is not None and self.account is not None:
            self.account.changed(-1)
        return None if subscription is None or subscription.closed else subscription

    def close(self) -> None:
        """Close all subscriptions."""
        for subscription in self.subscriptions.values():
            subscription.close()
        if self.account is not None:
            self.account.changed(-len(self.subscriptions))


class PartitionedQueue:
    """Queues by partition key."""

    __slots__ = (
        "_environment",
        "_make",
        "_partition_of",
        "_partitions_max",
        "_same_for_run",
        "_shares",
        "_taps",
        "_welcomes",
        "attachments_count",
        "closed",
        "name",
        "partitions",
    )

    def __init__(
        self,
        name: str,
        make: Callable[[Hashable], MessageQueue],
        partition_of: Callable[[Message], Hashable],
        *,
        partitions_max: int,
        same_for_run: bool = False,
        environment: QueueEnvironment | None = None,
        shares: PartShares | None = None,
    ) -> None:
        """`make` builds the queue of a partition; `partition_of` says where a message belongs; `same_for_run`: it
        depends on the envelope only, so that one look decides for a whole run; `environment`: says how very many
        consumers are attached to a new partition (None: at once); `shares`: which consumer takes from which part (None:
        all take from all).
        """
        self._shares = shares
        self._environment = environment
        self._welcomes = False
        self.name = name
        self.closed = False
        self._make = make
        self._partition_of = partition_of
        self._partitions_max = partitions_max
        self._same_for_run = same_for_run
        self.partitions: dict[Hashable, MessageQueue] = {}
        self._taps: dict[int, _Tap] = {}
        self.attachments_count = 0
        """Number of `attachments`."""

    def partition(self, key: Hashable) -> MessageQueue:
        """Return the partition for `key`, made if need be.

        Raises PartitionLimitError, and FlowClosedError if it had to be made after the queue was deleted.
        """
        queue = self.partitions.get(key)
        if queue is None or (queue.closed and not self.closed):  # closed though we are not: it broke, see queue.py
            if self.closed:
                raise FlowClosedError(f"{self.name} was deleted: look it up again before you send to it")
            if queue is None and len(self.partitions) >= self._partitions_max:
                raise PartitionLimitError(
                    f"{self.name} has {self._partitions_max} partitions already and none for {key!r}: "
                    "use a partition function with fewer results"
                )
            queue = self.partitions[key] = self._make(key)
            if self._welcomes:
                queue.hold_beginning()
            taps = list(self._taps.values())
            if self._shares is not None:
                assert isinstance(key, int), "keys of parts are numbers"
                self._shares.made(key, queue)
                taps = [tap for tap in taps if tap.selection is not None]
            environment = self._environment
            if environment is None:
                for tap in taps:
                    tap.open_on(queue)
            elif len(taps) <= ATTACH_AT_ONCE:
                for tap in taps:
                    environment.carefully(partial(tap.open_on, queue))
            else:
                queue.hold_beginning()
                environment.do_in_steps(self.name, self._opening(environment, queue, taps))
        return queue

    def _opening(self, environment: QueueEnvironment, queue: MessageQueue, taps: list[_Tap]) -> Iterator[None]:
        """Attach consumers to a new partition, in steps. Those that come meanwhile attach without help."""
        try:
            for tap in taps:
                if queue.closed:
                    return
                if self._taps.get(id(tap.consumer)) is tap:
                    environment.carefully(partial(tap.open_on, queue, from_beginning=True))
                yield
        finally:
            if not queue.closed:
                queue.release_beginning()

    def begin_welcome(self) -> None:
        """Begin to attach earlier wildcards in steps: the partitions keep incoming messages for them."""
        self._welcomes = True
        for queue in self.partitions.values():
            queue.hold_beginning()

    def end_welcome(self) -> None:
        """End a welcome: all earlier wildcards are attached."""
        self._welcomes = False
        for queue in self.partitions.values():
            if not queue.closed:
                queue.release_beginning()

    def partition_for(self, message: Message) -> MessageQueue:
        """Return the partition of `message`."""
        return self.partition(self._partition_of(message))

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        """Take a run; see MessageQueue.add.

        A run for several partitions is added to each separately: where one raises, those before it keep their part.
        """
        if self._same_for_run:
            self.partition_for(messages[0]).add(messages, wire_bytes, source)
            return
        parts: dict[Hashable, list[Message]] = {}
        for message in messages:
            parts.setdefault(self._partition_of(message), []).append(message)
        for key, part in parts.items():
            self.partition(key).add(part, wire_bytes_of(part), source)

    def attach(
        self,
        consumer: Consumer,
        *,
        exclusive: bool = False,
        durable_id: int | None = None,
        shares: bool = False,
        selection: Selection | None = None,
        account: AttachmentAccount | None = None,
        from_beginning: bool = False,
    ) -> Attachment:
        """Let this consumer take from every partition, present and future; `account` counts that; `from_beginning`: see
        `begin_welcome`. Raises FlowClosedError if it was deleted.

        Attached already, it gets nothing twice: the two attachments share its subscriptions, and the first one's
        `exclusive` and `selection`.
        """
        if self.closed:
            raise FlowClosedError(f"{self.name} was deleted: look it up again before you subscribe to it")
        tap = self._taps.get(id(consumer))
        if tap is None:
            tap = self._taps[id(consumer)] = _Tap(
                consumer,
                exclusive=exclusive,
                durable_id=durable_id,
                shares=shares,
                selection=selection,
                account=account,
            )
            if self._shares is not None and selection is None:
                self._shares.joined(tap)
            else:
                for queue in self.partitions.values():
                    if not queue.closed:
                        tap.open_on(queue, from_beginning=from_beginning)
        attachment = Attachment(self, consumer)
        tap.attachments.append(attachment)
        self.attachments_count += 1
        return attachment

    def detach(self, attachment: Attachment) -> None:
        """Called by `Attachment.close`."""
        tap = self._taps[id(attachment.consumer)]
        tap.attachments.remove(attachment)
        self.attachments_count -= 1
        if not tap.attachments:
            del self._taps[id(attachment.consumer)]
            if self._shares is not None:
                self._shares.left(tap)
            tap.close()

    @property
    def attachments(self) -> list[Attachment]:
        """Attachments of the consumers. O(n)."""
        return [attachment for tap in self._taps.values() for attachment in tap.attachments]

    def close_queue(self, reason: str, *, keep: bool = False) -> int:
        """Delete all partitions; returns the number of messages lost. A second call does nothing. `keep`: stored
        messages stay in the store.
        """
        self.closed = True
        lost_counts: list[int] = []

        def close(queue: MessageQueue) -> None:
            lost_counts.append(queue.close_queue(reason, keep=keep))

        for queue in self.partitions.values():
            if self._environment is None:
                close(queue)
            else:
                self._environment.carefully(partial(close, queue))
        return sum(lost_counts)

    @property
    def is_empty(self) -> bool:
        """No elements, and no sender waits in front of any partition."""
        return all(queue.is_empty for queue in self.partitions.values())


def _priority_of(message: Message) -> int:
    return message.head.priority


def by_priority(
    name: str,
    make: Callable[[int], MessageQueue],
    environment: QueueEnvironment | None = None,
    shares: PartShares | None = None,
) -> PartitionedQueue:
    """Partitions by priority, and by part if there are `shares`; `make` gets the key: the priority, 0 to 9, of part 0,
    for others see `parts.key_of`. The one of default priority exists from the start. `environment`: see
    PartitionedQueue.
    """
    make_one = cast("Callable[[Hashable], MessageQueue]", make)  # a wrapper would cost each destination 200 bytes
    partitions_max = PRIORITIES_COUNT * PARTITIONS_COUNT_MAX
    queue = PartitionedQueue(
        name,
        make_one,
        _priority_of,
        partitions_max=partitions_max,
        same_for_run=True,
        environment=environment,
        shares=shares,
    )
    queue.partition(PRIORITY_DEFAULT)
    return queue
