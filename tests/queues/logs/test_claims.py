"""Claims: numbered portions of a queue that read the same, or as nothing, and lose no message."""

from __future__ import annotations

import pytest

from sluiceway.queues.logs.claims import CLAIMS_MAX, Claim, ClaimAttachment, ClaimGroup, ClaimState
from sluiceway.queues.logs.table import LogError
from tests.queues.logs.claim_rig import Answers, ClaimWorld


def test_a_claim_takes_what_is_there_and_the_queue_forgets_it() -> None:
    world = ClaimWorld()
    world.put("a", "b", "c")
    first = world.claim(1)
    assert world.read(first) == ["a", "b", "c"]
    assert world.queue.elements.live_count == 0
    world.put("d")
    assert world.read(world.claim(2)) == ["d"]


def test_a_claim_that_was_made_is_told_again() -> None:
    world = ClaimWorld()
    world.put("a", "b")
    first = world.claim(1)
    world.put("c")
    assert world.claim(1).range == first.range
    assert world.claim(2).range == (2, 3)
    assert world.claim(1).range == first.range


def test_limits_of_count_and_bytes_cut_a_claim() -> None:
    world = ClaimWorld()
    world.put(*"abcde")
    assert world.read(world.claim(1, 2)) == ["a", "b"]
    few = Answers()
    world.group_of.claim(2, 100, 1, few)  # one byte: one message at least
    world.advance(1)
    assert world.read(few) == ["c"]
    assert world.read(world.claim(3)) == ["d", "e"]


def test_nothing_to_claim_makes_no_claim() -> None:
    world = ClaimWorld()
    assert world.claim(1).one == {"claim": None}
    assert world.kept.saves_count == 0
    world.put("a")
    assert world.read(world.claim(1)) == ["a"]


def test_who_waits_gets_what_comes_meanwhile() -> None:
    world = ClaimWorld()
    answers = Answers()
    world.group_of.claim(1, 100, 1 << 20, answers, wait_seconds=10)
    world.advance(9)
    assert not answers.found
    world.put("a", "b")
    world.advance(0.1)
    assert world.read(answers) == ["a", "b"]


def test_between_claims_it_takes_nothing() -> None:
    world = ClaimWorld()
    world.claim(1)
    world.put("a")
    world.advance(100)
    assert world.queue.elements.live_count == 1
    assert world.records.next_index == 0


def test_numbers_go_up_by_one() -> None:
    world = ClaimWorld()
    world.put("a")
    with pytest.raises(LogError, match="can't follow"):
        world.claim(2)
    world.claim(1)
    with pytest.raises(LogError, match="can't follow"):
        world.claim(3)


def test_all_who_ask_for_one_claim_get_the_same() -> None:
    """Two planners of one group, or one that asks again."""
    world = ClaimWorld()
    world.put("a", "b")
    first, second = world.claim(1, seconds=0), world.claim(1, seconds=0)
    world.advance(1)
    assert first.range == second.range == (0, 2)


def test_nobody_gets_to_add_askers_without_end() -> None:
    world = ClaimWorld()
    for _ in range(100):
        world.claim(1, seconds=0)
    with pytest.raises(LogError, match="wait for claim 1"):
        world.claim(1, seconds=0)


def test_an_acknowledged_claim_reads_as_nothing_and_its_records_go() -> None:
    world = ClaimWorld()
    world.put("a", "b")
    world.claim(1)
    world.put("c")
    second = world.claim(2)
    assert world.ack(1).one == {"acked": 1}
    assert world.truncated == [2]
    assert world.claim(1).range == (0, 0)
    assert world.read(second) == ["c"]
    assert world.ack(1).one == {"acked": 1}, "again is no error"
    assert world.truncated == [2]
    world.ack(2)
    assert world.records.first_index == 3


def test_released_claims_read_as_nothing_and_come_again() -> None:
    world = ClaimWorld()
    world.put("a", "b")
    world.claim(1)
    world.put("c")
    world.claim(2)
    assert world.release().one == {"released": 2}
    assert world.claim(1).one["released"] is True
    assert world.claim(1).range == (0, 0)
    assert world.claim(2).range == (2, 2)
    world.put("d")
    assert world.read(world.claim(3)) == ["a", "b", "c"]
    assert world.read(world.claim(4)) == ["d"]
    world.ack(2)
    assert world.records.first_index == 0, "claim 3 has them"
    world.ack(4)
    assert world.records.first_index == 4


