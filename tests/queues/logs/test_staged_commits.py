"""Staged commits: each batch of a query is published once, whole, whatever happens meanwhile."""

from __future__ import annotations

import pytest

from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.staged_commits import COMMIT_HEADER, QUERIES_MAX, STAGE_SECONDS, SinkState, StagedPart
from sluiceway.queues.logs.table import LogError
from tests.queues.logs.claim_rig import Answers, SinkWorld

T = "/log/t"


def test_a_commit_publishes_all_of_its_stages_in_order() -> None:
    world = SinkWorld()
    a, b = world.stage("a", "1", "2"), world.stage("b", "3")
    world.put(T, "0")
    assert world.commit(0, (a, T), (b, "/log/u")).one == {"batch": 0, "published": True}
    assert world.bodies(T) == ["0", "1", "2"]
    assert world.bodies("/log/u") == ["3"]
    assert world.stages == []
    assert world.sinks.describe("q") == {"query": "q", "batch": 0, "publishing": None}


def test_published_records_are_synced_whatever_the_policy_says() -> None:
    world = SinkWorld()
    world.commit(0, (world.stage("a", "1"), T))
    assert world.shelf.records[T].synced_index == 1


def test_a_part_is_marked_and_keeps_its_headers() -> None:
    world = SinkWorld()
    world.commit(7, (world.stage("a", "1", lines="k:1"), T), query="é")
    assert world.shelf.records[T].batch_of(0).head == b"k:1\n" + COMMIT_HEADER + b":c3a9/7/0"


def test_a_batch_is_published_once() -> None:
    world = SinkWorld()
    a = world.stage("a", "1")
    world.commit(3, (a, T))
    assert world.commit(3, (a, T)).one == {"batch": 3, "published": False}
    assert world.commit(2, (world.stage("b", "2"), T)).one == {"batch": 2, "published": False}
    assert world.bodies(T) == ["1"]
    assert world.stages == [], "what came too late is dropped"
    world.commit(9, (world.stage("c", "3"), T))
    assert world.bodies(T) == ["1", "3"]


def test_a_batch_without_rows_counts() -> None:
    world = SinkWorld()
    assert world.commit(0).one == {"batch": 0, "published": True}
    assert world.commit(0).one == {"batch": 0, "published": False}


def test_queries_do_not_meet() -> None:
    world = SinkWorld()
    world.commit(0, (world.stage("a", "1"), T), query="q")
    world.commit(0, (world.stage("b", "2"), T), query="p")
    assert world.bodies(T) == ["1", "2"]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([("/log/sluiceway.stage.none", T)], "there is no log"),
        ([("/log/a", T)], "is no stage"),
        ([("/log/sluiceway.stage.a", "/log/sluiceway.stage.b")], "no target"),
        ([("/log/sluiceway.stage.a", "/log/sluiceway.claims.b")], "no target"),
        ([("/log/sluiceway.stage.a", "/queue/b")], "can't be a log"),
        ([("/log/sluiceway.stage.a", T), ("/log/sluiceway.stage.a", "/log/u")], "named twice"),
    ],
)
def test_what_can_not_be_committed_is_refused_with_nothing_done(parts: list[tuple[str, str]], says: str) -> None:
    world = SinkWorld()
    world.stage("a", "1")
    with pytest.raises(LogError, match=says):
        world.commit(0, *parts)
    assert world.kept.states == {}
    assert world.commit(0, ("/log/sluiceway.stage.a", T)).one["published"] is True


def test_a_stage_that_is_being_published_is_no_other_querys() -> None:
    world = SinkWorld()
    a = world.stage("a", "1")
    world.disk.held = True
    world.commit(0, (a, T))
    with pytest.raises(LogError, match="another query"):
        world.commit(0, (a, T), query="p")


# ---------------------------------------------------------------------- again and again


def test_who_commits_again_meanwhile_hears_of_the_same() -> None:
    world = SinkWorld()
    a = world.stage("a", "1")
    world.kept.held = world.disk.held = True
    first = world.commit(0, (a, T))
    second = world.commit(0, (world.stage("b", "2"), T))
    with pytest.raises(LogError, match="batch 0 of q is being published"):
        world.commit(1, (a, T))
    world.kept.held = world.disk.held = False
    world.kept.answer()
    world.disk.work()
    world.run()
    assert first.one == second.one == {"batch": 0, "published": True}
    assert world.bodies(T) == ["1"]
    assert world.stages == [], "those of the repetition too"


