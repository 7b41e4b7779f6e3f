"""Decisions of permissions, and mistakes in their entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.stomp.authorization import Action, Identity
from sluiceway.security.config import ACTIONS, Permission
from sluiceway.security.permissions import DECISIONS_MAX, Permissions, check
from sluiceway.security.users import SecurityError

ANN = Identity("ann", frozenset({"staff"}))
BOB = Identity("bob")
EVE = Identity("eve")
USERS = {identity.user or "": identity for identity in (ANN, BOB, EVE)}


def entry(who: str, actions: str, *destinations: str, allow: bool = True, **more: tuple[str, ...]) -> Permission:
    """`who`: users, or groups with an @ before them, separated by blanks."""
    names = who.split()
    return Permission(
        users=tuple(name for name in names if not name.startswith("@")),
        groups=tuple(name[1:] for name in names if name.startswith("@")),
        actions=tuple(actions.split()),
        destinations=destinations,
        allow=allow,
        **more,
    )


def may(
    entries: list[Permission], who: Identity, action: Action, destination: str | None, default: bool = False
) -> bool:
    permissions = Permissions(entries, default_allows=default)
    first = permissions.may(who, action, destination)
    assert permissions.may(who, action, destination) is first, "what is kept is what was decided"
    return first


def test_what_no_entry_allows_is_denied() -> None:
    for action in Action:
        assert not may([], ANN, action, "/queue/a")


def test_the_default_can_be_to_allow_but_never_to_administer() -> None:
    for action in Action:
        assert may([], ANN, action, "/queue/a", default=True) is (action is not Action.ADMIN)


def test_nobody_in_particular_may_nothing() -> None:
    assert not may([entry("*", "*")], Identity(None), Action.SEND, "/queue/a", default=True)


def test_the_first_entry_that_matches_decides() -> None:
    entries = [
        entry("eve", "send", "/queue/orders.>", allow=False),
        entry("*", "send", "/queue/orders.eu"),
        entry("*", "send", "/queue/>", allow=False),
        entry("*", "*"),
    ]
    assert may(entries, ANN, Action.SEND, "/queue/orders.eu")
    assert not may(entries, EVE, Action.SEND, "/queue/orders.eu")
    assert not may(entries, ANN, Action.SEND, "/queue/orders.us")
    assert may(entries, ANN, Action.SEND, "/topic/x")
    assert may(entries, EVE, Action.RECEIVE, "/queue/orders.eu")


def test_entries_are_for_users_and_for_groups() -> None:
    entries = [entry("bob @staff", "send", "/queue/a")]
    assert may(entries, ANN, Action.SEND, "/queue/a")
    assert may(entries, BOB, Action.SEND, "/queue/a")
    assert not may(entries, EVE, Action.SEND, "/queue/a")


def test_a_bare_name_is_the_queue_of_that_name() -> None:
    entries = [entry("*", "send", "/queue/a")]
    assert may(entries, ANN, Action.SEND, "a")
    assert not may(entries, ANN, Action.SEND, "/a")


@pytest.mark.parametrize(
    "name",
    [
        "/queue/orders/../secret",
        "/queue/orders.",
        "/queue/orders..secret",
        "/queue//orders.a",
        "/queue/Orders.a",
        "/queue/orders.a ",
    ],
)
def test_names_are_taken_as_they_are(name: str) -> None:
    """No folding, no resolving of dots: a name with tricks is another name, which only its own pattern covers."""
    assert not may([entry("*", "send", "/queue/orders.a", "/queue/secret")], ANN, Action.SEND, name)


def test_everything_on_destinations_says_nothing_of_connecting() -> None:
    """`deny * on /queue/secret` must not lock anybody out."""
    entries = [entry("*", "*", "/queue/secret", allow=False), entry("*", "connect send")]
    assert may(entries, ANN, Action.CONNECT, None)
    assert not may(entries, ANN, Action.SEND, "/queue/secret")


def test_connecting_can_be_allowed_by_listener() -> None:
    entries = [entry("ann", "connect"), entry("bob", "connect", listeners=("inside",))]
    assert may(entries, ANN, Action.CONNECT, "outside")
    assert not may(entries, BOB, Action.CONNECT, "outside")
    assert may(entries, BOB, Action.CONNECT, "inside")


def test_administering_the_broker_takes_an_entry_without_limits() -> None:
    assert not may([entry("*", "admin", "/queue/>")], ANN, Action.ADMIN, None)
    assert may([entry("*", "admin", "/queue/>")], ANN, Action.ADMIN, "/queue/a")
    assert may([entry("*", "admin", "/queue/>", allow=False), entry("*", "admin")], ANN, Action.ADMIN, None)


def test_temporary_destinations_need_no_entry_but_to_be_looked_into() -> None:
    assert may([], ANN, Action.SEND, "/remote-temp-queue/0123.reply")
    assert may([], ANN, Action.RECEIVE, "/temp-queue/reply")
    assert not may([], ANN, Action.BROWSE, "/remote-temp-queue/0123.reply")
    assert not may([], ANN, Action.RECEIVE, "/remote-temp-queue/0123.reply")


def test_a_wildcard_is_denied_only_if_nothing_of_it_can_be_allowed() -> None:
    entries = [
        entry("*", "receive", "/queue/secret.>", allow=False),
        entry("*", "receive", "/queue/*.public"),
    ]
    assert may(entries, ANN, Action.RECEIVE, "/queue/>")
    assert may(entries, ANN, Action.RECEIVE, "/queue/a.*")
    assert not may(entries, ANN, Action.RECEIVE, "/queue/secret.*")
    assert not may(entries, ANN, Action.RECEIVE, "/topic/>")


def test_logs_of_the_broker_are_as_their_origin() -> None:
    """What was claimed from a queue lies in one of those."""
    origins: dict[str, str] = {}

    def origin_of(name: str) -> str | None:
        return origins.get(name, name) if name.startswith("/log/own.") else None

    permissions = Permissions(
        [entry("ann", "receive", "/queue/a"), entry("bob", "*", "/log/>")], default_allows=False, origin_of=origin_of
    )
    assert not permissions.may(ANN, Action.RECEIVE, "/log/own.1")
    origins["/log/own.1"] = "/queue/a"
    assert permissions.may(ANN, Action.RECEIVE, "/log/own.1"), "it was not there when it was asked for first"
    for action in (Action.RECEIVE, Action.SEND, Action.CREATE):
        assert not permissions.may(BOB, action, "/log/own.1")


def test_what_was_decided_is_kept_for_so_many_names_only() -> None:
    permissions = Permissions([entry("*", "send", "/queue/>")], default_allows=False)
    for number in range(DECISIONS_MAX + 10):
        assert permissions.may(ANN, Action.SEND, f"/queue/{number}")
    assert sum(len(kept) for kept in permissions._decided.values()) <= DECISIONS_MAX


# ---------------------------------------------------------------------- explanations


def test_the_entry_that_decided_is_named() -> None:
    permissions = Permissions(
        [entry("*", "connect"), entry("*", "send", "/queue/a", allow=False)], default_allows=False
    )
    decision = permissions.decide(ANN, Action.SEND, "/queue/a")
    assert (decision.allowed, decision.number) == (False, 2)
    assert decision.words == "entry 2 (deny send on /queue/a) decides"
    assert permissions.decide(ANN, Action.SEND, "/queue/b").number is None


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "broken",
    [
        {"actions": ("send",)},
        {"users": ("*",), "actions": ()},
        {"users": ("*",), "actions": ("connect", "send"), "destinations": ("/queue/a",)},
        {"users": ("*",), "actions": ("send",), "listeners": ("a",)},
        {"users": ("*",), "actions": ("*",), "listeners": ("a",)},
        {"users": ("",), "actions": ("send",)},
        {"users": ("*",), "actions": ("fly",)},
    ],
)
def test_entries_that_say_nothing_or_two_things_are_refused(broken: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError):
        Permission(**broken)  # type: ignore[arg-type]


def test_an_entry_that_another_one_contradicts_wholly_is_a_mistake() -> None:
    """It denies itself: whoever wrote it meant something else."""
    with pytest.raises(SecurityError, match=r"permissions\[1\].*never matters.*entry 1 \(deny send on /queue/>\)"):
        check([entry("*", "send", "/queue/>", allow=False), entry("ann", "send", "/queue/orders")], USERS, ())


def test_of_an_entry_the_pattern_that_never_matters_is_named() -> None:
    with pytest.raises(SecurityError, match="its pattern /queue/orders never matters"):
        check(
            [entry("*", "send", "/queue/>", allow=False), entry("ann", "send", "/queue/orders", "/topic/orders")],
            USERS,
            (),
        )


def test_an_entry_that_says_again_what_is_said_is_a_warning() -> None:
    (warning,) = check([entry("*", "send", "/queue/>"), entry("ann", "send", "/queue/orders")], USERS, ())
    assert "and says the same" in warning


def test_entries_that_are_covered_in_parts_only_are_fine() -> None:
    assert check([entry("ann", "send", "/queue/>", allow=False), entry("*", "send", "/queue/orders")], USERS, ()) == []
    assert check([entry("*", "send", "/queue/a", allow=False), entry("*", "send create", "/queue/a")], USERS, ()) == []
    assert check([entry("*", "connect", listeners=("in",)), entry("*", "connect", allow=False)], USERS, ("in",)) == []


def test_several_entries_together_can_make_one_useless() -> None:
    denied = [entry("ann bob", "send", allow=False), entry("eve", "send", "/queue/>", allow=False)]
    with pytest.raises(SecurityError, match=r"entry 1.*and entry 2"):
        check([*denied, entry("*", "send", "/queue/orders")], USERS, ())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (entry("anne", "send"), "no user 'anne'; did you mean ann"),
        (entry("@stuff", "send"), "no group 'stuff'; did you mean staff"),
        (entry("*", "connect", listeners=("out",)), "no listener 'out'"),
    ],
)
def test_names_of_nobody_are_mistakes(wrong: Permission, said: str) -> None:
    with pytest.raises(SecurityError, match=said):
        check([wrong], USERS, ("in",))


# ---------------------------------------------------------------------- against a plain reading

names = st.sampled_from(["/queue/a", "/queue/a.b", "/queue/b", "/topic/a", "/log/a"])
simple_patterns = st.sampled_from(["/>", "/queue/>", "/queue/*", "/queue/a", "/queue/a.>", "/topic/a"])
some_entries = st.builds(
    entry,
    st.sampled_from(["ann", "bob", "*", "@staff", "eve @staff"]),
    st.sampled_from([name for name in ACTIONS if name != "connect"]),
    simple_patterns,
    allow=st.booleans(),
)


@given(
    entries=st.lists(some_entries, max_size=6),
    who=st.sampled_from(list(USERS.values())),
    action=st.sampled_from([action for action in Action if action is not Action.CONNECT]),
    name=names,
)
def test_wildcards_and_shadows_agree_with_single_decisions(
    entries: list[Permission], who: Identity, action: Action, name: str
) -> None:
    """Where a name is allowed, each wildcard over it is not denied as a whole; and an entry that is said never to
    matter can be taken out.
    """
    permissions = Permissions(entries, default_allows=False)
    allowed = permissions.decide(who, action, name).allowed
    if allowed:
        assert permissions.decide(who, action, name.rsplit("/", 1)[0] + "/>").allowed
    for place in range(len(entries)):
        try:
            warnings = check(entries[: place + 1], USERS, ())
            useless = any("the entry" in warning and f"[{place}]" in warning for warning in warnings)
        except SecurityError as error:
            useless = any("the entry" in problem and f"[{place}]" in problem for problem in error.problems)
        if useless:
            without = Permissions([*entries[:place], *entries[place + 1 :]], default_allows=False)
            assert without.decide(who, action, name).allowed is allowed