def test_what_comes_again_is_cut_by_the_limit() -> None:
    world = ClaimWorld()
    world.put(*"abcde")
    world.claim(1)
    world.release()
    assert world.read(world.claim(2, 3)) == ["a", "b", "c"]
    assert world.read(world.claim(3, 3)) == ["d", "e"]


def test_a_group_that_is_silent_is_released_after_its_grace() -> None:
    world = ClaimWorld()
    world.group_of.set_grace(40)
    world.put("a")
    world.claim(1)
    for _ in range(10):
        world.advance(30)
        world.group_of.touch()
    assert world.claim(1).range == (0, 1)
    for _ in range(6):
        world.advance(10)
    assert world.claim(1).one["released"] is True
    assert world.read(world.claim(2)) == ["a"]


def test_acknowledging_ahead_leads_the_numbers_on() -> None:
    """The broker's memory is gone, the reader's checkpoint is not."""
    world = ClaimWorld()
    world.put("a")
    assert world.ack(56).one == {"acked": 56}
    assert world.read(world.claim(57)) == ["a"]
    assert world.claim(56).range == (0, 0)


def test_a_claim_that_is_being_made_can_not_be_acknowledged() -> None:
    world = ClaimWorld()
    world.put("a")
    answers = world.claim(1, seconds=0)
    with pytest.raises(LogError, match="being made"):
        world.ack(1)
    world.advance(1)
    assert world.read(answers) == ["a"]


def test_so_many_claims_wait_to_be_acknowledged() -> None:
    claims = tuple(Claim(number, 0, 0) for number in range(1, CLAIMS_MAX + 1))
    world = ClaimWorld(ClaimState("/queue/a", "g", "id", next_number=CLAIMS_MAX + 1, claims=claims))
    with pytest.raises(LogError, match="wait to be acknowledged"):
        world.claim(CLAIMS_MAX + 1)
    world.ack(1)
    world.put("a")
    assert world.read(world.claim(CLAIMS_MAX + 1)) == ["a"]


def test_messages_keep_their_headers_in_order() -> None:
    world = ClaimWorld()
    world.put("a", "b", lines="k:1")
    world.put("c", lines="k:2")
    world.put("d", lines="k:1")
    answers = world.claim(1)
    heads = [world.records.batch_of(index).head for index in range(*answers.range)]
    assert list(zip(world.read(answers), heads, strict=True)) == [
        ("a", b"k:1"), ("b", b"k:1"), ("c", b"k:2"), ("d", b"k:1"),
    ]  # fmt: skip


# ---------------------------------------------------------------------- what is told is kept


def test_the_queue_forgets_nothing_before_the_claim_is_kept() -> None:
    world = ClaimWorld()
    world.put("a")
    world.kept.held = True
    answers = world.claim(1)
    assert not answers.found
    assert world.queue.elements.live_count == 1
    world.kept.answer()
    assert answers.range == (0, 1)
    assert world.queue.elements.live_count == 0


def test_a_claim_is_not_kept_before_its_records_are_synced() -> None:
    world = ClaimWorld()
    world.put("a")
    world.disk.held = True
    answers = world.claim(1)
    assert world.kept.saves_count == 0
    world.disk.work()
    assert world.records.synced_index == 1
    assert answers.range == (0, 1)


def test_a_claim_that_could_not_be_kept_is_kept_when_asked_again() -> None:
    world = ClaimWorld()
    world.put("a")
    world.kept.failing = True
    assert world.claim(1).error.code == "INTERNAL_ERROR"
    assert world.queue.elements.live_count == 1
    assert world.claim(1).error.code == "INTERNAL_ERROR"
    world.kept.failing = False
    world.put("b")
    assert world.read(world.claim(1)) == ["a"]
    assert world.queue.elements.live_count == 1
    assert world.read(world.claim(2)) == ["b"]


def test_a_claim_that_could_not_be_kept_is_kept_later_if_nobody_asks() -> None:
    world = ClaimWorld()
    world.put("a")
    world.kept.failing = True
    world.claim(1)
    world.kept.failing = False
    world.advance(200)
    assert world.queue.elements.live_count == 0
    assert world.read(world.claim(1)) == ["a"]


def test_an_ack_while_a_claim_is_kept_does_not_make_it_unmade() -> None:
    """The newest state is what is on disk, whatever came in between."""
    world = ClaimWorld()
    world.put("a")
    world.claim(1)
    world.put("b")
    world.kept.held = True
    second = world.claim(2)
    acked = world.ack(1)
    assert not acked.found
    assert world.truncated == []
    world.kept.answer()
    world.kept.answer()
    assert acked.one == {"acked": 1}
    assert second.range == (1, 2)
    world.kept.held = False
    again = world.restarted()
    assert [claim.number for claim in again.state.claims] == [2]
    assert world.claim(2).range == (1, 2)


