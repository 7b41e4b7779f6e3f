"""New logs: their files are made by a thread, and nobody but who uses them waits."""

from __future__ import annotations

from sluiceway.flow import Flow, FlowResource, SourceController
from sluiceway.queues.logs.log import AGAIN_SECONDS, Log
from sluiceway.queues.logs.positions import Position, PositionKind
from sluiceway.views.logs import log_figures
from tests.queues.logs.claim_rig import SinkWorld
from tests.queues.logs.rig import DictKeeper, sends

A = "/log/a"
NEXT = Position(PositionKind.NEXT, 0)


class MakingWorld(SinkWorld):
    """Logs whose files are made when the disk is told to work."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper = DictKeeper()
        self.table._keeper = self.keeper
        self.disk.held = True

    def offer(self, log: Log, body: bytes) -> None:
        producer = FlowResource("producer", "test", self.manager)
        source = SourceController(producer, Flow("sends"), clock=self.environment.clock)
        (message,) = sends([body], "k:1")
        assert log.offer([message], len(message.wire), source)
        self.run()

    def work(self) -> None:
        while self.disk.jobs:
            self.disk.work(1)
            self.run()


def test_a_log_is_used_before_its_files_are_there() -> None:
    world = MakingWorld()
    log = world.table.get(A)
    world.offer(log, b"x")
    assert not world.shelf.records, "the loop made files"
    assert len(world.disk.jobs) == 1, "what was sent waits for them"
    assert log_figures(world.table, log)["next"] == 0
    world.work()
    assert world.bodies(A) == ["x"]
    assert (log.records.next_index, log.failing) == (1, "")
    assert log.log_id == world.shelf.open(A).log_id


def test_what_can_not_be_made_is_made_later() -> None:
    """What was sent waits, as on a full disk."""
    world = MakingWorld()
    world.disk.failing = "full"
    log = world.table.get(A)
    world.offer(log, b"x")
    asked: list[str] = []
    log.when_written(lambda: asked.append("answered"))
    world.work()
    assert log.failing == "full"
    assert asked == ["answered"], "who asks about it does not wait for the disk"
    world.advance(AGAIN_SECONDS)
    world.work()
    assert not world.shelf.records
    world.disk.failing = ""
    world.advance(AGAIN_SECONDS)
    world.work()
    assert world.bodies(A) == ["x"]
    assert log.failing == ""


def test_a_group_is_kept_when_its_log_is() -> None:
    """Or a broker that starts again would find a group without its log, and forget it."""
    world = MakingWorld()
    told: list[Exception | None] = []
    world.table.make_group(world.table.get(A), "g", NEXT, told.append)
    assert not told
    assert not world.keeper.states
    world.work()
    assert told == [None]
    assert list(world.keeper.states) == [(A, "g")]


def test_a_group_of_a_log_that_can_not_be_made_is_refused() -> None:
    world = MakingWorld()
    world.disk.failing = "full"
    told: list[Exception | None] = []
    log = world.table.get(A)
    world.table.make_group(log, "g", NEXT, told.append)
    world.work()
    assert [str(error) for error in told] == ["full"]
    assert world.table.groups[A] == {}


def test_a_group_that_is_deleted_before_its_log_is_made_stays_deleted() -> None:
    world = MakingWorld()
    log = world.table.get(A)
    world.table.make_group(log, "g", NEXT, lambda _error: None)
    deleted: list[Exception | None] = []
    world.table.delete_group(log, "g", deleted.append)
    world.work()
    assert not world.keeper.states
    assert deleted == [None], "what keeps groups never knew of it"


def test_a_log_that_is_deleted_while_it_is_made_leaves_nothing() -> None:
    world = MakingWorld()
    log = world.table.get(A)
    world.offer(log, b"x")
    done: list[object] = []
    world.table.remove(log, done.append)
    world.work()
    assert done == [None]
    assert not world.shelf.records
    assert world.table.get(A) is not log


def test_truncating_what_is_not_made_yet_does_nothing() -> None:
    world = MakingWorld()
    log = world.table.get(A)
    done: list[object] = []
    for before in (NEXT, Position(PositionKind.TIME, 5), 0):
        world.table.truncate(log, before, done.append)
    world.work()
    assert done == [0, 0, 0]


def test_who_waits_for_a_log_that_can_not_be_made_is_told_when_it_is_deleted() -> None:
    """Nobody tries to make it any more."""
    world = MakingWorld()
    world.disk.failing = "full"
    log = world.table.get(A)
    world.work()
    told: list[Exception | None] = []
    world.table.make_group(log, "g", NEXT, told.append)
    world.table.remove(log, lambda _error: None)
    world.work()
    assert len(told) == 1
    assert "deleted" in str(told[0])


def test_a_group_is_not_kept_once_the_broker_stops() -> None:
    """What keeps groups is closed before the last files are made."""
    world = MakingWorld()
    told: list[Exception | None] = []
    world.table.make_group(world.table.get(A), "g", NEXT, told.append)
    world.table.close()
    world.work()
    assert not world.keeper.states
    assert not told
