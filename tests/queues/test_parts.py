"""Parts of a queue by a header: each has one consumer at a time, and equal values keep their order."""

from __future__ import annotations

from collections import Counter
from random import Random

import attrs
import pytest

from sluiceway.queues.attachments import AttachmentAccount
from sluiceway.queues.destination import Destination
from sluiceway.queues.names import DestinationNameError, name_of_part, parse, split_part
from sluiceway.queues.partitioned import Attachment
from sluiceway.queues.parts import Partitioning, by_header, key_of, priority_and_part
from sluiceway.queues.selectors import compile_selector
from sluiceway.queues.selectors.selector import Selection
from sluiceway.store.maintenance.export import destination_filter
from sluiceway.store.maintenance.records import QueueName
from sluiceway.store.states import KIND_QUEUE, decode_queue, encode_queue
from tests.how_often import rounds
from tests.queues.rig import FakeConsumer, Head, World, make_policy

PARTS = 4


class Rig:
    """One destination that is divided by `color`, and its consumers."""

    def __init__(self, **policy: object) -> None:
        self.world = World()
        policy = {"partition_by": "header:color", "partitions_count": PARTS, **policy}
        self.destination = Destination(parse("/queue/q"), make_policy(**policy), self.world.environment)
        self.keys: dict[int, str] = {}

    def send(self, *colors: str, priority: int = 4) -> list[int]:
        """One message for each; returns their numbers."""
        numbers = []
        for color in colors:
            head = Head(color=color, priority=priority)
            (message,) = messages = self.world.messages(1, head=head)
            self.destination.queue_for(head).add(messages, len(message.wire), None)
            self.keys[message.number] = color
            numbers.append(message.number)
        self.world.run()
        return numbers

    def join(self, window: int | None = None, **options: object) -> tuple[FakeConsumer, Attachment]:
        consumer = self.world.consumer(window)
        attachment = self.destination.queue.attach(consumer, **options)  # type: ignore[arg-type]
        self.world.run()
        return consumer, attachment

    def settle(self, consumer: FakeConsumer) -> None:
        consumer.settle()
        self.world.run()

    def takers(self) -> dict[int, str]:
        """Who takes from each part."""
        found: dict[int, str] = {}
        for key, queue in self.destination.queue.partitions.items():
            names = [each.consumer.label for each in queue.subscriptions.values() if each.selection is None]
            assert len(names) <= 1, "one at a time"
            for name in names:
                assert found.setdefault(priority_and_part(key)[1], name) == name, "of all priorities"
        return found

    def colors_in(self, part: int) -> list[str]:
        """Some values that belong to a part."""
        partitioning = self.destination.partitioning
        assert partitioning is not None
        return [f"c{n}" for n in range(100) if partitioning.part_of(Head(color=f"c{n}")) == part][:3]

    def fill(self) -> None:
        """All parts are made."""
        self.send(*[self.colors_in(part)[0] for part in range(PARTS)])


def test_equal_values_meet_in_one_part_and_parts_are_known_by_number() -> None:
    rig = Rig()
    rig.send(*[f"c{n % 10}" for n in range(50)])
    places: dict[str, set[int]] = {}
    for queue in rig.destination.queue.partitions.values():
        for sequence in range(queue.elements.next_sequence):
            message = queue.elements.get(sequence)
            assert message is not None
            places.setdefault(rig.keys[message.number], set()).add(queue.part)
    assert len(places) == 10 and all(len(parts) == 1 for parts in places.values())
    assert len(rig.destination.queue.partitions) <= PARTS
    assert {queue.name_on_disk for queue in rig.destination.queues} <= {
        name_of_part("/queue/q", n) for n in range(PARTS)
    }


def test_without_the_header_it_is_part_0() -> None:
    assert Partitioning(by_header("color"), 8).part_of(Head()) == 0


def test_names_and_keys_of_parts_are_read_back() -> None:
    for part in (0, 1, 9, 10, 255):
        assert split_part(name_of_part("/queue/a", part)) == ("/queue/a", part)
        for priority in range(10):
            assert priority_and_part(key_of(priority, part)) == (priority, part)
    for wrong in ("\x1f", "\x1f0", "\x1f01", "\x1fx", "\x1f1\x1f2"):
        with pytest.raises(DestinationNameError):
            split_part(f"/queue/a{wrong}")


