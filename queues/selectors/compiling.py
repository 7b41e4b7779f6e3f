"""Compiler from the tree of a selector to closures over the headers that it names.

Each operand is a *condition* (true, false or unknown), a *number*, a *text* literal, or a *header*, which takes the
type of what it is compared with. Operands that can't be compared are refused here, with their position, and not with
each message.

Bound: nesting, so that neither compiling nor evaluating recurses deeply; the length of all LIKE patterns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import attrs

from ..message import Envelope, Message
from .errors import SelectorError, quoted
from .likeness import LIKE_CHARS_MAX, LOOSE_CHARS_MAX, PatternError, like, loose_chars
from .properties import NOT_HERE, OfHead, OfMessage, of_head, of_message
from .values import (
    Count,
    Look,
    Number,
    Raw,
    Test,
    Values,
    as_boolean,
    as_number,
    as_text,
    bounded,
    negated,
    same,
)

NAME_COST: Final = 4
"""Units of cost of a header: the lookup searches the header block."""

LIKE_COST: Final = 8
"""Units of cost of a LIKE, in addition to its characters that may be compared anywhere."""

NESTING_MAX: Final = 50
"""Maximum levels of parentheses, NOT and signs."""


class OperandKind(Enum):
    CONDITION = "a condition"
    NUMBER = "a number"
    TEXT = "a text"
    HEADER = "a header"


@attrs.frozen(slots=True)
class Operand:
    """A compiled part of a selector."""

    kind: OperandKind
    get: Callable[[Values], Any]
    """Test, Count or Look, by kind."""
    node: Any
    literal: Raw | float | bool = None
    """Value of a literal."""


@attrs.frozen(slots=True)
class Compiled:
    """A selector as a function of heads, or of messages if `by_message`."""

    test: Test
    of_heads: tuple[OfHead, ...]
    of_messages: tuple[OfMessage | None, ...]
    """Lookups in the message, parallel to `of_heads`; None: look up in the head."""
    by_message: bool
    cost: int
    """Maximum cost of an evaluation, in units of about a quarter of a microsecond: one per part, more for header
    lookups and LIKE.
    """

    def test_head(self, head: Envelope) -> bool:
        """Return whether messages with this head are selected."""
        return self.test([look(head) for look in self.of_heads]) is True

    def test_message(self, message: Message) -> bool:
        """Return whether this message is selected."""
        head = message.head
        values = [
            of_one(message) if of_one is not None else of_all(head)
            for of_all, of_one in zip(self.of_heads, self.of_messages, strict=True)
        ]
        return self.test(values) is True


def compile_tree(tree: Any, text: str, message_token: str) -> Compiled:
    """Compile a tree. `text`: the selector, for messages of errors. Raises SelectorError."""
    compiler = _Compiler(text)
    test = compiler.condition(compiler.operand(tree, 1))
    names = list(compiler.places)
    of_messages = tuple(of_message(name, message_token) for name in names)
    by_message = any(look is not None for look in of_messages)
    return Compiled(test, tuple(map(of_head, names)), of_messages, by_message, compiler.cost + NAME_COST * len(names))


_ORDERS: Final[dict[str, Callable[[Number, Number], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Compiler:
    """Compiler of one tree."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._like_chars = self._loose_chars = 0
        self.cost = 0
        """Cost of all parts except header lookups."""
        self.places: dict[str, int] = {}
        """Places of the values, by name."""

    def _error(self, node: Any, message: str) -> SelectorError:
        """Return an error at `node`, a tree or a token."""
        place = getattr(node, "meta", node)
        return SelectorError(message, self._text, place.line, place.column)

    def operand(self, node: Any, depth: int) -> Operand:
        """Compile a part."""
        if depth > NESTING_MAX:
            raise self._error(node, f"it is nested deeper than {NESTING_MAX} levels: write it with fewer parentheses")
        self.cost += 1
        made: Operand = getattr(self, f"_{node.data.strip('_')}")(node, depth)
        return made

    # ------------------------------------------------------------------ types of operands

    def condition(self, operand: Operand) -> Test:
        """Return the operand as a condition. Raises SelectorError."""
        if operand.kind is OperandKind.CONDITION:
            return operand.get
        if operand.kind is OperandKind.HEADER:
            look = operand.get
            return lambda values: as_boolean(look(values))
        raise self._error(operand.node, f"{operand.kind.value} is no condition: compare it with something")

    def _number(self, operand: Operand) -> Count:
        """Return the operand as a number, for comparison or arithmetic. Raises SelectorError."""
        if operand.kind is OperandKind.NUMBER:
            return operand.get
        if operand.kind is OperandKind.HEADER:
            look = operand.get
            return lambda values: as_number(look(values))
        if operand.kind is OperandKind.TEXT:
            number = as_number(str(operand.literal))
            if number is not None:
                return lambda _values: number
            raise self._error(operand.node, f"{quoted(str(operand.literal))} is no number, and a number is wanted here")
        raise self._error(operand.node, "a condition is no number, and a number is wanted here")

    def _textual(self, operand: Operand) -> Look:
        if operand.kind in (OperandKind.HEADER, OperandKind.TEXT):
            return operand.get
        raise self._error(operand.node, f"{operand.kind.value} is no text, and a text is wanted here")

    # ------------------------------------------------------------------ leaves

    def _header(self, node: Any, name: str) -> Operand:
        if name in NOT_HERE:
            raise self._error(node, f"nothing can be selected by {name}: {NOT_HERE[name]}")
        place = self.places.setdefault(name, len(self.places))
        return Operand(OperandKind.HEADER, operator.itemgetter(place), node)

    def _name(self, node: Any, _depth: int) -> Operand:
        return self._header(node, str(node.children[0]))

    def _quoted_name(self, node: Any, _depth: int) -> Operand:
        return self._header(node, node.children[0][1:-1].replace('""', '"'))

    def _string(self, node: Any, _depth: int) -> Operand:
        text = _string_of(node.children[0])
        return Operand(OperandKind.TEXT, lambda _values: text, node, text)

    def _literal_number(self, node: Any, _depth: int) -> Operand:
        number = self._number_of(node.children[0])
        return Operand(OperandKind.NUMBER, lambda _values: number, node, number)

    def _number_of(self, token: Any) -> Number:
        text = str(token)
        if text[:2].lower() == "0x":
            digits = text[2:].rstrip("lL")
            if len(digits) <= 16:
                return bounded(int(digits, 16)) or 0
        elif len(text) <= 64:
            text = text.rstrip("lLfFdD")
            number = as_number(text)
            assert number is not None, "the grammar knows numbers"
            return number
        raise self._error(token, f"the number {quoted(text, 20)} has too many digits")

    def _true(self, node: Any, _depth: int) -> Operand:
        return Operand(OperandKind.CONDITION, lambda _values: True, node, True)

    def _false(self, node: Any, _depth: int) -> Operand:
        return Operand(OperandKind.CONDITION, lambda _values: False, node, False)

    # ------------------------------------------------------------------ logic

    def _parentheses(self, node: Any, depth: int) -> Operand:
        return self.operand(node.children[0], depth + 1)

    def _not(self, node: Any, depth: int) -> Operand:
        return self._condition_of(node, _not(self.condition(self.operand(node.children[0], depth + 1))))

    def _disjunction(self, node: Any, depth: int) -> Operand:
        return self._condition_of(node, _any_of(self._conditions(node, depth)))

    def _conjunction(self, node: Any, depth: int) -> Operand:
        return self._condition_of(node, _all_of(self._conditions(node, depth)))

    def _conditions(self, node: Any, depth: int) -> list[Test]:
        return [self.condition(self.operand(child, depth + 1)) for child in node.children]

    @staticmethod
    def _condition_of(node: Any, test: Test) -> Operand:
        return Operand(OperandKind.CONDITION, test, node)

    # ------------------------------------------------------------------ comparisons

    def _equality(self, node: Any, depth: int) -> Operand:
        left, sign, right = node.children
        test = self._same(self.operand(left, depth + 1), self.operand(right, depth + 1))
        return self._condition_of(node, test if sign == "=" else _not(test))

    def _same(self, left: Operand, right: Operand) -> Test:
        kinds = {left.kind, right.kind}
        if OperandKind.CONDITION in kinds:
            if OperandKind.NUMBER in kinds or OperandKind.TEXT in kinds:
                other = left if right.kind is OperandKind.CONDITION else right
                raise self._error(other.node, f"{other.kind.value} is never the same as a truth value")
            return _equal(self.condition(left), self.condition(right))
        if OperandKind.NUMBER in kinds:
            return _equal(self._number(left), self._number(right))
        if kinds == {OperandKind.HEADER}:
            first, second = left.get, right.get
            return lambda values: same(first(values), second(values))
        return _equal_text(left.get, right.get)

    def _order(self, node: Any, depth: int) -> Operand:
        left, sign, right = node.children
        compare = _ORDERS[sign]
        first = self._number(self.operand(left, depth + 1))
        second = self._number(self.operand(right, depth + 1))

        def test(values: Values) -> bool | None:
            a = first(values)
            if a is None:
                return None
            b = second(values)
            return None if b is None else compare(a, b)

        return self._condition_of(node, test)

    def _between(self, node: Any, depth: int) -> Operand:
        middle, low, high = [self._number(self.operand(child, depth + 1)) for child in node.children]

        def at_least(values: Values) -> bool | None:
            a, b = middle(values), low(values)
            return None if a is None or b is None else a >= b

        def at_most(values: Values) -> bool | None:
            a, b = middle(values), high(values)
            return None if a is None or b is None else a <= b

        return self._condition_of(node, _all_of([at_least, at_most]))

    def _not_between(self, node: Any, depth: int) -> Operand:
        return self._condition_of(node, _not(self._between(node, depth).get))

    def _in(self, node: Any, depth: int) -> Operand:
        operand = self.operand(node.children[0], depth + 1)
        numbers: set[Number] = set()
        texts: set[str] = set()
        for item in node.children[1:]:
            if getattr(item, "type", "") == "STRING":
                texts.add(_string_of(item))
            else:
                sign, digits = item.children
                number = self._number_of(digits)
                numbers.add(-number if sign == "-" else number)
        if operand.kind is OperandKind.CONDITION:
            raise self._error(operand.node, "a condition can't be looked for in a list")
        if not texts:
            return self._condition_of(node, _one_of_numbers(self._number(operand), frozenset(numbers)))
        if operand.kind is OperandKind.NUMBER:
            raise self._error(operand.node, "a number can't be looked for in a list of texts")
        return self._condition_of(node, _one_of(operand.get, frozenset(texts), frozenset(numbers)))

    def _not_in(self, node: Any, depth: int) -> Operand:
        return self._condition_of(node, _not(self._in(node, depth).get))

    def _like(self, node: Any, depth: int) -> Operand:
        subject, pattern, escape = node.children
        look = self._textual(self.operand(subject, depth + 1))
        self._like_chars += len(pattern)
        if self._like_chars > LIKE_CHARS_MAX:
            raise self._error(
                pattern, f"the patterns of LIKE have more than {LIKE_CHARS_MAX} characters together: shorten them"
            )
        mark = None if escape is None else _string_of(escape)
        if mark is not None and len(mark) != 1:
            raise self._error(escape, "ESCAPE takes one character")
        self.cost += LIKE_COST
        try:
            self._loose_chars += loose_chars(_string_of(pattern), mark)
            matches = like(_string_of(pattern), mark)
        except PatternError as error:
            raise self._error(pattern, str(error)) from None
        self.cost += self._loose_chars
        if self._loose_chars > LOOSE_CHARS_MAX:
            raise self._error(
                pattern,
                "a part of a LIKE pattern that has _ and stands between two % takes at most "
                f"{LOOSE_CHARS_MAX} characters (the longest of each pattern, together): shorten it",
            )

        def test(values: Values) -> bool | None:
            text = as_text(look(values))
            return None if text is None else matches(text)

        return self._condition_of(node, test)

    def _not_like(self, node: Any, depth: int) -> Operand:
        return self._condition_of(node, _not(self._like(node, depth).get))

    def _is_null(self, node: Any, depth: int) -> Operand:
        operand = self.operand(node.children[0], depth + 1)
        if operand.kind is not OperandKind.HEADER:
            raise self._error(
                operand.node, f"only a header can be missing (NULL), {operand.kind.value} is always there"
            )
        look = operand.get
        return self._condition_of(node, lambda values: look(values) is None)

    def _is_not_null(self, node: Any, depth: int) -> Operand:
        return self._condition_of(node, _not(self._is_null(node, depth).get))

    # ------------------------------------------------------------------ arithmetic

    def _sum(self, node: Any, depth: int) -> Operand:
        self._look_for_hyphens(node)
        return self._chain(node, depth)

    def _product(self, node: Any, depth: int) -> Operand:
        return self._chain(node, depth)

    def _chain(self, node: Any, depth: int) -> Operand:
        first = self._number(self.operand(node.children[0], depth + 1))
        steps = [
            (_RECKONINGS[str(sign)], self._number(self.operand(child, depth + 1)))
            for sign, child in zip(node.children[1::2], node.children[2::2], strict=True)
        ]

        def count(values: Values) -> Number | None:
            result = first(values)
            for reckon, other in steps:
                if result is None:
                    return None
                number = other(values)
                result = None if number is None else reckon(result, number)
            return result

        return Operand(OperandKind.NUMBER, count, node)

    def _look_for_hyphens(self, node: Any) -> None:
        """Refuse `x-priority`, which would be the difference of two missing headers and select nothing."""
        parts = node.children
        for place in range(1, len(parts), 2):
            before, sign, after = parts[place - 1 : place + 2]
            if (
                sign == "-"
                and getattr(before, "data", "") == getattr(after, "data", "") == "name"
                and before.meta.end_pos == sign.start_pos
                and sign.end_pos == after.meta.start_pos
            ):
                both = f"{before.children[0]}-{after.children[0]}"
                raise self._error(
                    before,
                    f'{quoted(both)} reads as a difference: write "{both[:40]}" for a header, or blanks around the -',
                )

    def _plus(self, node: Any, depth: int) -> Operand:
        return Operand(OperandKind.NUMBER, self._number(self.operand(node.children[-1], depth + 1)), node)

    def _minus(self, node: Any, depth: int) -> Operand:
        get = self._number(self.operand(node.children[-1], depth + 1))

        def count(values: Values) -> Number | None:
            number = get(values)
            return None if number is None else -number

        return Operand(OperandKind.NUMBER, count, node)


