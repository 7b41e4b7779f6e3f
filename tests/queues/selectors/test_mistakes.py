"""Wrong selectors: where, why, and that none is dear."""

from __future__ import annotations

import threading

import pytest

from sluiceway.queues.selectors import SELECTOR_CHARS_MAX, SelectorError, compile_selector
from sluiceway.queues.selectors.compiling import NESTING_MAX
from sluiceway.queues.selectors.grammar import _parser, parse, prepare
from sluiceway.queues.selectors.likeness import LIKE_CHARS_MAX
from sluiceway.queues.selectors.selector import SELECTOR_WORDS_MAX, _in_use
from tests.queues.selectors.test_truth import message

WRONG = [
    # text, line, column, what is said
    ("color =", 1, 8, "expected a value"),
    ("color = = 'red'", 1, 9, "'=' can't stand here"),
    ("= 1", 1, 1, "expected a value"),
    ("color 'red'", 1, 7, "expected a comparison"),
    ("a = 1 b = 2", 1, 7, "expected +, -, * or /, AND, OR or the end"),
    ("(a = 1", 1, 7, "it ends here: expected )"),
    ("a = 1)", 1, 6, "')' can't stand here: expected the end"),
    ("a = 1 AND\n  b = = 2", 2, 7, "expected a value"),
    ("a = 1 AND", 1, 10, "it ends here"),
    ("NOT", 1, 4, "it ends here"),
    ("a = 'x", 1, 5, "does not end"),
    ('"x-type = 1', 1, 1, "does not end"),
    ('"" = 1', 1, 1, "a header name is not empty"),
    ("a @ 1", 1, 3, "'@' has no meaning"),
    ("12abc = 1", 1, 1, "this is no number"),
    ("a LIKE 1", 1, 8, "a string in single quotes"),
    ("a LIKE 'x' ESCAPE 'ab'", 1, 19, "ESCAPE takes one character"),
    ("a LIKE 'x!' ESCAPE '!'", 1, 8, "ends with its ESCAPE character"),
    ("a LIKE '!x' ESCAPE '!'", 1, 8, "goes before %, _ and itself only"),
    ("a IN ()", 1, 7, "expected +, -, a number or a string in single quotes"),
    ("a IN (b)", 1, 7, "expected +, -, a number or a string in single quotes"),
    ("a BETWEEN 1", 1, 12, "AND"),
    ("a IS 1", 1, 6, "expected NOT or NULL"),
    ("1 IS NULL", 1, 1, "only a header can be missing"),
    ("a = 1 = 1", 1, 7, "expected"),
    ("1", 1, 1, "a number is no condition"),
    ("a = 1 AND 'x'", 1, 11, "a text is no condition"),
    ("a + 1", 1, 1, "a number is no condition"),
    ("a > 'x'", 1, 5, "'x' is no number"),
    ("a + 'x' = 1", 1, 5, "'x' is no number"),
    ("(a > 1) > 2", 1, 2, "a condition is no number"),
    ("TRUE = 1", 1, 8, "a number is never the same as a truth value"),
    ("'x' = (a > 1)", 1, 1, "a text is never the same as a truth value"),
    ("1 LIKE 'x'", 1, 1, "a number is no text"),
    ("a + 1 IN ('x')", 1, 1, "a list of texts"),
    ("x-type = 'order'", 1, 1, "reads as a difference"),
    ("JMSRedelivered = TRUE", 1, 1, "nothing can be selected by JMSRedelivered"),
    ("a = 0x12345678901234567", 1, 5, "too many digits"),
    ("hyphenated_props:x-type == 1", 1, 26, "'=' can't stand here"),
]


@pytest.mark.parametrize(("text", "line", "column", "about"), WRONG)
def test_a_wrong_selector_is_refused_with_its_place(text: str, line: int, column: int, about: str) -> None:
    with pytest.raises(SelectorError) as caught:
        compile_selector(text)
    error = caught.value
    assert (error.line, error.column) == (line, column), error
    assert about in error.message
    assert str(error) == f"line {line}, column {column}: {error.message}"
    shown, caret = error.picture.split("\n")
    assert caret == " " * (column - 1) + "^"
    assert shown == text.split("\n")[line - 1]