def test_a_release_is_not_told_before_it_is_kept() -> None:
    """Else a crash would bring the claim to life again, and its reader, who read nothing, would acknowledge it."""
    world = ClaimWorld()
    world.put("a")
    world.claim(1)
    world.kept.held = True
    released, asked = world.release(), world.claim(1)
    assert not released.found
    assert not asked.found
    world.kept.failing = True
    world.kept.answer()
    world.kept.answer()
    assert asked.error.code == "INTERNAL_ERROR"
    world.kept.failing = world.kept.held = False
    world.restarted()
    assert world.read(world.claim(1)) == ["a"]


def test_a_restart_keeps_claims_releases_and_grace() -> None:
    world = ClaimWorld()
    world.group_of.set_grace(1234)
    world.put("a")
    world.claim(1)
    world.put("b")
    world.claim(2)
    world.release()
    world.put("c")
    world.restarted()
    assert world.group_of.describe()["grace_seconds"] == 1234
    assert world.claim(1).range == (0, 0)
    assert world.read(world.claim(3)) == ["a", "b"]
    assert world.read(world.claim(4)) == ["c"]


def test_records_behind_the_last_claim_are_in_no_claim() -> None:
    """They were stored when the process died; the queue has their messages still."""
    world = ClaimWorld()
    world.put("a", "b")
    world.kept.held = True
    world.claim(1)
    world.kept = type(world.kept)()
    world.restarted()
    assert world.records.next_index == 2
    world.run()
    assert world.claim(1).range == (2, 4)
    world.ack(1)
    assert world.records.first_index == 4


# ---------------------------------------------------------------------- what goes wrong


def test_a_message_that_no_claim_can_hold_is_left_and_said_so() -> None:
    """Those before it are claimed first."""
    world = ClaimWorld()
    world.put("a", "b")
    world.put("x" * (1 << 20))
    world.put("c")
    assert world.read(world.claim(1)) == ["a", "b"]
    error = world.claim(2).error
    assert error.code == "INVALID_CLAIM"
    assert "no claim can hold" in str(error)
    assert world.queue.elements.live_count == 2
    assert world.claim(2).error.code == "INVALID_CLAIM"


def test_a_full_disk_delays_a_claim() -> None:
    world = ClaimWorld()
    world.put("a")
    world.disk.failing = "no space left"
    answers = world.claim(1)
    world.advance(10)
    assert not answers.found
    assert world.queue.elements.live_count == 1
    world.disk.failing = ""
    world.advance(2)
    assert world.read(answers) == ["a"]
    assert world.queue.elements.live_count == 0


def test_a_queue_that_is_deleted_meanwhile_leaves_what_was_taken() -> None:
    world = ClaimWorld()
    world.put("a", "b")
    answers = world.claim(1, 1, seconds=0)
    world.queue.close_queue("deleted")
    world.advance(1)
    assert world.read(answers) == ["a"]


def test_a_claim_log_that_is_deleted_meanwhile_gives_all_back() -> None:
    world = ClaimWorld()
    world.put("a")
    world.disk.held = True
    answers = world.claim(1)
    world.log.close(deleted=True)
    world.run()
    assert answers.error.code == "INVALID_CLAIM"
    assert world.queue.elements.live_count == 1
    reader = world.consumer()
    world.queue.subscribe(reader)
    world.run()
    assert reader.numbers == [0]
    with pytest.raises(LogError, match="deleted"):
        world.claim(1)


@pytest.mark.parametrize("state", [{"log_id": "another"}, {"log_id": "id", "taken_to": 7}])
def test_claims_over_a_log_that_is_gone_read_as_nothing(state: dict[str, object]) -> None:
    """Numbers go on; what is in the new log is not mistaken for what was in the old one."""
    claims = (Claim(3, 0, 5), Claim(4, 5, 7))
    found = ClaimState("/queue/a", "g", next_number=5, claims=claims, again=((0, 5),), **state)  # type: ignore[arg-type]
    world = ClaimWorld(found)
    world.put("a")
    assert world.claim(3).range == (0, 0)
    assert world.claim(4).range == (0, 0)
    assert world.read(world.claim(5)) == ["a"]


def test_a_broker_that_stops_gives_back_what_is_in_no_claim() -> None:
    world = ClaimWorld()
    world.put("a")
    world.claim(1, seconds=0)
    world.disk.held = True
    world.group_of.close()
    reader = world.consumer()
    world.queue.subscribe(reader)
    world.run()
    assert reader.numbers == [0]