def test_a_commit_that_failed_must_be_finished_before_the_next() -> None:
    world = SinkWorld()
    a = world.stage("a", "1")
    world.kept.failing = True
    assert world.commit(0, (a, T)).error.code == "INTERNAL_ERROR"
    with pytest.raises(LogError, match="commit it again first"):
        world.commit(1, (a, T))
    world.kept.failing = False
    assert world.commit(0, (a, T)).one["published"] is True
    assert world.bodies(T) == ["1"]


def test_nothing_is_published_before_the_intent_is_kept() -> None:
    world = SinkWorld()
    a = world.stage("a", "1")
    world.kept.held = True
    world.commit(0, (a, T))
    assert world.bodies(T) == []
    world.kept.answer()
    world.run()
    assert world.bodies(T) == ["1"]


def test_a_batch_that_is_published_and_not_noted_is_noted_by_the_next_commit() -> None:
    world = SinkWorld()
    a = world.stage("a", "1")
    world.kept.held = True
    first = world.commit(0, (a, T))
    world.kept.answer()
    world.kept.failing = True
    world.run()
    world.kept.answer()
    assert first.error.code == "INTERNAL_ERROR"
    world.kept.failing = world.kept.held = False
    assert world.commit(0, (a, T)).one["published"] is True
    assert world.bodies(T) == ["1"]


def test_a_part_that_waits_for_a_full_disk_is_not_appended_twice() -> None:
    world = SinkWorld()
    a, b = world.stage("a", "1"), world.stage("b", "2")
    world.kept.held = True
    first = world.commit(0, (a, T), (b, "/log/u"))
    world.kept.held = False
    world.disk.held = True
    world.kept.answer()
    world.run()
    world.disk.work(2)  # both are looked at
    world.disk.failing = "no space left"
    world.disk.work()
    world.disk.held = False
    world.run()
    assert not first.found
    assert world.bodies(T) == []
    second = world.commit(0, (a, T), (b, "/log/u"))
    assert not second.found
    world.disk.failing = ""
    world.advance(2)
    world.advance(2)
    assert first.one == second.one
    assert world.bodies(T) == ["1"]
    assert world.bodies("/log/u") == ["2"]


# ---------------------------------------------------------------------- giving up


def test_stages_can_be_dropped() -> None:
    world = SinkWorld()
    a, b = world.stage("a", "1"), world.stage("b", "2")
    world.put(T, "0")
    world.sinks.drop([a, "/log/sluiceway.stage.none", T])
    assert world.stages == [b]
    assert world.bodies(T) == ["0"]


def test_stages_of_a_commit_that_has_begun_stay() -> None:
    """Who gives up a commit whose outcome he has not heard undoes nothing."""
    world = SinkWorld()
    a = world.stage("a", "1")
    world.kept.failing = True
    world.commit(0, (a, T))
    world.sinks.drop([a])
    world.kept.failing = False
    world.sinks.drop([a])
    assert world.commit(0, (world.stage("b", "1"), T)).one["published"] is True
    assert world.bodies(T) == ["1"]
    assert world.stages == []


def test_stages_that_nobody_wants_go_after_a_day() -> None:
    world = SinkWorld()
    world.stage("old", "1")
    waiting = world.stage("waiting", "2")
    world.kept.failing = True
    world.commit(0, (waiting, T))
    world.advance(STAGE_SECONDS + 1)
    new = world.stage("new", "1")
    world.sinks.drop_forgotten()
    world.run()
    assert sorted(world.stages) == sorted([waiting, new])


def test_a_commit_whose_stage_is_gone_is_void_and_can_be_made_anew() -> None:
    world = SinkWorld()
    a, b = world.stage("a", "1"), world.stage("b", "2")
    world.kept.held = True
    first = world.commit(0, (a, T), (b, T))
    world.table.remove(world.table.logs[b], lambda _result: None)
    world.kept.held = False
    world.kept.answer()
    world.run()
    assert first.error.code == "COMMIT_VOID"
    assert world.bodies(T) == []
    assert world.commit(0, (world.stage("c", "1"), T), (world.stage("d", "2"), T)).one["published"] is True
    assert world.bodies(T) == ["1", "2"]


