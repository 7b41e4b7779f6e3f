"""A group with several consumers against a plain list: each record is settled once, none is lost, none is in two hands.

Consumers of records and of runs come and go, settle in any order, give back, lose their connection; records come in all
sizes of batches, the broker starts anew now and then, retention and lost ranges take records away.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.ports import GroupState
from tests.how_often import rounds
from tests.queues.logs.rig import LogReader, LogWorld

READERS_MAX = 4


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = LogWorld(cache_bytes=5000, budget_count=20)
        self.group: Group = self.world.group()
        self.readers: list[LogReader] = []
        self.settled: set[int] = set()
        self.gone: set[int] = set()
        """Lost or removed."""
        self.told_count: dict[LogReader, int] = {}
        self.past: list[LogReader] = []
        """Who still holds something of before the group was moved."""

    # ------------------------------------------------------------------ what happens

    @rule(count=st.integers(1, 30), codec=st.sampled_from(list(Codec)))
    def append(self, count: int, codec: Codec) -> None:
        self.world.fill(count, codec=codec)

    @rule(count=st.integers(1, 5))
    def lose(self, count: int) -> None:
        first = self.world.records.next_index
        self.world.records.lose(count)
        self.gone |= set(range(first, first + count))

    @rule(share=st.floats(0, 1))
    def remove(self, share: float) -> None:
        records = self.world.records
        index = int(records.first_index + (records.next_index - records.first_index) * share / 3)
        records.remove_to(index)
        self.gone |= set(range(index))

    @precondition(lambda self: len(self.readers) < READERS_MAX)
    @rule(window=st.sampled_from([1, 3, 10, None]), batch_bytes=st.sampled_from([None, None, 1, 200, 2000]))
    def join(self, window: int | None, batch_bytes: int | None) -> None:
        takes = tuple(Codec) if batch_bytes == 200 else (Codec.NONE,)
        reader = self.world.join(self.group, window=window, batch_bytes=batch_bytes, codecs=takes)
        self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        if reader.held:
            chosen = data.draw(st.lists(st.sampled_from(reader.held), unique=True))
            chosen.sort(key=reader.held.index)
            self._settle(reader, chosen)
        if reader.held_runs:
            run = data.draw(st.sampled_from(reader.held_runs))
            self.settled |= set(run.indexes)
            reader.settle_run(run)
        self.world.run()

    def _settle(self, reader: LogReader, chosen: list) -> None:  # type: ignore[type-arg]
        numbers = sorted(delivery.number for delivery in chosen)
        assert not self.settled & set(numbers)
        self.settled |= set(numbers)
        reader.settle(sorted(chosen, key=lambda delivery: delivery.number))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), attempted=st.booleans())
    def requeue(self, data: st.DataObject, attempted: bool) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        if reader.held:
            chosen = data.draw(st.lists(st.sampled_from(reader.held), unique=True))
            reader.requeue(sorted(chosen, key=lambda delivery: delivery.number), attempted=attempted)
        if reader.held_runs:
            reader.return_run(data.draw(st.sampled_from(reader.held_runs)), attempted=attempted)
        self.world.run()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        for subscription in list(self.group.subscriptions):
            if subscription.consumer is reader:
                subscription.close()
        reader.requeue(sorted(reader.held, key=lambda delivery: delivery.number))
        for run in list(reader.held_runs):
            reader.return_run(run)
        self.world.run()

    @rule(share=st.floats(0, 1.2))
    def move(self, share: float) -> None:
        """What is out from now on counts for nothing: for the model each reader holds it under another name."""
        records = self.world.records
        to = min(records.next_index, int(records.next_index * share))
        for reader in self.readers:
            past = LogReader(self.world)
            past.held, reader.held = reader.held, []
            past.held_runs, reader.held_runs = reader.held_runs, []
            past.window = reader.window
            self.past.append(past)
        self.settled = set(range(to))
        self.group.seek(to)
        self.world.run()

    @precondition(lambda self: self.past)
    @rule(data=st.data(), how=st.sampled_from(["settle", "give back", "give back unattempted"]))
    def answer_of_before(self, data: st.DataObject, how: str) -> None:
        reader = data.draw(st.sampled_from(self.past))
        before = self.group.state()
        for delivery in sorted(reader.held[:3], key=lambda delivery: delivery.number):
            if how == "settle":
                reader.settle([delivery])
            else:
                reader.requeue([delivery], attempted=how == "give back")
        for run in reader.held_runs[:1]:
            if how == "settle":
                reader.settle_run(run)
            else:
                reader.return_run(run, attempted=how == "give back")
        assert self.group.state() == before
        self.world.run()

    @rule(saved=st.booleans())
    def restart(self, saved: bool) -> None:
        """The broker goes and comes again. Not `saved`: at a moment when only what a receipt waited for is on disk."""
        if self.group.storage is not None and saved:
            self.group.storage.when_settled(lambda: None)
        self.world.run()
        state = self.world.keeper.states["/log/a", "g"] if saved else self.group.state()
        self.group.close()
        self.readers.clear()
        self.past.clear()
        self.group = self.world.group(GroupState(state.front, state.settled, state.handed_to))
        self.world.run()

    # ------------------------------------------------------------------ what holds

    @invariant()
    def nothing_is_in_two_hands(self) -> None:
        seen: set[int] = set()
        for reader in self.readers:
            held = [d.number for d in reader.held] + [n for run in reader.held_runs for n in run.indexes]
            assert not seen & set(held), "two consumers have it"
            assert len(set(held)) == len(held)
            assert not self.settled & set(held), "it was settled before"
            seen |= set(held)

    @invariant()
    def the_front_is_the_lowest_unsettled(self) -> None:
        front = self.group.front
        assert all(index in self.settled or index in self.gone for index in range(front))
        assert front not in self.settled
        assert 0 <= self.group.lag_count <= self.world.records.next_index - front

    @invariant()
    def nothing_waits_while_somebody_has_credit(self) -> None:
        if any(reader.has_credit for reader in self.readers):
            held = {d.number for r in self.readers for d in r.held} | {
                n for r in self.readers for run in r.held_runs for n in run.indexes
            }
            left = set(range(self.world.records.next_index)) - self.settled - self.gone - held
            assert not left, "records that nobody gets"

    def teardown(self) -> None:
        """One more consumer takes all that is left, and that is all there is."""
        for reader in self.past + self.readers:
            reader.requeue(sorted(reader.held, key=lambda delivery: delivery.number))
            for run in list(reader.held_runs):
                reader.return_run(run)
        for subscription in list(self.group.subscriptions):
            subscription.close()
        last = self.world.join(self.group, auto=True)
        self.world.run()
        assert sorted(last.numbers) == sorted(set(range(self.world.records.next_index)) - self.settled - self.gone)
        assert self.group.front == self.world.records.next_index
        assert self.group.lag_count == 0


GroupMachine.TestCase.settings = settings(
    settings.get_profile("repeatable"), max_examples=rounds(40), stateful_step_count=40
)
TestGroup = GroupMachine.TestCase