# ---------------------------------------------------------------------- one planner at a time


def open_for(world: ClaimWorld, planner: str) -> Answers:
    answers = Answers()
    world.group_of.open_for(planner, answers)
    world.run()
    return answers


def test_who_opens_the_group_takes_it_over_with_its_claims() -> None:
    world = ClaimWorld()
    world.put("a")
    open_for(world, "old")
    world.group_of.check_planner("old")
    world.claim(1)
    assert open_for(world, "new").one == {}
    with pytest.raises(LogError, match="another query has taken over") as refused:
        world.group_of.check_planner("old")
    assert refused.value.code == "GROUP_TAKEN"
    world.group_of.check_planner("new")
    assert world.read(world.claim(1)) == ["a"], "it may be the old one's next life"


def test_who_has_opened_it_is_kept_before_it_is_told() -> None:
    """Else a crash would let in who was refused."""
    world = ClaimWorld()
    open_for(world, "old")
    world.kept.held = True
    answers = open_for(world, "new")
    assert not answers.found
    world.kept.answer()
    assert answers.one == {}
    world.kept.held = False
    world.restarted()
    with pytest.raises(LogError, match="taken over"):
        world.group_of.check_planner("old")


def test_where_nobody_has_opened_it_who_asks_plans() -> None:
    """A group whose broker lost everything, under a query that goes on."""
    world = ClaimWorld()
    world.group_of.check_planner("first")
    with pytest.raises(LogError, match="taken over"):
        world.group_of.check_planner("second")


def test_an_ack_from_another_life_leaves_nothing_unread() -> None:
    """A checkpoint that is ahead of the broker can't mean what was claimed since: nobody has read that for it."""
    world = ClaimWorld()
    world.put("a")
    world.claim(1)
    world.put("b")
    world.claim(2)
    assert world.ack(56).one == {"acked": 56}
    assert world.truncated == []
    assert world.claim(2).range == (0, 0)
    assert world.read(world.claim(57)) == ["a", "b"]


def test_what_an_acknowledged_release_held_comes_again_all_the_same() -> None:
    world = ClaimWorld()
    world.put("a")
    world.claim(1)
    world.release()
    world.ack(1)
    assert world.records.first_index == 0
    assert world.read(world.claim(2)) == ["a"]


def test_released_records_outlive_a_crash_at_each_step() -> None:
    """Released, claimed anew, released again, acknowledged late: what was not acknowledged under its newest number is
    in the next claim."""
    world = ClaimWorld()
    world.put("a", "b")
    world.claim(1)
    world.release()
    world.restarted()
    assert world.read(world.claim(2, 1)) == ["a"]
    world.restarted()
    world.release()
    world.restarted()
    world.ack(2)  # late: it was released
    world.restarted()
    assert world.read(world.claim(3)) == ["a", "b"]
    world.ack(3)
    assert world.records.first_index == 2
    world.restarted()
    assert world.claim(4).one == {"claim": None}


# ---------------------------------------------------------------------- a backlog on disk


class _ReadingQueue:
    """What attaching gives, of a queue that reads from a disk as long as it is told to."""

    def __init__(self, attached: ClaimAttachment) -> None:
        self._attached = attached
        self.awaits_disk = True

    def close(self) -> None:
        self._attached.close()


def reading_world(monkeypatch: pytest.MonkeyPatch) -> tuple[ClaimWorld, list[_ReadingQueue]]:
    world = ClaimWorld()
    made: list[_ReadingQueue] = []

    def attach(group: ClaimGroup) -> ClaimAttachment:
        made.append(_ReadingQueue(world.queue.subscribe(group)))
        return made[-1]

    monkeypatch.setattr(world.group_of, "_attach", attach)
    return world, made


def test_a_claim_goes_on_while_the_queue_reads_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a backlog would be claimed in crumbs: whatever came in within the linger."""
    world, made = reading_world(monkeypatch)
    world.put("a")
    answers = world.claim(1, seconds=0.5)
    assert not answers.found
    world.put("b")
    world.advance(0.5)
    assert not answers.found
    made[0].awaits_disk = False
    world.advance(0.5)
    assert world.read(answers) == ["a", "b"]


def test_a_disk_that_gives_nothing_ends_a_claim_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _made = reading_world(monkeypatch)
    world.put("a")
    answers = world.claim(1, seconds=1.5)
    assert not answers.found
    world.advance(1)
    assert world.read(answers) == ["a"]