def test_a_damaged_stage_publishes_nothing_of_the_batch() -> None:
    world = SinkWorld()
    a, b = world.stage("a", "1"), world.stage("b", "2")
    world.shelf.records[b].batches[0] = world.shelf.records[b].batches[0][:-4] + b"oops"
    assert world.commit(0, (a, T), (b, T)).error.code == "COMMIT_VOID"
    assert world.bodies(T) == []
    assert world.sinks.describe("q") == {"query": "q", "batch": -1, "publishing": None}


def test_a_stage_with_other_records_than_were_counted_is_not_published() -> None:
    world = SinkWorld()
    a = world.stage("a", "1", "2")
    answers = Answers()
    world.sinks.commit("q", 0, [StagedPart(a, T, 3)], answers)
    world.run()
    assert answers.error.code == "COMMIT_VOID"
    assert world.bodies(T) == []
    right = Answers()
    world.sinks.commit("q", 0, [StagedPart(a, T, 2)], right)
    world.run()
    assert right.one["published"] is True


def test_batches_that_the_target_can_not_hold_are_cut() -> None:
    """Files of a log are as large as they were when it was made."""
    world = SinkWorld()
    stage = world.stage("a")
    world.put(T)
    values = [str(number).encode().rjust(100) for number in range(50)]
    world.table.get(stage)
    world.shelf.records[stage].append_batches([encode(values, head=b"k:1", keys=values)])
    world.table.get(T)
    world.shelf.records[T].batch_bytes_max = 1000
    assert world.commit(0, (stage, T)).one["published"] is True
    assert [body.strip() for body in world.bodies(T)] == [str(number) for number in range(50)]
    assert all(len(batch) <= 1000 for batch in world.shelf.records[T].batches)


def test_a_record_that_the_target_can_not_hold_voids_the_commit() -> None:
    world = SinkWorld()
    world.table.get(T)
    world.shelf.records[T].batch_bytes_max = 1000
    stage = world.stage("a", "x" * 2000)
    error = world.commit(0, (stage, T)).error
    assert error.code == "COMMIT_VOID"
    assert "does not fit" in str(error)
    world.put(T, "still good")
    assert world.bodies(T) == ["still good"]


def test_a_target_that_is_deleted_meanwhile_ends_the_commit() -> None:
    world = SinkWorld()
    a = world.stage("a", "1")
    world.kept.held = True
    answers = world.commit(0, (a, T))
    world.kept.held = False
    world.disk.held = True
    world.kept.answer()
    world.disk.work(1)
    world.run()
    world.table.remove(world.table.logs[T], lambda _result: None)
    world.disk.held = False
    world.disk.work()
    world.run()
    assert answers.one["published"] is True


@pytest.mark.parametrize("which", ["target", "stage"])
def test_a_commit_that_waits_for_a_log_that_breaks_is_told_and_goes_on_with_the_next_start(which: str) -> None:
    """It is not void: its part may be on the disk."""
    world = SinkWorld()
    a, b = world.stage("a", "1"), world.stage("b", "2")
    world.disk.held = True
    answers = world.commit(0, (a, T), (b, "/log/u"))
    world.disk.work(2)  # both are looked at
    world.run()
    world.disk.work(2)  # and appended; nobody is told
    log = world.table.logs[T if which == "target" else a]
    world.table.abandon(log)
    world.sinks.abandon(log)
    assert answers.error.code == "destination-failed"
    world.disk.held = False
    world.disk.work()
    world.run()
    again = world.commit(0, (a, T), (b, "/log/u"))
    if which == "target":
        assert again.error.code == "destination-failed"
    else:
        assert again.one["published"] is True
    world.restart()
    assert world.commit(0, (a, T), (b, "/log/u")).one["published"] is False, "the next start has finished it"
    assert (world.bodies(T), world.bodies("/log/u")) == (["1"], ["2"])


def test_a_commit_whose_target_can_not_be_opened_is_not_void() -> None:
    """What is published in there would be published again from other stages."""
    world = SinkWorld()
    a = world.stage("a", "1")
    world.put(T, "0")
    world.kept.held = True
    world.commit(0, (a, T))
    world.kept.answer()
    world.kept.failing = True
    world.run()
    world.kept.answer()
    assert world.bodies(T) == ["0", "1"], "published, and not noted"
    world.shelf.broken.add(T)
    world.restart()
    with pytest.raises(LogError, match="can't be opened"):
        world.table.get(T)
    assert world.commit(0, (a, T)).error.code == "INTERNAL_ERROR"
    world.shelf.broken.clear()
    assert world.commit(0, (a, T)).one["published"] is True
    assert world.bodies(T) == ["0", "1"]


