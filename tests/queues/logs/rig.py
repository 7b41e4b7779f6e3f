"""A log without files: records in a list, a disk that works when told to, groups in a dictionary; consumers that take
records or runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from sluiceway.protocols.stomp.head import SendHead
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues.logs.batches import Batch, encode, stamped
from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.log_readers import LogReaders
from sluiceway.queues.logs.ports import DiskError, GroupState
from sluiceway.queues.logs.producers import NoProducers
from sluiceway.queues.logs.reading import RecordCache
from sluiceway.queues.logs.runs import BatchRun
from sluiceway.queues.message import Message
from sluiceway.queues.selectors import Selection
from sluiceway.queues.slices import Slice
from sluiceway.queues.subscription import Subscription
from tests.queues.rig import FakeConsumer, World, make_policy

CACHE_BYTES = 1 << 20


@attrs.frozen
class Cut:
    data: memoryview
    first_index: int
    end_index: int


@attrs.frozen
class Gap:
    from_index: int
    to_index: int
    reason: str


class ListRecords:
    """Satisfies `Records`."""

    batch_bytes_max = 1 << 20
    is_mapped = True

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.first_index = 0
        self.next_index = 0
        self.synced_index = 0
        self.last_timestamp_ms = 0
        self.gaps: list[Gap] = []
        self.batches: list[bytes] = []
        self.starts: list[int] = []
        self.warmed: list[tuple[int, int]] = []
        self.looked_at_count = 0
        """How often a batch was asked for."""
        self._now_ms = now_ms

    @property
    def back_file_size_bytes(self) -> int:
        return sum(map(len, self.batches))

    def append_batches(self, batches: Sequence[bytes | bytearray | memoryview]) -> int:
        first = self.next_index
        self.last_timestamp_ms = self._now_ms()
        for batch in batches:
            self.starts.append(self.next_index)
            self.batches.append(stamped(memoryview(batch), self.next_index, self.last_timestamp_ms) + bytes(batch[32:]))
            self.next_index += Batch(bytes(batch)).count
        return first

    def lose(self, count: int, reason: str = "lost") -> None:
        """As if a power cut had cost so many."""
        self.gaps.append(Gap(self.next_index, self.next_index + count, reason))
        self.next_index += count

    def flush(self) -> int:
        self.synced_index = self.next_index
        return self.next_index

    def batch_of(self, index: int, *, verify: bool = False) -> Batch:
        self.looked_at_count += 1
        if not self.first_index <= index < self.next_index:
            raise IndexError(index)
        return Batch(self.batches[bisect_right(self.starts, index) - 1])

    def cut(self, start: int, stop: int, bytes_max: int) -> Cut:
        place = bisect_right(self.starts, start) - 1
        data = b""
        end = start
        while place < len(self.batches):
            batch = Batch(self.batches[place])
            if data and (
                batch.first_index != end or batch.end_index > stop or len(data) + batch.total_bytes > bytes_max
            ):
                break
            data += self.batches[place]
            end = batch.end_index
            place += 1
        return Cut(memoryview(data), start, end)

    def find_closest_index(self, timestamp_ms: int) -> int:
        return next(
            (
                max(start, self.first_index)
                for start in self.starts
                if self.batch_of(start).timestamp_ms >= timestamp_ms
            ),
            self.next_index,
        )

    def warm(self, start: int, stop: int) -> None:
        self.warmed.append((start, stop))

    def remove_to(self, index: int) -> int:
        self.first_index = max(self.first_index, index)
        return self.first_index

    def remove_before(self, timestamp_ms: int) -> int:
        raise NotImplementedError

    def end_of_live(self, start: int, stop: int) -> int:
        return stop

    def limit_back_file_size(self, size_bytes: int) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to be closed."""


