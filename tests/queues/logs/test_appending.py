"""What senders of a log are told: order, receipts, room, faults of the disk, the end of the log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from sluiceway.flow import Flow, FlowResource, SourceController
from sluiceway.queues.logs.answers import AT_ONCE_COUNT
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.log import GONE, WOKEN_PER_STEP
from sluiceway.queues.logs.offers import RefusedSendError
from sluiceway.queues.message import Message
from tests.queues.logs.rig import LogWorld, sends


class Sender(FlowResource):
    def __init__(self, world: LogWorld) -> None:
        super().__init__("sender", "connection", world.manager)
        self.resumed_count = 0
        self.source = SourceController(
            self, Flow("sends"), on_resume=lambda _sink: self._resumed(), clock=world.environment.clock
        )
        self.told: list[tuple[str, list[tuple[int, int]]]] = []
        self.world = world
        self.open()

    def _resumed(self) -> bool:
        self.resumed_count += 1
        return False

    def offer(self, messages: list[Message]) -> bool:
        taken = self.world.log.offer(messages, sum(len(message.wire) for message in messages), self.source)
        if taken:
            self.world.log.when_durable(self._told)
        return taken

    def _told(self, how: str, indexes: Sequence[tuple[int, int]]) -> None:
        self.told.append((how, list(indexes)))

    def is_blocked(self) -> bool:
        return self.source.blocked


def used_bytes(world: LogWorld) -> int:
    return world.log.controller.limiter.used_bytes


def test_sends_of_one_head_become_one_batch_and_keep_their_indexes() -> None:
    world = LogWorld()
    sender = Sender(world)
    sender.offer(sends([b"a", b"b"], "k:1") + sends([b"c"], "k:2") + sends([b"d"], "k:1", "content-length:1"))
    batch = encode([b"x", b"y"], head=b"own:1")
    sender.offer(sends([batch, batch], f"content-type:{CONTENT_TYPE}"))
    world.run()
    assert sender.told == [("disk", [(0, 1), (1, 1), (2, 1), (3, 1)]), ("disk", [(4, 2), (6, 2)])]
    assert [world.records.batch_of(start).head for start in world.records.starts] == [
        b"k:1", b"k:2", b"k:1", b"own:1", b"own:1",
    ]  # fmt: skip
    assert used_bytes(world) == 0


def test_one_write_is_under_way_at_a_time_and_takes_what_gathered() -> None:
    world = LogWorld()
    world.disk.held = True
    sender = Sender(world)
    for number in range(5):
        sender.offer(sends([b"%d" % number]))
        world.run()
    assert len(world.disk.jobs) == 1
    world.disk.work(1)
    assert world.records.next_index == 1
    assert sender.told == []
    world.disk.held = False
    world.disk.work()
    world.run()
    assert world.records.next_index == 5
    assert [indexes[0][0] for _how, indexes in sender.told] == [0, 1, 2, 3, 4]


def test_a_full_log_holds_its_senders_back_and_resumes_them() -> None:
    world = LogWorld(memory_bytes=5000)
    world.disk.held = True
    sender = Sender(world)
    taken = 0
    while sender.offer(sends([b"x" * 500])):
        taken += 1
        assert taken < 20
    assert sender.is_blocked()
    assert not sender.offer(sends([b"y"]))
    world.disk.held = False
    world.disk.work()
    world.run()
    assert sender.resumed_count == 1
    assert not sender.is_blocked()
    assert used_bytes(world) == 0
    assert world.records.next_index == taken


def test_what_the_disk_refuses_is_written_later_in_order() -> None:
    world = LogWorld()
    world.disk.failing = "full"
    sender = Sender(world)
    for number in range(3):
        sender.offer(sends([b"%d" % number]))
        world.run()
    world.advance(5)
    assert (sender.told, world.records.next_index) == ([], 0)
    assert world.failing == ["full"]
    assert used_bytes(world) > 0
    world.disk.failing = ""
    world.advance(2)
    assert [indexes for _how, indexes in sender.told] == [[(0, 1)], [(1, 1)], [(2, 1)]]
    assert world.failing == ["full", ""]
    assert used_bytes(world) == 0


def test_a_bad_one_in_a_run_is_named_and_nothing_of_the_run_is_taken() -> None:
    world = LogWorld()
    sender = Sender(world)
    run = [*sends([b"good"]), *sends([encode([b"a"])], f"content-type:{CONTENT_TYPE}")]
    run += sends([b"bad"], f"content-type:{CONTENT_TYPE}")
    with pytest.raises(RefusedSendError) as caught:
        sender.offer(run)
    assert caught.value.place == 2
    world.run()
    assert (world.records.next_index, used_bytes(world)) == (0, 0)
    assert sender.offer(run[:2])
    world.run()
    assert world.records.next_index == 2


def test_records_that_fill_more_than_a_file_become_several_batches() -> None:
    world = LogWorld(log_batch_bytes_max=1 << 20, memory_bytes=1 << 30)
    sender = Sender(world)
    sender.offer(sends([b"x" * 400_000] * 7, "k:v"))
    world.run()
    assert world.records.next_index == 7
    assert max(map(len, world.records.batches)) <= world.records.batch_bytes_max
    assert sender.told == [("disk", [(number, 1) for number in range(7)])]


@pytest.mark.parametrize("jobs_count", [0, 1, 2])
def test_a_deleted_log_tells_who_waits_whatever_is_under_way(jobs_count: int) -> None:
    """And what the disk answers later is nobody's business."""
    world = LogWorld()
    world.disk.held = True
    sender = Sender(world)
    sender.offer(sends([b"a"]))
    world.run()
    sender.offer(sends([b"b"]))
    world.disk.work(jobs_count)
    world.run()
    settled: list[int] = []
    world.log.when_settled(lambda: settled.append(1))
    told_before = len(sender.told)
    world.log.close(deleted=True)
    assert settled == [1]
    assert [how for how, _indexes in sender.told[told_before:]] == [GONE] * (2 - told_before)
    world.disk.held = False
    world.disk.work()
    world.advance(10)
    assert len(sender.told) == 2


