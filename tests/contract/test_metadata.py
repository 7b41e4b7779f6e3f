"""What all implementations of the metadata managers promise, on whatever store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.store.metadata import (
    BadVersionError,
    HubInfo,
    MetadataClosedError,
    MetadataError,
    MetadataManagers,
    NoSubscriptionStateError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    PageRange,
    PageRanges,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
    SubscriptionStateExistsError,
    Version,
    Versioned,
)
from tests.contract.managers import Answer, Loop, Maker, maker_of

KINDS = ("memory", "leveldb", "postgresql", "faulty", "coordination")

LOG = "/log/a"
OWNER = HubInfo("host-1", 61613, 1_700_000_000_000)
OTHER = HubInfo("::1", 61614, 1_700_000_000_001)
RANGES = PageRanges([PageRange(0, 10, "0"), PageRange(10, None, "1")])
WANTS = SubscriptionPreferences({"from": "earliest", "created_at_ms": "1700000000000"})
STANDS = SubscriptionState(7, [(9, 12), (20, 21)])
DATA = SubscriptionData(WANTS, STANDS)


@attrs.define
class Store:
    """Managers, and a loop to crank: operations by name, in order."""

    managers: MetadataManagers
    loop: Loop

    def ask(self, operation: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        """The answer of one operation, which does not come from inside the call."""
        answer = Answer(self.loop)
        operation(*arguments, answer, **options)
        assert not answer.came, "answers come on the loop"
        return answer.result

    def owner(self, topic: str = LOG) -> Any:
        return self.ask(self.managers.ownership.read, topic)

    def ranges(self, topic: str = LOG) -> Any:
        return self.ask(self.managers.persistence.read, topic)

    def subscription(self, topic: str = LOG, subscriber: str = "g") -> Any:
        return self.ask(self.managers.subscriptions.read, topic, subscriber)

    def created(self, data: SubscriptionData = DATA, topic: str = LOG, subscriber: str = "g") -> Version:
        version = self.ask(self.managers.subscriptions.create, topic, subscriber, data)
        assert isinstance(version, Version)
        return version


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    made = maker_of(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(maker: Maker) -> Store:
    return Store(maker.open(), maker.loop)


# ---------------------------------------------------------------------- owners and page ranges: cells of a topic


@attrs.frozen
class Kind:
    """One of the two managers that keep a value for each topic."""

    manager: str
    one: Any
    other: Any
    none_error: type[MetadataError]


CELLS = [
    pytest.param(Kind("ownership", OWNER, OTHER, NoTopicOwnerInfoError), id="ownership"),
    pytest.param(Kind("persistence", RANGES, PageRanges(), NoTopicPersistenceInfoError), id="persistence"),
]


@pytest.mark.parametrize("kind", CELLS)
class TestCells:
    def test_nothing_is_there_before_it_is_written(self, store: Store, kind: Kind) -> None:
        assert store.ask(getattr(store.managers, kind.manager).read, LOG) is None

    def test_what_was_written_is_read_with_its_version(self, store: Store, kind: Kind) -> None:
        manager = getattr(store.managers, kind.manager)
        version = store.ask(manager.write, LOG, kind.one, Version.NEW)
        assert store.ask(manager.read, LOG) == Versioned(kind.one, version)
        assert store.ask(manager.read, LOG + "b") is None

    def test_the_version_that_was_read_can_be_written_over_once(self, store: Store, kind: Kind) -> None:
        manager = getattr(store.managers, kind.manager)
        first = store.ask(manager.write, LOG, kind.one, Version.NEW)
        second = store.ask(manager.write, LOG, kind.other, first)
        assert second not in (first, Version.NEW, Version.ANY)
        refused = store.ask(manager.write, LOG, kind.one, first)
        assert isinstance(refused, BadVersionError)
        assert (refused.given, refused.current) == (first, second)
        assert store.ask(manager.read, LOG) == Versioned(kind.other, second)

    def test_new_is_refused_where_something_is(self, store: Store, kind: Kind) -> None:
        manager = getattr(store.managers, kind.manager)
        version = store.ask(manager.write, LOG, kind.one, Version.NEW)
        assert isinstance(store.ask(manager.write, LOG, kind.other, Version.NEW), BadVersionError)
        assert store.ask(manager.read, LOG) == Versioned(kind.one, version)

    @pytest.mark.parametrize("version", [Version.ANY, Version(3)], ids=repr)
    def test_an_old_version_of_nothing_is_no_such_thing(self, store: Store, kind: Kind, version: Version) -> None:
        manager = getattr(store.managers, kind.manager)
        assert type(store.ask(manager.write, LOG, kind.one, version)) is kind.none_error
        assert type(store.ask(manager.delete, LOG, version)) is kind.none_error
        assert store.ask(manager.read, LOG) is None

    def test_any_version_is_written_over_and_deleted(self, store: Store, kind: Kind) -> None:
        manager = getattr(store.managers, kind.manager)
        first = store.ask(manager.write, LOG, kind.one, Version.NEW)
        second = store.ask(manager.write, LOG, kind.other, Version.ANY)
        assert isinstance(second, Version) and second != first
        assert store.ask(manager.delete, LOG, Version.ANY) is None
        assert store.ask(manager.read, LOG) is None

    def test_deleting_wants_the_current_version(self, store: Store, kind: Kind) -> None:
        manager = getattr(store.managers, kind.manager)
        first = store.ask(manager.write, LOG, kind.one, Version.NEW)
        second = store.ask(manager.write, LOG, kind.other, first)
        for version in (first, Version.NEW):
            assert isinstance(store.ask(manager.delete, LOG, version), BadVersionError)
        assert store.ask(manager.delete, LOG, second) is None
        assert type(store.ask(manager.delete, LOG, second)) is kind.none_error
        assert isinstance(store.ask(manager.write, LOG, kind.one, Version.NEW), Version)

    def test_what_is_not_durable_is_there_all_the_same(self, store: Store, kind: Kind) -> None:
        manager = getattr(store.managers, kind.manager)
        version = store.ask(manager.write, LOG, kind.one, Version.NEW, durable=False)
        assert store.ask(manager.read, LOG) == Versioned(kind.one, version)
        assert store.ask(manager.delete, LOG, version, durable=False) is None
        assert store.ask(manager.read, LOG) is None

    def test_a_name_that_can_not_be_stored_is_refused_at_once(self, store: Store, kind: Kind) -> None:
        manager = getattr(store.managers, kind.manager)
        for topic in ("", "x" * 5000, "\ud800"):
            with pytest.raises(ValueError, match="the topic"):
                manager.read(topic, Answer(store.loop))
            with pytest.raises(ValueError, match="the topic"):
                manager.write(topic, kind.one, Version.NEW, Answer(store.loop))
            with pytest.raises(ValueError, match="the topic"):
                manager.delete(topic, Version.ANY, Answer(store.loop))


def test_of_two_who_want_a_topic_one_gets_it(store: Store) -> None:
    """The election of seed 003: both saw no owner, both write without waiting."""
    answers = [Answer(store.loop), Answer(store.loop)]
    for hub, answer in zip((OWNER, OTHER), answers, strict=True):
        store.managers.ownership.write(LOG, hub, Version.NEW, answer)
    assert isinstance(answers[0].result, Version)
    assert isinstance(answers[1].result, BadVersionError)
    assert store.owner().value == OWNER


def test_owner_and_page_ranges_of_a_topic_are_two_things(store: Store) -> None:
    store.ask(store.managers.ownership.write, LOG, OWNER, Version.NEW)
    assert store.ranges() is None
    store.ask(store.managers.persistence.write, LOG, RANGES, Version.NEW)
    store.ask(store.managers.ownership.delete, LOG, Version.ANY)
    assert store.ranges().value == RANGES


# ---------------------------------------------------------------------- subscriptions


def test_a_subscription_is_read_as_it_was_created(store: Store) -> None:
    assert store.subscription() is None
    version = store.created()
    assert store.subscription() == Versioned(DATA, version)
    assert store.subscription(subscriber="h") is None
    assert store.subscription(topic="/log/b") is None


def test_a_subscription_is_created_once(store: Store) -> None:
    version = store.created()
    again = store.ask(store.managers.subscriptions.create, LOG, "g", SubscriptionData())
    assert type(again) is SubscriptionStateExistsError
    assert store.subscription() == Versioned(DATA, version)


def test_a_state_update_leaves_preferences_as_they_are(store: Store) -> None:
    first = store.created()
    state = SubscriptionState(1000)
    second = store.ask(store.managers.subscriptions.update_state, LOG, "g", state, first)
    assert second != first
    assert store.subscription() == Versioned(SubscriptionData(WANTS, state), second)


def test_an_update_of_preferences_leaves_the_state_as_it_is(store: Store) -> None:
    first = store.created()
    wants = SubscriptionPreferences({"selector": "größer > 1"})
    second = store.ask(store.managers.subscriptions.update_preferences, LOG, "g", wants, first)
    assert second != first
    assert store.subscription() == Versioned(SubscriptionData(wants, STANDS), second)


def test_replacing_changes_both_parts(store: Store) -> None:
    first = store.created()
    second = store.ask(store.managers.subscriptions.replace, LOG, "g", SubscriptionData(), first)
    assert second != first
    assert store.subscription() == Versioned(SubscriptionData(), second)


WRITES = {
    "update_state": SubscriptionState(1),
    "update_preferences": SubscriptionPreferences(),
    "replace": SubscriptionData(),
}


@pytest.mark.parametrize("operation", WRITES)
def test_one_version_is_for_the_whole_subscription(store: Store, operation: str) -> None:
    """Whichever part was changed, an older version is refused for both."""
    first = store.created()
    second = store.ask(getattr(store.managers.subscriptions, operation), LOG, "g", WRITES[operation], first)
    after = store.subscription()
    for later, value in WRITES.items():
        refused = store.ask(getattr(store.managers.subscriptions, later), LOG, "g", value, first)
        assert isinstance(refused, BadVersionError)
        assert (refused.given, refused.current) == (first, second)
    assert isinstance(store.ask(store.managers.subscriptions.delete, LOG, "g", first), BadVersionError)
    assert store.subscription() == after


@pytest.mark.parametrize("operation", WRITES)
@pytest.mark.parametrize("version", [Version.ANY, Version.NEW, Version(5)], ids=repr)
def test_what_is_not_there_is_not_updated(store: Store, operation: str, version: Version) -> None:
    write = getattr(store.managers.subscriptions, operation)
    assert type(store.ask(write, LOG, "g", WRITES[operation], version)) is NoSubscriptionStateError
    assert type(store.ask(store.managers.subscriptions.delete, LOG, "g", version)) is NoSubscriptionStateError
    assert store.subscription() is None
    assert store.ask(store.managers.subscriptions.read_subscriptions, LOG) == {}


@pytest.mark.parametrize("operation", WRITES)
def test_any_version_is_updated(store: Store, operation: str) -> None:
    store.created()
    write = getattr(store.managers.subscriptions, operation)
    versions = [store.ask(write, LOG, "g", WRITES[operation], Version.ANY, durable=False) for _ in range(3)]
    assert len(set(versions)) == 3
    assert store.subscription().version == versions[-1]


def test_a_deleted_subscription_is_gone_and_can_be_created_again(store: Store) -> None:
    version = store.created()
    assert store.ask(store.managers.subscriptions.delete, LOG, "g", version) is None
    assert store.subscription() is None
    assert store.ask(store.managers.subscriptions.read_subscriptions, LOG) == {}
    again = store.created(SubscriptionData())
    assert store.subscription() == Versioned(SubscriptionData(), again)


def test_all_subscriptions_of_a_topic_are_read_and_no_others(store: Store) -> None:
    """Also where one name is the beginning of another, topic or subscriber."""
    names = ["g", "gg", "a", "größe", "g/x", "\x00", "\U0010ffff"]
    topics = [LOG, "/log/a.b", "/log/ab", "/log/"]
    versions = {
        (topic, name): store.created(SubscriptionData(WANTS, SubscriptionState(place)), topic, name)
        for topic in topics
        for place, name in enumerate(names)
    }
    for topic in topics:
        found = store.ask(store.managers.subscriptions.read_subscriptions, topic)
        assert list(found) == sorted(names, key=str.encode)
        for place, name in enumerate(names):
            expected = SubscriptionData(WANTS, SubscriptionState(place))
            assert found[name] == Versioned(expected, versions[topic, name])
    assert store.ask(store.managers.subscriptions.read_subscriptions, "/log/none") == {}


def test_large_parts_are_kept(store: Store) -> None:
    data = SubscriptionData(
        SubscriptionPreferences({f"name {place}": "ü" * 20 for place in range(900)}),
        SubscriptionState(2**40, ((2**40 + 2 * k + 1, 2**40 + 2 * k + 2) for k in range(10_000))),
    )
    version = store.created(data)
    assert store.subscription() == Versioned(data, version)


def test_names_that_can_not_be_stored_are_refused_at_once(store: Store) -> None:
    subscriptions = store.managers.subscriptions
    for topic, subscriber in (("", "g"), (LOG, ""), (LOG, "x" * 5000), (LOG, "\ud800")):
        with pytest.raises(ValueError, match=r"the (topic|subscriber)"):
            subscriptions.create(topic, subscriber, DATA, Answer(store.loop))
        with pytest.raises(ValueError, match=r"the (topic|subscriber)"):
            subscriptions.update_state(topic, subscriber, STANDS, Version.ANY, Answer(store.loop))
        with pytest.raises(ValueError, match=r"the (topic|subscriber)"):
            subscriptions.read(topic, subscriber, Answer(store.loop))
        with pytest.raises(ValueError, match=r"the (topic|subscriber)"):
            subscriptions.delete(topic, subscriber, Version.ANY, Answer(store.loop))


def test_whether_partial_updates_are_cheap_is_said(store: Store) -> None:
    assert store.managers.subscriptions.is_partial_update_supported in (True, False)


# ---------------------------------------------------------------------- order


def test_each_operation_sees_those_before_it_and_answers_come_in_order(store: Store) -> None:
    """All are asked for before any is answered."""
    subscriptions = store.managers.subscriptions
    answers: list[tuple[str, Any]] = []

    def told(name: str) -> Callable[[Any], None]:
        return lambda result: answers.append((name, result))

    subscriptions.create(LOG, "g", DATA, told("create"), durable=False)
    subscriptions.read(LOG, "g", told("read"))
    subscriptions.update_state(LOG, "g", SubscriptionState(9), Version.ANY, told("update"), durable=False)
    subscriptions.read_subscriptions(LOG, told("read all"))
    subscriptions.create(LOG, "g", DATA, told("create again"))
    subscriptions.delete(LOG, "g", Version.ANY, told("delete"))
    subscriptions.read_subscriptions(LOG, told("read none"))
    subscriptions.create(LOG, "g", SubscriptionData(), told("create anew"))
    assert not answers
    while len(answers) < 8:
        store.loop.turn()
    names = [name for name, _result in answers]
    assert names == ["create", "read", "update", "read all", "create again", "delete", "read none", "create anew"]
    results = dict(answers)
    assert results["read"] == Versioned(DATA, results["create"])
    assert results["read all"] == {"g": Versioned(SubscriptionData(WANTS, SubscriptionState(9)), results["update"])}
    assert type(results["create again"]) is SubscriptionStateExistsError
    assert results["delete"] is None
    assert results["read none"] == {}
    assert store.subscription() == Versioned(SubscriptionData(), results["create anew"])


def test_an_answer_may_ask_for_more(store: Store) -> None:
    found = Answer(store.loop)

    def created(version: Any) -> None:
        store.managers.subscriptions.update_state(LOG, "g", SubscriptionState(8), version, updated)

    def updated(_version: Any) -> None:
        store.managers.subscriptions.read(LOG, "g", found)

    store.managers.subscriptions.create(LOG, "g", DATA, created)
    assert found.result.value.state == SubscriptionState(8)


def test_a_flush_comes_behind_what_was_asked_for_before(store: Store) -> None:
    order: list[str] = []
    flushed = Answer(store.loop)

    def done(result: Any) -> None:
        order.append("flush")
        flushed(result)

    store.managers.subscriptions.create(LOG, "g", DATA, lambda _version: order.append("create"), durable=False)
    store.managers.flush(done)
    assert flushed.result is None
    assert order == ["create", "flush"]


def test_statistics_tell_what_waits(store: Store) -> None:
    answer = Answer(store.loop)
    store.managers.ownership.write(LOG, OWNER, Version.NEW, answer)
    assert (store.managers.statistics().operations_count, store.managers.statistics().waiting_count) == (1, 1)
    assert isinstance(answer.result, Version)
    assert store.managers.statistics().waiting_count == 0


# ---------------------------------------------------------------------- end


def test_after_closing_nothing_is_taken_and_what_was_is_answered(store: Store) -> None:
    answers = [Answer(store.loop) for _ in range(3)]
    for place, answer in enumerate(answers):
        store.managers.subscriptions.create(LOG, f"g{place}", DATA, answer, durable=False)
    store.managers.close()
    store.managers.close()
    with pytest.raises(MetadataClosedError):
        store.managers.subscriptions.read(LOG, "g", Answer(store.loop))
    with pytest.raises(MetadataClosedError):
        store.managers.flush(Answer(store.loop))
    assert all(isinstance(answer.result, Version) for answer in answers)


def test_all_of_it_is_there_after_a_restart_with_its_versions(maker: Maker) -> None:
    """Where anything outlives the managers."""
    store = Store(maker.open(), maker.loop)
    owner = store.ask(store.managers.ownership.write, LOG, OWNER, Version.NEW)
    ranges = store.ask(store.managers.persistence.write, LOG, RANGES, Version.NEW)
    version = store.created()
    for front in range(8, 30):
        version = store.ask(
            store.managers.subscriptions.update_state, LOG, "g", SubscriptionState(front), version, durable=False
        )
    store.created(subscriber="gone")
    store.ask(store.managers.subscriptions.delete, LOG, "gone", Version.ANY, durable=False)
    pending = Answer(store.loop)
    store.managers.subscriptions.create(LOG, "late", DATA, pending, durable=False)
    following = maker.reopen()
    if following is None:
        return
    assert pending.came, "what was asked for is done before it closes"
    store = Store(following, maker.loop)
    assert store.owner() == Versioned(OWNER, owner)
    assert store.ranges() == Versioned(RANGES, ranges)
    found = store.ask(store.managers.subscriptions.read_subscriptions, LOG)
    assert list(found) == ["g", "late"]
    assert found["g"] == Versioned(SubscriptionData(WANTS, SubscriptionState(29)), version)
    updated = store.ask(store.managers.subscriptions.update_state, LOG, "g", STANDS, version)
    assert isinstance(updated, Version) and updated != version


# ---------------------------------------------------------------------- against a model

SUBSCRIBERS = ("g", "h")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "update_state", "update_preferences", "replace", "delete", "read", "read_subscriptions"]
        ),
        st.sampled_from(SUBSCRIBERS),
        st.sampled_from(["current", "stale", "any", "new"]),
        st.integers(0, 9),
        st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)


class Model:
    """Subscriptions of one topic, and what each operation should answer."""

    def __init__(self) -> None:
        self.values: dict[str, SubscriptionData] = {}
        self.versions: dict[str, list[Version]] = {}
        """Of those that are there, all that they had."""

    def expects(
        self, operation: str, name: str, which: str, number: int
    ) -> type[MetadataError] | SubscriptionData | None:
        """The error, or what the subscription is afterwards."""
        there = self.values.get(name)
        if operation == "create":
            return SubscriptionStateExistsError if there is not None else data_of(number)
        if there is None:
            return NoSubscriptionStateError
        if which == "new" or (which == "stale" and len(self.versions[name]) > 1):
            return BadVersionError
        if operation == "update_state":
            return attrs.evolve(there, state=data_of(number).state)
        if operation == "update_preferences":
            return attrs.evolve(there, preferences=data_of(number).preferences)
        return None if operation == "delete" else data_of(number)

    def version(self, name: str, which: str) -> Version:
        known = self.versions.get(name)
        if which in ("any", "new"):
            return Version.ANY if which == "any" else Version.NEW
        if not known:
            return Version(1)
        return known[-1] if which == "current" else known[0]


def data_of(number: int) -> SubscriptionData:
    return SubscriptionData(SubscriptionPreferences({"n": str(number)}), SubscriptionState(number))


@pytest.mark.parametrize("kind", ["memory", "faulty", "coordination"])
@given(steps=STEPS)
def test_whatever_is_asked_for_is_answered_as_by_a_model(kind: str, steps: list[tuple[Any, ...]]) -> None:
    """Operations at random, with right and wrong versions; between them the process dies, if anything outlives it."""
    with TemporaryDirectory() as folder:
        maker = maker_of(kind, Path(folder))
        store = Store(maker.open(), maker.loop)
        model = Model()
        for operation, name, which, number, durable, restart in steps:
            if restart and kind == "faulty":
                following = maker.reopen()
                assert following is not None
                store = Store(following, maker.loop)
            run(store, model, operation, name, which, number, durable)
        maker.close()


def run(store: Store, model: Model, operation: str, name: str, which: str, number: int, durable: bool) -> None:
    subscriptions = store.managers.subscriptions
    if operation == "read":
        there = model.values.get(name)
        expected = None if there is None else Versioned(there, model.versions[name][-1])
        assert store.subscription(subscriber=name) == expected
        return
    if operation == "read_subscriptions":
        all_of_it = {key: Versioned(value, model.versions[key][-1]) for key, value in model.values.items()}
        assert store.ask(subscriptions.read_subscriptions, LOG) == all_of_it
        return
    data = data_of(number)
    arguments: dict[str, list[Any]] = {
        "create": [data],
        "update_state": [data.state],
        "update_preferences": [data.preferences],
        "replace": [data],
        "delete": [],
    }
    version = [] if operation == "create" else [model.version(name, which)]
    expects = model.expects(operation, name, which, number)
    answer = store.ask(getattr(subscriptions, operation), LOG, name, *arguments[operation], *version, durable=durable)
    if isinstance(expects, type):
        assert type(answer) is expects
    elif operation == "delete":
        assert answer is None
        del model.values[name], model.versions[name]
    else:
        assert isinstance(answer, Version) and answer not in model.versions.get(name, [])
        assert expects is not None
        model.values[name] = expects
        model.versions.setdefault(name, []).append(answer)