class HandDisk:
    """Satisfies `Disk`. At once, or with `held` when `work` is called."""

    def __init__(self) -> None:
        self.held = False
        self.failing = ""
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def _put(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((work, done))
        if not self.held:
            self.work()

    make = append = sync = compact = read = _put
    room = bytearray

    def work(self, count: int = 1 << 30) -> None:
        """Do so many of the jobs."""
        while self.jobs and count:
            work, done = self.jobs.popleft()
            done(DiskError(self.failing) if self.failing else work())
            count -= 1


class DictPlace:
    """Satisfies `GroupPlace`: saves when somebody waits, and after a second."""

    def __init__(self, keeper: DictKeeper, key: tuple[str, str], state: Callable[[], GroupState]) -> None:
        self.key = key
        self.state = state
        self._keeper = keeper
        self._forgotten = False

    def changed(self) -> None:
        if self.key in self._keeper.states:
            self._keeper.dirty[self] = None

    def when_settled(self, callback: Callable[[], None]) -> None:
        if self._forgotten:
            callback()
            return
        self._keeper.dirty[self] = None
        self._keeper.done(callback)

    def forget(self) -> None:
        self._forgotten = True
        self._keeper.dirty.pop(self, None)


class DictKeeper(NoProducers):
    """Satisfies `LogKeeper`; answers at once, or with `held` when `answer` is called."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], GroupState] = {}
        self.held = False
        self.dirty: dict[DictPlace, None] = {}
        self._answers: list[Callable[[], None]] = []

    def done(self, callback: Callable[[], None]) -> None:
        """Call this when all that changed is saved."""
        self._answers.append(callback)
        if not self.held:
            self.answer()

    def answer(self) -> None:
        """Save what changed, and tell who waits."""
        self.save()
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()

    def save(self) -> None:
        """What a second does."""
        dirty, self.dirty = self.dirty, {}
        for place in dirty:
            self.states[place.key] = place.state()

    def place(self, log: str, group: str, state: Callable[[], GroupState]) -> DictPlace:
        return DictPlace(self, (log, group), state)

    def create(self, log: str, group: str, place: DictPlace, done: Callable[[Exception | None], None]) -> None:
        self.states[log, group] = place.state()
        self.done(lambda: done(None))

    def delete(self, log: str, group: str, done: Callable[[Exception | None], None]) -> None:
        self.states.pop((log, group), None)
        self.done(lambda: done(None))


@attrs.define(eq=False)
class RunDelivery:
    subscription: Subscription
    run: BatchRun
    attempts: int | None

    @property
    def indexes(self) -> range:
        return range(self.run.first_index, self.run.end_index)


class LogReader(FakeConsumer):
    """Takes records, or with `batch_bytes` runs."""

    def __init__(
        self,
        world: World,
        window: int | None = None,
        size_bytes: int | None = None,
        *,
        batch_bytes: int | None = None,
        codecs: Iterable[Codec] = (Codec.NONE,),
        order: str = "",
        **options: bool,
    ) -> None:
        super().__init__(world, window, size_bytes, **options)
        self.batch_bytes = batch_bytes
        self.codecs = frozenset(codecs)
        self.stops_at_gaps = False
        self.order = order
        self.selection: Selection | None = None
        self.runs: list[RunDelivery] = []
        self.held_runs: list[RunDelivery] = []
        self.gaps: list[tuple[int, int, str]] = []
        self.ends: list[int] = []
        self.deleted_count = 0

    def deliver_run(self, subscription: Subscription, run: BatchRun, failures: int | None) -> None:
        assert not subscription.source.blocked, "a delivery without credit"
        delivery = RunDelivery(subscription, run, failures)
        self.runs.append(delivery)
        self.held_runs.append(delivery)
        self.window.charge(1, len(run.data), subscription.source)

    def tell_gap(self, subscription: Subscription, start: int, end: int, reason: str) -> None:
        self.gaps.append((start, end, reason))

    def tell_end(self, subscription: Subscription, index: int) -> None:
        self.ends.append(index)

    def tell_deleted(self, subscription: Subscription) -> None:
        self.deleted_count += 1

    def settle_run(self, delivery: RunDelivery) -> None:
        self.held_runs.remove(delivery)
        self.window.release(1, len(delivery.run.data))
        delivery.subscription.settle((delivery.run.first_index,), len(delivery.run.data))

    def return_run(self, delivery: RunDelivery, *, attempted: bool = True) -> None:
        self.held_runs.remove(delivery)
        self.window.release(1, len(delivery.run.data))
        delivery.subscription.requeue((delivery.run.first_index,), attempted=attempted)


class LogWorld(World):
    """A world with one log."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES, budget_count: int = 1024, **policy: object) -> None:
        super().__init__(budget_count=budget_count)
        self.records = ListRecords(lambda: self.now_ms)
        self.disk = HandDisk()
        self.keeper = DictKeeper()
        self.failing: list[str] = []
        self.reading = RecordCache(cache_bytes, HeaderCodec(), manager=self.manager, clock=self.environment.clock)
        self.log = Log(
            "/log/a",
            self.records,
            self.disk,
            make_policy(**policy),
            self.environment,
            self.reading,
            log_id="id",
            on_failing=lambda _name, what: self.failing.append(what),
        )

    def fill(self, *counts: int, codec: Codec = Codec.NONE, value_bytes: int = 0) -> None:
        """Batches of so many records, numbered by their indexes, straight into the file."""
        for count in counts:
            first = self.records.next_index
            values = [str(n).encode().ljust(value_bytes, b".") for n in range(first, first + count)]
            self.records.append_batches([encode(values, codec=codec)])
        self.log.page_cache.written(self.records.first_index, 1)
        for outlet in tuple(self.log.outlets):
            outlet.context.request_dispatch()
        self.run()

    def outlet(self, start: int = 0, stop: int | None = None) -> LogReaders:
        return LogReaders(self.log, "reader", start, stop=stop)

    def group(self, state: GroupState | None = None, name: str = "g") -> Group:
        self.keeper.states.setdefault((self.log.name, name), state or GroupState(0))
        return Group(self.log, name, state or GroupState(0), self.keeper)

    def reader(self, window: int | None = None, size_bytes: int | None = None, **options: Any) -> LogReader:
        return LogReader(self, window, size_bytes, **options)

    def join(
        self, outlet: LogReaders, window: int | None = None, size_bytes: int | None = None, **options: Any
    ) -> LogReader:
        """A new reader of this outlet."""
        reader = self.reader(window, size_bytes, **options)
        outlet.subscribe(reader)
        self.run()
        return reader


def sends(bodies: Iterable[bytes], *lines: str) -> list[Message]:
    """SENDs to the log, all with these header lines."""
    head, _receipt = SendHead.parse("\n".join(("destination:/log/a", *lines)).encode(), "1.2", StompLimits())
    return [Message(head, head.block + b"\n\n" + body + b"\0", number) for number, body in enumerate(bodies)]


def texts(part: Slice) -> list[bytes]:
    return [message.wire.split(b"\n\n", 1)[1][:-1] for message in part.messages]
