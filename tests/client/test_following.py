"""How clients go to the hub that has their log, and follow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluiceway.client import Consumer, LogClient, Producer, reading_link
from sluiceway.client.address import Address
from sluiceway.client.way import BARRED_SECONDS, LOST_SECONDS, Way
from tests.client.conftest import quick
from tests.client.fake_broker import FakeBroker
from tests.client.test_consumer import taken
from tests.client.test_producer import numbers


@pytest.fixture
def hubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeBroker, FakeBroker]]:
    """Two hubs, the second of which has all logs, for clients that ask again soon."""
    monkeypatch.setattr(reading_link, "FOLLOW_SECONDS", 0.02)
    first = FakeBroker("hub-1")
    second = FakeBroker("hub-2", first)
    first.owners[0] = "hub-2"
    with first, second:
        yield first, second


def many(hubs: tuple[FakeBroker, FakeBroker]) -> str:
    return "|".join(hub.address for hub in hubs)


# ---------------------------------------------------------------------- producers and consumers


def test_a_producer_goes_to_the_owner_and_follows_it(hubs: tuple[FakeBroker, FakeBroker]) -> None:
    """In order, each record once: it leaves a hub when all that it sent there has its receipt."""
    first, second = hubs
    with Producer(first.address, "orders", mode="sync", backoff=quick) as producer:
        for number, owner in enumerate(("hub-2", "hub-1", "hub-2")):
            with first.changed:
                first.owners[0] = owner
            counts = [hub.appends_count for hub in hubs]
            at = 0
            while first.hubs[owner].appends_count < counts[0 if owner == "hub-1" else 1] + 3:
                producer.send(f"{number}.{at}")
                at += 1
        assert producer.statistics().resent_count == 0
    values = [tuple(map(int, value.decode().split("."))) for value in first.log("orders").values]
    assert values == sorted(set(values)) and len(values) > 8
    assert first.appends_count and second.appends_count


def test_a_producer_goes_on_at_another_hub_when_the_owner_dies(hubs: tuple[FakeBroker, FakeBroker]) -> None:
    """Which the hub that it came by has named."""
    first, second = hubs
    with Producer(first.address, "orders", mode="sync", backoff=quick) as producer:
        producer.send("a")
        assert second.appends_count == 1
        with first.changed:
            first.owners[0] = "hub-1"
            del first.hubs["hub-2"]
        second.stop()
        assert producer.send("b") == 1
    second.start()
    assert first.log("orders").values == [b"a", b"b"]


def test_who_does_not_reach_the_owner_stays_where_it_is(hubs: tuple[FakeBroker, FakeBroker]) -> None:
    """The hub serves it over a link; the owner is not tried again at once."""
    first, second = hubs
    second.stop()
    with Producer(first.address, "orders", mode="sync", backoff=quick) as producer:
        assert [producer.send(value) for value in numbers(20)] == list(range(20))
        assert first.connects_count <= 2
    second.start()


def test_following_can_be_turned_off(hubs: tuple[FakeBroker, FakeBroker]) -> None:
    first, second = hubs
    with Producer(first.address, "orders", mode="sync", follow=False) as producer:
        producer.send("a")
    with Consumer(first.address, from_="earliest", to=1, follow=False) as consumer:
        assert taken(consumer.stream("orders"), 1) == [b"a"]
    assert second.connects_count == 0


@pytest.mark.parametrize("group", [None, "billing"])
def test_a_consumer_goes_to_the_owner_and_follows_it(hubs: tuple[FakeBroker, FakeBroker], group: str | None) -> None:
    first, second = hubs
    first.fill("orders", numbers(20))
    with Consumer(first.address, group=group, from_="earliest", backoff=quick) as consumer:
        stream = consumer.stream("orders")
        found = taken(stream, 20)
        assert len(second.subscribes) == 1 and not first.subscribes
        stream.poll(0.0)  # all is acknowledged
        with first.changed:
            first.owners[0] = "hub-1"
        first.wait_until(lambda: bool(first.subscribes))
        first.fill("orders", [b"20", b"21"], in_batches_of=1)
        found += taken(stream, 2)
    assert found == numbers(22)


def test_any_of_the_hubs_that_are_given_will_do(hubs: tuple[FakeBroker, FakeBroker]) -> None:
    """One broker, by whichever hub is there."""
    first, _ = hubs
    first.stop()
    with Producer(many(hubs), "orders", mode="sync", backoff=quick) as producer:
        assert producer.brokers == (first.address,)
        assert producer.send("a") == 0
    with LogClient(many(hubs)) as client:
        assert client.describe("orders").size == 1
    first.start()


@pytest.mark.parametrize("code", ["shard-away", "in-doubt"])
def test_what_is_refused_because_a_shard_moves_is_sent_again(hubs: tuple[FakeBroker, FakeBroker], code: str) -> None:
    first, second = hubs
    refusals = iter([True])
    second.faults.refuse, second.faults.refuse_code = (lambda _batch: next(refusals, False)), code
    with Producer(first.address, "orders", mode="sync", backoff=quick) as producer:
        assert producer.send("a") == 0
        assert producer.statistics().failed_count == 0


def test_hubs_that_do_not_know_the_question_are_used_as_before(hubs: tuple[FakeBroker, FakeBroker]) -> None:
    """An answer that makes no sense leads nowhere."""
    first, second = hubs
    first.owners[0] = "hub-9"
    with Producer(first.address, "orders", mode="sync") as producer:
        assert [producer.send(value) for value in numbers(3)] == [0, 1, 2]
    assert second.connects_count == 0


# ---------------------------------------------------------------------- the choice


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(owner: str, at: str, **clients: str) -> dict[str, Any]:
    hubs = [{"name": name.replace("_", "-"), "clients": urls.split()} for name, urls in clients.items()]
    return {"hub": at, "hubs": hubs, "homes": [{"hub": owner}]}


def way(text: str, clock: Clock) -> Way:
    return Way(Address.parse(text), "/log/a", clock=clock)


def places(chosen: Way) -> list[str]:
    return [address.url for address, _hub in chosen.choices()]


@pytest.mark.parametrize(
    ("given", "urls", "chosen"),
    [
        ("hub.org:1", "stomp://*:7", "stomp://hub.org:7"),
        ("hub.org:1", "stomp://two.org:7", "stomp://two.org:7"),
        ("[::2]:1", "stomp://*:7", "stomp://[::2]:7"),
        ("stomp+ssl://hub.org:1", "stomp://*:7 stomp+ssl://*:8", "stomp+ssl://hub.org:8"),
        ("stomp+ssl://hub.org:1", "stomp://*:7", ""),
        ("hub.org:1", "ws://*:7 stomp+ssl://*:8", ""),
        ("hub.org:1", "stomp://127.0.0.1:7", ""),
        ("localhost:1", "stomp://127.0.0.1:7", "stomp://127.0.0.1:7"),
        ("hub.org:1", "", ""),
    ],
)
def test_an_address_that_a_hub_names_is_used_by_the_same_scheme(given: str, urls: str, chosen: str) -> None:
    """A login never goes without TLS where it came with TLS, nor to this machine when it came to another one."""
    made = way(given, Clock())
    assert made.came(made.address, "hub-1~1")
    assert made.told(told("hub-2", "hub-1", hub_2=urls)) == bool(chosen)
    assert (places(made)[0] == chosen) == bool(chosen)


def test_a_named_address_has_the_login_that_was_given() -> None:
    made = way("stomp://ann:secret@hub.org:1", Clock())
    made.came(made.address, "hub-1~1")
    made.told(told("hub-2", "hub-1", hub_2="stomp://two.org:7"))
    address = made.choices()[0][0]
    assert (address.login, address.passcode, address.virtual_host) == ("ann", "secret", "hub.org")


def test_an_owner_that_does_not_answer_is_left_alone_for_longer_each_time() -> None:
    clock = Clock()
    made = way("hub.org:1", clock)
    answer = told("hub-2", "hub-1", hub_2="stomp://two.org:7")
    made.came(made.address, "hub-1~1")
    for seconds in (BARRED_SECONDS, 2 * BARRED_SECONDS):
        assert made.told(answer)
        made.failed(made.choices()[0][0])
        assert places(made) == ["stomp://hub.org:1"]
        clock.now += seconds - 1
        assert not made.told(answer)
        clock.now += 1
    assert made.told(answer)


def test_the_hub_of_a_lost_connection_is_the_last_choice_for_a_moment() -> None:
    """It may be starting again, and other hubs have its shards."""
    clock = Clock()
    made = way("one.org:1|two.org:1", clock)
    made.came(made.address, "hub-1~1")
    made.lost()
    assert places(made) == ["stomp://two.org:1", "stomp://one.org:1"]
    clock.now += LOST_SECONDS
    assert places(made) == ["stomp://one.org:1", "stomp://two.org:1"]


@pytest.mark.parametrize("answer", [{}, {"hub": 1}, {"hub": "hub-1", "hubs": [{}], "homes": []}, {"ok": False}])
def test_an_answer_that_makes_no_sense_changes_nothing(answer: dict[str, Any]) -> None:
    made = way("hub.org:1", Clock())
    made.came(made.address, "hub-1~1")
    assert not made.told(answer)
    assert places(made) == ["stomp://hub.org:1"]


def test_a_broker_that_is_no_hub_is_not_asked() -> None:
    made = way("hub.org:1", Clock())
    assert not made.came(made.address, "8f2a60c1d3b94e75")
    assert not made.follows


@pytest.mark.parametrize("text", ["a:1|a:1", "a:1|", "|a:1"])
def test_hubs_that_are_none_or_given_twice_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"twice|is not a broker's address"):
        Address.parse(text)
