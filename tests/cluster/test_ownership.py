"""Ownership of shards over the simulated coordination: claims, hand-overs, words, data that stays."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest

from sluiceway.cluster import ownership
from sluiceway.cluster.claim_states import MOVES, ClaimMoveError, ClaimState, moved
from sluiceway.cluster.coordination import port
from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.simulated import HubTime, SimulatedChannel, SimulatedService, VirtualTime
from sluiceway.cluster.owned_placement import OwnedPlacement
from sluiceway.cluster.owner_records import OwnerRecord, shard_path
from sluiceway.cluster.ownership import SEEN_SECONDS, DataPlace, NotMovableError, Ownership
from sluiceway.flow.words import ranges_in_words
from sluiceway.protocols.stomp.placement import HERE, Home
from sluiceway.queues.shard_hash import shard_of
from sluiceway.store.compare_and_set import Version, Versioned
from sluiceway.store.engine import FencedError

SESSION_SECONDS = 6.0
SHARDS = 8


@attrs.define
class Host:
    """A ShardHost that notes what it is told; opening waits for the test if `slow`."""

    told: list[str] = attrs.field(factory=list)
    slow: bool = False
    fault: Exception | None = None
    waiting: dict[int, Callable[[Exception | None], None]] = attrs.field(factory=dict)
    closing: dict[int, Callable[[], None]] = attrs.field(factory=dict)

    def open(self, shard: int, epoch: int, done: Callable[[Exception | None], None]) -> None:
        self.told.append(f"open {shard} {epoch}")
        if self.slow:
            self.waiting[shard] = done
        else:
            done(self.fault)

    def close(self, shard: int, done: Callable[[], None]) -> None:
        self.told.append(f"close {shard}")
        if self.slow:
            self.closing[shard] = done
        else:
            done()

    def abandon(self, shard: int) -> None:
        self.told.append(f"abandon {shard}")

    def hold(self) -> None:
        self.told.append("hold")

    def resume(self) -> None:
        self.told.append("resume")

    def hubs_changed(self) -> None: ...

    def owner_changed(self, shard: int) -> None: ...


@attrs.define
class Member:
    name: str
    time: HubTime
    channel: SimulatedChannel
    host: Host
    ownership: Ownership

    def mine(self) -> set[int]:
        return {shard for shard in range(SHARDS) if self.ownership.may_confirm(shard)}


class Cluster:
    """Hubs on virtual time."""

    def __init__(self, data_place: DataPlace = DataPlace.SHARED) -> None:
        self.time = VirtualTime()
        self.service = SimulatedService(self.time, Random(1))
        self.data_place = data_place

    def join(self, name: str, *, host: Host | None = None, weight: float = 1.0) -> Member:
        time = HubTime(self.time, offset_seconds=1e6)
        channel = self.service.channel(time, session_seconds=SESSION_SECONDS)
        host = host or Host()
        ownership = Ownership(
            channel.client,
            host,
            time,
            time.clock,
            hub=Hub(name, weight=weight),
            shards_count=SHARDS,
            data_place=self.data_place,
        )
        ownership.start()
        return Member(name, time, channel, host, ownership)

    def crash(self, member: Member) -> None:
        member.time.crash()
        member.channel.cut("the process ended")

    def record(self, shard: int) -> Versioned[bytes]:
        found = self.service.service._table.latest(shard_path(shard))
        assert found is not None
        return found

    def owner(self, shard: int) -> OwnerRecord:
        return OwnerRecord.decoded(self.record(shard).value, shard)

    def run(self, seconds: float = 20.0) -> None:
        self.time.run(seconds)


def test_one_hub_claims_all_shards_under_the_first_epoch() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    assert one.mine() == set(range(SHARDS))
    assert {one.ownership.epoch(shard) for shard in range(SHARDS)} == {1}
    assert one.ownership.where(3).is_here and one.ownership.where(3).words == ""


def test_hubs_that_know_different_owners_hand_nothing_over_before_they_have_read_again() -> None:
    """A hub that was not told of the last moves would give a shard to a hub that does not want it."""
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    cluster.service.faults.watch_lost_chance = 1.0
    members = [one, cluster.join("hub-2"), cluster.join("hub-3")]
    cluster.run(60.0)
    assert sorted(len(member.mine()) for member in members) == [2, 3, 3]
    opened = [line.split()[1] for member in members for line in member.host.told if line.startswith("open")]
    assert len(opened) == SHARDS + 5, "each moved once"


def test_hubs_that_start_together_claim_their_shares_and_move_nothing() -> None:
    cluster = Cluster()
    members = [cluster.join(f"hub-{number}") for number in (1, 2, 3)]
    cluster.run()
    assert sorted(shard for member in members for shard in member.mine()) == list(range(SHARDS))
    assert all("close" not in line for member in members for line in member.host.told)
    for shard in range(SHARDS):
        homes = {member.ownership.where(shard).hub for member in members}
        assert len(homes) == 1, "all hubs know the owner"


def test_a_hub_that_joins_gets_its_shards_in_order_and_a_few_at_a_time() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1", host=Host())
    cluster.run()
    one.host.slow = True
    two = cluster.join("hub-2")
    cluster.run()
    assert len(one.host.closing) == 2 and not two.mine(), "nothing opens there before it is closed here"
    shard, closed = next(iter(one.host.closing.items()))
    assert not one.ownership.may_confirm(shard)
    one.host.slow = False
    for closed in one.host.closing.values():
        closed()
    cluster.run()
    assert two.mine() and one.mine() | two.mine() == set(range(SHARDS))
    assert {two.ownership.epoch(shard) for shard in two.mine()} == {2}
    assert {one.ownership.epoch(shard) for shard in one.mine()} == {1}


def test_the_shards_of_a_hub_that_dies_are_taken_over_when_its_session_ends() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    lost = one.mine()
    cluster.crash(one)
    cluster.run(SESSION_SECONDS / 2)
    assert not two.mine() & lost
    cluster.run(SESSION_SECONDS)
    assert two.mine() == set(range(SHARDS))
    assert {two.ownership.epoch(shard) for shard in lost} == {2}


def test_a_hub_cut_off_confirms_nothing_after_two_thirds_and_abandons_before_others_act() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    held = one.mine()
    one.channel.hold()
    one.host.told.clear()
    while one.mine():
        assert not two.mine() & held
        cluster.run(0.05)
    assert one.host.told == ["hold"]
    while "hold" not in one.host.told[1:]:
        assert not two.mine() & held
        cluster.run(0.05)
    assert {f"abandon {shard}" for shard in held} <= set(one.host.told)
    cluster.run(SESSION_SECONDS)
    assert two.mine() == set(range(SHARDS))
    one.channel.release()
    cluster.run()
    assert len(one.mine()) == len(held) and all(one.ownership.epoch(shard) > 1 for shard in one.mine())


def test_a_cut_that_is_short_costs_nothing() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    one.host.told.clear()
    one.channel.hold()
    cluster.run(SESSION_SECONDS * 0.75)
    one.channel.release()
    cluster.run()
    assert one.host.told == ["hold", "resume"]
    assert one.ownership.epoch(0) == 1


def test_a_hub_that_sleeps_and_wakes_may_confirm_nothing_before_its_timers_run() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    two = cluster.join("hub-2")
    cluster.run()
    one.time.pause()
    cluster.run(SESSION_SECONDS * 2)
    assert not one.mine(), "the clock is asked, no timer"
    assert two.mine() == set(range(SHARDS))
    one.time.resume()
    assert any(line.startswith("abandon") for line in one.host.told)


def test_a_session_that_expires_while_shards_are_opened_abandons_them() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1", host=Host(slow=True))
    cluster.run()
    late = dict(one.host.waiting)
    cluster.service.expire("hub-1")
    cluster.run(1.0)
    assert {f"abandon {shard}" for shard in range(SHARDS)} <= set(one.host.told)
    cluster.run()
    for opened in late.values():
        opened(None)
    assert not one.mine(), "answers for the session before do not count"
    for opened in list(one.host.waiting.values()):
        opened(None)
    assert one.mine() == set(range(SHARDS)) and one.ownership.epoch(0) == 2


def test_a_shard_that_can_not_be_opened_is_tried_again_and_says_why() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1", host=Host(fault=OSError("the disk is full")))
    cluster.run()
    assert one.ownership.where(3).words == "shard 3 is being opened here: the disk is full"
    assert one.ownership.where(3).hub == ""
    one.host.fault = None
    cluster.run()
    assert 3 in one.mine() and one.ownership.epoch(3) == 1


def test_a_hub_that_is_drained_gives_all_and_takes_them_again() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    before = one.mine()
    one.ownership.drain()
    cluster.run()
    assert not one.mine() and two.mine() == set(range(SHARDS))
    one.ownership.weigh(1.0)
    cluster.run()
    assert len(one.mine()) == len(before) and not one.mine() & two.mine()


def test_the_only_hub_keeps_its_shards_while_it_is_drained() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    one.ownership.drain()
    cluster.run()
    assert one.mine() == set(range(SHARDS))


def test_a_hub_that_leaves_in_order_closes_and_releases_before_it_goes() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    held = one.mine()
    left: list[bool] = []
    one.ownership.leave(lambda: left.append(True))
    cluster.run(2.0)
    assert left == [True]
    assert {f"close {shard}" for shard in held} <= set(one.host.told)
    assert not any(line.startswith("abandon") for line in one.host.told)
    assert two.mine() == set(range(SHARDS)), "without waiting for a session"


def test_a_rolling_restart_leaves_no_shard_waiting_for_a_hub_that_has_just_joined() -> None:
    """A hub that it has seen, and that has left, is none that may be about to come."""
    cluster = Cluster()
    _one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    new = cluster.join("hub-3")
    cluster.run(0.5)
    two.ownership.leave(lambda: None)
    cluster.run(0.5)
    assert {cluster.owner(shard).hub for shard in range(SHARDS)} == {"hub-1", "hub-3"}
    assert new.mine(), "the new hub has its share of what the other one has left"


def test_a_cluster_that_starts_again_bit_by_bit_moves_nothing() -> None:
    """The first hub has its own shards at once, and leaves those of the others to them."""
    cluster = Cluster()
    before = [cluster.join(f"hub-{number}") for number in (1, 2, 3)]
    cluster.run()
    for member in before:
        cluster.crash(member)
    cluster.run()
    homes = {
        name: {shard for shard in range(SHARDS) if cluster.owner(shard).hub == name} for name in ("hub-1", "hub-2")
    }
    after = []
    for number in (1, 2, 3):
        after.append(cluster.join(f"hub-{number}"))
        cluster.run(1.0)
    assert after[0].mine() == homes["hub-1"]
    assert after[1].mine() == homes["hub-2"], "though a hub with shards is there, the third one may come"
    cluster.run()
    assert sorted(shard for member in after for shard in member.mine()) == list(range(SHARDS))
    assert all("close" not in line for member in after for line in member.host.told)


def test_a_hub_that_leaves_while_it_opens_waits_for_that() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1", host=Host(slow=True))
    cluster.run()
    left: list[bool] = []
    one.ownership.leave(lambda: left.append(True))
    cluster.run(2.0)
    assert not left
    one.host.slow = False
    for opened in one.host.waiting.values():
        opened(None)
    cluster.run(2.0)
    assert left and cluster.owner(0).session == ""


def test_a_shard_moves_where_an_operator_wants_it_and_stays() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    shard = min(one.mine())
    answers: list[Any] = []
    two.ownership.move(shard, "hub-2", answers.append)
    cluster.run()
    assert answers == [None] and shard in two.mine()
    assert len(one.mine()) == len(two.mine()), "another one came back for it"
    cluster.crash(two)
    cluster.run()
    assert shard in one.mine()
    two = cluster.join("hub-2")
    cluster.run()
    assert shard in two.mine()
    before = one.mine()
    one.ownership.move(shard, "", answers.append)
    cluster.run()
    assert one.mine() == before and not one.ownership.pinned_to(shard), "it stays where it is, until loads change"


def test_a_shard_moves_to_a_hub_that_no_watch_has_told() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    cluster.service.faults.watch_lost_chance = 1.0
    shard = min(one.mine())
    one.ownership.move(shard, "hub-2", lambda _: None)
    cluster.run(60.0)
    assert shard in two.mine()


def test_a_move_to_a_hub_that_is_not_there_is_refused_in_words() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    with pytest.raises(NotMovableError, match="shard 3 can't move to hub-7: the hub is not in the cluster now"):
        one.ownership.move(3, "hub-7", lambda _: None)


def test_data_that_stays_waits_for_its_hub_and_says_so() -> None:
    cluster = Cluster(DataPlace.LOCAL)
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    lost = one.mine()
    cluster.crash(one)
    cluster.run(SESSION_SECONDS + 12.5)
    assert not two.mine() & lost
    shard = min(lost)
    where = two.ownership.where(shard)
    assert (where.hub, where.is_here) == ("", False)
    assert where.words.startswith(f"shard {shard} is on hub-1, gone for 1")
    again = cluster.join("hub-1")
    cluster.run()
    assert again.mine() == lost and again.ownership.epoch(shard) == 2
    assert two.ownership.where(shard).hub == "hub-1"


def test_data_that_stays_is_not_moved_by_hubs_that_join_or_by_operators() -> None:
    cluster = Cluster(DataPlace.LOCAL)
    one = cluster.join("hub-1")
    cluster.run()
    two = cluster.join("hub-2", weight=5.0)
    cluster.run()
    assert one.mine() == set(range(SHARDS)) and not two.mine()
    with pytest.raises(NotMovableError, match="on the disk of the hub that has them"):
        one.ownership.move(1, "hub-2", lambda _: None)
    with pytest.raises(NotMovableError, match="can't be drained"):
        one.ownership.drain()


def test_clocks_an_hour_apart_make_no_difference() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    one.time._offset_seconds -= 3600
    two = cluster.join("hub-2")
    cluster.run(40.0)
    assert one.mine() | two.mine() == set(range(SHARDS)) and one.mine() and two.mine()


def test_a_record_that_was_damaged_by_hand_stops_its_shard_and_says_so() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    cluster.crash(one)
    repaired = cluster.record(3)
    other = cluster.join("hub-2")
    cluster.run(1.0)
    answers: list[Any] = []
    other.channel.client.write(shard_path(3), b"{", Version.ANY, answers.append)
    cluster.run()
    assert other.mine() == set(range(SHARDS)) - {3}
    assert other.ownership.where(3).words == "shard 3 is not known here: the record of shard 3 is no JSON: b'{'"
    other.channel.client.write(shard_path(3), repaired.value, Version.ANY, answers.append)
    cluster.run()
    assert 3 in other.mine()


def test_a_shard_that_was_taken_by_force_is_abandoned() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    force = OwnerRecord("hub-1", one.channel.client.session or "", 9)
    one.channel.client.write(shard_path(3), force.encoded(), Version.ANY, lambda _: None)
    cluster.run()
    assert "abandon 3" in one.host.told
    assert 3 in one.mine() and one.ownership.epoch(3) == 10


def test_a_claim_whose_answer_was_lost_is_opened_and_the_loads_become_even_again() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    shard = min(two.mine())
    claimed = OwnerRecord("hub-1", one.channel.client.session or "", 2)
    one.channel.client.write(shard_path(shard), claimed.encoded(), Version.ANY, lambda _: None)
    cluster.run()
    assert any(line.startswith(f"open {shard} ") for line in one.host.told)
    assert len(one.mine()) == len(two.mine()) and not one.mine() & two.mine()


def test_a_record_that_was_deleted_by_hand_takes_no_epoch_back() -> None:
    cluster = Cluster()
    one = cluster.join("hub-1")
    cluster.run()
    one.channel.client.delete(shard_path(3), Version.ANY, lambda _: None)
    cluster.run()
    assert "abandon 3" in one.host.told
    assert 3 in one.mine() and one.ownership.epoch(3) == 2


def test_destinations_are_at_home_where_their_shards_are() -> None:
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    placement = OwnedPlacement(one.ownership, SHARDS)
    names = [f"/queue/{number}" for number in range(64)]
    for name in names:
        shard = shard_of(name, SHARDS)
        assert placement.home_of(name) == (HERE if shard in one.mine() else Home("hub-2", two.ownership.epoch(shard)))
    assert placement.others() == ["hub-2"]
    cluster.crash(two)
    cluster.run()
    assert {placement.home_of(name) for name in names} == {HERE} and placement.others() == []


def test_destinations_whose_hub_is_away_have_no_home_and_say_why() -> None:
    cluster = Cluster(DataPlace.LOCAL)
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    name = next(name for name in map("/queue/{}".format, range(64)) if shard_of(name, SHARDS) in two.mine())
    cluster.crash(two)
    cluster.run()
    home = OwnedPlacement(one.ownership, SHARDS).home_of(name)
    assert home.hub == "" and "is on hub-2, gone for" in home.why_not


@pytest.mark.parametrize("before", ClaimState)
def test_moves_that_the_table_does_not_have_are_mistakes(before: ClaimState) -> None:
    for after in set(ClaimState) - MOVES[before]:
        with pytest.raises(ClaimMoveError):
            moved(before, after)


def test_a_shard_whose_store_does_not_take_the_epoch_is_claimed_with_a_later_one() -> None:
    """A database takes each epoch once, and may have taken it in an attempt that failed."""
    cluster = Cluster()
    one = cluster.join("hub-1", host=Host(fault=FencedError("it has this epoch or a later one")))
    cluster.run(5.0)
    epochs = [int(line.split()[2]) for line in one.host.told if line.startswith("open 3 ")]
    assert epochs == list(range(1, len(epochs) + 1)) and len(epochs) > 1
    one.host.fault = None
    cluster.run(3.0)
    assert one.mine() == set(range(SHARDS))


def test_a_shard_whose_store_refuses_its_owner_is_given_up_and_claimed_anew() -> None:
    """The others stay open. If its record is another hub's by now, that one keeps it."""
    cluster = Cluster()
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    mine = one.mine()
    shard = min(mine)
    one.ownership.give_up(shard)
    assert not one.ownership.may_confirm(shard)
    one.ownership.give_up(shard)
    cluster.run(2.0)
    assert one.host.told.count(f"close {shard}") == 1
    assert (one.mine(), two.mine()) == (mine, set(range(SHARDS)) - mine)
    assert (one.ownership.epoch(shard), cluster.owner(shard).epoch) == (2, 2)
    assert {one.ownership.epoch(other) for other in mine - {shard}} == {1}


