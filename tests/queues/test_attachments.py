"""Attachments of subscriptions to queues: counted by connection and broker, made and ended in steps."""

from __future__ import annotations

import pytest

from sluiceway.queues.attachments import ATTACHMENT_BYTES, GROWTH_SHARE, AttachmentAccount, AttachmentLimitError
from sluiceway.queues.names import parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry, WildcardConsumer
from tests.queues.rig import FakeConsumer, Head, World


class Estate:
    """A registry with topics in it."""

    def __init__(self, count: int = 0, *, attachments_max: int = 1000) -> None:
        self.world = World()
        self.registry = DestinationRegistry(
            self.world.environment, lambda _address: QueuePolicy(), attachments_max=attachments_max
        )
        self.make(range(count))

    def make(self, numbers: range) -> None:
        for number in numbers:
            self.registry.get(parse(f"/topic/t{number}"))

    def delete(self, number: int) -> None:
        self.registry.delete(self.registry.destinations[f"/topic/t{number}"], "a test")

    def account(self, count_max: int | None = None, said: list[str] | None = None) -> AttachmentAccount:
        return AttachmentAccount(self.registry.attachments, count_max, None if said is None else said.append)

    def wildcard(self, consumer: FakeConsumer, account: AttachmentAccount | None = None) -> WildcardConsumer:
        return self.registry.attach_wildcard(parse("/topic/>"), consumer, account=account)

    @property
    def count(self) -> int:
        return self.registry.attachments.used_count


def test_each_destination_and_each_priority_counts_until_it_is_detached() -> None:
    estate = Estate(3)
    account = estate.account()
    attached = estate.registry.attach(parse("/topic/>"), estate.world.consumer(), account=account)
    assert (account.count, estate.count) == (3, 3)
    estate.registry.get(parse("/topic/t0")).queue.partition(9)
    assert account.count == 4
    estate.delete(0)
    assert account.count == 2
    estate.make(range(5, 7))
    assert (account.count, estate.count) == (4, 4)
    assert estate.registry.attachments.used_bytes == 4 * ATTACHMENT_BYTES
    attached.close()
    assert (account.count, estate.count, estate.registry.attachments.used_bytes) == (0, 0, 0)


def test_a_consumer_of_a_queue_under_two_names_counts_once() -> None:
    estate = Estate(1)
    account, consumer = estate.account(), estate.world.consumer()
    one = estate.registry.attach(parse("/topic/*"), consumer, account=account)
    other = estate.registry.attach(parse("/topic/t0"), consumer, account=account)
    assert account.count == 1
    one.close()
    assert account.count == 1
    other.close()
    assert account.count == 0


def test_a_subscription_beyond_the_limit_of_its_connection_is_refused() -> None:
    estate = Estate(5)
    account = estate.account(4)
    wildcard = estate.wildcard(estate.world.consumer(), account)
    with pytest.raises(AttachmentLimitError, match=r"more than 4 attachments .*attachments_max of the listener"):
        list(wildcard.attaching())
    assert account.count == 4
    wildcard.close()
    assert account.count == 0
    estate.registry.attach(parse("/topic/t1"), estate.world.consumer(), account=account)


def test_a_subscription_beyond_the_limit_of_the_broker_is_refused() -> None:
    estate = Estate(5, attachments_max=6)
    estate.registry.attach(parse("/topic/>"), estate.world.consumer())
    with pytest.raises(AttachmentLimitError, match=r"no more than 6 \(attachments_max of \[broker\]\)"):
        list(estate.wildcard(estate.world.consumer(), estate.account(100)).attaching())
    estate.registry.attachments.resize(100)
    estate.registry.attach(parse("/topic/>"), estate.world.consumer())


def test_new_destinations_are_attached_beyond_the_limit_and_it_is_said() -> None:
    """Who makes a destination did nothing wrong; who has too many by it is told to go."""
    estate = Estate(2)
    said: list[str] = []
    account = estate.account(2, said)
    wildcard = estate.wildcard(estate.world.consumer(), account)
    list(wildcard.attaching())
    assert not said
    estate.make(range(2, 4))
    assert account.count == 4
    assert "more than 2 attachments" in said[0]
    wildcard.close()
    assert estate.count == 0


