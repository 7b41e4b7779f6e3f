"""What selectors take: a table of expressions, the three values of logic, names of JMS, LIKE."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from sluiceway.queues.message import Message
from sluiceway.queues.selectors import Selector, compile_selector
from sluiceway.queues.selectors.likeness import like
from sluiceway.queues.selectors.selector import HEADS_COUNT_MAX

HEADERS = {
    "color": "red",
    "size": "12",
    "price": "1.50",
    "offset": "-3",
    "big": "1e3",
    "x-type": "order",
    "flag": "true",
    "off": "False",
    "note": "it's 100% done_",
    "empty": "",
    "blank": "  7 ",
    "größe": "5",
    "in": "word",
    "deep.name": "d",
    "correlation-id": "c-1",
    "type": "invoice",
    "reply-to": "/queue/answers",
    "timestamp": "1700000000000",
}


@attrs.frozen(eq=False)
class Head:
    """An envelope with headers."""

    headers: Mapping[str, str]
    destination: str = "/queue/a"
    priority: int = 4
    persistent: bool = False
    expires_at_ms: int = 0
    ttl_ms: int = 0
    delay_ms: int = 0
    group: str | None = None
    neutral: bool = True
    looked_up: list[str] = attrs.field(factory=list)

    def header(self, name: str) -> str | None:
        self.looked_up.append(name)
        return self.headers.get(name)


def message(
    headers: Mapping[str, str] = HEADERS, *, number: int = 7, expires_at_ms: int = 0, **head: object
) -> Message:
    return Message(Head(headers, **head), b"x", number, expires_at_ms)  # type: ignore[arg-type]


def selector(text: str) -> Selector:
    made = compile_selector(text, message_token="token")
    assert made is not None
    return made


TRUE = [
    "color = 'red'",
    "color <> 'blue'",
    "color != 'blue'",
    "COLOR IS NULL",
    "size = 12",
    "size = 12.0",
    "size = 0xC",
    "size = 12L",
    "size <> 13",
    "size > 11 and size < 13",
    "size >= 12 AND size <= 12",
    "price = 1.5",
    "price = 1.5e0",
    "price = '1.50'",
    "price <> '1.5'",
    "price > '1.2'",
    "offset < 0",
    "offset = -3",
    "-offset = 3",
    "+size = 12",
    "big = 1000",
    "blank = 7",
    "size = big / 100 + 2",
    "2 + 3 * 4 = 14",
    "(2 + 3) * 4 = 20",
    "10 - 4 - 3 = 3",
    "16 / 4 / 2 = 2",
    "7 / 2 = 3.5",
    "size - -1 = 13",
    "size BETWEEN 10 AND 12",
    "size NOT BETWEEN 13 AND 20",
    "size between offset and big and color = 'red'",
    "color IN ('blue', 'red')",
    "color NOT IN ('blue', 'green')",
    "size IN (11, 12)",
    "offset IN (-3, 4)",
    "size IN ('12', 'twelve')",
    "size IN ('x', 12)",
    "color LIKE 'r%'",
    "color LIKE '_e_'",
    "color NOT LIKE 'b%'",
    "note LIKE '%100!% done!_' ESCAPE '!'",
    "note LIKE 'it''s%'",
    "note = 'it''s 100% done_'",
    "empty = ''",
    "empty LIKE ''",
    "empty LIKE '%'",
    "empty IS NOT NULL",
    "nothing IS NULL",
    "NOT nothing IS NOT NULL",
    "flag",
    "flag = TRUE",
    "flag <> false",
    "NOT off",
    "off = FALSE",
    "TRUE",
    "not false",
    "NOT NOT TRUE",
    "(size > 10) = TRUE",
    "flag = (size > 10)",
    "\"x-type\" = 'order'",
    "\"in\" = 'word'",
    "größe = 5",
    "deep.name = 'd'",
    "nothing = 1 OR color = 'red'",
    "color = 'red' OR nothing = 1",
    "NOT (nothing = 1 AND color = 'blue')",
    "size = 12 OR color = 'blue' AND color = 'green'",
    "color\t=\n'red'",
    "color='red'and size=12",
    "convert_string_expressions:size = '12'",
    "hyphenated_props:x-type = 'order'",
    "convert_string_expressions:hyphenated_props:x-type = 'order' AND size-12 = 0",
    "JMSPriority = 4",
    "JMSPriority IN (4, 5)",
    "JMSDeliveryMode = 'NON_PERSISTENT'",
    "JMSDestination = '/queue/a'",
    "JMSCorrelationID = 'c-1'",
    "JMSType LIKE 'inv%'",
    "JMSReplyTo IS NOT NULL",
    "JMSTimestamp > 1600000000000",
    "JMSMessageID = 'token-7'",
    "JMSExpiration = 0",
    "JMSXGroupID IS NULL",
]

NOT_TRUE = [
    "color = 'blue'",
    "color = 'RED'",
    "color <> 'red'",
    "color IS NULL",
    "size = 13",
    "size < 12",
    "size BETWEEN 13 AND 20",
    "size NOT BETWEEN 10 AND 12",
    "color IN ('blue')",
    "color NOT IN ('red')",
    "color LIKE 'R%'",
    "color LIKE 're'",
    "color LIKE '_'",
    "color LIKE '%b%'",
    "note LIKE '100%'",
    "flag = FALSE",
    "NOT flag",
    "FALSE",
    # unknown: neither they nor their negation are true
    "nothing = 1",
    "nothing <> 1",
    "NOT nothing = 1",
    "nothing = 'x'",
    "nothing <> 'x'",
    "nothing > 1",
    "nothing + 1 = 1",
    "nothing BETWEEN 1 AND 2",
    "nothing NOT BETWEEN 1 AND 2",
    "nothing IN ('a')",
    "nothing NOT IN ('a')",
    "nothing NOT IN (1)",
    "nothing LIKE '%'",
    "nothing NOT LIKE '%'",
    "nothing",
    "NOT nothing",
    "nothing OR nothing",
    "NOT (nothing AND color = 'red')",
    "nothing = nothing",
    "nothing = color",
    "color > 1",
    "NOT color > 1",
    "color = 1",
    "color <> 1",
    "color NOT IN (1, 2)",
    "size / 0 = 1",
    "size / 0 <> 1",
    "color",
    "NOT color",
    "color = TRUE",
    "color <> TRUE",
    "JMSXGroupID = 'g'",
    "JMSPriority > 4",
]


@pytest.mark.parametrize("text", TRUE)
def test_takes(text: str) -> None:
    assert selector(text).takes(message())


@pytest.mark.parametrize("text", NOT_TRUE)
def test_does_not_take(text: str) -> None:
    """What is false, and what is unknown."""
    assert not selector(text).takes(message())


V = {"t": True, "f": False, "u": None}
THREE = [
    # left, right, and, or
    ("t", "t", True, True),
    ("t", "f", False, True),
    ("t", "u", None, True),
    ("f", "t", False, True),
    ("f", "f", False, False),
    ("f", "u", False, None),
    ("u", "t", None, True),
    ("u", "f", False, None),
    ("u", "u", None, None),
]


@pytest.mark.parametrize(("left", "right", "both", "either"), THREE)
def test_logic_has_three_values(left: str, right: str, both: bool | None, either: bool | None) -> None:
    """Each result is told apart by taking it and its negation."""
    facts = message({"t": "true", "f": "false"})
    for text, wanted in ((f"{left} AND {right}", both), (f"{left} OR {right}", either)):
        found = (selector(text).takes(facts), selector(f"NOT ({text})").takes(facts))
        assert found == (wanted is True, wanted is False), text


def test_two_headers_are_the_same_as_texts_or_as_numbers() -> None:
    same = selector("a = b")
    assert same.takes(message({"a": "x", "b": "x"}))
    assert same.takes(message({"a": "1.0", "b": "1"}))
    assert not same.takes(message({"a": "x", "b": "1"}))
    assert selector("a <> b").takes(message({"a": "x", "b": "1"}))
    assert selector("a < b").takes(message({"a": "9", "b": "10"})), "as numbers, not as texts"


def test_a_priority_persistence_group_and_date_are_those_of_the_message() -> None:
    each = message({}, priority=9, persistent=True, group="g", expires_at_ms=5)
    for text in ("JMSPriority > 8", "JMSDeliveryMode = 'PERSISTENT'", "JMSXGroupID = 'g'", "JMSExpiration = 5"):
        assert selector(text).takes(each), text


@pytest.mark.parametrize(
    ("pattern", "escape", "takes", "refuses"),
    [
        ("%", None, ["", "a"], []),
        ("a%", None, ["a", "ab", "a\nb"], ["", "ba"]),
        ("%a", None, ["a", "ba"], ["", "ab"]),
        ("a%b%c", None, ["abc", "axbxc", "abbc"], ["ab", "acb", "ac"]),
        ("%ab%ab%", None, ["abab", "xabxabx"], ["ab", "aab"]),
        ("a%a", None, ["aa", "aba"], ["a"]),
        ("_%_", None, ["ab", "abc"], ["a", ""]),
        ("%a_c%", None, ["xabcx", "a.c"], ["ac"]),
        ("a.c", None, ["a.c"], ["abc"]),
        ("%%%", None, ["", "x"], []),
        ("!%!_!!", "!", ["%_!"], ["x_!", "%x!"]),
        ("a\\_b%", "\\", ["a_b", "a_bc"], ["axb"]),
        ("", None, [""], ["a"]),
    ],
)
def test_like(pattern: str, escape: str | None, takes: list[str], refuses: list[str]) -> None:
    matches = like(pattern, escape)
    assert all(map(matches, takes))
    assert not any(map(matches, refuses))


def test_a_blank_selector_takes_all() -> None:
    assert compile_selector("") is None
    assert compile_selector(" \n") is None


def test_messages_of_one_head_are_looked_at_once() -> None:
    """However many they are, and whoever asks with the same text."""
    each = message()
    head = each.head
    assert isinstance(head, Head)
    wanted = selector("color = 'red' AND size > 3")
    assert wanted.places([each] * 100) == list(range(100))
    assert wanted.takes(each)
    assert selector("color = 'red' AND size > 3").takes(each)
    assert head.looked_up == ["color", "size"]


def test_what_differs_by_message_is_looked_at_for_each() -> None:
    wanted = selector("JMSMessageID IN ('token-1', 'token-3')")
    head = message().head
    assert wanted.places([Message(head, b"x", number) for number in range(5)]) == [1, 3]


def test_what_is_remembered_of_heads_is_bounded() -> None:
    wanted = selector("n = 1")
    heads = [message({"n": str(number % 2)}) for number in range(10 * HEADS_COUNT_MAX)]
    assert wanted.places(heads) == list(range(1, 10 * HEADS_COUNT_MAX, 2))
    assert len(wanted._known) <= HEADS_COUNT_MAX
