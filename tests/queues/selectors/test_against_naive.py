"""Random expressions against an evaluator that is as plain as can be: it walks the tree for each message, with the
rules as the guide says them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.queues.selectors import compile_selector
from tests.how_often import rounds
from tests.queues.selectors.test_truth import message

Env = dict[str, str]
Number = tuple[str, Callable[[Env], float | None]]
Condition = tuple[str, Callable[[Env], bool | None]]

NAMES = ("a", "b", "c")


def number_of(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def truth_of(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get(text or "")


literals = st.integers(-5, 20).map(lambda n: (str(n) if n >= 0 else f"({n})", lambda _env, n=n: float(n)))
numeric_headers = st.sampled_from(NAMES).map(lambda name: (name, lambda env, name=name: number_of(env.get(name))))


def _reckon(left: Number, sign: str, right: Number) -> Number:
    def value(env: Env) -> float | None:
        a, b = left[1](env), right[1](env)
        if a is None or b is None or (sign == "/" and b == 0):
            return None
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[sign]()

    return f"({left[0]} {sign} {right[0]})", value


numbers: st.SearchStrategy[Number] = st.recursive(
    st.one_of(literals, numeric_headers),
    lambda inner: st.builds(_reckon, inner, st.sampled_from("+-*/"), inner),
    max_leaves=4,
)


def _compare(left: Number, sign: str, right: Number) -> Condition:
    if not any(letter in left[0] + right[0] for letter in "0123456789"):
        right = (f"({right[0]} + 0)", right[1])  # headers only would be compared as texts, too

    def value(env: Env) -> bool | None:
        a, b = left[1](env), right[1](env)
        if a is None or b is None:
            return None
        return {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]

    return f"{left[0]} {sign} {right[0]}", value


def _between(no: bool, middle: Number, low: Number, high: Number) -> Condition:
    def value(env: Env) -> bool | None:
        return both(_compare(middle, ">=", low)[1](env), _compare(middle, "<=", high)[1](env), no=no)

    return f"{middle[0]} {'NOT ' if no else ''}BETWEEN {low[0]} AND {high[0]}", value


def both(left: bool | None, right: bool | None, *, no: bool = False) -> bool | None:
    result = False if False in (left, right) else None if None in (left, right) else True
    return result if not no or result is None else not result


def _text(name: str, sign: str, text: str) -> Condition:
    def value(env: Env) -> bool | None:
        found = env.get(name)
        return None if found is None else (found == text) is (sign == "=")

    return f"{name} {sign} '{text}'", value


def _one_of(name: str, no: bool, texts: list[str]) -> Condition:
    def value(env: Env) -> bool | None:
        found = env.get(name)
        return None if found is None else (found in texts) is not no

    said = ", ".join(f"'{text}'" for text in texts)
    return f"{name} {'NOT ' if no else ''}IN ({said})", value


def _like(name: str, no: bool, pattern: str) -> Condition:
    expression = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern)

    def value(env: Env) -> bool | None:
        found = env.get(name)
        return None if found is None else (re.fullmatch(expression, found, re.DOTALL) is not None) is not no

    return f"{name} {'NOT ' if no else ''}LIKE '{pattern}'", value


def _missing(name: str, no: bool) -> Condition:
    return f"{name} IS {'NOT ' if no else ''}NULL", lambda env: (name in env) is no


def _truth(name: str) -> Condition:
    return name, lambda env: truth_of(env.get(name))


def _not(inner: Condition) -> Condition:
    def value(env: Env) -> bool | None:
        found = inner[1](env)
        return None if found is None else not found

    return f"NOT ({inner[0]})", value


def _and(left: Condition, right: Condition) -> Condition:
    return f"({left[0]} AND {right[0]})", lambda env: both(left[1](env), right[1](env))


def _or(left: Condition, right: Condition) -> Condition:
    def value(env: Env) -> bool | None:
        values = (left[1](env), right[1](env))
        return True if True in values else None if None in values else False

    return f"({left[0]} OR {right[0]})", value


TEXTS = st.sampled_from(["", "red", "blue", "12", "true", "false", "7.5", "-3", "aab"])
PATTERNS = st.text(alphabet="ab%_", max_size=6)
names = st.sampled_from(NAMES)
leaves = st.one_of(
    st.builds(_compare, numbers, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), numbers),
    st.builds(_between, st.booleans(), numbers, numbers, numbers),
    st.builds(_text, names, st.sampled_from(["=", "<>"]), TEXTS),
    st.builds(_one_of, names, st.booleans(), st.lists(TEXTS, min_size=1, max_size=4)),
    st.builds(_like, names, st.booleans(), PATTERNS),
    st.builds(_missing, names, st.booleans()),
    st.builds(_truth, names),
)
conditions: st.SearchStrategy[Condition] = st.recursive(
    leaves,
    lambda inner: st.one_of(st.builds(_not, inner), st.builds(_and, inner, inner), st.builds(_or, inner, inner)),
    max_leaves=8,
)
environments = st.dictionaries(names, st.one_of(TEXTS, st.text(alphabet="ab", max_size=6)))


@settings(max_examples=rounds(60))
@given(condition=conditions, envs=st.lists(environments, min_size=1, max_size=4))
def test_a_selector_says_what_the_plain_evaluator_says(condition: Condition, envs: list[Env]) -> None:
    """All three values: the selector, and its negation."""
    text, value = condition
    made, opposite = compile_selector(text), compile_selector(f"NOT ({text})")
    assert made is not None
    assert opposite is not None
    for env in envs:
        wanted = value(env)
        facts = message(env)
        assert (made.takes(facts), opposite.takes(facts)) == (wanted is True, wanted is False), (text, env, wanted)