def test_a_hub_that_is_gone_is_missed_with_its_shards_until_another_one_has_them() -> None:
    cluster = Cluster(DataPlace.LOCAL)
    one, two = cluster.join("hub-1"), cluster.join("hub-2")
    cluster.run()
    lost = tuple(sorted(two.mine()))
    cluster.crash(two)
    cluster.run()
    (gone,) = one.ownership.gone().values()
    assert (gone.name, gone.was_seen, gone.shards) == ("hub-2", True, lost)
    assert 10 < gone.seconds < 20
    assert gone.words == f"it is gone for {gone.seconds:.0f} s; shards {ranges_in_words(lost)} wait"
    assert one.ownership.gone(["hub-3"])["hub-3"].words.startswith("it has not come, in the 40 s of this hub")
    again = cluster.join("hub-2")
    cluster.run()
    assert again.mine() == set(lost) and not one.ownership.gone(["hub-1", "hub-2"])


def test_a_hub_that_left_in_order_is_missed_only_where_it_is_expected() -> None:
    cluster = Cluster()
    one, two, three = (cluster.join(f"hub-{number}") for number in (1, 2, 3))
    cluster.run()
    two.ownership.leave(lambda: None)
    cluster.crash(three)
    cluster.run()
    assert one.mine() == set(range(SHARDS))
    assert {name: hub.shards for name, hub in one.ownership.gone().items()} == {"hub-3": ()}
    assert set(one.ownership.gone(["hub-1", "hub-2"])) == {"hub-2", "hub-3"}
    cluster.run(SEEN_SECONDS)
    assert not one.ownership.gone()


def test_a_flood_of_joins_costs_nobody_a_shard_and_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "GONE_MAX", 10)
    monkeypatch.setattr(port, "HUBS_MAX", 6)
    cluster = Cluster()
    cluster.service.service._ends_with_connection = True
    members = [cluster.join(f"hub-{number}") for number in (1, 2, 3)]
    cluster.run()
    before = [member.mine() for member in members]
    told = [list(member.host.told) for member in members]
    for number in range(60):
        flood = [cluster.join(f"flood-{number}-{each}") for each in range(5)]
        cluster.run(0.2)
        assert [member.mine() for member in members] == before
        assert all(len(member.ownership.hubs) <= 6 for member in members)
        for each in flood:
            cluster.crash(each)
    cluster.run(SESSION_SECONDS * 3)
    assert [member.mine() for member in members] == before
    assert [member.host.told for member in members] == told, "not one shard moved"
    gone = members[0].ownership.gone()
    assert 0 < len(gone) <= 10 and not any(hub.shards for hub in gone.values())