def test_who_asks_when_all_is_safe_is_told_when_it_is() -> None:
    world = LogWorld()
    world.disk.held = True
    told: list[int] = []
    world.log.when_settled(lambda: told.append(0))
    assert told == [0], "nothing was ever offered"
    sender = Sender(world)
    world.log.offer(sends([b"a"]), 10, sender.source)
    world.run()
    world.log.when_settled(lambda: told.append(1))
    world.disk.work(1)
    world.run()
    assert told == [0]
    world.disk.work()
    world.run()
    assert told == [0, 1]
    world.log.offer(sends([b"b"]), 10, sender.source)
    world.run()
    world.disk.work(1)
    world.log.when_settled(lambda: told.append(2))
    assert told == [0, 1], "written without a waiter, not synced"
    world.disk.held = False
    world.disk.work()
    world.run()
    assert told == [0, 1, 2]


@pytest.mark.parametrize("log_sync", ["receipt", "interval"])
@pytest.mark.parametrize("asked", ["before", "between", "behind"])
@pytest.mark.parametrize("ending", ["answer", "receipt"])
def test_who_is_answered_may_delete_the_log_in_the_midst_of_what_was_written(
    log_sync: str, asked: str, ending: str
) -> None:
    """Each sender is told once, and nothing is charged any more."""
    world = LogWorld(log_sync=log_sync)
    world.disk.held = True
    senders = [Sender(world) for _ in range(4)]

    def end() -> None:
        world.log.close(deleted=True)

    def watch() -> None:
        if ending == "answer":
            world.log.when_written(end)
        else:
            world.log.when_durable(lambda _how, _indexes: end())

    senders[0].offer(sends([b"under way"]))
    world.run()
    senders[1].offer(sends([b"a"], "k:1"))
    if asked == "before":
        watch()
    senders[2].offer(sends([b"b"], "k:2"))
    if asked == "between":
        watch()
    senders[3].offer(sends([b"c"], "k:3"))
    if asked == "behind":
        watch()
    world.disk.held = False
    world.disk.work()
    world.advance(10)
    assert world.log.closed
    assert [len(sender.told) for sender in senders] == [1] * 4
    assert not any(sender.is_blocked() for sender in senders)
    assert used_bytes(world) == 0