def _string_of(token: Any) -> str:
    return str(token[1:-1]).replace("''", "'")


def _plus(left: Number, right: Number) -> Number | None:
    return bounded(left + right)


def _less(left: Number, right: Number) -> Number | None:
    return bounded(left - right)


def _times(left: Number, right: Number) -> Number | None:
    return bounded(left * right)


def _over(left: Number, right: Number) -> Number | None:
    return None if right == 0 else bounded(left / right)


_RECKONINGS: Final[dict[str, Callable[[Number, Number], Number | None]]] = {
    "+": _plus,
    "-": _less,
    "*": _times,
    "/": _over,
}


def _not(test: Test) -> Test:
    return lambda values: negated(test(values))


def _all_of(tests: list[Test]) -> Test:
    def test(values: Values) -> bool | None:
        result: bool | None = True
        for each in tests:
            found = each(values)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return test


def _any_of(tests: list[Test]) -> Test:
    def test(values: Values) -> bool | None:
        result: bool | None = False
        for each in tests:
            found = each(values)
            if found:
                return True
            if found is None:
                result = None
        return result

    return test


def _equal(left: Callable[[Values], Any], right: Callable[[Values], Any]) -> Test:
    def test(values: Values) -> bool | None:
        a = left(values)
        if a is None:
            return None
        b = right(values)
        return None if b is None else a == b

    return test


def _equal_text(left: Look, right: Look) -> Test:
    return _equal(lambda values: as_text(left(values)), lambda values: as_text(right(values)))


def _one_of_numbers(get: Count, numbers: frozenset[Number]) -> Test:
    def test(values: Values) -> bool | None:
        number = get(values)
        return None if number is None else number in numbers

    return test


def _one_of(look: Look, texts: frozenset[str], numbers: frozenset[Number]) -> Test:
    def test(values: Values) -> bool | None:
        raw = look(values)
        if raw is None:
            return None
        return as_text(raw) in texts or (bool(numbers) and as_number(raw) in numbers)

    return test
