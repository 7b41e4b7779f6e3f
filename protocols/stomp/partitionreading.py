"""SUBSCRIBE to a log with partitions: all of them under one subscription id, or with a group those that it shares out.

Each partition that is read has a `LogSubscription` of its own, with ledger, credit and message-ids; `ack:client` covers
what was delivered before of the same partition. They are made in steps, and when the group moves a partition here.

Bound: one for each partition, and for each that was taken away with deliveries that are not settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import attrs

from ...flow.latch import Latch
from ...flow.upkeep import UPKEEP_FULL, UPKEEP_REMEDY
from ...queues.logs.codes import TOPIC_NOT_EXIST
from ...queues.logs.ordering import ANY, IN_WORDS, PARTITIONS
from ...queues.logs.partitions import LogPartitions
from ...queues.logs.positions import PositionKind
from ...queues.logs.sharing_out import SharedOut
from ...queues.logs.table import LogError
from ...queues.names import parse
from ...queues.queue import MessageQueue
from ...queues.subscription import Subscription
from ..outbound import Outbound
from .delivery import SessionTotals, StompSubscription
from .errors import ProtocolError
from .hub import Hub
from .logreading import LogSubscription, LogWishes
from .subscribe_headers import ACK_AUTO, SubscriptionSpec

READER_STEPS: Final = 6
"""Steps of making the reader of a partition, or its group: about 200 µs."""
PARTITION_BYTES: Final = 1024
"""Memory for each partition of a subscription beside that of its reader: its share, its order, and what is given."""


@attrs.frozen
class ReadingMeans:
    """Duties of a connection for a subscription that consists of several.

    Attributes:
        next_key: returns a key for one more of them.
        known: notes one, so that ACKs find it.
        forget: forgets one that has ended, if all of its deliveries are settled.
        do_later: does work in steps that no frame has asked for.
    """

    next_key: Callable[[], int]
    known: Callable[[StompSubscription], None]
    forget: Callable[[StompSubscription], None]
    do_later: Callable[[Iterator[object]], None]


def check_wishes(wishes: LogWishes, partitions: LogPartitions) -> None:
    """Raise ProtocolError for wishes that only one log can fulfil."""
    why = ""
    if wishes.place.kind is PositionKind.INDEX:
        why = "from with an index"
    elif wishes.stop is not None:
        why = "to"
    elif wishes.log_id:
        why = "log-id"
    elif wishes.order != ANY:
        why = IN_WORDS[wishes.order]
    if why:
        raise ProtocolError(
            "not-for-partitions",
            f"{why} is for one log: {partitions.name} has {partitions.count} partitions",
            f"SUBSCRIBE to one of them, {partitions.name_of(0)} to {partitions.name_of(partitions.count - 1)}, or "
            "leave it out. A group gives each partition to one consumer at a time anyway.",
        )


class PartitionsSubscription(StompSubscription):
    """A reader of a log with partitions, and the consumer that its group shares them out to."""

    exclusive = False

    def __init__(self, hub: Hub, outbound: Outbound, spec: SubscriptionSpec, totals: SessionTotals) -> None:
        super().__init__(hub, outbound, attrs.evolve(spec, ack=ACK_AUTO), totals)  # its readers have ledger and window
        self.ack = spec.ack
        self._spec = spec
        self._readers: dict[int, LogSubscription] = {}
        """Readers by partition."""
        self._earlier: list[LogSubscription] = []
        """Readers of partitions that went to others; some have deliveries that are not settled."""
        self._given: dict[int, None] = {}
        """Partitions that were given to this consumer and are not read yet."""
        self._has_work = False
        self._shared: SharedOut | None = None
        self._credit: tuple[int, int | None] | None = None
        self._wishes: LogWishes
        self._partitions: LogPartitions
        self._means: ReadingMeans

    def read(self, partitions: LogPartitions, wishes: LogWishes, means: ReadingMeans) -> None:
        """Take what `beginning` needs; the wishes were checked (`check_wishes`)."""
        self._partitions, self._wishes, self._means = partitions, wishes, means
        self.keep(PARTITION_BYTES * partitions.count)

    # ------------------------------------------------------------------ beginning

    def beginning(self, done: Callable[[Exception | None], None]) -> Iterator[object]:
        """Begin to read, in steps. `done` is called when the places of the group are on the disk. Raises LogError and
        ProtocolError.
        """
        if self._wishes.group is None:
            return self._beginning_alone(done)
        return self._beginning_together(self._wishes.group, done)

    def _beginning_alone(self, done: Callable[[Exception | None], None]) -> Iterator[object]:
        logs, wishes = self._hub.logs, self._wishes
        assert logs is not None, "asked for before"
        begins = []
        for number, name in enumerate(self._partitions.names()):
            yield from logs.locating(name, wishes.place)
            if self.unsubscribed:
                return
            self._check_upkeep(name)
            reader = self._readers[number] = self._make(number)
            begins.append(reader.hold())
            reader.read(parse(name), wishes, fail=self.give_up, told={}, done=_ignore)
            yield from repeat(None, READER_STEPS)
        done(None)  # as of all others, the RECEIPT comes first
        for begin in begins:
            begin()
            yield None

    def _beginning_together(self, name: str, done: Callable[[Exception | None], None]) -> Iterator[object]:
        logs, place = self._hub.logs, self._wishes.place
        assert logs is not None, "asked for before"
        partitions = self._partitions
        shared = self._shared = logs.share_out(partitions, name, self.selection)
        failed: list[Exception] = []

        def created() -> None:
            done(failed[0] if failed else None)
            if not failed and not self.unsubscribed:
                shared.join(self)
            shared.began()

        one_created = Latch(partitions.count + 1, created)

        def note(error: Exception | None) -> None:
            if error is not None:
                failed.append(error)
            one_created()

        left_count = partitions.count + 1
        try:
            for number, partition in enumerate(partitions.names()):
                yield from logs.locating(partition, place)
                if self.unsubscribed:
                    return
                self._check_upkeep(partition)
                logs.make_part(shared, number, partition, name, place, note)
                left_count -= 1
                yield from repeat(None, READER_STEPS)
            left_count -= 1
            one_created()
        finally:
            if left_count:
                shared.began()

    def _check_upkeep(self, partition: str) -> None:
        """Raise ProtocolError if there is no memory for one more reader."""
        why_not = self._hub.manager.why_not(f"the reader of {partition}")
        if why_not:
            raise ProtocolError(UPKEEP_FULL, why_not, UPKEEP_REMEDY)

    # ------------------------------------------------------------------ what the group gives and takes away

    def open_on(self, queue: MessageQueue) -> None:
        """Read a partition, soon. Called when the group gives it to this consumer."""
        number = _number_of(queue)
        self._given[number] = None
        self._work()

    def close_on(self, queue: MessageQueue) -> Subscription | None:
        """Read a partition no more. What was delivered of it may be acknowledged: the next consumer waits for that."""
        number = _number_of(queue)
        self._given.pop(number, None)
        return self._end_reader(number)

    def _end_reader(self, number: int) -> Subscription | None:
        reader = self._readers.pop(number, None)
        if reader is None:
            return None
        reader.unsubscribed = True
        self._earlier.append(reader)
        self._work()
        ended = reader.attachments.pop() if reader.attachments else None
        return ended if isinstance(ended, Subscription) else None

    def _work(self) -> None:
        if not self._has_work and not self.unsubscribed:
            self._has_work = True
            self._means.do_later(self._working())

    def _working(self) -> Iterator[object]:
        """Read what was given, and forget earlier readers that are done."""
        try:
            while self._given and not self.unsubscribed:
                number = next(iter(self._given))
                del self._given[number]
                try:
                    self._open(number)
                except LogError as error:
                    if error.code != TOPIC_NOT_EXIST:
                        raise
                    # It is being deleted.
                yield from repeat(None, READER_STEPS)
        except LogError as error:
            refusal = ProtocolError(error.code, str(error))
            refusal.identify("SUBSCRIBE", {"destination": self.destination})
            self.give_up(refusal)
        self._has_work = False
        for reader in self._earlier:
            self._means.forget(reader)
        self._earlier = [reader for reader in self._earlier if reader.is_open]

    def _open(self, number: int) -> None:
        """Read a partition. Raises LogError."""
        shared = self._shared
        if shared is None or shared.group(number) is None:
            return  # the partition was deleted: it is read again when the next consumer has joined
        ended = self._end_reader(number)
        if ended is not None:
            ended.close()
        reader = self._readers[number] = self._make(number)
        wishes = attrs.evolve(self._wishes, order=PARTITIONS)
        reader.read(parse(reader.destination), wishes, fail=self.give_up, told={}, done=_ignore)

    def _make(self, number: int) -> LogSubscription:
        means, name = self._means, self._partitions.name_of(number)
        spec = attrs.evolve(
            self._spec, key=means.next_key(), destination=name, label=f"{self._spec.label} partition {number}"
        )
        reader = LogSubscription(self._hub, self._outbound, spec, self._totals)
        reader.owns_selection = False
        reader.given_back, reader.give_up, reader.selection = self.given_back, self.give_up, self.selection
        if self._credit is not None:
            reader.set_credit(*self._credit)
        if self.is_paused:
            reader.pause()
        means.known(reader)
        return reader

    # ------------------------------------------------------------------ all of them

    @property
    def _all(self) -> list[LogSubscription]:
        return [*self._readers.values(), *self._earlier]

    def pause(self) -> None:
        super().pause()
        for reader in self._readers.values():
            reader.pause()

    def resume(self) -> None:
        super().resume()
        for reader in self._readers.values():
            reader.resume()

    def set_credit(self, count: int, size_bytes: int | None) -> None:
        self._credit = count, size_bytes
        for reader in self._readers.values():
            reader.set_credit(count, size_bytes)

    @property
    def window_limits(self) -> tuple[int | None, int | None]:
        if self.ack == ACK_AUTO:
            return None, None
        count, size_bytes = self._spec.prefetch_count, self._spec.prefetch_bytes
        if self._credit is not None:
            count, size_bytes = self._credit[0], self._credit[1] or size_bytes
        return count, size_bytes

    def end_deliveries(self) -> None:
        self.unsubscribed = True
        for reader in self._readers.values():
            reader.unsubscribed = True

    def detaching(self) -> Iterator[None]:
        self.end_deliveries()
        if self._shared is not None:
            self._shared.leave(self)
        yield
        for reader in self._all:
            yield from reader.detaching()

    def leaving(self) -> Iterator[None]:
        self.has_left = True
        for reader in self._all:
            yield from reader.leaving()
            self._means.forget(reader)
            yield

    def facts(self) -> Mapping[str, object]:
        """Return facts for people."""
        unsettled_count = sum(each.ledger.unsettled_count for each in self._all if each.ledger is not None)
        read = ", ".join(map(str, sorted(self._readers))) or "none"
        return {**super().facts(), "ack": self.ack, "partitions": read, "unacked": unsettled_count}


def _number_of(queue: MessageQueue) -> int:
    group: Any = queue
    number: int | None = group.log.partition
    assert number is not None, "groups of partitions are shared out"
    return number


def _ignore(_error: Exception | None) -> None:
    """Ignore the creation of a group: it exists, or there is none."""