def test_tools_of_the_store_know_parts_by_the_name_of_their_queue() -> None:
    wanted = destination_filter(["/queue/a*", "/queue/b"])
    assert wanted(name_of_part("/queue/b", 3)) and not wanted(name_of_part("/queue/c", 3))
    assert QueueName(name_of_part("/queue/b", 3), 4, topic=False).said == "/queue/b part 3"
    record = encode_queue(KIND_QUEUE, 4, name_of_part("/queue/a", 12))
    assert record.endswith(bytes.fromhex("2f 61 1f 31 32")) and decode_queue(record)[2] == name_of_part("/queue/a", 12)


@pytest.mark.parametrize("consumers_count", [1, 2, 3, 4, 6])
def test_parts_are_spread_evenly_whoever_comes_first(consumers_count: int) -> None:
    for parts_first in (True, False):
        rig = Rig()
        if parts_first:
            rig.fill()
        crowd = [rig.join()[0] for _ in range(consumers_count)]
        if not parts_first:
            rig.fill()
        for _ in range(2):
            for consumer in crowd:
                rig.settle(consumer)
        counts = Counter(rig.takers().values())
        assert sum(counts.values()) == PARTS
        assert len(counts) == min(consumers_count, PARTS)
        assert max(counts.values()) == -(-PARTS // consumers_count)


def test_a_newcomer_waits_until_the_one_before_has_settled() -> None:
    rig = Rig()
    rig.fill()
    first, _attachment = rig.join()
    assert len(first.held) == PARTS
    second, _other = rig.join()
    assert not second.held
    facts = [str(queue.facts()["consumers"]) for queue in rig.destination.queues]
    assert sum(first.label in said for said in facts) == PARTS // 2, facts
    rig.fill()
    held_before = len(first.held)
    rig.settle(first)
    assert len(second.held) == PARTS // 2
    assert held_before == PARTS + PARTS // 2


def test_what_a_leaver_held_goes_on_in_order() -> None:
    rig = Rig()
    (color, *_rest) = rig.colors_in(1)
    first, attachment = rig.join(2)
    second, _other = rig.join(10)
    numbers = rig.send(*[color] * 6)
    holder, other = (first, second) if first.held else (second, first)
    if holder is second:
        _other.close()
    else:
        attachment.close()
    rig.world.run()
    assert not other.held, "not before the first has let go"
    holder.requeue()
    rig.world.run()
    for _ in range(6):
        rig.settle(other)
    assert other.numbers == numbers


def test_one_consumer_has_all_priorities_of_a_part() -> None:
    rig = Rig()
    rig.fill()
    for _ in range(2):
        rig.join()
    for part in range(PARTS):
        rig.send(rig.colors_in(part)[0], priority=9)
    for consumer in list(rig.world.manager.resources):
        if isinstance(consumer, FakeConsumer):
            rig.settle(consumer)
    assert len(rig.takers()) == PARTS


def test_the_oldest_exclusive_consumer_has_all_parts() -> None:
    rig = Rig()
    rig.fill()
    plain, _attachment = rig.join()
    first, one = rig.join(exclusive=True)
    second, _two = rig.join(exclusive=True)
    rig.settle(plain)
    assert set(rig.takers().values()) == {first.label}
    one.close()
    rig.settle(first)
    rig.world.run()
    assert set(rig.takers().values()) == {second.label}
    _two.close()
    rig.settle(second)
    assert set(rig.takers().values()) == {plain.label}


def test_a_part_that_broke_is_made_again_for_the_same_consumer() -> None:
    rig = Rig()
    rig.fill()
    consumer, _attachment = rig.join()
    rig.settle(consumer)
    color = rig.colors_in(2)[0]
    rig.destination.queue_for(Head(color=color)).close_queue("broke")
    rig.world.run()
    (number,) = rig.send(color)
    assert consumer.numbers[-1] == number


def test_a_deleted_queue_lets_everybody_go() -> None:
    rig = Rig()
    rig.fill()
    crowd = [rig.join() for _ in range(3)]
    rig.destination.queue.close_queue("over")
    rig.world.run()
    for consumer, attachment in crowd:
        consumer.settle()
        attachment.close()
    assert rig.destination.queue.attachments_count == 0


@attrs.define
class _Life:
    consumer: FakeConsumer
    attachment: Attachment


@pytest.mark.parametrize("seed", range(rounds(12)))
def test_order_of_equal_values_holds_whoever_comes_and_goes(seed: int) -> None:
    """Until it is settled no other consumer gets anything of its value, and each value is settled in order."""
    random = Random(seed)
    rig = Rig()
    settled: dict[str, list[int]] = {}
    sent: dict[str, list[int]] = {}
    crowd: list[_Life] = []
    gone: list[FakeConsumer] = []

    def check() -> None:
        holders: dict[str, set[str]] = {}
        for consumer in [life.consumer for life in crowd] + gone:
            for number in consumer.held_numbers:
                holders.setdefault(rig.keys[number], set()).add(consumer.label)
        assert all(len(names) == 1 for names in holders.values()), holders

    for _ in range(300):
        what = random.random()
        if what < 0.4:
            color = f"c{random.randrange(8)}"
            sent.setdefault(color, []).extend(rig.send(color))
        elif what < 0.5 and len(crowd) < 6:
            crowd.append(_Life(*rig.join(random.randint(1, 5))))
        elif what < 0.55 and crowd:
            life = crowd.pop(random.randrange(len(crowd)))
            life.attachment.close()
            gone.append(life.consumer)
        elif crowd or gone:
            consumer = random.choice([life.consumer for life in crowd] + gone)
            if consumer.held:
                cut = random.randint(1, len(consumer.held))
                portion = consumer.held[:cut]
                if random.random() < 0.7:
                    for number in [delivery.number for delivery in portion]:
                        settled.setdefault(rig.keys[number], []).append(number)
                    consumer.settle(portion)
                else:
                    consumer.requeue()
        rig.world.run()
        check()
    if not crowd:
        crowd.append(_Life(*rig.join()))
    for _ in range(400):
        for consumer in gone + [life.consumer for life in crowd]:
            for number in consumer.held_numbers:
                settled.setdefault(rig.keys[number], []).append(number)
            rig.settle(consumer)
    assert settled == sent


def test_who_selects_takes_from_all_parts_beside_their_consumers() -> None:
    rig = Rig()
    plain, _attachment = rig.join()
    picky, other = rig.join(selection=_selecting("color = 'c1'"))
    numbers = rig.send("c1", "c2", "c1")
    assert sorted([*plain.numbers, *picky.numbers]) == numbers
    _attachment.close()
    rig.settle(plain)
    (last,) = rig.send("c1")
    assert last in picky.numbers
    other.close()
    rig.settle(picky)


def _selecting(text: str) -> Selection:
    selector = compile_selector(text)
    assert selector is not None
    return Selection(selector)


def test_who_is_ended_for_what_it_raised_leaves_no_part_behind() -> None:
    """A consumer that is ended in the midst of being given a part has none of it, and the next one all of it."""
    rig = Rig()
    ended: list[Attachment] = []
    environment = attrs.evolve(rig.world.environment, contain=lambda _error: ended.pop().close())
    rig.destination = Destination(parse("/queue/q"), rig.destination.policy, environment)
    account = _BrokenAccount()
    first, attachment = rig.join()
    color = rig.colors_in(0)[0]
    numbers = [*rig.send(color), *rig.send(color, priority=7)]
    assert first.held_numbers == numbers
    broken, to_end = rig.join(account=account)
    last, _attachment = rig.join()
    attachment.close()
    ended.append(to_end)
    account.is_broken = True
    rig.settle(first)
    assert not ended, "it was its turn"
    assert rig.takers() == {0: last.label}
    numbers = [*rig.send(color), *rig.send(color, priority=7)]
    assert last.held_numbers == numbers and not broken.held


class _BrokenAccount(AttachmentAccount):
    """Raises, as a mistake of the broker would."""

    def __init__(self) -> None:
        self.is_broken = False

    def changed(self, count: int) -> None:
        if self.is_broken and count > 0:
            raise RuntimeError("a mistake of the broker")