def _intended_and_crashed() -> tuple[SinkWorld, str]:
    """A commit whose intent is kept, and of which nothing is published."""
    world = SinkWorld()
    world.put(T, "old 1", "old 2", "old 3")
    a = world.stage("a", "1")
    world.kept.held = True
    world.commit(0, (a, T))
    world.disk.held = True
    world.kept.answer()
    world.run()
    assert world.kept.states["q"].intended == 0
    return world, a


def test_what_is_published_in_a_target_that_was_made_anew_is_found_there() -> None:
    """Its indexes begin anew: where the old one ended is nowhere in it."""
    world, _a = _intended_and_crashed()
    intent = world.kept.states["q"]
    world.shelf.remove(T)
    world.restart()
    assert world.bodies(T) == ["1"]
    world.kept.states["q"] = intent  # it died again before this was noted
    world.restart()
    assert world.sinks.describe("q") == {"query": "q", "batch": 0, "publishing": None}
    assert world.bodies(T) == ["1"]


def test_another_log_in_the_place_of_a_stage_is_not_published() -> None:
    world, a = _intended_and_crashed()
    world.shelf.remove(a)
    world.shelf.open(a).records.append_batches([encode([b"not meant"])])
    world.restart()
    assert world.warnings == ["a commit is abandoned"]
    assert world.commit(0, (world.stage("b", "1 again"), T)).one["published"] is True
    assert world.bodies(T) == ["old 1", "old 2", "old 3", "1 again"]


# ---------------------------------------------------------------------- crashes


def _begin(world: SinkWorld, answers: Answers) -> None:
    world.disk.held = world.kept.held = True
    parts = [(world.stage("a", "1", "2"), T), (world.stage("b", "3"), "/log/u")]
    world.sinks.commit("q", 0, [StagedPart(*part) for part in parts], answers)
    world.run()


def _step(world: SinkWorld) -> None:
    if world.disk.jobs:
        world.disk.work(1)
    else:
        world.kept.answer()
    world.run()


@pytest.mark.parametrize("again", [False, True])
def test_after_a_crash_at_any_step_a_batch_is_there_once_or_not_at_all(again: bool) -> None:
    """Not at all: before the intent was kept. With the commit repeated, always once."""
    steps_count = 0
    while _survives_a_crash(steps_count, again=again):
        steps_count += 1
    assert steps_count > 6


def _survives_a_crash(steps_count: int, *, again: bool) -> bool:
    """False: it was all done before."""
    world = SinkWorld()
    answers = Answers()
    _begin(world, answers)
    for _ in range(steps_count):
        _step(world)
    if answers.found:
        return False
    intended = "q" in world.kept.states
    world.restart()
    world.put(T, "between")
    if again:
        world.commit(0, (world.stage("c", "1", "2"), T), (world.stage("d", "3"), "/log/u"))
    wanted = ["1", "2"] if intended or again else []
    assert [body for body in world.bodies(T) if body != "between"] == wanted
    assert world.bodies("/log/u") == (["3"] if intended or again else [])
    world.restart()
    assert [body for body in world.bodies(T) if body != "between"] == wanted
    assert world.sinks.describe("q")["batch"] == (0 if intended or again else -1)
    return True


def test_queries_that_are_too_many_are_forgotten() -> None:
    """Those that were silent longest, and none that is not done."""
    world = SinkWorld()
    world.kept.states = {f"q{number}": SinkState(f"q{number}", 1, used_ms=number) for number in range(QUERIES_MAX + 3)}
    world.restart()
    world.commit(2, query="q1")
    world.kept.failing = True
    world.commit(2, query="q2")
    world.kept.failing = False
    world.sinks.drop_forgotten()
    assert len(world.sinks.states) == QUERIES_MAX
    gone = {f"q{number}" for number in range(QUERIES_MAX + 3)} - set(world.kept.states)
    assert gone == {"q0", "q3", "q4"}
