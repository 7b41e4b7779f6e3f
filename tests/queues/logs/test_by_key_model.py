"""Order by key against a plain list, at random: joins, leaves, NACKs with and without back-off, crashes, removals.

Of each key: its records are in one consumer's hands at a time; when one is handed over, each earlier one that is not
done is in the same hands, never waiting. Each record is settled once or given up, none is lost.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.ports import GroupState
from tests.how_often import rounds
from tests.queues.logs.rig import LogReader, LogWorld
from tests.queues.logs.test_by_key import join, keyed, leave
from tests.queues.rig import Delivery

READERS_MAX = 4
AHEAD = 12


class KeyMachine(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 500]), most=st.sampled_from([1, None]))
    def begin(self, delay_ms: int, most: int | None) -> None:
        self.world = LogWorld(
            budget_count=200,
            redelivery_delay_ms=delay_ms,
            redeliveries_max=most,
            dead_letter=None,
            log_ahead_count_max=AHEAD,
        )
        self.group: Group = self.world.group()
        self.readers: list[LogReader] = []
        self.keys: list[str] = []
        self.given_up_count = 0
        self.just_now: set[int] = set()
        """Handed over since the last step."""
        self.settled: set[int] = set()
        self.gone: set[int] = set()
        """Removed, or given up."""

    def count_given_up(self) -> None:
        self.given_up_count += 0 if self.group.refused is None else self.group.refused.dropped_count

    @property
    def is_done(self) -> set[int]:
        given_up = set(range(self.group.front)) - self.settled
        ranges = self.group.state().settled
        return self.settled | self.gone | given_up | {n for start, end in ranges for n in range(start, end)}

    def delivered(self, reader: LogReader) -> None:
        def check(delivery: Delivery) -> None:
            number, key = delivery.number, self.keys[delivery.number]
            assert number not in self.settled
            if key:
                mine = {each.number for each in reader.held}
                for other in self.readers:
                    assert other is reader or key not in {self.keys[each.number] for each in other.held}
                earlier = {n for n in range(number) if self.keys[n] == key} - self.is_done
                assert earlier <= mine | self.just_now, (earlier, mine, number)
            self.just_now.add(number)

        reader.on_delivery = check

    def run(self) -> None:
        self.world.run()
        self.just_now.clear()

    @rule(names=st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=8))
    def append(self, names: list[str]) -> None:
        self.keys += names
        keyed(self.world, names)
        self.run()

    @precondition(lambda self: len(self.readers) < READERS_MAX)
    @rule(window=st.sampled_from([1, 2, 5, None]))
    def join(self, window: int | None) -> None:
        reader = self.world.reader(window, order="by-key")
        self.delivered(reader)
        self.readers.append(reader)
        self.group.subscribe(reader)
        self.run()

    def some(self, data: st.DataObject) -> tuple[LogReader, list[Delivery]] | None:
        holders = [reader for reader in self.readers if reader.held]
        if not holders:
            return None
        reader = data.draw(st.sampled_from(holders))
        chosen = data.draw(st.lists(st.sampled_from(reader.held), unique=True, min_size=1))
        return reader, sorted(chosen, key=lambda delivery: delivery.number)

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        if found := self.some(data):
            reader, chosen = found
            numbers = {delivery.number for delivery in chosen}
            assert not numbers & self.settled
            self.settled |= numbers
            reader.settle(chosen)
            self.run()

    @rule(data=st.data(), attempted=st.booleans())
    def nack(self, data: st.DataObject, attempted: bool) -> None:
        if found := self.some(data):
            reader, chosen = found
            reader.requeue(chosen, attempted=attempted)
            self.run()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        leave(self.group, reader)
        self.run()
        for delivery in sorted(reader.held, key=lambda delivery: delivery.number):
            reader.requeue([delivery])
            self.run()
        self.readers.remove(reader)

    @rule(seconds=st.sampled_from([0.3, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.run()

    @rule(share=st.floats(0, 1))
    def remove(self, share: float) -> None:
        records = self.world.records
        index = int(records.first_index + (records.next_index - records.first_index) * share / 4)
        records.remove_to(index)
        self.gone |= set(range(index))

    @rule()
    def crash(self) -> None:
        state = self.group.state()
        self.count_given_up()
        self.group.close()
        self.readers.clear()
        self.group = self.world.group(GroupState(state.front, state.settled, state.handed_to, state.failures))
        self.world.run()

    @invariant()
    def it_is_bounded(self) -> None:
        if not hasattr(self, "group"):
            return
        state = self.group.state()
        held = [delivery.number for reader in self.readers for delivery in reader.held]
        assert len(held) == len(set(held))
        assert max(held, default=0) < max(state.front, self.world.records.first_index) + AHEAD

    def teardown(self) -> None:
        """One more consumer takes all that is left."""
        if not hasattr(self, "group"):
            return
        for reader in list(self.readers):
            leave(self.group, reader)
            reader.requeue(sorted(reader.held, key=lambda delivery: delivery.number), attempted=False)
        self.readers.clear()
        last = join(self.world, self.group, 1)
        for _ in range(4 * len(self.keys) + 20):
            self.settled |= set(last.held_numbers)
            last.settle()
            self.world.advance(700.0)
        assert self.group.front == self.world.records.next_index
        lost = set(range(len(self.keys))) - self.settled - self.gone
        self.count_given_up()
        assert len(lost) <= self.given_up_count, lost


KeyMachine.TestCase.settings = settings(
    settings.get_profile("repeatable"), max_examples=rounds(20), stateful_step_count=30
)
TestByKey = KeyMachine.TestCase