def test_what_new_destinations_add_has_room_beyond_the_limit_of_the_broker() -> None:
    estate = Estate(8, attachments_max=8)
    said: list[str] = []
    list(estate.wildcard(estate.world.consumer(), estate.account(100, said)).attaching())
    estate.make(range(8, 8 + 8 // GROWTH_SHARE))
    assert not said
    estate.make(range(100, 101))
    assert "new destinations gave the broker 11 attachments" in said[0]


def test_destinations_that_come_and_go_while_a_wildcard_is_attached_are_attached_once_or_not() -> None:
    estate = Estate(50)
    consumer, account = estate.world.consumer(), estate.account()
    wildcard = estate.wildcard(consumer, account)
    for step, _nothing in enumerate(wildcard.attaching()):
        if step % 3 == 0 and step < 90:
            estate.make(range(1000 + step, 1001 + step))
        if step % 5 == 0 and f"/topic/t{step % 50}" in estate.registry.destinations:
            estate.delete(step % 50)
    assert set(wildcard.attachments) == set(estate.registry.destinations.values())
    assert account.count == len(estate.registry.destinations)
    for destination in estate.registry.destinations.values():
        assert destination.queue.attachments_count == 1
        estate.world.send(destination.queue, 1)
    estate.world.run()
    assert len(consumer.deliveries) == len(estate.registry.destinations)


def test_a_destination_that_is_deleted_and_made_anew_in_the_middle_is_attached() -> None:
    estate = Estate(20)
    account = estate.account()
    wildcard = estate.wildcard(estate.world.consumer(), account)
    steps = wildcard.attaching()
    next(steps)
    for number in range(20):
        estate.delete(number)
    estate.make(range(20))
    list(steps)
    assert (len(wildcard.attachments), account.count) == (20, 20)


def test_a_wildcard_that_is_closed_in_the_middle_attaches_no_more() -> None:
    estate = Estate(50)
    account = estate.account()
    wildcard = estate.wildcard(estate.world.consumer(), account)
    steps = wildcard.attaching()
    for _ in range(20):
        next(steps)
    closing = wildcard.closing()
    next(closing)
    list(steps)
    estate.make(range(100, 110))
    list(closing)
    assert (account.count, len(wildcard.attachments)) == (0, 0)
    assert all(not d.queue.attachments_count for d in estate.registry.destinations.values())


def test_destinations_that_go_while_a_wildcard_is_closed_are_no_trouble() -> None:
    estate = Estate(30)
    account = estate.account()
    wildcard = estate.wildcard(estate.world.consumer(), account)
    list(wildcard.attaching())
    for step, _nothing in enumerate(wildcard.closing()):
        if f"/topic/t{step}" in estate.registry.destinations:
            estate.delete(step)
    assert (account.count, estate.count) == (0, 0)


def test_idle_destinations_are_deleted_though_a_wildcard_is_half_attached() -> None:
    estate = Estate(10)
    wildcard = estate.wildcard(estate.world.consumer())
    steps = wildcard.attaching()
    for _ in range(6):
        next(steps)
    assert wildcard.attachments
    assert all(destination.is_deletable for destination in estate.registry.destinations.values())


def test_other_permissions_are_followed_in_steps() -> None:
    estate = Estate(10)
    account = estate.account()
    wildcard = estate.wildcard(estate.world.consumer(), account)
    list(wildcard.attaching())
    list(wildcard.reviewing(lambda name: name.endswith(("1", "2"))))
    assert sorted(each.name for each in wildcard.attachments) == ["/topic/t1", "/topic/t2"]
    assert account.count == 2
    list(wildcard.reviewing(None))
    assert account.count == 10


def test_a_priority_that_comes_later_is_counted_for_all_who_are_there() -> None:
    estate = Estate(1)
    said: list[str] = []
    account = estate.account(1, said)
    estate.registry.attach(parse("/topic/t0"), estate.world.consumer(), account=account)
    estate.world.send(estate.registry.get(parse("/topic/t0")).queue_for(Head(priority=9)), 1)
    assert account.count == 2
    assert said