def test_of_a_long_line_the_part_around_the_mistake_is_shown() -> None:
    text = " AND ".join(["a = 1"] * 40) + " AND b = = 2 AND " + " AND ".join(["a = 1"] * 40)
    with pytest.raises(SelectorError) as caught:
        compile_selector(text)
    shown, caret = caught.value.picture.split("\n")
    assert len(shown) <= 72
    assert shown[len(caret) - 1 :].startswith("= 2 AND")
    assert caught.value.column == text.index("= = 2") + 3


def test_control_characters_do_not_get_into_the_picture() -> None:
    with pytest.raises(SelectorError) as caught:
        compile_selector("a = '\x1b[2J' = \x07")
    assert "\x1b" not in caught.value.picture
    assert "\x1b" not in str(caught.value)


BOMBS = {
    "ten thousand parentheses": "(" * 10_000 + "a = 1" + ")" * 10_000,
    "parentheses within the length": "(" * 490 + "a = 1" + ")" * 490,
    "signs": "-" * 900 + "a = 1",
    "NOTs": "NOT " * 900 + "a",
    "nested conditions": "(a = 1 AND " * 150 + "b = 2" + ")" * 150,
    "a long text": "a = '" + "x" * SELECTOR_CHARS_MAX + "'",
    "many words": " OR ".join(["a=1"] * (SELECTOR_WORDS_MAX // 4 + 1)),
    "a huge list": "a IN (" + ",".join(["'x'"] * 2000) + ")",
    "long patterns": "a LIKE '" + "_%" * (LIKE_CHARS_MAX // 2) + "'",
    "many patterns": " OR ".join(["a LIKE '%aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"] * 40),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_what_would_be_dear_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        compile_selector(text)


def test_nesting_up_to_the_limit_works() -> None:
    depth = NESTING_MAX // 2 - 1
    made = compile_selector("NOT (" * depth + "size = 12" + ")" * depth)
    assert made is not None
    assert made.takes(message()) is (depth % 2 == 0)


def test_a_list_as_long_as_can_be_is_looked_up_at_once() -> None:
    made = compile_selector("color IN (" + ",".join(f"'{number}'" for number in range(480)) + ", 'red')")
    assert made is not None
    assert made.takes(message())


def test_patterns_do_not_backtrack() -> None:
    """With a backtracking matcher this would not end."""
    made = compile_selector("a LIKE '" + "%a" * 100 + "%b'")
    assert made is not None
    assert not made.takes(message({"a": "a" * 8000}))
    made = compile_selector("a LIKE '" + "%a_" * 100 + "%b'")
    assert made is not None
    assert not made.takes(message({"a": "a" * 8000}))


@pytest.mark.parametrize(
    "text",
    [
        "a LIKE '%" + "a_" * 17 + "%'",
        " OR ".join(["a LIKE '%" + "a_" * 6 + "%'"] * 3),
        "a LIKE '%_________________________________%'",
    ],
)
def test_a_look_at_a_long_header_is_bounded(text: str) -> None:
    """What has to be compared at each character of a header is short: or a look would take tens of milliseconds."""
    with pytest.raises(SelectorError, match="at most 32 characters"):
        compile_selector(text)


def test_the_parser_can_be_made_before_the_first_selector_comes() -> None:
    """In another thread, so that no delivery waits for it."""
    _parser.cache_clear()
    thread = threading.Thread(target=prepare)
    thread.start()
    thread.join(30)
    made_count = _parser.cache_info().misses
    parse("b = 2")
    parse("b = 2", hyphens=True)
    assert (made_count, _parser.cache_info().misses) == (2, 2)


def test_numbers_do_not_grow_without_end() -> None:
    made = compile_selector("*".join(["n"] * 400) + " > 0")
    assert made is not None
    assert made.takes(message({"n": "9" * 64}))
    assert not made.takes(message({"n": "9" * 5000})), "no number: too long"


def test_compiled_ones_are_shared_by_those_who_use_them_and_then_forgotten() -> None:
    made = compile_selector("a = 999")
    assert compile_selector("a = 999") is made
    assert ("a = 999", "") in _in_use
    del made
    assert ("a = 999", "") not in _in_use