def test_all_who_ask_behind_the_same_send_are_answered() -> None:
    world = LogWorld()
    world.disk.held = True
    sender = Sender(world)
    sender.offer(sends([b"a"]))
    answered: list[int] = []
    for number in range(3):
        world.log.when_written(lambda number=number: answered.append(number))  # type: ignore[misc]
    world.run()
    assert answered == []
    world.disk.work(1)
    assert answered == [0, 1, 2]


def test_a_log_that_is_deleted_when_its_disk_fails_asks_the_disk_no_more() -> None:
    world = LogWorld()
    world.disk.failing = "full"
    world.disk.held = True
    sender = Sender(world)
    sender.offer(sends([b"a"]))
    world.log.when_written(lambda: world.log.close(deleted=True))
    world.run()
    world.disk.work()
    assert world.log.closed
    assert [how for how, _indexes in sender.told] == [GONE]
    world.advance(10)
    assert not world.disk.jobs


# ---------------------------------------------------------------------- many who wait


def test_many_who_wait_for_one_sync_are_told_in_order_and_a_few_at_a_time() -> None:
    world = LogWorld(memory_bytes=1 << 30)
    told: list[int] = []
    world.disk.held = True
    for number in range(1_000):
        assert world.log.offer(sends([b"x"]), 100, Sender(world).source)
        world.log.when_durable(lambda _how, indexes, number=number: told.append(indexes[0][0] - number))  # type: ignore[misc]
        if number == 500:
            world.run()
    while world.disk.jobs and world.records.synced_index < 1_000:
        world.disk.work(1)
        assert len(told) <= AT_ONCE_COUNT
        if world.records.synced_index < 1_000:
            world.run()
            assert told == [0] * len(told)
    assert len(told) < 1_000
    world.log.when_settled(lambda: told.append(len(told)))
    assert 1_000 not in told, "not before those who wait longer"
    world.run()
    assert told == [0] * 1_000 + [1_000]


def test_who_waits_for_what_was_written_and_told_waits_for_its_sync() -> None:
    world = LogWorld(log_sync="none")
    sender = Sender(world)
    sender.offer(sends([b"a"]))
    world.run()
    assert sender.told == [("memory", [(0, 1)])]
    world.disk.held = True
    told: list[int] = []
    for number in range(3):
        world.log.when_settled(partial(told.append, number))
    assert told == []
    world.disk.work()
    world.run()
    assert (told, world.records.synced_index) == ([0, 1, 2], 1)


@pytest.mark.parametrize("end", ["deleted", "abandoned", "stopped"])
def test_all_who_wait_when_the_log_ends_hear_what_became_of_it(end: str) -> None:
    """Also those who were to be told that all is well."""
    world = LogWorld(memory_bytes=1 << 30)
    world.disk.held = True
    told: list[str] = []
    for _ in range(300):
        world.log.offer(sends([b"x"]), 100, Sender(world).source)
        world.log.when_durable(lambda how, _indexes: told.append(how))
    world.run()
    world.disk.work(2)  # written, synced
    for _ in range(300):
        world.log.offer(sends([b"x"]), 100, Sender(world).source)
        world.log.when_durable(lambda how, _indexes: told.append(how))
        world.log.when_written(partial(told.append, "written"))
    world.log.close(deleted=end == "deleted", abandoned=end == "abandoned")
    world.run()
    good = ["disk"] * 300
    if end == "stopped":
        assert told == good
    else:
        assert told == good + ["written"] * 300 + ([GONE] * 300 if end == "deleted" else [])


def test_readers_at_the_end_are_woken_all_though_they_are_many() -> None:
    world = LogWorld()
    readers = [world.join(world.outlet()) for _ in range(3 * WOKEN_PER_STEP)]
    world.log.offer(sends([b"x"]), 100, Sender(world).source)
    world.run()
    assert {len(reader.held) for reader in readers} == {1}
